package coherence

import (
	"runtime"
	"sync/atomic"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 1000} {
		calls := make([]atomic.Int32, n)
		spread(n, func(i int) { calls[i].Add(1) })
		for i := range calls {
			if c := calls[i].Load(); c != 1 {
				t.Errorf("spread(%d): %d calls for %d", n, c, i)
			}
		}
	}
}

// TestSpreadUsesProcessors makes every call wait for another one.
func TestSpreadUsesProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	meet := make(chan struct{})
	spread(2, func(i int) {
		if i == 0 {
			meet <- struct{}{}
		} else {
			<-meet
		}
	})
}
