package merge

import (
	"sync/atomic"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
)

// An attached program stores into the working copy itself, at any time, from
// another process, with plain stores or atomic operations on elements of 1 to 8
// bytes. The functions of this file work on a page of such memory. They
// touch it only by loads and compare-and-swaps of aligned words of eight bytes:
//
//   - A load of a word has every aligned element in it whole.
//   - A swap succeeds only if no byte of the word has changed since it was loaded,
//     so it loses no store: not one to a neighbour of the element that it is for, of
//     whatever size. (A byte that was stored to and stored back holds what the program
//     stored last.) One swap serves all elements of the word.
//
// A swap that fails is tried again with what is there now. It fails only because
// a store of a program has taken effect in between, so there is progress at
// every step, as with any lock-free algorithm; a program would have to store to
// one word without a pause, faster than a load and a swap follow each other, to
// hold up the daemon, and it cannot do so for long by chance.
//
// The elements are little-endian, so element 0 is in the lowest bits of a word.
// A race detector sees nothing of other processes, nor of mapped memory.

// MergeShared is Merge of page p into memory that other processes store to at the
// same moment; base and incoming are not. working begins on a word of eight
// bytes. Each element ends as Merge would have left it at some moment between the
// stores of the programs, and none of these is lost. A word in which incoming is
// as base is not even read, so it stays as clean in caches and page tables as it
// was. Where nobody has stored this is how to copy incoming.
//
// As after Merge, incoming is the page's next base: what the programs have stored, and
// will, is the difference of the working copy from it. A program that loads an
// element, computes, and stores it back without an atomic operation undoes what
// was merged in between, and the difference says so.
func (k Kernel) MergeShared(p dsm.PageIndex, base, working, incoming []byte) {
	k.swapPage(p, working, base, incoming, false)
}

// StoreShared merges stored, which was made by stores on top of base, into page p
// of memory that other processes store to: Merge with the memory as what comes
// in and as the place of the result.
func (k Kernel) StoreShared(p dsm.PageIndex, base, working, stored []byte) {
	k.swapPage(p, working, base, stored, true)
}

// swapPage merges other into memory. own says that other is the local side of the
// merge and memory the incoming one, else it is the other way round.
func (k Kernel) swapPage(p dsm.PageIndex, memory, base, other []byte, own bool) {
	checkAligned(memory)
	secs, n := k.sections(p)
	first := k.mergeOfWords(secs[0])
	end := secs[0].to
	swapWords(memory, base, other, 0, end&^7, own, first)
	if n == 1 {
		return // a page without a second section ends on a word
	}
	second := k.mergeOfWords(secs[1])
	if shift := end & 7 * 8; shift > 0 {
		// The header ends in this word. Both merge all of it, and each gives its part.
		swapWords(memory, base, other, end&^7, end&^7+8, own, func(b, w, n uint64) uint64 {
			head := uint64(1)<<shift - 1
			return first(b, w, n)&head | second(b, w, n)&^head
		})
	}
	swapWords(memory, base, other, (end+7)&^7, dsm.PageSize, own, second)
}

// swapWords is swapPage for the words [from, to), in bytes, that merge gives the
// result of.
func swapWords(memory, base, other []byte, from, to int, own bool, merge wordMerge) {
	for from < to {
		end := min(from&^(blockSize-1)+blockSize, to)
		if string(base[from:end]) == string(other[from:end]) {
			from = end
			continue
		}
		m, b, o := words(memory[from:end]), words(base[from:end]), words(other[from:end])
		b, o = b[:len(m)], o[:len(m)]
		for i := range m {
			if b[i] == o[i] {
				continue
			}
			for {
				is := atomic.LoadUint64(&m[i])
				w, n := is, o[i]
				if own {
					w, n = n, w
				}
				if will := merge(b[i], w, n); will == is || atomic.CompareAndSwapUint64(&m[i], is, will) {
					break
				}
			}
		}
		from = end
	}
}

// OverwriteShared puts data at offset lo of a page that other processes store to,
// each word once: a copy may write bytes twice, and undo the store that a program
// made on top of the first time.
func OverwriteShared(working []byte, lo int, data []byte) {
	checkAligned(working)
	w := words(working)
	for len(data) > 0 {
		at := lo & 7
		n := min(8-at, len(data))
		p := &w[lo/8]
		if n == 8 {
			atomic.StoreUint64(p, words(data)[0])
		} else {
			var part [8]byte
			copy(part[at:], data[:n])
			own := (uint64(1)<<(n*8) - 1) << (at * 8)
			for {
				is := atomic.LoadUint64(p)
				if atomic.CompareAndSwapUint64(p, is, is&^own|words(part[:])[0]) {
					break
				}
			}
		}
		lo, data = lo+n, data[n:]
	}
}

// Snapshot copies to dst, a page, the bytes of working, which other processes
// store to. working is a page of an Area, or its part before the end of the area:
// the rest of dst becomes zero, whatever programs have stored past the end.
//
// Every element of 1, 2, 4 or 8 bytes, aligned to its size, is one that was
// there at some moment. A plain copy may tear it: the copy routines move vectors
// aligned to the destination, or bytes, and say nothing of which. Different
// words may be of different moments. What is diffed, kept, or sent as a reply
// must be one snapshot: a second one may have other bytes.
func Snapshot(dst, working []byte) {
	checkAligned(working)
	d, n := words(dst), len(working)/8
	if n > 0 {
		w := words(working)
		to := d[:len(w)]
		for i := range w {
			to[i] = atomic.LoadUint64(&w[i])
		}
	}
	if rest := len(working) & 7; rest > 0 {
		w := words(working[:n*8+8]) // the page goes on
		d[n] = atomic.LoadUint64(&w[n]) & (1<<(rest*8) - 1)
		n++
	}
	clear(dst[n*8:])
}

// AppendShared is AppendDelta of a page that other processes store to. working is
// as in Snapshot, and snap is a page of the caller's. If the result is inexact, snap has
// exactly the bytes that were diffed: what the delta accounts for.
//
// AppendDelta reads each word only once as well, but where it is inexact its caller
// needs those bytes, and reading them again would account for stores that were not
// diffed. The rule last never is, so a whole page needs no snapshot there.
func (k Kernel) AppendShared(d *Delta, p dsm.PageIndex, base, working, snap []byte) (changed, inexact bool) {
	if !k.sum && len(working) == dsm.PageSize {
		checkAligned(working)
		return k.AppendDelta(d, p, base, working)
	}
	if string(base[:len(working)]) == string(working) {
		return false, false
	}
	Snapshot(snap, working)
	return k.AppendDelta(d, p, base, snap)
}

// checkAligned checks that the words of a page can be swapped.
func checkAligned(b []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	invariants.Check(at&7 == 0, "shared memory at %#x is not aligned", at)
}
