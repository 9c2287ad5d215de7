package coherence

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// simProgram is a program that stores: into the page cache, into the working copy itself, or into a draft of its own. What
// an attached one stored is found later: from the pages it stored to, or by comparing all.
type simProgram struct {
	at          *Attachment // nil: the page cache
	waiting     bool        // to be let in
	found       map[dsm.PageIndex]bool
	temporaries *temporaries // that it has loaded and not stored back
	syncing     int
}

// mostAttached is how many programs of a node are attached at once: of two that store into one working copy with temporaries one
// undoes the other, and drafts are for that.
func (s *sim) mostAttached() int {
	if s.careful {
		return 3
	}
	return 1
}

// startAttach does what an attach does before it waits, if all pages are here.
func (n *simNode) startAttach() {
	a := n.area
	if !a.mu.replica.subscribed {
		return
	}
	t := &Attachment{area: a, write: true}
	ready := false
	n.collect(false)
	a.step(func() {
		if a.mu.replica.opens == 0 {
			return
		}
		if !a.mu.replica.demand && !a.present(0, int(a.mu.ino.Size)) {
			a.fetch(0, int(a.mu.ino.Size))
			return
		}
		if err := a.opened(false); err != nil {
			n.sim.t.Fatal(err)
		}
		n.sim.lastProgram++
		var err error
		if t.draft, err = a.draftOf(n.sim.lastProgram, true); err != nil {
			n.sim.t.Fatal(err)
		}
		a.enter(t)
		ready = true
	})
	if !ready {
		return
	}
	if t.draft != nil {
		if err := a.fill(t.draft); err != nil {
			n.sim.t.Fatal(err)
		}
		n.giveMemory(t)
	}
	n.attached = append(n.attached, &simProgram{at: t, waiting: t.draft == nil, found: make(map[dsm.PageIndex]bool)})
}

// giveMemory gives a program the memory to map.
func (n *simNode) giveMemory(t *Attachment) {
	f, err := t.open(true)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		n.sim.t.Fatal(err)
	}
}

// toggleAttach attaches a program, or ends one, whether it was let in or gives up.
func (n *simNode) toggleAttach() {
	if k := len(n.attached); k < n.sim.mostAttached() && (k == 0 || n.sim.rng.IntN(2) == 0) {
		n.startAttach()
		return
	}
	n.detach(n.attached[n.sim.rng.IntN(len(n.attached))])
}

// detach ends a program. It may be in a sync.
func (n *simNode) detach(p *simProgram) {
	n.giveUpSync(p)
	if p.at.draft == nil {
		n.area.step(func() { n.area.compared(0, n.area.mu.ino.Size) })
	}
	p.at.Detach()
	n.area.Close(false)
	n.attached = slices.DeleteFunc(n.attached, func(o *simProgram) bool { return o == p })
}

// giveUpSync ends the sync that a program may be in.
func (n *simNode) giveUpSync(p *simProgram) {
	n.acq = slices.DeleteFunc(n.acq, func(s simSync) bool {
		if s.program == p {
			n.area.step(func() { n.area.endAcquire(s.op) })
		}
		return s.program == p
	})
}

func (n *simNode) detachAll() {
	for len(n.attached) > 0 {
		n.detach(n.attached[0])
	}
}

// collect finds what the attached programs have stored.
func (n *simNode) collect(compare bool) {
	a := n.area
	for _, prog := range n.attached {
		d := prog.at.draft
		if d != nil && compare {
			a.takeRange(d, 0, dsm.MaxAreaSize)
		}
		a.step(func() {
			if d == nil && compare {
				a.compared(0, a.mu.ino.Size)
			}
			for _, p := range slices.Sorted(maps.Keys(prog.found)) {
				list := appendRange(nil, int64(p)*dsm.PageSize, dsm.PageSize)
				switch {
				case compare:
				case d != nil:
					a.take(d, list[0].Extent, list[0].Pages)
				default:
					a.storedTo(list)
				}
			}
			clear(prog.found)
		})
	}
	a.refreshAll()
}

// aProgram is one of the node's that store and are let in, nil if there is none.
func (n *simNode) aProgram() *simProgram {
	var all []*simProgram
	if n.writer {
		all = append(all, n.cached)
	}
	for _, p := range n.attached {
		if !p.waiting {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[n.sim.rng.IntN(len(all))]
}

// memory returns the bytes of page p that the program stores into, nil if it has to wait.
func (n *simNode) memory(prog *simProgram, p dsm.PageIndex) []byte {
	if prog.at == nil {
		if n.kernel.waits(p) {
			return nil
		}
		c := n.kernel.fault(p)
		if c == nil {
			return nil
		}
		c.dirty = true
		return c.data[:]
	}
	if int64(p)*dsm.PageSize >= n.area.mu.ino.Size || !n.here(p) {
		return nil
	}
	prog.found[p] = true
	if d := prog.at.draft; d != nil {
		return d.mem.Page(p)
	}
	return n.area.mu.mem.Working(p)
}

// stores returns the bytes of page p that a program of the node stores into, nil if
// it has to wait or there is none; and whether it is one that has attached.
func (n *simNode) stores(p dsm.PageIndex) (b []byte, attached bool) {
	prog := n.aProgram()
	if prog == nil {
		return nil, false
	}
	return n.memory(prog, p), prog.at != nil
}

// checkDrafts: at rest every draft has what the working copy has.
func (n *simNode) checkDrafts() {
	for _, prog := range n.attached {
		d := prog.at.draft
		if d == nil {
			continue
		}
		n.area.refresh(d)
		for _, p := range hot {
			if int64(p+1)*dsm.PageSize > n.ino.Size {
				continue
			}
			if w := n.area.mu.mem.Working(p); string(d.mem.Memory(p)) != string(w) {
				n.sim.t.Fatalf("node %d page %d: a draft differs from the working copy", n.i, p)
			}
		}
	}
}
