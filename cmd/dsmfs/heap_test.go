package main

import (
	"math"
	"runtime/debug"
	"testing"
)

// TestHeapHasWhatPagesLeave: the bound of Go's heap follows what pages take.
func TestHeapHasWhatPagesLeave(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "")
	taken := boundHeap(256 << 20)
	for pages, want := range map[int64]int64{0: 296 << 20, 256 << 20: 40 << 20, 300 << 20: leastHeap} {
		taken(pages)
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("with %d bytes of pages Go may take %d, want %d", pages, got, want)
		}
	}
	debug.SetMemoryLimit(math.MaxInt64)
	t.Setenv("GOMEMLIMIT", "1GiB")
	if boundHeap(256<<20) != nil || debug.SetMemoryLimit(-1) != math.MaxInt64 {
		t.Error("GOMEMLIMIT is overruled")
	}
}
