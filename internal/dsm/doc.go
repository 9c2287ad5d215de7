// Package dsm holds the nouns of dsmfs: the typed identifiers, the attributes
// of an area and the facts about a file that every other package speaks of.
//
// It imports nothing of the project, owns no state and takes no lock, so that
// any package may use its words without learning about any other package.
package dsm
