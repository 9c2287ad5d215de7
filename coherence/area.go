package coherence

import (
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// Area is one area on one node: its replica, the extents that this node is the home of, and the
// messages between these two and other nodes.
type Area struct {
	id       dsm.AreaID
	node     *Node
	attached attached

	mu struct {
		lockrank.Mutex
		ino       dsm.Inode
		view      *dsm.View // the view that replica and home act on
		mem       *pages.Area
		cached    *pages.Cached
		kernel    merge.Kernel
		ruleErr   error // why there is no kernel: then nothing can be published
		drafts    []*draft
		replica   replica
		home      home
		lingering lingering
		parked    []message // messages to slots that are still being handed to this node, or that need memory
		removed   bool
		newest    dsm.Version // newest version heard of: see heardLocked
		telling   int         // number of calls of awaitNotices

		out     []message // to send when the step is over
		sending bool      // a goroutine is sending, in order
		waiters []*waiter
		wake    bool               // this step did something that waiters wait for
		charged charged            // what room has been told that this area takes
		arrived []func()           // to call when the step is over: see onArrival
		used    []wire.ExtentPages // pages that the functions in arrived waited for: see tellUsed
		cleaner bool               // this step made pages clean, or the kernel dropped some
		diffed  int                // pages that this step diffed
		looked  dsm.PageIndex      // the last page that checkLocked compared
		again   bool               // there are publications to start in a step of their own

		recount     bool // see Recounts
		surveys     map[uint64]*surveying
		toldOfCut   bool        // a program has cut the memory, and the log says so
		memoryRetry *time.Timer // if not nil, it will handle again what is parked for lack of memory
	}
}

// message is a message that is to be sent or handled, or that waits for a handover.
type message struct {
	peer    dsm.NodeID // receiver or sender
	msg     any
	payload [][]byte
	shared  *wire.Shared // the payload, with a reference that the message owns; nil if payload has it
}

func newArea(n *Node, ino dsm.Inode) *Area {
	a := &Area{id: ino.Area(), node: n}
	a.mu.Init("coherence.Area")
	a.attached.mu.Init("coherence.attached")
	a.mu.ino = ino
	a.mu.view = n.cfg.View.Current()
	a.mu.kernel, a.mu.ruleErr = merge.KernelFor(ino.Spec.Merge, ino.Layout)
	a.mu.replica.init()
	a.mu.home.init()
	return a
}

// step runs one event under the area's lock, then handles the messages that it sent to this node
// itself, and sends the others after the lock is released. If there are more publications than a
// batch they are started in further steps: between these other goroutines get the lock, and
// messages leave.
func (a *Area) step(event func()) { a.steps(0, event) }

// stepBriefly is step for a goroutine that others wait for: another goroutine starts the remaining
// publications, and sends the messages of others.
func (a *Area) stepBriefly(event func()) {
	if a.oneStep(0, true, event) {
		go a.step(a.startPublications)
	}
}

// steps is step in Handle: messages to the node from may wait.
func (a *Area) steps(from dsm.NodeID, event func()) {
	for a.oneStep(from, false, event) {
		event = a.startPublications
	}
}

// oneStep is one step. It returns true if there are publications left to start. from and brief are
// those of deliverLocked.
func (a *Area) oneStep(from dsm.NodeID, brief bool, event func()) (again bool) {
	a.mu.Lock()
	a.restore()
	a.catchUp()
	if !a.mu.removed {
		a.wakingWhenTold(func() {
			event()
			a.local()
			for a.ackLate() {
				a.local()
			}
		})
	}
	more := a.charge()
	a.checkLocked()
	notify := a.mu.cached != nil && a.mu.cached.Pending()
	if a.mu.wake {
		a.mu.wake = false
		a.mu.waiters = slices.DeleteFunc(a.mu.waiters, a.over)
	}
	if arrived := a.mu.arrived; len(arrived) > 0 {
		a.mu.arrived = nil
		a.mu.Unlock()
		for _, f := range arrived {
			f()
		}
		a.mu.Lock()
		a.tellUsed()
	}
	again, a.mu.again, a.mu.diffed = a.mu.again, false, 0
	if again {
		from = 0 // it takes a while until Handle returns
	}
	a.deliverLocked(from, brief)
	a.mu.Unlock()
	if more {
		a.node.room.ring()
	}
	if notify {
		if c := a.node.cache.Load(); c != nil {
			(*c).Changed(a.id)
		}
	}
	return again
}

// note runs an event whose messages and notices are sent by the next step. It is for callers that
// hold another lock, and that take that step after they have released it.
func (a *Area) note(event func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.restore()
	a.catchUp()
	if !a.mu.removed {
		a.wakingWhenTold(event)
		a.local() // for what catchUp sent: another goroutine may be sending at this moment, and it sends all that is there
	}
}

// wakingWhenTold runs the event. If after it the kernel has been told everything, or an open for
// writing may be answered, it wakes those that wait for that.
func (a *Area) wakingWhenTold(event func()) {
	told, writable := a.told()
	event()
	if t, w := a.told(); t && !told || w && !writable || a.mu.telling > 0 {
		a.mu.wake = true
	}
}

// told reports whether the kernel has been told everything, and whether an open for writing may be
// answered.
func (a *Area) told() (all, writable bool) {
	if a.mu.cached == nil {
		return true, true
	}
	return a.mu.cached.Idle(), a.mu.cached.Writable()
}

// deliverLocked hands the messages of the steps so far to the Sender, without the lock but in the
// order of the steps: while one goroutine does so, others leave their messages to it. With brief,
// this goroutine leaves the messages of others to yet another one. Messages to the node from may
// wait.
func (a *Area) deliverLocked(from dsm.NodeID, brief bool) {
	if a.mu.sending {
		return
	}
	a.mu.sending = true
	for len(a.mu.out) > 0 {
		out := a.mu.out
		a.mu.out = nil
		a.mu.Unlock()
		for i, m := range out {
			more := m.peer == from || slices.ContainsFunc(out[i+1:], func(o message) bool { return o.peer == m.peer })
			if m.shared != nil {
				a.node.cfg.Sender.SendShared(m.peer, m.msg, m.shared, more)
				continue
			}
			a.node.cfg.Sender.Send(m.peer, m.msg, m.payload, more)
		}
		a.mu.Lock()
		if brief && len(a.mu.out) > 0 {
			go a.step(func() {})
			break
		}
	}
	a.mu.sending = false
}

// local handles the messages that the step sent to this node until there are none left.
func (a *Area) local() {
	self := a.node.cfg.Self
	for i := 0; i < len(a.mu.out); i++ { // all messages of earlier steps are for other nodes
		if a.mu.out[i].peer != self {
			continue
		}
		m := a.mu.out[i]
		a.mu.out[i].msg = nil
		payload := m.payload
		if m.shared != nil {
			payload = [][]byte{m.shared.Bytes}
		}
		if err := a.receive(self, m.msg, payload); err != nil {
			a.node.cfg.Log.Error("a message of this node to itself", "area", a.id, "err", err)
			invariants.Check(false, "a message of this node to itself: %v", err)
		}
		if m.shared != nil {
			m.shared.Release()
		}
	}
	rest := a.mu.out[:0]
	for _, m := range a.mu.out {
		if m.msg != nil {
			rest = append(rest, m)
		}
	}
	a.mu.out = rest
}

func (a *Area) send(to dsm.NodeID, msg any, payload ...[]byte) {
	a.mu.out = append(a.mu.out, message{peer: to, msg: msg, payload: payload})
}

// sendShared sends a message with a payload from the pool. It takes over the caller's reference.
func (a *Area) sendShared(to dsm.NodeID, msg any, payload *wire.Shared) {
	a.mu.out = append(a.mu.out, message{peer: to, msg: msg, shared: payload})
}

func (a *Area) isSelf(n dsm.NodeID) bool { return n == a.node.cfg.Self }

// stamp returns the stamp of a message made now.
func (a *Area) stamp() wire.Stamp {
	return wire.Stamp{Area: a.id, Gen: a.mu.ino.Gen, Rev: a.mu.ino.Rev, Epoch: a.mu.view.Epoch, Newest: a.mu.newest}
}

// row returns the home of an extent in the view that the area acts on.
func (a *Area) row(e dsm.ExtentIndex) *dsm.SlotHome { return &a.mu.view.Slots[dsm.SlotOf(a.id, e)] }

// extents returns the number of extents of the area.
func (a *Area) extents() int { return dsm.Extents(a.mu.ino.Size) }

// inArea reports whether page i of extent e lies within the area.
func (a *Area) inArea(e dsm.ExtentIndex, i int) bool {
	return int64(page(e, i))*dsm.PageSize < a.mu.ino.Size
}

// within returns the pages of extent e that lie within the area.
func (a *Area) within(e dsm.ExtentIndex) dsm.PageSet {
	n := (a.mu.ino.Size - int64(e)*dsm.ExtentSize + dsm.PageSize - 1) / dsm.PageSize
	return dsm.Range(0, int(min(max(n, 0), dsm.ExtentPages)))
}

// page returns the index in the area of page i of extent e.
func page(e dsm.ExtentIndex, i int) dsm.PageIndex {
	return dsm.PageIndex(e)*dsm.ExtentPages + dsm.PageIndex(i)
}

// catchUp makes the area act on the newest view.
func (a *Area) catchUp() {
	v := a.node.cfg.View.Current()
	if v.Epoch <= a.mu.view.Epoch {
		return
	}
	old := a.mu.view
	a.mu.view = v
	if a.mu.removed {
		return
	}
	a.homeViewChanged(old)
	a.replicaViewChanged(old)
	a.mu.wake = true
}

// moved reports whether the slot has another home than in the view old, or the same one after
// others may have been its home in between.
func (a *Area) moved(old *dsm.View, s dsm.Slot) bool {
	was, is := &old.Slots[s], &a.mu.view.Slots[s]
	return was.Primary != is.Primary || was.Epoch != is.Epoch
}

// inodeChanged takes over a new size, spec or layout.
func (a *Area) inodeChanged(now dsm.Inode) {
	old := a.mu.ino
	if now.Rev < old.Rev {
		return
	}
	if now.Spec.Residency != old.Spec.Residency {
		// The residency changes only while the file is empty. A snapshot of the catalog skips that
		// moment.
		empty := now
		empty.Size = 0
		if old.Size > 0 {
			empty.Spec.Residency = old.Spec.Residency
			a.inodeChanged(empty)
			old, empty.Spec.Residency = empty, now.Spec.Residency
		}
		if now.Size > 0 {
			a.inodeChanged(empty)
			old = empty
		}
	}
	a.mu.ino = now
	if now.Size != old.Size && a.mu.mem != nil {
		if now.Size < old.Size {
			a.mu.cached.BeforeCut(now.Size)
		}
		if err := a.mu.mem.Resize(now.Size); err != nil {
			a.node.cfg.Log.Error("resize", "area", a.id, "size", now.Size, "err", err)
		}
		a.mu.cached.Truncate(now.Size)
		a.resizeDrafts()
	}
	if now.Spec.Merge != old.Spec.Merge || now.Layout != old.Layout {
		a.mu.kernel, a.mu.ruleErr = merge.KernelFor(now.Spec.Merge, now.Layout)
	}
	if now.Gen != old.Gen {
		a.homeGenChanged()
	}
	if now.Spec.Residency != old.Spec.Residency {
		a.residencyChanged()
	}
	a.replicaResized(old.Size, now.Size)
	a.replicaHoldChanged()
	a.mu.wake = true
}

// sessionReset sends again what a broken session with peer may have lost.
func (a *Area) sessionReset(peer dsm.NodeID) {
	a.homeReset(peer)
	a.replicaReset(peer)
	a.mu.wake = true // a subscription that is not needed any more is not repeated
}

// remove frees the area for good; the catalog has forgotten it.
func (a *Area) remove() {
	a.mu.removed = true
	a.mu.out, a.mu.parked = nil, nil
	for _, s := range a.mu.home.subs {
		s.end()
	}
	a.mu.home.init()
	for _, e := range a.busyExtentsLocked() {
		if x := a.extent(e); x.pub != nil {
			a.endPublication(x)
		}
	}
	a.forgetPages()
	a.mu.replica.init()
	if a.mu.mem != nil {
		a.closeMemory()
	}
	a.mu.wake = true
}

func (a *Area) closeMemory() {
	for _, d := range a.mu.drafts {
		a.closeDraft(d)
	}
	a.mu.drafts = nil
	if err := a.mu.mem.Close(); err != nil {
		a.node.cfg.Log.Error("memory is not given back", "area", a.id, "err", err)
	}
	a.mu.mem, a.mu.cached = nil, nil
}

// forget frees the replica's bytes of an extent.
func (a *Area) forget(e dsm.ExtentIndex) {
	if err := a.mu.mem.Forget(e); err != nil {
		a.node.cfg.Log.Error("memory is not given back", "area", a.id, "extent", e, "err", err)
	}
}

// freeIfUnused frees the memory when neither a replica nor a home needs it.
func (a *Area) freeIfUnused() {
	if a.mu.mem != nil && !a.mu.replica.subscribed && len(a.mu.home.extents) == 0 {
		a.closeMemory()
	}
}

func (a *Area) now() time.Time { return a.node.cfg.Now() }
