package pages

import (
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// counted is an arena that counts how often it gives memory back.
func counted(t *testing.T) (a *arena, calls *int) {
	a, calls = newArena(), new(int)
	back := a.back
	a.back = func(mem []byte) error {
		*calls++
		return back(mem)
	}
	t.Cleanup(func() {
		for k := range a.mu.classes {
			for _, b := range a.mu.classes[k].open {
				if err := unix.Munmap(b.mem); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return a, calls
}

func (a *arena) mustTake(t *testing.T, n int64) piece {
	t.Helper()
	mem, p, err := a.take(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range mem {
		if b != 0 {
			t.Fatal("a new piece is not zero")
		}
	}
	for i := range mem {
		mem[i] = 1
	}
	return p
}

func (a *arena) mustGive(t *testing.T, p piece) {
	t.Helper()
	if err := a.give(p); err != nil {
		t.Fatal(err)
	}
}

// TestPiecesAreGivenBackInRanges: many pieces that are freed one after the other cost few calls, and come back zero.
func TestPiecesAreGivenBackInRanges(t *testing.T) {
	for class := range arenaClasses {
		a, calls := counted(t)
		n := int64(dsm.PageSize) << class
		pieces := make([]piece, 3*piecesOf(class))
		for range 2 {
			for i := range pieces {
				pieces[i] = a.mustTake(t, n)
			}
			*calls = 0
			for _, p := range pieces {
				a.mustGive(t, p)
			}
			if most := 3 * (unclean + 1); *calls > most {
				t.Errorf("%d calls for %d pieces of %d bytes, want %d at most", *calls, len(pieces), n, most)
			}
		}
		if k := len(a.mu.classes[class].open); k != 1 {
			t.Errorf("%d idle blocks are kept", k)
		}
	}
}

// TestFreeMany: pieces of many areas that are closed in any order cost a call for each block that stays, at most.
func TestFreeMany(t *testing.T) {
	a, calls := counted(t)
	pieces := make([]piece, 3*piecesOf(0))
	for i := range pieces {
		pieces[i] = a.mustTake(t, 1)
	}
	kept := pieces[len(pieces)-1] // of another node
	pieces = pieces[:len(pieces)-1]
	rand.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
	ended := a.freeMany()
	for _, p := range pieces {
		a.mustGive(t, p)
	}
	if *calls != 0 {
		t.Errorf("%d calls meanwhile", *calls)
	}
	if err := ended(); err != nil {
		t.Error(err)
	}
	open := a.mu.classes[0].open
	if len(open) != 2 || *calls > 2 {
		t.Errorf("%d blocks, %d calls", len(open), *calls)
	}
	for _, b := range open {
		if len(b.dirty) > 0 {
			t.Errorf("%d freed pieces take memory", len(b.dirty))
		}
	}
	a.mustGive(t, kept)
}

// TestFreedPiecesTakeLittle: whatever the order in which pieces are freed, a block keeps only a part of them.
func TestFreedPiecesTakeLittle(t *testing.T) {
	a, _ := counted(t)
	pieces := make([]piece, piecesOf(0))
	for i := range pieces {
		pieces[i] = a.mustTake(t, 1)
	}
	rest := slices.Clone(pieces[:0])
	for i, p := range pieces {
		if i%3 == 0 {
			rest = append(rest, p)
			continue
		}
		a.mustGive(t, p)
		if k := len(p.block.dirty); k >= piecesOf(0)/unclean {
			t.Fatalf("%d freed pieces take memory", k)
		}
	}
	for range len(pieces) - len(rest) {
		rest = append(rest, a.mustTake(t, 1))
	}
	if b := pieces[0].block; len(b.free)+len(b.dirty) != 0 || len(a.mu.classes[0].open) != 0 {
		t.Errorf("%d pieces are free, and %d to be cleaned, of a block of which all are taken", len(b.free), len(b.dirty))
	}
	for _, p := range rest {
		a.mustGive(t, p)
	}
}
