package coherence

import (
	"context"
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
//	announced   the backup drops what it may have left of the slots
//	filling     each area tells it each extent of them, and from then on what changes there
//	joined      all has been acked: outputs wait for the backup, too. When it has acked what was under way by then, the catalog hears of it
//	synced      the view says that it can take over
//
// A backup that does not follow is taken back by the catalog. Outputs wait for it until the view says so; then it is filled anew.
type fills struct {
	node *Node
	seen atomic.Uint64 // the epoch of the last view that was followed
	last atomic.Uint64 // number of the last fill
	mu   struct {
		lockrank.Mutex
		state   map[copyOf]copyState
		runs    map[dsm.NodeID]*fillRun
		telling map[dsm.NodeID]bool // the catalog is being told that the node does not follow
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
}

type fillPhase uint8

const (
	announced fillPhase = iota + 1
	filling
	joined
	synced
)

// fillRun fills one backup. Its goroutine ends when there is nothing left to fill.
type fillRun struct {
	to       dsm.NodeID
	fill     uint64
	answered uint64        // the last fill whose Refill the backup has answered
	lost     bool          // the session broke: Refill may be lost
	left     int           // calls of areas that are not over
	wake     chan struct{} // capacity 1
}

func (f *fills) init(n *Node) {
	f.node = n
	f.mu.Init("coherence.fills")
	f.mu.state = make(map[copyOf]copyState)
	f.mu.runs = make(map[dsm.NodeID]*fillRun)
	f.mu.telling = make(map[dsm.NodeID]bool)
}

// standing returns how far the copy of a slot is; 0: it is not being filled. It does not know of those that are in sync by the view alone.
func (f *fills) standing(s dsm.Slot, n dsm.NodeID) (fillPhase, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.mu.state[copyOf{s, n}]
	return c.phase, c.fill
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
			f.mu.state[k] = c
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
		if i < 0 || row.Primary != f.node.cfg.Self || row.Source != 0 || row.Backups[i].InSync || isGone(v, to) {
			continue
		}
		if _, ok := f.mu.state[copyOf{s, to}]; !ok {
			list = append(list, s)
		}
	}
	return list
}

// viewChanged begins to fill the backups that a view assigns.
func (f *fills) viewChanged(v *dsm.View) {
	f.follow(v)
	h := &f.node.handovers
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	for _, m := range v.Members {
		if m.ID == f.node.cfg.Self || !f.begins(v, m.ID) {
			continue
		}
		h.wg.Go(func() { f.run(m.ID) })
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
	for {
		v := f.node.cfg.View.Current()
		f.follow(v)
		f.mu.Lock()
		r := f.mu.runs[to]
		slots := f.pendingLocked(v, to)
		if len(slots) == 0 || f.node.handovers.ctx.Err() != nil {
			delete(f.mu.runs, to)
			f.mu.Unlock()
			return
		}
		r.fill, r.left, r.lost = f.last.Add(1), 0, false
		in := make(map[dsm.Slot]bool)
		for _, s := range slots {
			in[s] = true
			row := v.Row(s)
			f.mu.state[copyOf{s, to}] = copyState{epoch: row.Epoch, since: row.Backups[row.BackupOf(to)].Since, phase: announced, fill: r.fill}
		}
		fill := r.fill
		f.mu.Unlock()
		if f.announce(r, v.Epoch, slots) && f.advance(r, filling) && f.each(r, func(a *Area, done func()) { a.fillLocked(to, fill, in, done) }) &&
			f.advance(r, joined) && f.each(r, func(a *Area, done func()) { a.joinLocked(to, done) }) {
			f.report(r, v.Epoch)
		}
	}
}

// aliveLocked returns the slots that the run still fills.
func (f *fills) aliveLocked(r *fillRun) (list []dsm.Slot) {
	for k, c := range f.mu.state {
		if c.fill == r.fill && c.phase != synced {
			list = append(list, k.slot)
		}
	}
	slices.Sort(list)
	return list
}

// wait returns true when over holds, and false if nothing is to be filled any more.
func (f *fills) wait(r *fillRun, over func() bool) bool {
	for {
		f.mu.Lock()
		alive, ok := len(f.aliveLocked(r)) > 0, over()
		f.mu.Unlock()
		if !alive || ok {
			return alive
		}
		select {
		case <-r.wake:
		case <-f.node.handovers.ctx.Done():
			return false
		}
	}
}

// announce has the backup drop what it has of the slots.
func (f *fills) announce(r *fillRun, e dsm.Epoch, slots []dsm.Slot) bool {
	for {
		f.node.cfg.Sender.Send(r.to, &wire.Refill{Epoch: e, ID: r.fill, Slots: slots}, nil, false)
		if !f.wait(r, func() bool { return r.answered == r.fill || r.lost }) {
			return false
		}
		f.mu.Lock()
		answered := r.answered == r.fill
		r.lost = false
		f.mu.Unlock()
		if answered {
			return true
		}
	}
}

// advance takes the slots of a run to the next phase.
func (f *fills) advance(r *fillRun, to fillPhase) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, c := range f.mu.state {
		if c.fill == r.fill && c.phase < to {
			c.phase = to
			f.mu.state[k] = c
		}
	}
	return true
}

// each makes a call for each area in a step, and waits until all are done.
func (f *fills) each(r *fillRun, call func(a *Area, done func())) bool {
	fill := r.fill
	done := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.fill == fill {
			r.left--
			r.ring()
		}
	}
	all := f.node.all()
	f.mu.Lock()
	r.left = len(all)
	f.mu.Unlock()
	for _, a := range all {
		if !a.stepTakenOver(f.node.handovers.ctx, "fill", func() { call(a, done) }) {
			done() // it was removed
		}
	}
	return f.wait(r, func() bool { return r.left == 0 })
}

// report tells the catalog that a backup is in sync.
func (f *fills) report(r *fillRun, e dsm.Epoch) {
	h := &f.node.handovers
	for pause := reportPause; ; pause = min(2*pause, time.Second) {
		f.mu.Lock()
		slots := f.aliveLocked(r)
		f.mu.Unlock()
		if len(slots) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
		err := f.node.cfg.View.BackupInSync(ctx, r.to, slots, e)
		cancel()
		if err == nil || h.ctx.Err() != nil {
			return
		}
		f.node.cfg.Log.Warn("the catalog cannot be told yet", "of", "a backup that is in sync", "node", r.to, "slots", len(slots), "err", err)
		select {
		case <-time.After(pause):
		case <-h.ctx.Done():
			return
		}
	}
}

// reportPause is the first pause until the catalog is told again.
const reportPause = 50 * time.Millisecond

// lags tells the catalog that a backup which outputs wait for does not follow.
func (f *fills) lags(to dsm.NodeID) {
	h := &f.node.handovers
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || !f.tells(to, true) {
		return
	}
	h.wg.Go(func() {
		defer f.tells(to, false)
		for pause := reportPause; ; pause = min(2*pause, time.Second) {
			v := f.node.cfg.View.Current()
			slots := f.awaited(v, to)
			if len(slots) == 0 || h.ctx.Err() != nil {
				return
			}
			ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
			err := f.node.cfg.View.BackupLags(ctx, to, slots, v.Epoch)
			cancel()
			f.node.cfg.Log.Warn("a backup does not follow", "node", to, "slots", len(slots), "err", err)
			if err == nil { // if it is so again, areas find out again
				return
			}
			select {
			case <-time.After(pause):
			case <-h.ctx.Done():
				return
			}
		}
	})
}

// awaited returns the slots of which outputs wait for a backup: it is in sync, or has joined.
func (f *fills) awaited(v *dsm.View, to dsm.NodeID) (slots []dsm.Slot) {
	self := f.node.cfg.Self
	for s, row := range v.Rows() {
		i := row.BackupOf(to)
		if i < 0 || row.Primary != self && row.Source != self {
			continue
		}
		if phase, _ := f.standing(s, to); row.Backups[i].InSync || phase == joined {
			slots = append(slots, s)
		}
	}
	return slots
}

// tells sets whether the catalog is being told of a node, and reports whether that has changed.
func (f *fills) tells(to dsm.NodeID, now bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.mu.telling[to]
	f.mu.telling[to] = now
	return was != now
}

// refill handles a Refill.
func (f *fills) refill(from dsm.NodeID, m *wire.Refill) error {
	n := f.node
	if err := n.waitApplied(from, 0, m.Epoch); err != nil {
		return err
	}
	in := make(map[dsm.Slot]bool)
	v := n.cfg.View.Current()
	for _, s := range m.Slots {
		if row := v.Row(s); row != nil && row.Primary == from && m.Epoch >= row.Epoch {
			in[s] = true
		}
	}
	for _, a := range n.all() {
		a.step(func() { a.dropStandbyLocked(in) })
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
		r.lost = true
		r.ring()
	}
}

// fillLocked tells a backup all that this node has of slots, and calls done when it has acked that.
func (a *Area) fillLocked(to dsm.NodeID, fill uint64, in map[dsm.Slot]bool, done func()) {
	c := a.copiesLocked()
	var list []dsm.ExtentIndex
	for _, e := range slices.Sorted(maps.Keys(a.mu.home.extents)) {
		if phase, n := a.node.fills.standing(a.slotLocked(e), to); in[a.slotLocked(e)] && n == fill && phase == filling {
			list = append(list, e)
		}
	}
	newest, _ := a.newestLocked()
	if len(list) == 0 && newest.Version == 0 {
		done()
		return
	}
	c.index++
	b := c.backup(to)
	for _, e := range list {
		b.covered[e] = fill
		if !a.versionedLocked() {
			a.logLocked(to, &update{extent: e, index: c.index})
		}
	}
	if phase, n := a.node.fills.standing(a.slotLocked(0), to); a.versionedLocked() && n == fill && phase == filling {
		b.covered[0] = fill
		a.copyAllLocked(to, c.index, false)
	}
	a.whenCopiedLocked(b, done)
}

// joinLocked has outputs wait for a backup that has joined, and calls done when it has acked all that is under way to it.
func (a *Area) joinLocked(to dsm.NodeID, done func()) {
	b := a.backupLocked(to)
	if b == nil {
		done()
		return
	}
	a.recountLocked(to)
	clear(b.covered)
	a.whenCopiedLocked(b, done)
}

// whenCopiedLocked calls done when a backup has acked all that is under way to it now.
func (a *Area) whenCopiedLocked(b *backup, done func()) {
	if len(b.log) == 0 {
		done()
		return
	}
	b.marks = append(b.marks, mark{a.mu.copies.index, done})
}
