package merge

import (
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
			kill(rest(note, base, memory))
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
