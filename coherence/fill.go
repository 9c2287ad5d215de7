package coherence

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// fills brings the backups that the catalog assigns to slots of this node up to what it has, and tells the catalog who follows.
//
//	announced   the backup drops what it may have left of the slot
//	filling     each area tells it each extent of the slot, and from then on what changes there, slowly if it must (pace.go)
//	following   it has all, and is told at once what changes; what had changed meanwhile follows
//	joined      all has been acked: outputs wait for the backup, too
//	reported    it has acked what was under way when it joined, and the catalog has been told
//	synced      the view says that it can take over
//
// Each slot goes this way by itself: if one of them is stuck, the others are not delayed.
//
// A backup that does not follow is taken back by the catalog. Outputs wait for it until the view says so; then it is filled anew.
type fills struct {
	node *Node
	seen atomic.Uint64 // the epoch of the last view that was followed
	last atomic.Uint64 // number of the last fill
	mu   struct {
		lockrank.Mutex
		state   map[copyOf]*copyState
		runs    map[dsm.NodeID]*fillRun
		lagging map[dsm.NodeID]*lagging
		unsent  map[dsm.NodeID]int // extents that were never sent, of slots that are being filled
	}
}

// copyOf is the copy of a slot that a node is to have.
type copyOf struct {
	slot dsm.Slot
	node dsm.NodeID
}

type copyState struct {
	epoch dsm.Epoch // of the row
	since dsm.Epoch // of the backup in it: an entry that this node has not seen may have taken it out of sync
	phase fillPhase
	fill  uint64
	left  int                // what the phase waits for
	areas map[*Area]struct{} // that tell it of something in the slot, until it joins
}

type fillPhase uint8

const (
	announced fillPhase = iota + 1
	filling
	following
	joined
	reported
	synced
)

// fillRun fills one backup. Its goroutine ends when there is nothing left to fill.
type fillRun struct {
	to       dsm.NodeID
	answered uint64        // the last fill whose Refill the backup has answered
	broken   bool          // the session broke: Refill may not have arrived
	wake     chan struct{} // capacity 1
}

func (f *fills) init(n *Node) {
	f.node = n
	f.last.Store(n.cfg.First)
	f.mu.Init("coherence.fills")
	f.mu.state = make(map[copyOf]*copyState)
	f.mu.runs = make(map[dsm.NodeID]*fillRun)
	f.mu.lagging = make(map[dsm.NodeID]*lagging)
	f.mu.unsent = make(map[dsm.NodeID]int)
}

// standing returns how far the copy of a slot is; 0: it is not being filled. It does not know of those that are in sync by the view alone.
func (f *fills) standing(s dsm.Slot, n dsm.NodeID) (fillPhase, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.mu.state[copyOf{s, n}]; c != nil {
		return c.phase, c.fill
	}
	return 0, 0
}

// follow takes in a view.
func (f *fills) follow(v *dsm.View) {
	if dsm.Epoch(f.seen.Load()) >= v.Epoch {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if dsm.Epoch(f.seen.Load()) >= v.Epoch {
		return
	}
	f.seen.Store(uint64(v.Epoch))
	for k, c := range f.mu.state {
		row := v.Row(k.slot)
		i := -1
		if row != nil && row.Primary == f.node.cfg.Self && row.Source == 0 && row.Epoch == c.epoch {
			i = row.BackupOf(k.node)
		}
		switch {
		case i < 0 || row.Backups[i].Since != c.since || c.phase == synced && !row.Backups[i].InSync:
			delete(f.mu.state, k)
		case row.Backups[i].InSync:
			c.phase = synced
		}
	}
	for _, r := range f.mu.runs {
		r.ring()
	}
}

func (r *fillRun) ring() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// pendingLocked returns the slots of which a node is to be a backup, and whose copies are not being filled.
func (f *fills) pendingLocked(v *dsm.View, to dsm.NodeID) (list []dsm.Slot) {
	for s, row := range v.Rows() {
		i := row.BackupOf(to)
		if i < 0 || row.Primary != f.node.cfg.Self || row.Source != 0 || row.Backups[i].InSync || v.IsGone(to) {
			continue
		}
		if f.mu.state[copyOf{s, to}] == nil {
			list = append(list, s)
		}
	}
	return list
}

// viewChanged begins to fill the backups that a view assigns.
func (f *fills) viewChanged(v *dsm.View) {
	f.follow(v)
	for _, m := range v.Members {
		if len(f.formers(v, m.ID)) > 0 {
			f.lags(m.ID, false)
		}
	}
	h := &f.node.handovers
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	for _, m := range v.Members {
		if m.ID == f.node.cfg.Self {
			continue
		}
		if f.begins(v, m.ID) {
			h.wg.Go(func() { f.run(m.ID) })
		}
	}
}

// begins reports whether a run for a backup is to begin.
func (f *fills) begins(v *dsm.View, to dsm.NodeID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.runs[to] != nil || len(f.pendingLocked(v, to)) == 0 {
		return false
	}
	f.mu.runs[to] = &fillRun{to: to, wake: make(chan struct{}, 1)}
	return true
}

// run fills a backup until nothing is left to fill.
func (f *fills) run(to dsm.NodeID) {
	h := &f.node.handovers
	for {
		v := f.node.cfg.View.Current()
		f.follow(v)
		f.mu.Lock()
		r := f.mu.runs[to]
		slots := f.pendingLocked(v, to)
		full, caughtUp, ready := f.readyLocked(to, filling), f.readyLocked(to, following), f.readyLocked(to, joined)
		if f.mu.unsent[to] > 0 { // what a slot is told at once goes at the cost of those who publish: not before that is all there is to do
			full = nil
		}
		if over := len(slots) == 0 && !f.busyLocked(to); over || h.ctx.Err() != nil {
			delete(f.mu.runs, to)
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		switch {
		case len(full) > 0:
			f.next(to, full, filling, following, (*Area).followedByLocked)
		case len(caughtUp) > 0:
			f.next(to, caughtUp, following, joined, (*Area).joinLocked)
		case len(ready) > 0:
			f.report(to)
		case len(slots) > 0:
			f.fill(r, v, slots)
		default:
			select {
			case <-r.wake:
			case <-h.ctx.Done():
			}
		}
	}
}

// busyLocked reports whether copies of a node have not got as far as they can.
func (f *fills) busyLocked(to dsm.NodeID) bool {
	for k, c := range f.mu.state {
		if k.node == to && c.phase < reported {
			return true
		}
	}
	return false
}

// readyLocked returns the slots of a node that have all that a phase waits for, with their fills.
func (f *fills) readyLocked(to dsm.NodeID, phase fillPhase) map[dsm.Slot]uint64 {
	ready := make(map[dsm.Slot]uint64)
	for k, c := range f.mu.state {
		if k.node == to && c.phase == phase && c.left == 0 {
			ready[k.slot] = c.fill
		}
	}
	return ready
}

// fill begins to fill slots.
func (f *fills) fill(r *fillRun, v *dsm.View, slots []dsm.Slot) {
	fill := f.last.Add(1)
	in := make(map[dsm.Slot]uint64)
	f.mu.Lock()
	r.broken = false
	for _, s := range slots {
		in[s] = fill
		row := v.Row(s)
		f.mu.state[copyOf{s, r.to}] = &copyState{epoch: row.Epoch, since: row.Backups[row.BackupOf(r.to)].Since, phase: announced,
			fill: fill, left: 1, areas: make(map[*Area]struct{})}
	}
	f.mu.Unlock()
	if !f.announce(r, v.Epoch, fill, slots) {
		return
	}
	f.advance(r.to, in, announced, filling)
	for _, a := range f.node.all() {
		var due map[dsm.Slot]uint64
		a.step(func() {
			if due = a.dueSlotsLocked(in); len(due) > 0 {
				f.postpone(r.to, due)
				return
			}
			a.fillLocked(r.to, in)
		})
		if len(due) > 0 { // it may take long
			f.later(func() {
				a.stepTakenOver(f.node.handovers.ctx, "fill", func() { a.fillLocked(r.to, due) }) // else it was removed
				f.pass(r.to, due)
			})
		}
	}
	f.pass(r.to, in)
}

// later runs a task until the node is closed.
func (f *fills) later(task func()) { f.node.handovers.later(task) }

// aliveLocked reports whether some slot of a fill is still to be filled.
func (f *fills) aliveLocked(to dsm.NodeID, fill uint64) bool {
	for k, c := range f.mu.state {
		if k.node == to && c.fill == fill {
			return true
		}
	}
	return false
}

// announce has the backup drop what it has of the slots. It returns false if they are not to be filled any more.
func (f *fills) announce(r *fillRun, e dsm.Epoch, fill uint64, slots []dsm.Slot) bool {
	ask := true
	for {
		if ask {
			f.node.cfg.Sender.Send(r.to, &wire.Refill{Epoch: e, ID: fill, Slots: slots}, nil, false)
		}
		select {
		case <-r.wake:
		case <-f.node.handovers.ctx.Done():
			return false
		}
		f.mu.Lock()
		alive, answered := f.aliveLocked(r.to, fill), r.answered == fill
		ask, r.broken = r.broken, false
		f.mu.Unlock()
		if !alive || answered {
			return alive
		}
	}
}

// eachLocked yields the copies that are still in the given fills.
func (f *fills) eachLocked(to dsm.NodeID, in map[dsm.Slot]uint64) iter.Seq[*copyState] {
	return func(yield func(*copyState) bool) {
		for s, fill := range in {
			if c := f.mu.state[copyOf{s, to}]; c != nil && c.fill == fill && !yield(c) {
				return
			}
		}
	}
}

// advance takes slots to the next phase.
func (f *fills) advance(to dsm.NodeID, in map[dsm.Slot]uint64, from, next fillPhase) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.eachLocked(to, in) {
		if c.phase == from {
			c.phase = next
		}
	}
}

// postpone has the phase of slots wait until pass is called once more.
func (f *fills) postpone(to dsm.NodeID, in map[dsm.Slot]uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.eachLocked(to, in) {
		c.left++
	}
}

// pass says that something has come that slots wait for.
func (f *fills) pass(to dsm.NodeID, in map[dsm.Slot]uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.eachLocked(to, in) {
		if c.left--; c.left == 0 {
			f.ringLocked(to)
		}
	}
}

func (f *fills) ringLocked(to dsm.NodeID) {
	if r := f.mu.runs[to]; r != nil {
		r.ring()
	}
}

// cover records that an area tells a backup of something in a slot. It returns false if the slot is not being filled in that fill.
func (f *fills) cover(k copyOf, fill uint64, a *Area) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.mu.state[k]
	if c == nil || c.fill != fill || c.phase != filling && c.phase != following {
		return false
	}
	c.areas[a] = struct{}{}
	return true
}

// next takes slots to the next phase, and has each area that tells the backup of something in them follow.
func (f *fills) next(to dsm.NodeID, in map[dsm.Slot]uint64, from, next fillPhase, follow func(a *Area, to dsm.NodeID, in map[dsm.Slot]uint64)) {
	areas := make(map[*Area]struct{})
	f.mu.Lock()
	for c := range f.eachLocked(to, in) {
		if c.phase != from {
			continue
		}
		c.phase, c.left = next, 1
		maps.Copy(areas, c.areas)
		if next == joined {
			c.areas = nil
		}
	}
	f.mu.Unlock()
	for a := range areas {
		a.step(func() { follow(a, to, in) })
	}
	f.pass(to, in)
}

// report tells the catalog that a backup is in sync with slots.
func (f *fills) report(to dsm.NodeID) {
	h := &f.node.handovers
	for pause := reportPause; ; pause = min(2*pause, time.Second) {
		f.mu.Lock()
		e, ready := dsm.Epoch(f.seen.Load()), f.readyLocked(to, joined) // they are as in that view
		f.mu.Unlock()
		if len(ready) == 0 {
			return
		}
		slots := slices.Sorted(maps.Keys(ready))
		ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
		err := f.node.cfg.View.BackupInSync(ctx, to, slots, e)
		cancel()
		if err == nil || h.ctx.Err() != nil {
			f.advance(to, ready, joined, reported)
			return
		}
		f.node.cfg.Log.Warn("the catalog cannot be told yet", "of", "a backup that is in sync", "node", to, "slots", len(slots), "err", err)
		select {
		case <-time.After(pause):
		case <-h.ctx.Done():
			return
		}
	}
}

// reportPause is the first pause until the catalog is told again.
const reportPause = 50 * time.Millisecond

// refill handles a Refill.
func (f *fills) refill(from dsm.NodeID, m *wire.Refill) error {
	n := f.node
	if err := n.waitApplied(from, 0, m.Epoch); err != nil {
		return err
	}
	in := setOf(m.Slots)
	for _, a := range n.all() {
		a.step(func() {
			a.dropStandbyLocked(in, func(row *dsm.SlotHome) bool {
				i := row.BackupOf(n.cfg.Self)
				return row.Primary == from && row.Source == 0 && m.Epoch >= row.Epoch && i >= 0 && !row.Backups[i].InSync
			})
			a.aheadNoMoreLocked(from, in)
		})
	}
	n.cfg.Sender.Send(from, &wire.Refilled{ID: m.ID}, nil, false)
	return nil
}

// refilled handles the answer to a Refill.
func (f *fills) refilled(from dsm.NodeID, m *wire.Refilled) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.mu.runs[from]; r != nil {
		r.answered = max(r.answered, m.ID)
		r.ring()
	}
}

func (f *fills) sessionReset(peer dsm.NodeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.mu.runs[peer]; r != nil {
		r.broken = true
		r.ring()
	}
}
