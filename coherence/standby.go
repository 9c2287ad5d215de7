package coherence

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// standby is what this node keeps, as a backup, of extents whose home is another node: all that it needs to go on in place of that. It is
// apart from the home copy and from the replica.
type standby struct {
	extents map[dsm.ExtentIndex]*standbyExtent
	below   dsm.ExtentIndex // all of them are below it
	due     int             // extents that are due
	store   pages.Store
	retry   *time.Timer // if not nil, it will try again to take over: there was no memory
	late    bool        // it could not take over when it was to

	// Of a versioned area: the newest version that is whole, what has come since, and whether something of that is missing.
	whole  VersionInfo
	shrunk bool // the area was shrunk since
	staged []message
	newest map[dsm.ExtentIndex]dsm.Version // of each extent in staged
	bytes  int64                           // of the payloads of staged
	broken bool
}

// standbyExtent is to a standby what homeExtent is to a home.
type standbyExtent struct {
	version dsm.Version
	pages   map[int]dsm.Version
	writers map[dsm.NodeID]dsm.Seq
	parts   map[dsm.NodeID]dsm.Seq
	// due says that this node goes on from it in place of a home that has died, and has not got the memory. It may be about to hand it over then.
	due bool
}

// extent returns what is kept of an extent, and makes it at the first call.
func (s *standby) extent(e dsm.ExtentIndex) *standbyExtent {
	x := s.extents[e]
	if x == nil {
		x = &standbyExtent{pages: make(map[int]dsm.Version), writers: make(map[dsm.NodeID]dsm.Seq)}
		if s.extents == nil {
			s.extents = make(map[dsm.ExtentIndex]*standbyExtent)
		}
		s.extents[e] = x
		s.below = max(s.below, e+1)
	}
	return x
}

// setDue sets whether an extent is due.
func (s *standby) setDue(x *standbyExtent, due bool) {
	switch {
	case due && !x.due:
		s.due++
	case !due && x.due:
		s.due--
	}
	x.due = due
}

// drop forgets an extent.
func (s *standby) drop(e dsm.ExtentIndex) {
	s.setDue(s.extents[e], false)
	for i := range s.extents[e].pages {
		s.store.Drop(page(e, i))
	}
	delete(s.extents, e)
	if len(s.extents) == 0 {
		s.whole, s.shrunk, s.broken = VersionInfo{}, false, false
		s.unstage()
	}
}

// unstage drops what has come of a version that is not whole.
func (s *standby) unstage() { s.staged, s.newest, s.bytes = nil, nil, 0 }

func (s *standby) close() {
	if s.retry != nil {
		s.retry.Stop()
	}
	s.store.Close()
	*s = standby{}
}

// standbyLocked returns what this node keeps as a backup, and makes it at the first call.
func (a *Area) standbyLocked() *standby {
	if a.mu.standby == nil {
		a.mu.standby = &standby{}
	}
	return a.mu.standby
}

// standbyBytesLocked returns the memory that the standby takes.
func (a *Area) standbyBytesLocked() int64 {
	if a.mu.standby == nil {
		return 0
	}
	return a.mu.standby.store.Bytes() + a.mu.standby.bytes
}

// backupOrder says what this node, as a backup, does with what a node tells it of an extent.
type backupOrder uint8

const (
	ignore   backupOrder = iota // it is not the home any more, or this node is no backup
	askWhole                    // the change was made by other rules, or for another size
	follow
)

func (a *Area) backupOrderLocked(from dsm.NodeID, e dsm.ExtentIndex, st *wire.Stamp) backupOrder {
	row := a.rowLocked(e)
	backup, self := row.BackupOf(a.node.cfg.Self) >= 0, a.isSelf(row.Primary)
	switch {
	case from != row.Primary && from != row.Source, self && from != row.Source, !self && !backup:
		return ignore
	case from == row.Primary && st.Epoch < row.Epoch, st.Gen != a.mu.ino.Gen:
		return askWhole
	}
	return follow
}

// receiveAsBackupLocked handles what a home tells a backup.
func (a *Area) receiveAsBackupLocked(from dsm.NodeID, msg any, payload []byte) error {
	ack := &wire.Replicated{Stamp: a.stampLocked()}
	e, st := dsm.ExtentIndex(0), (*wire.Stamp)(nil)
	switch m := msg.(type) {
	case *wire.Replicate:
		ack.ID, e, st = m.ID, m.Extent, &m.Stamp
	case *wire.ReplicatePages:
		ack.ID, e, st = m.ID, m.Extent, &m.Stamp
	case *wire.ReplicateVersion:
		ack.ID, st = m.ID, &m.Stamp
		if !a.versionedLocked() { // it was heard
			a.sendLocked(from, ack)
			return nil
		}
	}
	switch a.backupOrderLocked(from, e, st) {
	case ignore:
		return nil
	case askWhole:
		ack.Whole = true
	case follow:
		if a.isSelf(a.rowLocked(e).Source) { // its new home has begun
			a.stepDownLocked(a.slotLocked(e))
		}
		var err error
		if ack.Whole, err = a.followChangeLocked(msg, payload); err != nil {
			return err
		}
	}
	if ack.Whole && a.versionedLocked() {
		a.standbyLocked().broken = true
		a.mu.standby.unstage()
	}
	a.sendLocked(from, ack)
	if len(a.mu.parked) > 0 {
		a.unparkLocked() // the home may have said something ahead of the change
	}
	return nil
}

// standbyVersionLocked returns up to which version this node has an extent, as a backup, or as the home that it was until just now.
func (a *Area) standbyVersionLocked(e dsm.ExtentIndex) (v dsm.Version) {
	if x := a.mu.home.extents[e]; x != nil {
		v = x.version
	}
	s := a.mu.standby
	switch {
	case s == nil:
		return v
	case a.versionedLocked():
		return max(v, s.whole.Version)
	case s.extents[e] != nil:
		return max(v, s.extents[e].version)
	}
	return v
}

// followChangeLocked takes in a change. whole says that all of the extent, or of the versioned area, is needed instead.
func (a *Area) followChangeLocked(msg any, payload []byte) (whole bool, err error) {
	s := a.standbyLocked()
	switch m := msg.(type) {
	case *wire.Replicate:
		return a.followPublishLocked(m, payload)
	case *wire.ReplicatePages:
		if err := standbyProblem(m, payload); err != nil {
			return false, err
		}
		if a.versionedLocked() {
			return a.stageForStandbyLocked(m, payload), nil
		}
		switch x := s.extents[m.Extent]; {
		case m.Base == 0 && (x == nil || m.Version >= x.version): // all of it
		case x == nil || x.version < m.Base:
			return true, nil
		case m.Version <= x.version:
			return false, nil
		}
		a.followPagesLocked(m, payload)
	case *wire.ReplicateVersion:
		return a.wholeInStandbyLocked(m), nil
	}
	return false, nil
}

// standbyProblem checks a message with pages.
func standbyProblem(m *wire.ReplicatePages, payload []byte) error {
	wrong := func(v dsm.Version) bool { return v == 0 || v > m.Version }
	data := m.Pages.Minus(m.Zero)
	if m.Pages.Len() != len(m.Versions) || len(payload) != data.Len()*dsm.PageSize || slices.ContainsFunc(m.Versions, wrong) || m.Base > m.Version {
		return errs.E(errs.Corrupt, "replicate", "extent %d of area %d does not add up", m.Extent, m.Area)
	}
	return nil
}

// followPublishLocked merges a publish as the home did.
func (a *Area) followPublishLocked(m *wire.Replicate, payload []byte) (whole bool, err error) {
	s := a.mu.standby
	base := dsm.Version(0)
	if x := s.extents[m.Extent]; x != nil {
		base = x.version
	}
	switch {
	case m.Version <= base:
		return false, nil // it has come before
	case m.Base != base:
		return true, nil
	}
	delta := merge.Delta{Extent: m.Extent, Pages: m.Pages, Index: m.Index, Data: payload}
	if err := a.validateLocked(&delta); err != nil {
		return false, err
	}
	x := s.extent(m.Extent)
	a.mu.kernel.Apply(&delta, func(i int) []byte { return s.store.Page(page(m.Extent, i)) })
	for i := range m.Pages.All() {
		x.pages[i] = m.Version
		s.store.Settle(page(m.Extent, i))
	}
	x.version = m.Version
	if !a.leftLocked(m.From, 0) {
		x.writers[m.From] = m.Seq
	}
	a.heardLocked(m.Version)
	return false, nil
}

// followPagesLocked puts pages in place, all of the extent if Base is 0.
func (a *Area) followPagesLocked(m *wire.ReplicatePages, payload []byte) {
	s := a.mu.standby
	x := s.extent(m.Extent)
	if m.Base == 0 {
		for i := range x.pages {
			s.store.Drop(page(m.Extent, i))
		}
		clear(x.pages)
	}
	k := 0
	for i := range m.Pages.All() {
		p := page(m.Extent, i)
		if m.Zero.Has(i) {
			s.store.Drop(p)
		} else {
			if a.inAreaLocked(m.Extent, i) {
				copy(s.store.Page(p), payload)
			}
			payload = payload[dsm.PageSize:]
		}
		if a.inAreaLocked(m.Extent, i) {
			x.pages[i] = m.Versions[k]
		}
		k++
	}
	x.version = max(x.version, m.Version)
	clear(x.writers)
	clear(x.parts)
	for _, w := range m.Writers {
		if !a.leftLocked(w.Node, 0) {
			x.writers[w.Node] = w.Seq
			if w.Part != 0 {
				if x.parts == nil {
					x.parts = make(map[dsm.NodeID]dsm.Seq)
				}
				x.parts[w.Node] = w.Part
			}
		}
	}
	a.heardLocked(m.Version)
}

// stageForStandbyLocked keeps pages until their version is whole.
func (a *Area) stageForStandbyLocked(m *wire.ReplicatePages, payload []byte) (whole bool) {
	s := a.mu.standby
	if m.Begin {
		s.broken = false
		s.unstage()
	}
	if s.broken {
		return true
	}
	if m.Base != 0 {
		have := dsm.Version(0)
		if x := s.extents[m.Extent]; x != nil {
			have = x.version
		}
		if m.Version <= have {
			return false // it has come before
		}
		if max(have, s.newest[m.Extent]) < m.Base {
			return true
		}
	}
	if s.newest == nil {
		s.newest = make(map[dsm.ExtentIndex]dsm.Version)
	}
	s.newest[m.Extent] = max(s.newest[m.Extent], m.Version)
	s.staged = append(s.staged, message{msg: m, payload: [][]byte{bytes.Clone(payload)}})
	s.bytes += int64(len(payload))
	return false
}

// wholeInStandbyLocked puts what has come of a version in place: it is whole.
func (a *Area) wholeInStandbyLocked(m *wire.ReplicateVersion) (whole bool) {
	s := a.mu.standby
	if m.Begin {
		s.broken = false
		s.unstage()
	}
	if s.broken {
		return true
	}
	staged := s.staged
	s.unstage()
	if m.Whole == 0 || m.Whole < s.whole.Version {
		return false // it has come before
	}
	if begins := m.Begin || len(staged) > 0 && staged[0].msg.(*wire.ReplicatePages).Begin; begins {
		for _, e := range slices.Sorted(maps.Keys(s.extents)) {
			s.drop(e)
		}
	}
	for _, o := range staged {
		a.followPagesLocked(o.msg.(*wire.ReplicatePages), o.payload[0])
	}
	s.whole, s.shrunk = VersionInfo{Version: m.Whole, Writer: m.Writer, Size: m.Size}, false
	a.heardLocked(m.Whole)
	return false
}

// standbyShrunkLocked follows a change of size or rules: see homeGenChangedLocked. What is under way of a version was made before.
func (a *Area) standbyShrunkLocked(shrunk bool) {
	s := a.mu.standby
	if s == nil {
		return
	}
	if len(s.staged) > 0 {
		s.unstage()
		s.broken = true
	}
	if !shrunk {
		return
	}
	s.shrunk = s.shrunk || s.whole.Version > 0
	for e, x := range s.extents {
		for i := range x.pages {
			switch off := int64(page(e, i)) * dsm.PageSize; {
			case off >= a.mu.ino.Size:
				s.store.Drop(page(e, i))
				delete(x.pages, i)
			case off+dsm.PageSize > a.mu.ino.Size:
				clear(s.store.Page(page(e, i))[a.mu.ino.Size-off:])
				s.store.Settle(page(e, i))
			}
		}
	}
}

// stepDownLocked makes what this node has as the home of a slot its standby.
func (a *Area) stepDownLocked(slot dsm.Slot) {
	s := a.standbyLocked()
	in := a.slotSetLocked(slices.Values([]dsm.Slot{slot}))
	for _, e := range inSlotsLocked(a, a.mu.home.extents, a.mu.home.below, &in) {
		h, x := a.mu.home.extents[e], s.extent(e)
		for i, v := range h.pages {
			if v != 0 {
				x.pages[i] = v
				if h.data.Has(i) {
					copy(s.store.Page(page(e, i)), a.mu.mem.Home(page(e, i)))
				}
			}
		}
		x.version, x.writers, x.parts = h.version, maps.Clone(h.writers), maps.Clone(h.parts)
		if newest := a.newestHereLocked(); newest.Version > 0 && a.versionedLocked() {
			s.whole, s.shrunk = newest, a.mu.whole.shrunk
		}
		a.resignLocked(e)
	}
}

// standbyViewChangedLocked follows a new view. Where this node has handed a slot over and is a backup of it now, it steps down as its home; so it does where it was the new home. Where it has become
// the home of a slot without a handover, it takes over. Where it is no backup any more, it drops what it has. It may never see the view that makes it the home:
// the next one that it sees may say already that it hands the slot over.
func (a *Area) standbyViewChangedLocked(old *dsm.View) {
	self, changed := a.node.cfg.Self, a.changedSlotsLocked(old)
	for _, e := range inSlotsLocked(a, a.mu.home.extents, a.mu.home.below, &changed) {
		if a.mu.home.extents[e] == nil { // it has stepped down with another of its slot
			continue
		}
		slot := a.slotLocked(e)
		from, was := a.wasInLocked(old, e)
		row := a.mu.view.Row(slot)
		if was.Primary == self && !a.node.slotReady(from, was) && row.Primary == self && row.Source == 0 && row.Epoch != was.Epoch {
			a.dropHalfLocked(e)
			continue
		}
		gave := was.Source == self && row.Source != self && (row.Primary != self || row.Source != 0)
		// Everything was here when the source ended, and the catalog has made another backup the home. This node has dropped its standby when it began to serve: it makes one of what it has.
		lost := was.Primary == self && was.Source != 0 && a.node.slotReady(from, was) && row.Primary != self && row.Source != self
		if i := row.BackupOf(self); (gave || lost) && i >= 0 && row.Backups[i].InSync {
			a.stepDownLocked(slot)
		}
	}
	s := a.mu.standby
	if s == nil {
		return
	}
	if len(s.staged) > 0 && a.movedLocked(old, a.slotLocked(0)) { // the home of then makes no version of it any more
		s.unstage()
	}
	for _, e := range inSlotsLocked(a, s.extents, s.below, &changed) {
		x, slot := s.extents[e], a.slotLocked(e)
		row := a.mu.view.Row(slot)
		from, was := a.wasInLocked(old, e)
		served := !x.due && was.Primary == self && a.node.slotReady(from, was)
		serves := row.Primary == self && row.Source == 0 || row.Source == self && (x.due || a.movedLocked(old, slot)) // else it has stepped down
		s.setDue(x, serves && !served)
		if !x.due && (serves || row.Primary != self && row.BackupOf(self) < 0) {
			s.drop(e)
			continue
		}
	}
	for _, n := range a.forgottenLocked(old) {
		for _, x := range s.extents {
			delete(x.writers, n)
			delete(x.parts, n)
		}
	}
	a.takeOverLocked()
}

// dropHalfLocked forgets what has come of an extent by a handover that its source has not lived to end. This node goes on from its standby, which may have less: nobody has
// heard of the rest, and who published it sends it again.
func (a *Area) dropHalfLocked(e dsm.ExtentIndex) {
	a.mu.whole.coming = VersionInfo{}
	a.resignLocked(e)
}

// wasInLocked returns the slot that an extent had in a former view, and its row there.
func (a *Area) wasInLocked(old *dsm.View, e dsm.ExtentIndex) (dsm.Slot, *dsm.SlotHome) {
	slot := old.SlotOf(a.id, a.mu.ino.Spec, e)
	return slot, old.Row(slot)
}

// dueLocked reports whether this node is to take over an extent, and has not got the memory.
func (a *Area) dueLocked() bool { return a.mu.standby != nil && a.mu.standby.due > 0 }

// stepTakenOver is step for an event that is about all that this node is the home of. It comes when nothing is due any more; never, if the area was
// removed or ctx has ended: then it returns false.
func (a *Area) stepTakenOver(ctx context.Context, op string, event func()) bool {
	for {
		if a.await(ctx, op, func() bool { return !a.dueLocked() }) != nil {
			return false
		}
		ran, removed := false, true
		a.step(func() { // it may see a newer view
			removed = false
			if ran = !a.dueLocked(); ran {
				event()
			}
		})
		if ran || removed {
			return ran
		}
	}
}

// takeOverLocked makes this node go on in place of a home that has died.
func (a *Area) takeOverLocked() {
	s := a.mu.standby
	if !a.dueLocked() {
		return
	}
	if _, err := a.memoryLocked(); err != nil {
		if s.late = true; s.retry == nil {
			s.retry = time.AfterFunc(memoryRetry, func() {
				a.step(func() {
					s.retry = nil
					if a.takeOverLocked(); !a.dueLocked() {
						a.unparkLocked()
					}
				})
			})
		}
		return
	}
	s.unstage()
	whole := s.whole
	for _, e := range slices.Sorted(maps.Keys(s.extents)) {
		x := s.extents[e]
		if !x.due {
			continue
		}
		m := &wire.HandoverExtent{Extent: e, Version: x.version, Writers: writersOf(x.writers, x.parts), Whole: whole.Version, Writer: whole.Writer, Size: whole.Size, Shrunk: s.shrunk}
		var payload []byte
		for _, i := range slices.Sorted(maps.Keys(x.pages)) {
			m.Pages.Add(i)
			m.Versions = append(m.Versions, x.pages[i])
			payload = append(payload, s.store.Look(page(e, i))...)
		}
		a.comingLocked(m)
		a.installExtentLocked(m, payload)
		s.drop(e)
	}
	a.node.stats.takenOver.Add(1)
	a.mu.wake = true
	if s.late {
		s.late = false
		a.mu.arrived = append(a.mu.arrived, func() { a.node.handovers.later(a.node.keepServed) }) // which was told of the view without this
	}
}

// dropStandbyLocked drops what this node keeps as a backup of the slots, if which says so of their rows. It looks at the rows as they are in this step: there
// may be many areas, and when it is their turn this node may be a backup in sync again.
func (a *Area) dropStandbyLocked(slots map[dsm.Slot]bool, which func(row *dsm.SlotHome) bool) {
	if a.mu.standby == nil {
		return
	}
	in := a.slotSetLocked(maps.Keys(slots))
	for _, e := range inSlotsLocked(a, a.mu.standby.extents, a.mu.standby.below, &in) {
		if which(a.rowLocked(e)) {
			a.mu.standby.drop(e)
		}
	}
}

// setOf returns a set of slots.
func setOf(slots []dsm.Slot) map[dsm.Slot]bool {
	in := make(map[dsm.Slot]bool, len(slots))
	for _, s := range slots {
		in[s] = true
	}
	return in
}
