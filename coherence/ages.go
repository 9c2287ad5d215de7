package coherence

import (
	"fmt"
	"math/bits"
	"strconv"
	"sync/atomic"
	"time"
)

// ages has histograms of how old memory was: at reads when they returned, and at syncs before they brought anything.
type ages struct{ reads, syncs histogram }

func atRead(s *ages) *histogram { return &s.reads }
func atSync(s *ages) *histogram { return &s.syncs }

// histogram counts times: those of up to 1 ms, up to 2 ms, up to 4 ms and so on, and those that are longer than the last.
type histogram [histogramBounds + 1]atomic.Uint64

// histogramBounds is the number of bounds: the last one is 65.536 s.
const histogramBounds = 17

func (h *histogram) add(d time.Duration) {
	ms := uint64(max(d-1, 0) / time.Millisecond) // up to n ms counts as less than n
	h[min(bits.Len64(ms), histogramBounds)].Add(1)
}

// stats returns the figures of a histogram. Each counts what is at most the time in its name, and above the one before.
func (h *histogram) stats(name string, all bool) (list []Stat) {
	for i := range h {
		bound := "more"
		if i < histogramBounds {
			bound = fmt.Sprintf("%dms", 1<<i)
		}
		if n := h[i].Load(); all || n > 0 {
			list = append(list, Stat{name + "_" + bound, strconv.FormatUint(n, 10)})
		}
	}
	return list
}

func (s *ages) stats(all bool) []Stat {
	return append(s.reads.stats("read_staleness", all), s.syncs.stats("sync_staleness", all)...)
}
