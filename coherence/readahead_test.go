package coherence

import (
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// reader is a program that reads pages in some order; what it does not find it waits
// for, and readahead is asked.
type reader struct {
	ahead  readahead
	here   map[int64]bool
	waits  int
	pushed int
	window int
}

func (r *reader) read(p int64, n int) {
	have := true
	for i := range int64(n) {
		have = have && r.here[p+i]
	}
	if have {
		return
	}
	r.waits++
	for i := range int64(n) {
		r.here[p+i] = true
		r.pushed++
	}
	first, stride, count := r.ahead.next(p*dsm.PageSize, n*dsm.PageSize, r.window)
	for i := range count {
		if at := int64(first) + int64(i)*stride; at >= 0 && !r.here[at] {
			r.here[at] = true
			r.pushed++
		}
	}
}

func TestReadahead(t *testing.T) {
	const pages = 10_000
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name       string
		size       int // of a read, in pages
		at         func(i int) int64
		reads      int
		waits, all int // at most; all: pages fetched
	}{
		{"forwards", 1, func(i int) int64 { return int64(i) }, pages, 30, pages + 1100},
		{"by READs of 128 KiB", 32, func(i int) int64 { return int64(i) * 32 }, pages / 32, 30, pages + 1100},
		{"backwards", 1, func(i int) int64 { return pages - int64(i) }, pages, 30, pages + 1100},
		{"every 16th", 1, func(i int) int64 { return int64(i) * 16 }, pages, 30, pages + 1100},
		{"every 100th backwards", 1, func(i int) int64 { return int64(pages-i) * 100 }, pages, 30, pages + 1100},
		{"three at once", 1, func(i int) int64 { return int64(i%3)*1_000_000 + int64(i/3) }, pages, 90, pages + 3300},
		{"random", 1, func(int) int64 { return rng.Int64N(1 << 20) }, pages, pages, pages + pages/10},
	} {
		r := &reader{here: make(map[int64]bool), window: 1024}
		for i := range c.reads {
			r.read(c.at(i), c.size)
		}
		t.Logf("%s: %d waits, %d pages fetched", c.name, r.waits, r.pushed)
		if r.waits > c.waits || r.pushed > c.all {
			t.Errorf("%s: %d waits and %d pages fetched: want at most %d and %d", c.name, r.waits, r.pushed, c.waits, c.all)
		}
	}
}

// What is read ahead is bounded by the window, whatever comes, and no stream runs off.
func TestReadaheadBounds(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	var r readahead
	at := int64(0)
	for range 100_000 {
		switch rng.IntN(4) {
		case 0:
			at = rng.Int64N(1 << 30)
		case 1:
			at = max(at-rng.Int64N(300), 0)
		default:
			at += rng.Int64N(3)
		}
		window := rng.IntN(64)
		_, stride, count := r.next(at*dsm.PageSize, dsm.PageSize*(1+rng.IntN(8)), window)
		if count < 0 || count > max(window, 0)+1 || stride == 0 || abs(stride) > farthest {
			t.Fatalf("seed %d: %d pages by %d, window %d", seed, count, stride, window)
		}
	}
}
