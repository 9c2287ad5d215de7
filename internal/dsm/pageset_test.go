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
