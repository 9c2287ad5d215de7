// Package dsm defines the nouns of dsmfs: the typed identifiers, the attributes of an area, and the
// facts about a file that all other packages use.
//
// It imports nothing of the project, owns no state and takes no lock, so that any package may use
// it without depending on another package.
package dsm
