package merge

import (
	"sync/atomic"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
)

// An attached program stores into the working copy itself, at any time, from another process, with
// plain stores or atomic operations on elements of 1 to 8 bytes. The functions of this file work on
// a page of such memory. They touch it only by loads and compare-and-swaps of aligned words of
// eight bytes, or of two words where that is an instruction:
//
//   - A load of a word contains every aligned element in it whole.
//   - A swap succeeds only if no byte of the word has changed since it was loaded. So it loses no
//     store, not even one to a neighbour of the element that it is meant for. (If a byte was stored
//     to and stored back, it contains what the program stored last.) One swap is for all elements
//     of the word.
//
// A swap that fails is tried again with what is there now. It fails only because a store of a
// program has taken effect in between, so the program makes progress, as with any lock-free
// algorithm. To delay the daemon a program would have to store to one word without a pause,
// faster than a load and a swap follow each other, which does not go on for long by chance.
//
// The elements are little-endian, so element 0 is in the lowest bits of a word. A race detector
// does not see accesses of other processes or to mapped memory.

// MergeShared is Merge of page p into memory that other processes may be storing to; base and
// incoming are private. working begins at a multiple of eight bytes. Each element ends as Merge
// would have left it at some moment between the stores of the programs, and no store is lost. A
// word in which incoming equals base is not even read, so it stays as clean in caches and page
// tables as it was. Where nobody has stored, MergeShared simply copies incoming.
//
// As after Merge, incoming is the page's next base: what programs have stored, and will store, is
// the difference between the working copy and it. A program that loads an element, computes, and
// stores it back without an atomic operation undoes what was merged in between, and that undoing is
// part of the difference.
func (k Kernel) MergeShared(p dsm.PageIndex, base, working, incoming []byte) {
	k.swapPage(p, working, base, incoming, false, nil)
}

// StoreShared merges stored, which was made from base by stores, into page p of memory that other
// processes may be storing to. It is Merge with the memory as both the incoming side and the place
// of the result.
func (k Kernel) StoreShared(p dsm.PageIndex, base, working, stored []byte) {
	k.swapPage(p, working, base, stored, true, nil)
}

// swapPage merges other into memory. own says that other is the local side of the merge and memory
// the incoming one; otherwise it is the other way round. It takes notes, if n is not nil.
func (k Kernel) swapPage(p dsm.PageIndex, memory, base, other []byte, own bool, n *noted) {
	checkAligned(memory)
	var buf few
	secs := k.sections(p, buf[:0])
	done := 0 // the bytes before it are merged
	for i, x := range secs {
		if lo, hi := max(done, (x.from+7)&^7), x.to&^7; lo < hi {
			swapWords(memory, base, other, lo, hi, own, x.mergeOfWords(), n)
			done = hi
		}
		if at := x.to &^ 7; x.to > done && x.to&7 != 0 {
			swapWords(memory, base, other, at, at+8, own, mergeOfWord(secs[i:], at), n)
			done = at + 8
		}
	}
}

// mergeOfWord returns the merge of the word at byte at of a page, in which the first of secs ends. Every section
// merges all of it, and contributes its part.
func mergeOfWord(secs []section, at int) wordMerge {
	type part struct {
		merge wordMerge
		own   uint64
	}
	var parts []part
	for _, s := range secs {
		if s.from >= at+8 {
			break
		}
		lo, hi := max(s.from-at, 0), min(s.to-at, 8)
		parts = append(parts, part{s.mergeOfWords(), span(lo*8, hi*8)})
	}
	return func(b, w, n uint64) (all uint64) {
		for _, p := range parts {
			all |= p.merge(b, w, n) & p.own
		}
		return all
	}
}

// swapWords is swapPage for the words [from, to), in bytes, whose result merge computes.
func swapWords(memory, base, other []byte, from, to int, own bool, merge wordMerge, n *noted) {
	if n != nil {
		n.swapWords(memory, base, other, from, to, own, merge)
		return
	}
	var note uint64 // nobody reads it
	for from < to {
		end := min(from&^(blockSize-1)+blockSize, to)
		if string(base[from:end]) == string(other[from:end]) {
			from = end
			continue
		}
		m, b, o := words(memory[from:end]), words(base[from:end]), words(other[from:end])
		b, o = b[:len(m)], o[:len(m)]
		for i := 0; i < len(m); i++ {
			if !own {
				if i = swapUnchanged(m, b, o, i, &note); i == len(m) {
					break
				}
			}
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

// OverwriteShared stores data at offset lo of a page that other processes may be storing to, each
// word once. A plain copy may write bytes twice, and so undo a store that a program made in
// between.
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

// Snapshot copies working, to which other processes may be storing, to dst, which is a page.
// working is a page of an Area, or the part of it before the end of the area; then the rest of dst
// becomes zero, whatever programs have stored past the end.
//
// Every aligned element of 1, 2, 4 or 8 bytes in dst was there at some moment. A plain copy may
// tear elements: copy routines move vectors that are aligned to the destination, or single bytes,
// and do not say which. Different words may be from different moments. What is diffed, kept, or
// sent as a reply must come from one snapshot: a second one may have other bytes.
func Snapshot(dst, working []byte) {
	checkAligned(working)
	d, n := words(dst), len(working)/8
	if n > 0 {
		w := words(working)
		to := d[:len(w)]
		for i := copyBlocks(to, w); i < len(w); i++ {
			to[i] = atomic.LoadUint64(&w[i])
		}
	}
	if rest := len(working) & 7; rest > 0 {
		w := words(working[:n*8+8]) // working is part of a larger page
		d[n] = atomic.LoadUint64(&w[n]) & (1<<(rest*8) - 1)
		n++
	}
	clear(dst[n*8:])
}

// AppendShared is AppendDelta for a page to which other processes may be storing. working is as in
// Snapshot, and snap is a page of the caller's. If the result is inexact, or k is a kernel of OnlyFinite, snap has exactly the
// bytes that were compared, which are what the delta accounts for; else it may have none.
//
// AppendDelta also reads each word only once, but if it is inexact its caller needs those bytes,
// and reading them again would account for stores that were not compared. With the rule last it is
// never inexact, so whole pages need no snapshot there.
func (k Kernel) AppendShared(d *Delta, p dsm.PageIndex, base, working, snap []byte) (changed, inexact bool) {
	if k.op == opLast && !k.onlyFinite && len(working) == dsm.PageSize {
		checkAligned(working)
		return k.AppendDelta(d, p, base, working)
	}
	if string(base[:len(working)]) == string(working) {
		return false, false
	}
	Snapshot(snap, working)
	return k.AppendDelta(d, p, base, snap)
}

// checkAligned panics if the words of a page cannot be swapped.
func checkAligned(b []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	invariants.Check(at&7 == 0, "shared memory at %#x is not aligned", at)
}
