//go:build !amd64

package merge

// swapUnchanged gives words of memory that are as in base the values of other, from one on, and returns the next one that is to be merged by itself: here that is the first.
func swapUnchanged(memory, base, other []uint64, from int, note *uint64) int { return from }

// copyBlocks copies words, each of which it reads once, and returns how many: here none.
func copyBlocks(to, from []uint64) int { return 0 }
