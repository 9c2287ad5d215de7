// Package pagetest is what the tests of pages, of pages/merge and of pages/residency share: random
// sources, pages to compare, and a program that stores into a page from another process.
package pagetest

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")

// Rand returns a seeded source and logs the seed.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Rounds returns how many rounds of n a test with random input makes: fewer with -short, and fewest with the race detector, which
// makes a comparison with a reference more than ten times slower, and sees all that it can in one round.
func Rounds(n int) int {
	switch {
	case Race:
		n /= 10
	case testing.Short():
		n /= 4
	}
	return max(n, 1)
}

// PageOf returns a page full of b.
func PageOf(b byte) []byte { return bytes.Repeat([]byte{b}, dsm.PageSize) }

// WantPage fails the test unless got is want, shown by its first difference.
func WantPage(t testing.TB, what string, got, want []byte) {
	t.Helper()
	for i := range want {
		if len(got) != len(want) || got[i] != want[i] {
			t.Fatalf("%s: byte %d is %d, want %d", what, i, got[i], want[i])
		}
	}
}

// AlignedPage returns a copy of b, a page, that begins on a word.
func AlignedPage(b []byte) []byte {
	p := unsafe.Slice((*byte)(unsafe.Pointer(&make([]uint64, dsm.PageSize/8)[0])), dsm.PageSize)
	copy(p, b)
	return p
}

// PerPage reports what an operation on a page takes.
func PerPage(b *testing.B) {
	b.SetBytes(dsm.PageSize)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/page")
}
