package uffd

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestPieces splits at random and compares with a table of addresses.
func TestPieces(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 3))
	for range 300 {
		const first, size = 1000, 64
		model := map[uint64]int64{}
		for i := range uint64(size) {
			model[first+i] = 500 + int64(i)
		}
		pieces := []piece{{first, first + size, 500}}
		for range 6 {
			from := first - 10 + random.Uint64N(size+20)
			to := from + random.Uint64N(20)
			pieces = without(pieces, from, to, func(p piece) {
				for a := p.start; a < p.end; a++ {
					if a < from || a >= to || model[a] != p.off+int64(a-p.start) {
						t.Fatalf("seed %d: [%d,%d) took %+v", seed, from, to, p)
					}
					delete(model, a)
				}
			})
			left := map[uint64]int64{}
			for _, p := range pieces {
				for a := p.start; a < p.end; a++ {
					left[a] = p.off + int64(a-p.start)
				}
			}
			if len(left) != len(model) {
				t.Fatalf("seed %d: %v, want %v", seed, left, model)
			}
			for a, off := range model {
				if left[a] != off {
					t.Fatalf("seed %d: at %d %d, want %d", seed, a, left[a], off)
				}
			}
		}
	}
}

// TestPageSet compares runs with a plain list.
func TestPageSet(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 4))
	for range 300 {
		pages := 1 + random.Int64N(300)
		s, want := newPageSet(pages), make([]bool, pages)
		for range random.IntN(8) {
			from := random.Int64N(pages)
			to := min(pages, from+random.Int64N(100))
			on := random.IntN(3) > 0
			if on {
				s.addRun(from, to)
			} else {
				s.removeRun(from, to)
			}
			for p := from; p < to; p++ {
				want[p] = on
			}
		}
		got, last := make([]bool, pages), int64(-1)
		s.runs(pages, func(from, to int64) {
			if from <= last || to <= from {
				t.Fatalf("seed %d: run [%d,%d) after %d", seed, from, to, last)
			}
			last = to
			s.removeRun(from, to)
			for p := from; p < to; p++ {
				got[p] = true
			}
		})
		if !slices.Equal(got, want) || slices.ContainsFunc(s, func(w uint64) bool { return w != 0 }) {
			t.Fatalf("seed %d: %v, want %v, left %v", seed, got, want, s)
		}
	}
}
