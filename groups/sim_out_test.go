package groups

import "github.com/dsmfs/dsmfs/internal/dsm"

// Nodes of the simulation whose lease runs out. They go on: the view does not tell them that they are out, their programs call, and what they send
// arrives late, or when they are members again.

func (n *simNode) mayTell() bool { return !n.fenced }

func (n *simNode) later(f func()) {
	if n.retry != nil {
		n.s.t.Errorf("node %d looks for its lease twice", n.i+1)
	}
	n.retry = f
}

// goOnNow has the node look whether its lease lasts again.
func (n *simNode) goOnNow() {
	if f := n.retry; f != nil {
		n.retry = nil
		f()
	}
}

// present returns how many nodes are members and live.
func (s *sim) present() (many int) {
	for _, n := range s.living() {
		if !n.out {
			many++
		}
	}
	return many
}

// settle reports whether a node may be put out, or die. If not, all that is under way arrives.
func (s *sim) settle() bool {
	if !s.calm || !s.astir {
		return true
	}
	for _, n := range s.nodes {
		n.fenced = n.out
	}
	for s.deliver() {
	}
	s.astir = false
	return false
}

// lease has the lease of a node run out, or last again, or the node is put out, or joins again.
func (s *sim) lease(n *simNode) {
	switch {
	case n.out:
		s.admit(n)
	case !n.fenced:
		n.fenced = true
	case s.rng.IntN(2) == 0:
		n.fenced = false
	case s.present() > 1 && s.settle():
		s.putOut(n)
	}
	if s.rng.IntN(4) == 0 {
		n.goOnNow()
	}
}

// leases ends all that.
func (s *sim) leases() {
	for _, n := range s.living() {
		if n.out {
			s.admit(n)
			n.seen = len(s.views) - 1
			n.see()
		}
		n.fenced = false
	}
}

// putOut has the others go on without a node.
func (s *sim) putOut(n *simNode) {
	n.fenced, n.out, s.astir = true, true, true
	for _, p := range s.progs {
		if p.node == n {
			p.out = true
		}
	}
	s.change(func(v *dsm.View) { v.Members[n.i].Gone = true })
}

// admit makes a node that was put out a member again. It has a lease when it knows.
func (s *sim) admit(n *simNode) {
	if last := s.views[len(s.views)-1]; last.Members[n.i].Gone {
		s.astir = true
		s.change(func(v *dsm.View) {
			m := &v.Members[n.i]
			m.Gone, m.Inc, m.Since = false, m.Inc+1, v.Epoch
		})
	}
}
