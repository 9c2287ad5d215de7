package coherence

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
)

// A program that has attached stores into the working copy itself. What it stored
// is found later: from the pages it stored to, or by comparing all.

// startAttach does what an attach does before it waits, if all pages are here.
func (n *simNode) startAttach() {
	a := n.area
	if !a.mu.replica.subscribed {
		return
	}
	a.step(func() {
		if a.mu.replica.opens == 0 {
			return
		}
		if !a.mu.replica.demand && !a.present(0, int(a.mu.ino.Size)) {
			a.fetch(0, int(a.mu.ino.Size))
			return
		}
		if err := a.opened(true); err != nil {
			n.sim.t.Fatal(err)
		}
		a.countAttached(+1)
		a.mu.replica.mapped++
		n.attaching = true
		n.found = make(map[dsm.PageIndex]bool)
	})
}

// toggleAttach attaches, or ends that, whether it was let in or gives up.
func (n *simNode) toggleAttach() {
	if !n.attaching && !n.attached {
		n.startAttach()
		return
	}
	n.detach()
}

func (n *simNode) detach() {
	if !n.attaching && !n.attached {
		return
	}
	n.temporaries = nil
	n.area.step(func() {
		n.area.compared(0, n.area.mu.ino.Size)
		n.area.countAttached(-1)
		n.area.mu.replica.mapped--
	})
	n.area.Close(true)
	n.attaching, n.attached = false, false
}

// collect finds what the attached program has stored.
func (n *simNode) collect(compare bool) {
	if !n.attached {
		return
	}
	n.area.step(func() {
		if compare {
			n.area.compared(0, n.area.mu.ino.Size)
		}
		for p := range n.found {
			if !compare {
				n.area.storedTo(appendRange(nil, int64(p)*dsm.PageSize, dsm.PageSize))
			}
		}
		clear(n.found)
	})
}

// stores returns the bytes of page p that a program of the node stores into, nil if
// it has to wait or there is none; and whether it is one that has attached.
func (n *simNode) stores(p dsm.PageIndex) (b []byte, attached bool) {
	if n.attached && (!n.writer || n.sim.rng.IntN(2) == 0) {
		if !n.here(p) {
			return nil, true
		}
		n.found[p] = true
		return n.area.mu.mem.Working(p), true
	}
	if !n.writer || n.kernel.waits(p) {
		return nil, false
	}
	c := n.kernel.fault(p)
	if c == nil {
		return nil, false
	}
	c.dirty = true
	return c.data[:], false
}
