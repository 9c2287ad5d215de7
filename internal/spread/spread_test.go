package spread

import (
	"runtime"
	"sync/atomic"
	"testing"
)

func TestOver(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 1000} {
		calls := make([]atomic.Int32, n)
		Over(n, func(i int) { calls[i].Add(1) })
		for i := range calls {
			if c := calls[i].Load(); c != 1 {
				t.Errorf("Over(%d): %d calls for %d", n, c, i)
			}
		}
	}
}

// TestOverUsesProcessors makes every call wait for another one.
func TestOverUsesProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	meet := make(chan struct{})
	Over(2, func(i int) {
		if i == 0 {
			meet <- struct{}{}
		} else {
			<-meet
		}
	})
}
