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
	if n.attaching {
		n.attaching, n.attached = false, true
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
	n.temporaries = nil
	if n.writer || n.opening {
		n.kernel.harvest(1) // the kernel delivers every store before RELEASE
		n.area.Close(true)
		n.writer, n.opening = false, false
	}
}

// closeAll closes every handle of the node.
func (n *simNode) closeAll() {
	n.detach()
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
	if !n.area.mu.replica.subscribed {
		clear(n.kernel.cache)
	}
	n.startOpen(false)
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

// anAcquire is the start of one of the program that stores, unless it is between a load and a store, or of another program.
func (n *simNode) anAcquire() {
	if n.temporaries == nil && n.sim.rng.IntN(2) == 0 {
		n.acq = append(n.acq, n.startAcquire())
		return
	}
	n.area.step(func() {
		if !n.area.holding() {
			n.acq = append(n.acq, n.area.startAcquire(false))
		}
	})
}

// returnFromSync ends the acquires that have what they asked for, when the kernel has heard of it.
func (n *simNode) returnFromSync() {
	for _, op := range n.acq {
		if len(op.pending) > 0 {
			return
		}
	}
	n.kernel.finishNotices()
	n.endAcquires()
}

func (n *simNode) endAcquires() {
	for _, r := range n.acq {
		n.area.step(func() { n.area.endAcquire(r) })
	}
	n.acq = nil
}
