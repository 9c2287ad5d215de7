package coherence

// open opens the area on a node, running the network until it is open. A
// program always has it open for reading.
func (n *simNode) open(write bool) {
	n.find()
	n.startOpen(false)
	if write {
		n.startOpen(true)
	}
	n.sim.until("open", func() bool { return len(n.area.mu.replica.subs) == 0 })
	n.letIn()
}

func (n *simNode) find() {
	a, err := n.node.area(simArea)
	if err != nil {
		n.sim.t.Fatal(err)
	}
	n.area = a
}

// startOpen does what an open does before it waits.
func (n *simNode) startOpen(write bool) {
	n.area.step(func() {
		if err := n.area.opened(write); err != nil {
			n.sim.t.Fatal(err)
		}
	})
	n.opening = n.opening || write
}

// letIn answers an open for writing, if it may be answered. A careful program goes on when the kernel has heard of all that
// there was then, as Node.Open has it.
func (n *simNode) letIn() {
	if !n.area.mu.cached.Writable() || n.sim.careful && !n.area.mu.cached.Idle() {
		return
	}
	if n.opening {
		n.opening, n.writer = false, true
	}
	for _, p := range n.attached {
		if p.waiting {
			n.giveMemory(p.at)
		}
		p.waiting = false
	}
}

// toggle opens the area for writing, or closes it, whether the open was
// answered or gives up.
func (n *simNode) toggle() {
	if !n.writer && !n.opening {
		n.startOpen(true)
		return
	}
	n.closeWriter()
}

func (n *simNode) closeWriter() {
	n.giveUpSync(n.cached)
	n.cached = new(simProgram)
	if n.writer || n.opening {
		n.kernel.harvest(1) // the kernel delivers every store before RELEASE
		n.area.Close(true)
		n.writer, n.opening = false, false
	}
}

// closeAll closes every handle of the node.
func (n *simNode) closeAll() {
	n.detachAll()
	n.closeWriter()
	n.area.Close(false)
}

// reopen closes every handle, lets the replica expire, which it does if
// nothing of it is unpublished, and opens the area again.
func (n *simNode) reopen(write bool) {
	n.kernel.finishNotices()
	n.endAcquires()
	n.closeAll()
	n.area.expire()
	n.startOpen(false)
	clear(n.kernel.cache) // the first OPEN has the kernel drop what it kept
	n.kernel.learn()
	if write {
		n.startOpen(true)
	}
}

// startAcquire does what an acquire of a program that stores does before it waits.
func (n *simNode) startAcquire() *acquiring {
	var op *acquiring
	n.area.step(func() { op = n.area.startAcquire(true) })
	return op
}

// simSync is an acquire under way.
type simSync struct {
	op      *acquiring
	program *simProgram // nil: of one that does not store
}

// anAcquire is the start of one, of a program that stores, unless that is between a load and a store, or of another one.
func (n *simNode) anAcquire() {
	prog := n.aProgram()
	if n.sim.rng.IntN(2) == 0 || prog == nil && n.sim.careful {
		n.area.step(func() {
			if !n.area.holding() {
				n.acq = append(n.acq, simSync{op: n.area.startAcquire(false)})
			}
		})
		return
	}
	if prog == nil {
		prog = new(simProgram)
	}
	if prog.temporaries == nil {
		prog.syncing++
		n.acq = append(n.acq, simSync{n.startAcquire(), prog})
	}
}

// returnFromSync ends the acquires that have what they asked for, when the kernel has heard of it.
func (n *simNode) returnFromSync() {
	for _, s := range n.acq {
		if len(s.op.pending) > 0 {
			return
		}
	}
	n.kernel.finishNotices()
	n.endAcquires()
}

func (n *simNode) endAcquires() {
	for _, s := range n.acq {
		n.area.step(func() { n.area.endAcquire(s.op) })
		if s.program == nil {
			continue
		}
		s.program.syncing--
		if t := s.program.at; t != nil && t.draft != nil {
			n.area.refresh(t.draft)
		}
	}
	n.acq = nil
}
