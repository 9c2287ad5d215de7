package merge

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestNotedMergeIsDoneOnce: a merge of sums is cut short at any word, and once more, and a program stores in between. In the end each element has what the program has added, and what came in, once.
func TestNotedMergeIsDoneOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const p, head = 1, dsm.PageSize + 1000 // the page begins with a header
	for round := range 3000 {
		dtype, own := []dsm.DType{dsm.DTypeI64, dsm.DTypeI32, dsm.DTypeU8}[round%3], round%2 != 0 // own: what comes is what a program has stored
		k := kernelOf(t, dsm.MergeSum, dsm.Layout{DType: dtype, DataOffset: head})
		if !k.Adds() {
			t.Fatal("a sum does not add")
		}
		base, incoming := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
		fillRandom(rng, base)
		copy(incoming, base)
		for range 1 + rng.IntN(60) {
			incoming[1000+rng.IntN(dsm.PageSize-1000)] ^= byte(1 + rng.IntN(255))
		}
		memory := append([]byte(nil), base...)
		for range rng.IntN(40) { // what the program has stored
			at := 1000 + rng.IntN(dsm.PageSize-1010)
			fillRandom(rng, memory[at:at+1+rng.IntN(10)])
		}
		want := append([]byte(nil), memory...)
		again := k.MergeRest
		if own {
			want = append([]byte(nil), incoming...)
			k.Merge(p, base, want, memory, nil)
			again = k.StoreRest
		} else {
			k.Merge(p, base, want, incoming, nil)
		}
		note := make([]byte, NoteSize)
		run := func(f func()) {
			defer func() {
				if r := recover(); r != nil && r != errKilled {
					panic(r)
				}
			}()
			f()
		}
		kill := func(n *noted) {
			calls := 0
			most := rng.IntN(40)
			run(func() {
				n.changes = func(i int, is, will uint64, place []uint64) {
					if calls++; calls <= most {
						return
					}
					if rng.IntN(3) > 0 { // it has been noted
						place[noteWord], place[noteWas], place[noteDone] = uint64(i)+1, is, 0
						if rng.IntN(2) == 0 {
							words(memory)[i] = will
						}
					}
					panic(errKilled)
				}
				n.swaps = func(m, b, o []uint64, from int, note *uint64) int { // as swapUnchanged
					for i := from; from&1 == 0 && i+1 < len(m); i += 2 {
						switch {
						case b[i] == o[i] && b[i+1] == o[i+1]:
							continue
						case b[i] != m[i] || b[i+1] != m[i+1]:
							return i
						}
						if calls++; calls <= most {
							m[i], m[i+1], *note = o[i], o[i+1], uint64(2*i+4)
							continue
						}
						switch rng.IntN(4) {
						case 0:
						case 1:
							*note = uint64(2*i + 1)
						case 2:
							m[i], m[i+1], *note = o[i], o[i+1], uint64(2*i+1)
						case 3:
							m[i], m[i+1], *note = o[i], o[i+1], uint64(2*i+4)
						}
						panic(errKilled)
					}
					if from&1 == 0 {
						from = max(from, len(m)&^1)
					}
					return from
				}
				k.swapPage(p, memory, base, incoming, own, n)
			})
		}
		kill(&noted{note: words(note)})
		if rng.IntN(2) == 0 { // the next one, too
			kill(rest(note, base, memory, incoming))
		}
		again(note, p, base, memory, incoming)
		if string(memory) != string(want) {
			t.Fatalf("%v, round %d: it is not merged once", dtype, round)
		}
		again(note, p, base, memory, incoming) // all is done
		if string(memory) != string(want) {
			t.Fatalf("%v, round %d: it is merged twice", dtype, round)
		}
	}
}

const errKilled = "killed"

// TestPairThatWasNotSwapped: a program stores to one word of a pair just before it is swapped, and the process is killed before the note says that the swap has failed. The other word tells it.
func TestPairThatWasNotSwapped(t *testing.T) {
	for _, r := range []dsm.MergeRule{dsm.MergeSum, dsm.MergeLast} {
		k := mustKernel(t, r, dsm.DTypeI64, 0)
		base, memory, incoming := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
		put := func(b []byte, i int, v uint64) { binary.LittleEndian.PutUint64(b[8*i:], v) }
		for i := range 16 {
			put(incoming, i, 100)
		}
		for i := range 4 {
			put(memory, i, 100) // done
		}
		put(memory, 5, 7) // the program, between compare and swap
		note := make([]byte, NoteSize)
		put(note, noteUnchanged, 2*4+1)
		want := append([]byte(nil), incoming...)
		put(want, 5, 107)
		if r == dsm.MergeLast {
			put(want, 5, 7)
		}
		k.MergeRest(note, 0, base, memory, incoming)
		for i := range 16 {
			if g, w := binary.LittleEndian.Uint64(memory[8*i:]), binary.LittleEndian.Uint64(want[8*i:]); g != w {
				t.Errorf("%v: word %d is %d, want %d", r, i, g, w)
			}
		}
	}
}
