package coherence

import (
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// draft is a working copy that belongs to one program. Where updates enter memory in sync calls
// only (apply=sync), each program that attaches for writing gets one: in a shared memory, several
// programs of a node that load, compute and store back would undo each other's work.
//
// A draft relates to the node's working copy as that relates to the home:
//
//	take       merges what the program has stored into the working copy, and adds it to the draft's base
//	refresh    merges what is new in the working copy into the draft, only in sync calls of its program
//
// The draft's base is what the program's stores are compared with. So no difference is counted
// twice, and no store is lost while others' updates come in. To the homes the node is one
// publisher. As long as all programs that store have drafts, nobody stores into the working copy
// itself, so it takes updates as they arrive, and programs that only read see them.
//
// All programs of a process share one draft, so a process never sees two values of one byte. When those that store have detached, the others still
// map it. From then on it gets updates as they arrive, like the working copy.
type draft struct {
	program      int // the process
	mem          *pages.Draft
	attachments  int
	writers      int               // attachments that may store
	behind       bool              // follow is to bring it up to date: it had writers until just now
	filled       bool              // it has the bytes of the working copy
	stale        []dsm.PageSet     // by extent: pages where the working copy may differ from the base
	staleExtents []dsm.ExtentIndex // the extents with such pages
	tracking     pages.Tracking    // guarded by attached.mu
	refused      refused
	heads        heads
	changes      uint64      // how many of replica.changes are in it
	whole        dsm.Version // everything up to this version is in it: see replica.whole
	fresh        time.Time   // see replica.fresh
}

// draftOfLocked returns the draft for an attachment of the program, nil if it uses the working copy. promised is what the catalog has promised, and file what a new one gets in a mount that is held.
func (a *Area) draftOfLocked(program int, write bool, promised int64, file *pages.HeldFile) (*draft, error) {
	for _, d := range a.mu.drafts {
		if d.program == program {
			return d, nil
		}
	}
	if !a.wantsDraftLocked(program, write) {
		return nil, nil
	}
	if n := 2 * a.pagesBytesLocked(); a.lacksDraftRoomLocked(n, promised) { // a copy, and its base
		return nil, errs.E(errs.NoSpace, "attach", "a program that stores where apply=sync needs a copy of its own, and there is no room in --memory for %d bytes more", n)
	}
	mem, err := a.mu.mem.NewDraft(program, file)
	if err != nil {
		return nil, err
	}
	d := &draft{program: program, mem: mem}
	d.resizedLocked(a)
	a.mu.drafts = append(a.mu.drafts, d)
	return d, nil
}

// wantsDraftLocked reports whether a program that has no draft gets one.
func (a *Area) wantsDraftLocked(program int, write bool) bool {
	return write && program > 0 && !a.mu.replica.demand && a.mu.ino.Spec.AppliesInSync()
}

// draftBytesLocked returns what the drafts of the area take: each is a copy, and its base.
func (a *Area) draftBytesLocked() int64 { return 2 * a.pagesBytesLocked() * int64(len(a.mu.drafts)) }

// lacksDraftRoomLocked reports whether there is no memory for n bytes more beside what the areas of this node take now, or beside its drafts and what the
// catalog has promised. The catalog knows of no draft.
func (a *Area) lacksDraftRoomLocked(n, promised int64) bool {
	m := &a.node.room
	return a.lacksRoomLocked(n) || m.budget > 0 && promised+m.drafts.Load()-a.mu.charged.drafts+a.draftBytesLocked()+n > m.budget
}

// CheckGrowth is called before a program of this node has the catalog make the area as long as size. errs.NoSpace if there are drafts on this node, and with
// them no room for that. A program of another node may make it longer all the same.
func (a *Area) CheckGrowth(size int64) (err error) {
	if a.node.room.drafts.Load() == 0 {
		return nil
	}
	promised := a.node.cfg.View.Promised()
	a.mu.Lock()
	defer a.mu.Unlock()
	pages := (size+dsm.PageSize-1)/dsm.PageSize*dsm.PageSize - a.pagesBytesLocked()
	if n := pages * int64(2+2*len(a.mu.drafts)); n > 0 && a.mu.ino.Spec.Residency == dsm.ResidencyFull && a.lacksDraftRoomLocked(n, promised) {
		return errs.E(errs.NoSpace, "grow", "programs that store where apply=sync have copies of their own on this node, and there is no room in --memory for %d bytes more", n)
	}
	return nil
}

// draftWithLocked returns the draft of a process if it is filled, or nil.
func (a *Area) draftWithLocked(program int) *draft {
	for _, d := range a.mu.drafts {
		if program != 0 && d.program == program && d.filled {
			return d
		}
	}
	return nil
}

// has says what is in some memory: so many of replica.changes, everything up to a version, and everything that was published before a time.
type has struct {
	changes uint64
	whole   dsm.Version
	fresh   time.Time
}

func (a *Area) hasLocked() has {
	return has{a.mu.replica.changes, a.mu.replica.whole, a.mu.replica.fresh}
}

// getsLocked records that what the working copy had is in the draft.
func (d *draft) getsLocked(h has) {
	d.changes, d.whole = max(d.changes, h.changes), max(d.whole, h.whole)
	if h.fresh.After(d.fresh) {
		d.fresh = h.fresh
	}
}

// countLocked counts an attachment that comes or goes.
func (d *draft) countLocked(write bool, by int) {
	d.attachments += by
	if write {
		d.storesLocked(by)
	}
}

func (d *draft) storesLocked(by int) {
	d.writers += by
	d.behind = d.writers == 0
}

// draftBatch is how many pages are copied, taken or refreshed in one step.
const draftBatch = publishBatch

// fill copies the working copy to a new draft.
func (a *Area) fill(d *draft) (err error) {
	const n = draftBatch * dsm.PageSize
	var has has
	for off, more := int64(0), true; more && err == nil; off += n {
		more = false // also ends if the area is gone
		a.step(func() {
			if off == 0 {
				has = a.hasLocked()
			}
			if more = off < a.mu.ino.Size; more {
				err = d.mem.Fill(a.mu.mem, off, n)
			}
			if d.filled = !more; d.filled {
				d.getsLocked(has)
			}
			a.mu.wake = true
		})
	}
	return err
}

// resizedLocked changes the draft to the size of the area.
func (d *draft) resizedLocked(a *Area) {
	for len(d.stale) < a.extentsLocked() {
		d.stale = append(d.stale, dsm.PageSet{})
	}
	d.stale = d.stale[:a.extentsLocked()]
	for e := int(a.mu.ino.Size / dsm.ExtentSize); e < len(d.stale); e++ { // those before are whole
		d.stale[e] = d.stale[e].And(a.withinLocked(dsm.ExtentIndex(e)))
	}
}

// changedLocked records that pages of the working copy have changes that no draft but has contains. Some
// pages may be past the end: the area may have shrunk while they were under way.
func (a *Area) changedLocked(e dsm.ExtentIndex, p dsm.PageSet, has *draft) {
	p = p.And(a.withinLocked(e))
	for _, d := range a.mu.drafts {
		if d != has && int(e) < len(d.stale) && !p.Empty() {
			if d.stale[e].Empty() {
				d.staleExtents = append(d.staleExtents, e)
			}
			d.stale[e] = d.stale[e].Or(p)
		}
	}
}

// takeLocked merges what the program has stored to the pages of an extent into the working copy, and
// returns how many pages that changed.
func (a *Area) takeLocked(d *draft, e dsm.ExtentIndex, set dsm.PageSet) (changed int) {
	r := &a.mu.replica
	if !r.subscribed || int(e) >= r.n {
		return 0
	}
	x := a.extentLocked(e)
	var came dsm.PageSet
	var now [dsm.PageSize]byte
	for i := range set.And(a.withinLocked(e)).And(x.have).All() {
		p := page(e, i)
		memory, base := d.mem.Memory(p), d.mem.Base(p)
		if string(memory) == string(base[:len(memory)]) {
			a.refusedLocked(&d.refused, p, 0, 0)
			continue
		}
		merge.Snapshot(now[:], memory)
		if a.takesFiniteLocked(d, p, base, now[:]); string(now[:]) == string(base) {
			continue
		}
		a.mu.cached.BeforeMerge(p)
		w := a.mu.mem.Working(p)
		a.mu.mem.BeginTake(d.mem, p)
		if a.sharedLocked() {
			a.mu.kernel.StoreShared(p, base, w, now[:])
		} else {
			merged := now
			a.mu.kernel.Merge(p, base, merged[:], w, nil)
			copy(w, merged[:])
		}
		copy(base, now[:])
		a.mu.mem.EndTake(d.mem)
		came.Add(i)
	}
	if came.Empty() {
		return 0
	}
	a.dirtyLocked(e, x, came)
	r.lastStore = a.now()
	a.changedLocked(e, came, d)
	return came.Len()
}

// takeRange is take for a range of bytes. It looks only at pages that take memory.
func (a *Area) takeRange(d *draft, off, n int64) (looked, changed int) {
	const batch = draftBatch * dsm.PageSize
	a.note(func() {
		if a.pastLocked(off, n) {
			a.dropPastLocked(d.mem)
		}
	})
	for ; n > 0; off, n = off+batch, n-batch {
		more := false
		a.note(func() {
			if more = off < a.mu.ino.Size; !more {
				return
			}
			err := d.mem.Ranges(off, min(n, batch), func(off, n int64) {
				for _, s := range appendRange(nil, off, n) {
					looked += s.Pages.Len()
					changed += a.takeLocked(d, s.Extent, s.Pages)
				}
			})
			if err != nil {
				a.node.cfg.Log.Warn("compare the memory of a program", "area", a.id, "err", err)
			}
		})
		if !more {
			break
		}
	}
	return looked, changed
}

// takeRefusedLocked looks again at pages with elements that were left out.
func (a *Area) takeRefusedLocked(d *draft) {
	for _, p := range slices.Sorted(maps.Keys(d.refused)) {
		if e, i := p.Extent(); int64(p)*dsm.PageSize < a.mu.ino.Size {
			a.takeLocked(d, e, dsm.Range(i, i+1))
		}
	}
}

// takeAll takes what the programs of all drafts have stored, or that of own alone, if that is not nil. The caller has attached.mu.
func (a *Area) takeAll(own *draft) (any bool) {
	var found []wire.ExtentPages
	for _, d := range a.draftsNow() {
		if d.tracking.Empty() || own != nil && d != own {
			continue
		}
		a.note(func() { a.takeRefusedLocked(d) })
		any = true
		found = found[:0]
		d.tracking.Collect(
			func(off, n int64) { found = appendRange(found, off, n) },
			func(off, n int64) (looked, changed int) { return a.takeRange(d, off, n) })
		past := false
		for len(found) > 0 {
			n := 0
			a.note(func() {
				for pages := 0; n < len(found) && pages < draftBatch; n++ {
					pages += found[n].Pages.Len()
					past = past || found[n].Pages.Minus(a.withinLocked(found[n].Extent)) != (dsm.PageSet{})
					a.takeLocked(d, found[n].Extent, found[n].Pages)
				}
			})
			if n == 0 {
				break // the area is gone
			}
			found = found[n:]
		}
		if past {
			a.note(func() { a.dropPastLocked(d.mem) })
		}
	}
	return any
}

// refresh merges what is new in the working copy into a draft, unless its program has detached meanwhile.
func (a *Area) refresh(d *draft) { a.refreshWhile(d, func() bool { return true }) }

// follow is refresh for a draft into which nobody stores. It ends if somebody does.
func (a *Area) follow(d *draft) { a.refreshWhile(d, func() bool { return d.writers == 0 }) }

// followAll is follow for the drafts that there are.
func (a *Area) followAll() {
	for _, d := range a.draftsNow() {
		a.follow(d)
	}
}

// followLocked brings what a step has changed into the drafts into which nobody stores.
func (a *Area) followLocked() {
	for _, d := range a.mu.drafts {
		if d.writers > 0 || d.behind || !d.filled {
			continue
		}
		for _, e := range d.staleExtents {
			if int(e) < len(d.stale) {
				a.refreshExtentLocked(d, e)
			}
		}
		d.staleExtents = d.staleExtents[:0]
		d.getsLocked(a.hasLocked())
	}
}

func (a *Area) refreshWhile(d *draft, mayLocked func() bool) {
	left := -1 // later changes are not waited for
	var has has
	for more := true; more; {
		more = false // also ends if the area is gone
		a.step(func() {
			if !slices.Contains(a.mu.drafts, d) || !mayLocked() {
				return
			}
			if left < 0 {
				left, has = len(d.staleExtents), a.hasLocked()
			}
			for n := 0; left > 0 && len(d.staleExtents) > 0 && n < draftBatch; left-- {
				e := d.staleExtents[0]
				d.staleExtents = d.staleExtents[1:]
				if int(e) < len(d.stale) {
					n += a.refreshExtentLocked(d, e)
				}
			}
			if more = left > 0 && len(d.staleExtents) > 0; !more {
				d.getsLocked(has)
				d.behind = false
				a.mu.wake = true
			}
		})
	}
}

// refreshAll is for programs that got their drafts before the area began to apply updates as they
// arrive.
func (a *Area) refreshAll() {
	for _, d := range a.draftsNow() {
		inSync := false
		a.note(func() { inSync = a.mu.ino.Spec.AppliesInSync() })
		if !inSync {
			a.refresh(d)
		}
	}
}

// draftsNow returns the drafts that there are. Most areas have none, and each publish asks.
func (a *Area) draftsNow() []*draft {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.mu.drafts)
}

func (a *Area) refreshExtentLocked(d *draft, e dsm.ExtentIndex) int {
	set := d.stale[e]
	d.stale[e] = dsm.PageSet{}
	var now [dsm.PageSize]byte
	for i := range set.All() {
		p := page(e, i)
		is := a.bytesOfLocked(p)
		if a.sharedLocked() || len(is) < dsm.PageSize {
			merge.Snapshot(now[:], is)
			is = now[:]
		}
		a.mu.mem.Refresh(a.mu.kernel, d.mem, p, is)
	}
	return set.Len()
}

// endDraft ends a draft that no attachment uses any more, after it has taken the last stores.
func (a *Area) endDraft(d *draft) {
	t := &a.attached
	t.mu.Lock()
	a.takeRange(d, 0, dsm.MaxAreaSize)
	a.note(func() {
		if d.attachments == 0 {
			a.dropDraftLocked(d)
		}
	})
	t.mu.Unlock()
	a.step(func() {})
}

func (a *Area) dropDraftLocked(d *draft) {
	for i, o := range a.mu.drafts {
		if o == d {
			a.mu.drafts = append(a.mu.drafts[:i:i], a.mu.drafts[i+1:]...)
			a.freeLocked(d.mem.Close)
			return
		}
	}
}

// DraftStats returns how many drafts there are, and how much memory they take.
func (a *Area) DraftStats() (drafts int, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.mu.drafts {
		bytes += d.mem.ResidentBytes()
	}
	return len(a.mu.drafts), bytes
}
