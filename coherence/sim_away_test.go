package coherence

import "github.com/dsmfs/dsmfs/internal/dsm"

// isEvicted commits a view in which a node is gone that lives, and is cut off. It learns of that by comesBack.
func (s *sim) isEvicted(n *simNode) {
	n.fenced.Store(true)
	s.changeView(func(v *dsm.View) {
		v.Members[n.i].Gone, v.Members[n.i].Leaving = true, true
		s.takeOver(v, n.id)
	})
}

// comesBack has a node join again that was evicted, as package main does it.
func (s *sim) comesBack(n *simNode) {
	n.kernel.harvest(1)
	n.node.Returning()
	s.changeView(func(v *dsm.View) {
		m := &v.Members[n.i]
		m.Gone, m.Leaving, m.Inc, m.Since = false, false, m.Inc+1, v.Epoch
		s.assign(v)
	})
	n.snapshot()
	n.node.Rejoined()
	n.fenced.Store(false)
}
