package dsm

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRangeIsItsPages(t *testing.T) {
	for range 2000 {
		from, to := rand.IntN(ExtentPages+1), rand.IntN(ExtentPages+1)
		var want []int
		for i := from; i < to; i++ {
			want = append(want, i)
		}
		s := Range(from, to)
		if got := slices.Collect(s.All()); !slices.Equal(got, want) || s.Len() != len(want) {
			t.Fatalf("Range(%d, %d) = %v", from, to, got)
		}
	}
}

func TestRunsAreTheSet(t *testing.T) {
	for round := range 2000 {
		var s PageSet
		for range round % 9 {
			from := rand.IntN(ExtentPages + 1)
			s = s.Or(Range(from, min(from+rand.IntN(100), ExtentPages)))
		}
		var got PageSet
		last := -1
		for from, to := range s.Runs() {
			if from <= last || to <= from {
				t.Fatalf("%x: run [%d, %d) after %d", s, from, to, last)
			}
			got = got.Or(Range(from, to))
			last = to
		}
		if got != s {
			t.Fatalf("runs of %x are %x", s, got)
		}
	}
}
