package coherence

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

const (
	// handoverBytes bounds the bytes on their way to one new home; the last extent may go beyond it.
	// It counts bytes, not extents, because a node may have many small files. When four extents were under
	// way at a time, a node with 40,000 files took 10,000 round trips to leave.
	handoverBytes = 4 * dsm.ExtentSize
	// handoverWindow is how many extents may be on their way to one new home.
	handoverWindow = 256
)

// handovers hands the slots that a view took from this node over to their new homes, and receives those
// that a view gave to it.
//
// Once the old home acts on the new view it answers no requests for the slot. The new home parks requests
// until it has the slot. So the state does not change while it is sent. The old home keeps the state
// until the catalog says that the new home has it (Source is 0 again). After a broken session it just
// starts over.
type handovers struct {
	node   *Node
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// lastID is the ID of the last HandoverExtent sent to any node. IDs are not used twice. Otherwise a late
	// ack from an earlier run could count for an extent that the new home has refused since. The new home
	// would then open the slot without that extent.
	lastID atomic.Uint64

	mu struct {
		lockrank.Mutex
		// The maps have the epoch of the slot to which an entry belongs. Entries of older epochs mean nothing.
		sent map[dsm.Slot]dsm.Epoch // HandoverDone was sent, and the session has not broken since
		// offered has the slots for which HandoverDone was ever sent. Their new homes may have served requests since.
		offered map[dsm.Slot]dsm.Epoch
		there   map[dsm.Slot]dsm.Epoch // the daemon before has sent all of them
		failed  map[dsm.Slot]dsm.Epoch // the catalog is being told
		runs    map[dsm.NodeID]*handoverRun
	}
}

// handoverRun sends slots to one new home. Its goroutine ends when there is no slot left to send.
type handoverRun struct {
	to      dsm.NodeID
	first   atomic.Uint64 // number of its first message since it began, or began anew: acks of earlier ones do not count
	acks    chan *wire.HandoverAck
	restart chan struct{} // capacity 1: the session broke, or the new home died
}

func (h *handovers) init(n *Node) {
	h.node = n
	h.lastID.Store(n.cfg.First)
	h.mu.Init("coherence.handovers")
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.mu.sent = make(map[dsm.Slot]dsm.Epoch)
	h.mu.offered = make(map[dsm.Slot]dsm.Epoch)
	h.mu.there = make(map[dsm.Slot]dsm.Epoch)
	h.mu.failed = make(map[dsm.Slot]dsm.Epoch)
	h.mu.runs = make(map[dsm.NodeID]*handoverRun)
}

func (h *handovers) close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.wg.Wait()
}

// pendingLocked returns the slots that this node still has to send to a new home; none if that has died.
func (h *handovers) pendingLocked(v *dsm.View, to dsm.NodeID) []dsm.Slot {
	var out []dsm.Slot
	if v.IsGone(to) {
		return nil
	}
	for s, row := range v.Rows() {
		if row.Source == h.node.cfg.Self && row.Primary == to && h.mu.sent[s] != row.Epoch {
			out = append(out, s)
		}
	}
	return out
}

// resume goes on with what the daemon before has handed over. It has sent all of it, but perhaps has not said so.
func (h *handovers) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.node.cfg.View.Current()
	for s, row := range v.Rows() {
		if row.Source == h.node.cfg.Self && h.node.ledger.left.Has(v, row.Source, s, s).Offered {
			h.mu.offered[s], h.mu.there[s] = row.Epoch, row.Epoch
		}
	}
}

func (h *handovers) viewChanged(v *dsm.View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	for _, m := range v.Members {
		if h.mu.runs[m.ID] == nil && len(h.pendingLocked(v, m.ID)) > 0 {
			r := &handoverRun{to: m.ID, acks: make(chan *wire.HandoverAck, 2*handoverWindow), restart: make(chan struct{}, 1)}
			h.mu.runs[m.ID] = r
			h.wg.Go(func() { h.run(r) })
		}
	}
	for to, r := range h.mu.runs {
		if v.IsGone(to) {
			r.startOver() // or it would wait for acks for ever
		}
	}
	if back, lost := h.failuresLocked(v); len(back)+len(lost) > 0 {
		h.wg.Go(func() {
			h.tell("slots whose new home has died", len(back)+len(lost), func(ctx context.Context) error {
				return h.node.cfg.View.HandoverFailed(ctx, back, lost, v.Epoch)
			})
		})
	}
}

// failuresLocked returns the slots that this node was handing over to members that have died, and that the catalog has not been told
// of. Slots that were never offered come back: this node has their state, and nobody can have changed it. So do those whose backup this node
// is: it has all that anybody has seen. The others are lost: their new home may have merged and acked publishes that are not in the state here,
// so to serve that would undo them.
func (h *handovers) failuresLocked(v *dsm.View) (back, lost []dsm.Slot) {
	for s, row := range v.Rows() {
		if row.Source != h.node.cfg.Self || !row.Failed(v) || h.mu.failed[s] == row.Epoch {
			continue
		}
		h.mu.failed[s] = row.Epoch
		if i := row.BackupOf(row.Source); h.mu.offered[s] == row.Epoch && (i < 0 || !row.Backups[i].InSync) {
			lost = append(lost, s)
		} else {
			back = append(back, s)
		}
	}
	return back, lost
}

// startOver makes a run begin anew.
func (r *handoverRun) startOver() {
	select {
	case r.restart <- struct{}{}:
	default:
	}
}

// run sends slots until none is left.
func (h *handovers) run(r *handoverRun) {
	for {
		h.mu.Lock()
		v := h.node.cfg.View.Current()
		slots := h.pendingLocked(v, r.to)
		if len(slots) == 0 || h.ctx.Err() != nil {
			delete(h.mu.runs, r.to)
			h.mu.Unlock()
			return
		}
		here := slices.DeleteFunc(slices.Clone(slots), func(s dsm.Slot) bool { return h.mu.there[s] == v.Row(s).Epoch })
		h.mu.Unlock()
		if !h.send(r, here) || !h.copied(here) {
			continue
		}
		h.mu.Lock()
		slots = h.offerLocked(r.to, v, slots)
		h.mu.Unlock()
		if len(slots) == 0 {
			continue
		}
		h.node.cfg.Sender.Send(r.to, &wire.HandoverDone{Epoch: v.Epoch, Slots: slots, Newest: dsm.Version(h.node.newest.Load())}, nil, false)
	}
}

// offerLocked offers the slots of a view to their new home, to which all of them was sent. It returns those that are to be offered still.
func (h *handovers) offerLocked(to dsm.NodeID, v *dsm.View, slots []dsm.Slot) []dsm.Slot {
	for entered := false; !entered; {
		now := h.node.cfg.View.Current()
		slots = slices.DeleteFunc(slots, func(s dsm.Slot) bool { // viewChanged takes care of those that failed: see failuresLocked
			row, was := now.Row(s), v.Row(s)
			// If the slot was taken from this node meanwhile, perhaps nothing of it was sent: HandoverDone would have the new home serve zeroes.
			ours := row != nil && row.Source == was.Source && row.Primary == was.Primary && row.Epoch == was.Epoch
			return !ours || now.IsGone(to)
		})
		entered = h.node.inLedger(now, func(k *pages.Keep) {
			for _, s := range slots {
				name, row := now.NameOf(s), now.Row(s)
				k.Serves(name, row.Had)
				k.Offers(name, row.Epoch)
			}
		})
	}
	for _, s := range slots {
		h.mu.sent[s] = v.Row(s).Epoch // before the message is sent: a reset from now on deletes it
		h.mu.offered[s] = v.Row(s).Epoch
	}
	return slots
}

// send sends the extents of the slots, and returns when all are acked. It returns false if the caller must
// start over.
func (h *handovers) send(r *handoverRun, slots []dsm.Slot) bool {
	type item struct {
		area   *Area
		extent dsm.ExtentIndex
		bytes  int // in its message, once it is sent
	}
	var todo []item
	for _, a := range h.node.all() {
		a.stepTakenOver(h.ctx, "hand over", func() {
			in := a.slotSetLocked(slices.Values(slots))
			for _, e := range inSlotsLocked(a, a.mu.home.extents, a.mu.home.below, &in) {
				todo = append(todo, item{area: a, extent: e})
			}
			if a.newestHereLocked().Version > 0 && len(a.mu.home.extents) == 0 && in.has(slotIndex(a.slotLocked(0))) {
				todo = append(todo, item{area: a}) // it says which version is the newest
			}
		})
	}
	r.first.Store(h.lastID.Load() + 1)
	for len(r.acks) > 0 {
		<-r.acks
	}
	under := make(map[uint64]item)
	flying := 0      // bytes under way
	var short []item // of areas that cannot follow the catalog here, for lack of memory
	var retry <-chan time.Time
	for len(todo) > 0 || len(under) > 0 || len(short) > 0 {
		for len(todo) > 0 && len(under) < handoverWindow && flying < handoverBytes {
			id, it := h.lastID.Add(1), todo[0]
			todo = todo[1:]
			var sent bool
			if it.bytes, sent = it.area.handOver(r.to, it.extent, id); sent {
				under[id] = it
				flying += it.bytes
			}
		}
		if len(under) == 0 && len(short) == 0 {
			continue
		}
		select {
		case <-retry:
			todo, short = append(todo, short...), nil
		case ack := <-r.acks:
			it, ok := under[ack.ID]
			if !ok {
				continue
			}
			delete(under, ack.ID)
			flying -= it.bytes
			if ack.Stale {
				if h.node.cfg.View.WaitApplied(h.ctx, ack.Rev, 0) != nil {
					return false
				}
				if !it.area.isShort() {
					todo = append(todo, it)
					continue
				}
				if len(short) == 0 {
					retry = time.After(memoryRetry)
				}
				short = append(short, it)
			}
		case <-r.restart:
			return false
		case <-h.ctx.Done():
			return false
		}
	}
	return true
}

// copied returns when the backups that may take over have all that this node has said as the home of the slots: they have the same then as the
// new home. It returns false if the node is closed.
func (h *handovers) copied(slots []dsm.Slot) bool {
	moving := setOf(slots)
	for _, a := range h.node.all() {
		_ = a.await(h.ctx, "hand over", func() bool { return !a.owesLocked(moving) }) // else it was removed
	}
	return h.ctx.Err() == nil
}

// handOver sends the state of an extent, and returns the bytes of its pages. sent is false if this node has no state
// of the extent any more.
func (a *Area) handOver(to dsm.NodeID, e dsm.ExtentIndex, id uint64) (bytes int, sent bool) {
	a.step(func() {
		newest := a.newestHereLocked()
		x := a.mu.home.extents[e]
		if x == nil && newest.Version > 0 { // all that was ever published is truncated
			x = newHomeExtent(0)
		}
		if x == nil {
			return
		}
		m := &wire.HandoverExtent{Stamp: a.stampLocked(), ID: id, Slot: a.slotLocked(e), Extent: e, Version: x.version}
		m.Whole, m.Writer, m.Size, m.Shrunk = newest.Version, newest.Writer, newest.Size, a.mu.whole.shrunk
		for i, v := range x.pages {
			if v != 0 {
				m.Pages.Add(i)
				m.Versions = append(m.Versions, v)
			}
		}
		m.Writers = x.writersLocked()
		payload := make([]byte, 0, m.Pages.Len()*dsm.PageSize)
		for i := range m.Pages.All() {
			payload = append(payload, a.mu.mem.Home(page(e, i))...)
		}
		a.sendLocked(to, m, payload)
		bytes, sent = len(payload), true
	})
	return bytes, sent
}

// extent handles a HandoverExtent: it installs the state of an extent whose new home is this node.
func (h *handovers) extent(from dsm.NodeID, m *wire.HandoverExtent, payload []byte) error {
	n := h.node
	if err := n.waitApplied(from, m.Rev, m.Epoch); err != nil {
		return err
	}
	wrong := func(v dsm.Version) bool { return v == 0 || v > m.Version }
	if m.Pages.Len() != len(m.Versions) || len(payload) != m.Pages.Len()*dsm.PageSize || slices.ContainsFunc(m.Versions, wrong) || m.Size < 0 {
		return errs.E(errs.Corrupt, "handover", "extent %d of area %d does not add up", m.Extent, m.Area)
	}
	ack := &wire.HandoverAck{ID: m.ID}
	later := false
	if a, err := n.area(m.Area); err == nil {
		a.step(func() {
			row := a.rowLocked(m.Extent)
			switch {
			case a.slotLocked(m.Extent) != m.Slot || m.Epoch < row.Epoch || row.Source != from || !a.isSelf(row.Primary) || n.slotReady(m.Slot, row):
				// It was sent again, or a newer view has changed the home: nothing to install.
			case m.Rev > a.mu.ino.Rev && a.mu.short.ino != nil:
				ack.Stale, ack.Rev, later = true, a.revLocked(), true
			case m.Gen < a.mu.ino.Gen:
				ack.Stale, ack.Rev = true, a.revLocked()
			case int(m.Extent) >= a.extentsLocked(): // truncated
				a.comingLocked(m)
			default:
				if _, err := a.memoryLocked(); err != nil {
					ack.Stale, ack.Rev, later = true, a.revLocked(), true
					return
				}
				a.comingLocked(m)
				a.installExtentLocked(m, payload)
			}
		})
	}
	if later {
		h.sendLater(from, ack)
		return nil
	}
	n.cfg.Sender.Send(from, ack, nil, true) // more acks may follow at once, for extents that arrived with this one
	return nil
}

// later runs a task, which may last until the node is closed. It does nothing if that is so already.
func (h *handovers) later(task func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() == nil {
		h.wg.Go(task)
	}
}

// sendLater sends an ack after a while. The ack asks for the extent to be sent again; there is no memory for it now.
func (h *handovers) sendLater(to dsm.NodeID, ack *wire.HandoverAck) {
	h.later(func() {
		select {
		case <-time.After(memoryRetry):
			h.node.cfg.Sender.Send(to, ack, nil, false)
		case <-h.ctx.Done():
		}
	})
}

// installExtentLocked takes over the state of an extent. The caller has made the memory of the area.
func (a *Area) installExtentLocked(m *wire.HandoverExtent, payload []byte) {
	x := a.homeExtentLocked(m.Extent)
	for i := range x.pages {
		a.mu.home.setVersion(x, i, 0)
	}
	a.heardLocked(m.Version)
	x.forgetWriters()
	*x = *newHomeExtent(m.Version)
	a.keepExtentLocked(m.Extent, x)
	for _, w := range m.Writers {
		if !a.leftLocked(w.Node, w.Seq) {
			x.writers[w.Node], x.parts[w.Node] = w.Seq, w.Part
			a.keepMergedLocked(m.Extent, x, w.Node)
		}
	}
	k := 0
	for i := range m.Pages.All() {
		if a.inAreaLocked(m.Extent, i) {
			if a.versionedLocked() {
				a.takesPageLocked(page(m.Extent, i))
			}
			a.mu.home.setVersion(x, i, m.Versions[k])
			a.mu.mem.InstallHome(page(m.Extent, i), payload[k*dsm.PageSize:][:dsm.PageSize], a.replicaHasLocked(m.Extent, i))
			a.lookAtHomeLocked(m.Extent, x, i)
		}
		k++
	}
}

// acked passes an ack to the run that waits for it.
func (h *handovers) acked(from dsm.NodeID, m *wire.HandoverAck) {
	h.mu.Lock()
	r := h.mu.runs[from]
	h.mu.Unlock()
	if r != nil && m.ID >= r.first.Load() {
		select {
		case r.acks <- m:
		default: // more acks than there can be extents under way: some came twice
		}
	}
}

// done handles a HandoverDone: all state of its slots is here, so this node begins to serve them.
func (h *handovers) done(from dsm.NodeID, m *wire.HandoverDone) error {
	n := h.node
	if err := n.waitApplied(from, 0, m.Epoch); err != nil {
		return err
	}
	var v *dsm.View
	var ready []dsm.Slot
	for entered := false; !entered; {
		v, ready = n.cfg.View.Current(), nil
		for _, s := range m.Slots {
			if int(s) >= len(n.received) {
				return errs.E(errs.Corrupt, "handover", "slot %d", s)
			}
			if row := v.Row(s); row != nil && row.Source == from && row.Primary == n.cfg.Self && m.Epoch >= row.Epoch {
				ready = append(ready, s)
			}
		}
		entered = n.inLedger(v, func(k *pages.Keep) { // before it serves
			for _, s := range ready {
				k.Serves(v.NameOf(s), v.Row(s).Epoch)
			}
		})
	}
	if len(ready) == 0 {
		return nil
	}
	raise(&n.floor, m.Newest)
	for _, s := range ready {
		n.received[s].Store(uint64(v.Row(s).Epoch))
	}
	in := setOf(ready)
	for _, a := range n.all() {
		a.step(func() {
			a.dropStandbyLocked(in, func(row *dsm.SlotHome) bool { // this node was a backup
				return row.Primary == n.cfg.Self && row.Source == from && m.Epoch >= row.Epoch
			})
			a.unparkLocked()
		})
	}
	h.later(func() {
		h.tell("slots that are here", len(ready), func(ctx context.Context) error {
			return h.node.cfg.View.SlotsReady(ctx, ready, v.Epoch)
		})
	})
	return nil
}

// tell calls record, which changes the catalog, until it succeeds. what and n are for the log: what is said of how many slots.
func (h *handovers) tell(what string, n int, record func(ctx context.Context) error) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
		err := record(ctx)
		cancel()
		if err == nil || h.ctx.Err() != nil {
			return
		}
		h.node.cfg.Log.Warn("the catalog cannot be told yet", "of", what, "slots", n, "err", err)
		select {
		case <-time.After(wait):
		case <-h.ctx.Done():
			return
		}
	}
}

// sessionReset starts the handover to peer over.
func (h *handovers) sessionReset(peer dsm.NodeID) {
	h.mu.Lock()
	v := h.node.cfg.View.Current()
	for s, row := range v.Rows() {
		if row.Source == h.node.cfg.Self && row.Primary == peer {
			delete(h.mu.sent, s)
		}
	}
	if r := h.mu.runs[peer]; r != nil {
		r.startOver()
	}
	h.mu.Unlock()
	h.viewChanged(v)
}
