package groups

import (
	"maps"
	"slices"
	"time"
)

// leaseRetry is the time until a node that has something to tell, and no lease, looks whether it has one again.
const leaseRetry = 50 * time.Millisecond

// mayTellLocked reports whether programs and other nodes may be told what was decided. It is asked when that is done. If they may not, all of it
// stays, and goOn is called later.
func (n *Node) mayTellLocked() bool {
	if n.cfg.MayTell() {
		return true
	}
	if !n.mu.withheld && !n.mu.closed {
		n.mu.withheld = true
		n.cfg.later(n.goOn)
	}
	return false
}

// goOn tells what was withheld, if it may be told now. Every step wakes the programs that may be woken.
func (n *Node) goOn() {
	n.step(func() {
		n.mu.withheld = false
		for _, id := range slices.Sorted(maps.Keys(n.mu.coordinators)) {
			n.decidedLocked(n.mu.coordinators[id])
		}
	})
}
