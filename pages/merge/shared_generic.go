//go:build !amd64

package merge

// swapUnchanged gives the first words of memory that are as in base the values of other, and returns how many it has looked at: here none.
func swapUnchanged(memory, base, other []uint64) int { return 0 }
