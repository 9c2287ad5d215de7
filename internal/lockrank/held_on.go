//go:build invariants

package lockrank

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

var ranks = sync.OnceValue(func() order {
	o, err := parse(orderText)
	if err != nil {
		panic(err)
	}
	return o
})

// declared panics for a rank that the text does not have.
func declared(r Rank) Rank {
	if _, ok := ranks()[r]; !ok {
		panic(fmt.Sprintf("lockrank: %q has no line in order.txt", r))
	}
	return r
}

// holding is a lock that a goroutine has or is about to have.
type holding struct {
	lock any // *Mutex or *RWMutex
	rank Rank
	at   []uintptr
}

// held is what every goroutine holds, in the order taken. One lock for all is
// slow and simple; it exists only in invariants builds.
var held struct {
	sync.Mutex
	by map[uintptr][]holding // by goroutine
}

// acquire records that the calling goroutine is taking the lock, before it waits for it: so a wrong
// order is reported even if the wait would never end.
func acquire(lock any, r Rank) {
	if r == "" {
		panic("lockrank: a lock is used before Init")
	}
	me := goroutine()
	at := make([]uintptr, 16)
	at = at[:runtime.Callers(3, at)]
	held.Lock()
	defer held.Unlock()
	for _, h := range held.by[me] {
		if !ranks()[h.rank][r] {
			panic(fmt.Sprintf("lockrank: %s is taken while %s is held, and order.txt has no %s < %s; %s was taken at\n%s",
				r, h.rank, h.rank, r, h.rank, frames(h.at)))
		}
	}
	if held.by == nil {
		held.by = make(map[uintptr][]holding)
	}
	held.by[me] = append(held.by[me], holding{lock, r, at})
}

// release forgets the lock. A mutex may be unlocked by a goroutine that did not lock it; for a read
// lock the goroutine's own list is searched first.
func release(lock any) {
	me := goroutine()
	held.Lock()
	defer held.Unlock()
	if forgetLocked(me, lock) {
		return
	}
	for other := range held.by {
		if forgetLocked(other, lock) {
			return
		}
	}
}

// forgetLocked removes the newest entry of the lock from a goroutine's list.
func forgetLocked(g uintptr, lock any) bool {
	list := held.by[g]
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].lock != lock {
			continue
		}
		if len(list) == 1 {
			delete(held.by, g)
		} else {
			held.by[g] = append(list[:i:i], list[i+1:]...)
		}
		return true
	}
	return false
}

func frames(pcs []uintptr) string {
	var b strings.Builder
	for it := runtime.CallersFrames(pcs); ; {
		f, more := it.Next()
		fmt.Fprintf(&b, "\t%s %s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return b.String()
		}
	}
}
