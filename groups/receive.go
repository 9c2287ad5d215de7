package groups

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Handles reports whether a message is one of groups.
func Handles(msg any) bool {
	switch msg.(type) {
	case *wire.GroupReport, *wire.GroupCall, *wire.GroupState:
		return true
	}
	return false
}

// Handle takes a message of another node. It does not wait. What cannot be is dropped: a node that is broken must not end this one.
func (n *Node) Handle(from dsm.NodeID, msg any) {
	if bad := fits(msg); bad != "" {
		n.cfg.Log.Warn("drop a message of a group", "node", from, "kind", fmt.Sprintf("%T", msg), "why", bad)
		return
	}
	n.step(func() { n.handleLocked(from, msg) })
}

// HandleNow is Handle for a goroutine that must not be delayed: a loop that serves many nodes. It returns false, and has done nothing, if
// another goroutine is at work, or there is much to do.
func (n *Node) HandleNow(from dsm.NodeID, msg any) bool {
	if extent(msg) > few || fits(msg) != "" || !n.mu.TryLock() {
		return false
	}
	n.handleLocked(from, msg)
	n.settleLocked(true)
	return true
}

// extent returns of how many members a message tells.
func extent(msg any) int {
	switch m := msg.(type) {
	case *wire.GroupReport:
		if m.Known != nil {
			return len(m.Seats) + len(m.Known.Members) + len(m.Known.Counters)
		}
		return len(m.Seats)
	case *wire.GroupState:
		return max(m.Size, len(m.Members), len(m.Came), len(m.Counters))
	}
	return 0
}

func (n *Node) handleLocked(from dsm.NodeID, msg any) {
	var group dsm.AreaID
	var epoch dsm.Epoch
	switch m := msg.(type) {
	case *wire.GroupReport:
		group, epoch = m.Group, m.Epoch
	case *wire.GroupCall:
		group, epoch = m.Group, m.Reign
	case *wire.GroupState:
		n.stateLocked(from, m)
		return
	}
	if epoch > n.mu.view.Epoch {
		n.parkLocked(from, group, msg)
		return
	}
	coordinator := n.coordinatorLocked(group)
	switch m := msg.(type) {
	case *wire.GroupReport:
		if is, _ := n.mu.view.Member(from); coordinator == n.cfg.Self && here(n.mu.view, from) && epoch >= is.Since { // else it is of a daemon that was killed
			n.reportedLocked(from, m)
		}
	case *wire.GroupCall:
		if coordinator == from {
			n.calledLocked(from, m)
		}
	}
}

// reportedLocked handles a report as the coordinator.
func (n *Node) reportedLocked(from dsm.NodeID, r *wire.GroupReport) {
	c := n.mu.coordinators[r.Group]
	if c == nil {
		// Who leaves only wants to hear that this was heard, if it knows nothing that others may need, or
		// has told it already: in a reign that this node ended itself, and did not lose.
		if len(r.Seats) == 0 && (r.Generation == 0 || r.Reign != 0 && r.Reign >= n.mu.replaced) {
			n.postLocked(from, &wire.GroupState{Group: r.Group, Reign: r.Reign, Heard: r.Seq})
			return
		}
		c = n.takeOverLocked(r.Group)
	}
	c.report(from, r, n.cfg.Now())
	n.decidedLocked(c)
}

// takeOverLocked makes this node the coordinator of a group, and calls all nodes.
func (n *Node) takeOverLocked(group dsm.AreaID) *coordinator {
	reign := n.mu.view.Epoch
	c := newCoordinator(group, n.cfg.Self, reign, func() uint64 {
		n.mu.lives++
		return uint64(reign)<<20 + n.mu.lives
	})
	c.few = n.cfg.few
	n.mu.coordinators[group] = c
	for _, m := range n.mu.view.Members {
		if !m.Gone {
			c.silent[m.ID] = struct{}{}
			c.call(m.ID)
		}
	}
	return c
}

// decidedLocked sends what a coordinator has made, and drops it when the group has ended.
func (n *Node) decidedLocked(c *coordinator) {
	for _, m := range c.out {
		n.postLocked(m.to, m.msg)
	}
	c.out = nil
	if c.empty() {
		delete(n.mu.coordinators, c.group)
	}
}

// calledLocked answers the coordinator's call.
func (n *Node) calledLocked(from dsm.NodeID, call *wire.GroupCall) {
	l := n.mu.locals[call.Group]
	if l == nil {
		n.postLocked(from, &wire.GroupReport{Group: call.Group, Epoch: n.mu.view.Epoch, Reign: call.Reign, Known: &wire.GroupKnown{}})
		return
	}
	l.coordinator, l.reign, l.counted = from, call.Reign, 0
	n.tellLocked(l, true)
}

// stateLocked takes over what the coordinator tells.
func (n *Node) stateLocked(from dsm.NodeID, s *wire.GroupState) {
	l := n.mu.locals[s.Group]
	if l == nil || l.coordinator != from || l.reign != s.Reign {
		return
	}
	l.stateLocked(s)
	if len(s.Refused) > 0 || s.Counted > 0 || l.owing && l.acked >= l.seq {
		n.reportLocked(l)
	}
}

// ViewChanged takes over a view: groups whose coordinator has gone report to the next one. Views
// may be left out, and one that comes after a later one of its cluster is.
func (n *Node) ViewChanged(v *dsm.View) {
	n.step(func() {
		old := n.mu.view
		if v.Cluster == old.Cluster && v.Epoch < old.Epoch {
			return
		}
		skipped := v.Epoch > old.Epoch+1 // others may have coordinated meanwhile
		n.mu.view = v
		if !here(v, n.cfg.Self) {
			n.loseAllLocked(errEvicted)
		} else {
			n.admitLocked()
		}
		for id, c := range n.mu.coordinators {
			if skipped || n.coordinatorLocked(id) != n.cfg.Self {
				n.retireLocked(c)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(n.mu.locals)) {
			if l := n.mu.locals[id]; l.moved(n.coordinatorLocked(id), skipped) {
				n.reportLocked(l)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(n.mu.coordinators)) {
			c := n.mu.coordinators[id]
			if n.coordinatorLocked(id) != n.cfg.Self {
				n.mu.replaced = v.Epoch
				delete(n.mu.coordinators, id)
				continue
			}
			if skipped { // in the views that this node has not seen another one may have been the coordinator: then others have dropped what this one sent
				n.decidedLocked(n.takeOverLocked(id))
				continue
			}
			c.view(func(id dsm.NodeID) bool { return here(v, id) && !followed(old, v, id) }, n.cfg.Now())
			n.decidedLocked(c)
		}
		for _, m := range n.unparkLocked() {
			n.handleLocked(m.to, m.msg)
		}
	})
}

// SessionReset says that messages to or from a node may have been dropped.
func (n *Node) SessionReset(peer dsm.NodeID) {
	n.step(func() {
		for _, id := range slices.Sorted(maps.Keys(n.mu.locals)) {
			if l := n.mu.locals[id]; l.coordinator == peer {
				l.acked = l.seq // the answer may not have arrived
				n.reportLocked(l)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(n.mu.coordinators)) {
			c := n.mu.coordinators[id]
			if _, waited := c.silent[peer]; waited {
				c.call(peer)
				n.decidedLocked(c)
			}
		}
	})
}
