package main

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// leftovers gives the system back what the daemon's own records of removed files took. Go would collect it when as much again
// has been allocated, which a node that is idle afterwards does not, or after some minutes.
type leftovers struct {
	removed atomic.Int64 // files since the last time
	free    func()       // debug.FreeOSMemory
}

const (
	// manyRemoved is after how many removed files a collection is worth its price, of the order of 100 ms of a processor.
	manyRemoved = 1000
	// removeQuiet is for how long no file must have been removed.
	removeQuiet = time.Second
)

func newLeftovers() *leftovers { return &leftovers{free: debug.FreeOSMemory} }

// add counts a removed file.
func (l *leftovers) add() {
	if n := l.removed.Add(1); n == manyRemoved {
		l.later(n)
	}
}

// later looks again whether more than n were removed.
func (l *leftovers) later(n int64) {
	time.AfterFunc(removeQuiet, func() {
		if l.removed.CompareAndSwap(n, 0) {
			l.free()
			return
		}
		l.later(l.removed.Load())
	})
}
