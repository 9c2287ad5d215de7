// Package history has the models that recorded histories of names and sizes must fit: what one
// directory, or one file, of a single machine would answer in some order. It has no state.
package history
