// Package spread has several processors do one job.
package spread

import (
	"runtime"
	"sync/atomic"
)

// Over calls f for 0 to n-1, on as many processors as are idle, and returns when all calls have.
// The caller takes part, so nothing waits for a goroutine that has not begun.
func Over(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var next, done atomic.Int64
	all := make(chan struct{})
	work := func() {
		for {
			i := next.Add(1) - 1
			if i >= int64(n) {
				return
			}
			f(int(i))
			if done.Add(1) == int64(n) {
				close(all)
			}
		}
	}
	for range min(runtime.GOMAXPROCS(0), n) - 1 {
		go work()
	}
	if n > 0 {
		work()
		<-all
	}
}
