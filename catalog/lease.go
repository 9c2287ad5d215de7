package catalog

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// A lease is the leader's promise that no change of another node is made before this node has given
// the lease back. While it lasts, this node has applied everything except changes of its own that
// are under way, so a read costs no message. The leader's side is in grants.go.
//
//	node                                leader                        other node
//	   | ReadIndex --------------------->|                                 |
//	   |<------- ReadIndexed, with lease |                                 |
//	   | reads by itself                 |<---------------------- Propose  |
//	   |<------------------------ Recall |                                 |
//	   | Recalled ---------------------->|  append it to the log           |
//
// A lease ends by itself after leaseTime. The node that has it counts from before it asked, and the leader from after it was asked, so that it ends first at
// that node. The nodes need not agree on what time it is, only on how long a second is.
//
// Under a lease the kernel may keep names and attributes for a moment (Keep). There is no way to
// revoke these that neither blocks nor makes open files look deleted, so a lease is given back only
// when that moment is over. Nodes whose leases are often recalled do not let their kernel keep
// anything.

const (
	// leaseTime is how long changes wait for a node that has a lease and does not answer.
	leaseTime = 400 * time.Millisecond
	// keepTime is how long the kernel may keep what it is told.
	keepTime = 50 * time.Millisecond
	// keepGrace is how much later the kernel may begin to count: it does so when the thread that
	// asked runs again, on a machine that may be busy.
	keepGrace = 150 * time.Millisecond
	// After a change had to wait for a kernel, the kernel may not keep anything until no lease was
	// recalled for some time, between minCalm and maxCalm.
	minCalm, maxCalm = 100 * time.Millisecond, time.Second
	// calmAfter is when such waits are forgotten.
	calmAfter = 5 * maxCalm
)

// lease is this node's lease.
type lease struct {
	mu struct {
		lockrank.Mutex
		until    time.Time // when it ends; zero: there is none
		index    uint64    // of the log; to be applied before anything is read
		recalls  uint64    // how often it was, or might have been, recalled
		recalled time.Time // when it was last recalled
		kept     time.Time // until when the kernel may keep something
		calm     time.Duration
		renewing bool
	}
}

func (l *lease) init() { l.mu.Init("catalog.lease") }

// resume says that the kernel may keep what an earlier daemon has told it.
func (l *lease) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.kept = time.Now().Add(keepTime + keepGrace)
}

// leaseRequest is a question for the read index that may bring a lease.
type leaseRequest struct {
	asked   time.Time
	recalls uint64
}

// request begins a question. It is called before any node is asked.
func (l *lease) request() leaseRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return leaseRequest{time.Now(), l.mu.recalls}
}

// accept takes the lease that came with the index, unless it was recalled meanwhile: the recall may
// have overtaken it.
func (l *lease) accept(r leaseRequest, index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.recalls != r.recalls {
		return
	}
	if until := r.asked.Add(leaseTime); until.After(l.mu.until) {
		l.mu.until, l.mu.index = until, max(l.mu.index, index)
	}
}

// valid returns the index that must be applied before anything is read by the lease, if there is
// one. renew says that the caller, and nobody else, must ask for the next lease.
func (l *lease) valid() (index uint64, valid, renew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := time.Until(l.mu.until)
	if left <= 0 {
		return 0, false, false
	}
	renew = left < leaseTime/2 && !l.mu.renewing
	l.mu.renewing = l.mu.renewing || renew
	return l.mu.index, true, renew
}

func (l *lease) renewed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.renewing = false
}

// keep returns how long the kernel may keep the result of a read that begins now, if the kernel is
// told within keepGrace.
func (l *lease) keep() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	kept := now.Add(keepTime + keepGrace)
	if kept.After(l.mu.until) || now.Sub(l.mu.recalled) < l.mu.calm {
		return 0
	}
	l.mu.kept = kept
	return keepTime
}

// giveBack ends the lease. It returns when the kernel does not keep anything any more, or when ctx
// ends.
func (l *lease) giveBack(ctx context.Context) error {
	l.mu.Lock()
	now := time.Now()
	if now.Sub(l.mu.recalled) > calmAfter {
		l.mu.calm = 0
	}
	wait := l.mu.kept.Sub(now)
	if wait > 0 {
		l.mu.calm = min(max(2*l.mu.calm, minCalm), maxCalm)
	}
	l.mu.until = time.Time{}
	l.mu.recalls++
	l.mu.recalled = now
	l.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	over := time.NewTimer(wait)
	defer over.Stop()
	select {
	case <-over.C:
		return nil
	case <-ctx.Done():
		return gaveUp(ctx)
	}
}

// Keep returns how long the kernel of this node may keep the result of a read that begins now; 0:
// not at all. No other node changes it before.
func (c *Catalog) Keep() time.Duration {
	if c.calls.undecided() {
		return 0
	}
	return c.lease.keep()
}

// leased returns true when a read may look at what this node has applied, without asking anybody.
func (c *Catalog) leased(ctx context.Context) bool {
	index, valid, renew := c.lease.valid()
	if !valid {
		return false
	}
	if renew {
		go func() {
			defer c.lease.renewed()
			ctx, cancel := context.WithTimeout(c.life, leaseTime)
			defer cancel()
			_ = c.ask(ctx) // without an answer the lease runs out
		}()
	}
	// First this node's own changes, and then whether one of them was given up.
	if c.calls.settle(ctx, c.life) != nil || c.calls.undecided() {
		return false
	}
	if c.progress.reached(index, 0) {
		return true
	}
	// index was the end of the log of the leader that gave the lease. If that leader has died, the end of its log may never be
	// committed. So this waits no longer than a lease.
	ctx, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	return c.progress.wait(ctx, c.life, index, 0) == nil
}
