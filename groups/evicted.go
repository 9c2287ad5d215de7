package groups

import "github.com/dsmfs/dsmfs/internal/dsm"

// evicted reports whether a member of the view old was put out before v: it is gone, or has joined again, as another incarnation.
func evicted(old, v *dsm.View, id dsm.NodeID) bool {
	was, _ := old.Member(id)
	is, _ := v.Member(id)
	return here(old, id) && (!here(v, id) || v.Cluster == old.Cluster && is.Inc != was.Inc)
}

// evictedLocked forgets all groups, as if the daemon had ended: they go on without this node's members, and nobody else knows what was withheld. What
// waits for a view stays: it may be meant for the next incarnation.
func (n *Node) evictedLocked() {
	for _, l := range n.mu.locals {
		for _, m := range l.inOrder() {
			m.endLocked(errEvicted)
		}
		n.mu.evicted = append(n.mu.evicted, n.wakenedLocked(l)...)
	}
	clear(n.mu.locals)
	clear(n.mu.coordinators)
	n.mu.outbox = nil
	n.mu.replaced = n.mu.view.Epoch
	n.mu.first = n.mu.seq + 1
}
