package coherence

import "github.com/dsmfs/dsmfs/internal/dsm"

// A node that is evicted, and joins again as a new incarnation, keeps its replicas: working and base copies, and publishes under way. To
// the data plane that is a view in which slots have moved, as for a node that loads a snapshot of the catalog, and a broken session with
// every other node: they have forgotten its subscriptions. What it was the home of, and others have taken over, it forgets as after any
// handover. Rows that still name it, with the same epoch, nobody has taken over: it goes on with what it has.

// Rejoined says that this node has joined the cluster again: View has the new state, and Returning and Reset were called.
func (n *Node) Rejoined() {
	for _, a := range n.all() {
		a.step(a.rejoinedLocked)
	}
	for _, m := range n.cfg.View.Current().Members {
		if m.ID != n.cfg.Self {
			n.SessionReset(m.ID)
		}
	}
	for _, a := range n.all() { // calls may wait for a publish of which all is given up: then nothing comes that has it end
		a.step(a.startPublicationsLocked)
	}
}

// returnedLocked follows other nodes that have joined again since the view old: they have no subscription, and what this node has under way
// to them is sent again.
func (a *Area) returnedLocked(old *dsm.View) {
	for _, m := range a.mu.view.Members {
		if a.isSelf(m.ID) || m.Gone || !wasOther(old, m) {
			continue
		}
		a.forgetSubscriberLocked(m.ID)
		a.sessionResetLocked(m.ID)
	}
}

// wasOther reports whether m was gone in the view old, or has joined, or gone on with another daemon, since.
func wasOther(old *dsm.View, m dsm.Member) bool {
	was, ok := old.Member(m.ID)
	if !ok {
		return old.Knows(m.ID)
	}
	return was.Gone || was.Since != m.Since
}
