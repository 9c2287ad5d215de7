package merge

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// swapPairs swaps pairs of words in memory, which begins at a multiple of 16 bytes, from what they are in base to what they are in other: the words
// [from, to), both even, of which there are some. It leaves pairs alone that other has as base. It returns the first pair that is not as in base, or to. note is as swapUnchanged says.
//
//go:noescape
func swapPairs(memory, base, other *uint64, from, to int, note *uint64) (done int)

// swapUnchanged gives words of memory that are as in base the values of other, from one on, and returns the next one that is to be merged by itself, or how many there are.
// The note is twice the first word that it has not changed, and one more while it changes two. Two words at once take 5 ns on a machine on which a compare-and-swap of one takes 4.5.
func swapUnchanged(memory, base, other []uint64, from int, note *uint64) int {
	to := len(memory) &^ 1
	if from&1 != 0 || from >= to || !cpu.X86.HasCX16 || uintptr(unsafe.Pointer(&memory[0]))&15 != 0 {
		return from
	}
	return swapPairs(&memory[0], &base[0], &other[0], from, to, note)
}

//go:noescape
func copyRows(to, from *uint64, n int)

// copyBlocks copies words, each of which it reads once, and returns how many: all, or all but the last seven. It reads two words at once, as diffUnits1 does.
func copyBlocks(to, from []uint64) int {
	n := min(len(to), len(from)) &^ 7
	if n > 0 {
		copyRows(&to[0], &from[0], n)
	}
	return n
}
