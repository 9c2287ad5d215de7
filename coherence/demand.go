package coherence

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Pages on demand: a replica of an area with residency demand has a page only from when a program
// needs it until it is evicted.
//
//	not here   a hole in the working copy; the home pushes nothing of it
//	asked      Fetch under way
//	here       as in any other replica: pushed to, stored to, published
//	evicted    not here again, after Release has told the home
//
// The directory entry at the home (lag.has) says which pages the replica has. Messages between two
// nodes are in order, so the entry is right except for messages under way.
//
// A page that is not here comes only with the answer to a Fetch. A page that was pushed before the
// home received a Release is ignored, even if it has been asked for again since. The home may have
// merged a publish to it in between. It may also have announced a version (Complete) that contains
// this publish, without the page, which it took as released. For the same reason the replica accepts
// no push between a Subscribe and its answer. What was pushed before is pushed again.
//
// Where updates enter memory in sync calls only (apply=sync), a page that had to leave comes back
// in the state that its home has then. Pages known to be newer at their home leave only if no
// others can.

// arrivals are pages of one extent that were asked for and have arrived. Pages that are adjacent
// both in the area and in the message are put in place by one call.
type arrivals struct {
	extent dsm.ExtentIndex
	first  int
	bytes  []byte
	here   dsm.PageSet
}

// addLocked adds the bytes of page i. Pages must be added in increasing order.
func (r *arrivals) addLocked(a *Area, i int, n []byte) {
	if k := len(r.bytes); k > 0 && i == r.first+k/dsm.PageSize && cap(r.bytes) >= k+dsm.PageSize && &r.bytes[:k+1][k] == &n[0] {
		r.bytes = r.bytes[:k+dsm.PageSize]
		return
	}
	r.installLocked(a)
	r.first, r.bytes = i, n
}

// installLocked puts the added pages in place.
func (r *arrivals) installLocked(a *Area) {
	if len(r.bytes) == 0 {
		return
	}
	here, stored, err := a.mu.mem.Install(a.mu.kernel, page(r.extent, r.first), r.bytes, !a.mu.replica.bare)
	if err != nil {
		a.node.cfg.Log.Error("pages that were fetched cannot be put in place", "area", a.id, "extent", r.extent, "err", err)
	}
	x := a.extentLocked(r.extent)
	a.dirtyLocked(r.extent, x, stored)
	r.here, r.bytes = r.here.Or(here), nil
	a.node.room.broughtLocked(a, r.extent, here)
}

// installedLocked puts the added pages in place, and returns all pages that it and install have put in place.
func (r *arrivals) installedLocked(a *Area) dsm.PageSet {
	r.installLocked(a)
	return r.here
}

// answeredLocked returns which pages of an extent are still asked for after an answer. Of the pages in
// the answer those in came are in place. The others could not be put in place, and are not here.
func (a *Area) answeredLocked(x *replicaExtent, answer, came dsm.PageSet) (asked dsm.PageSet) {
	failed := x.asked.And(answer).Minus(came)
	a.mu.replica.units -= failed.Len()
	return x.asked.Minus(answer)
}

// Demand reports whether pages are here only while they are needed.
func (a *Area) Demand() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.replica.demand
}

// DemandStats counts pages of an area.
type DemandStats struct{ Here, Asked int }

// DemandStats returns how many pages are here, and how many are on their way.
func (a *Area) DemandStats() (d DemandStats) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.mu.replica.extents {
		d.Here += x.have.Len()
		d.Asked += x.asked.Len()
	}
	return d
}

// keepBasesLocked is called before the first program can store: from then on stores are compared with the
// base copy. Until then pages need no base copy, which saves a third of the time of a fetch.
func (a *Area) keepBasesLocked() {
	r := &a.mu.replica
	if !r.bare {
		return
	}
	r.bare = false
	for _, x := range r.extents {
		a.keepBasesOfLocked(x)
	}
}

// keepBasesOfLocked makes the base copies of an extent's pages that have none. It returns how many it has made.
func (a *Area) keepBasesOfLocked(x *replicaExtent) int {
	clean := x.have.Minus(x.dirty)
	if x.pub != nil { // a program has stored before it might: it broke the protocol
		clean = clean.Minus(x.pub.sent)
	}
	for _, pub := range x.parts {
		clean = clean.Minus(pub.pages)
	}
	return a.mu.mem.KeepBases(x.index, clean)
}

// keepBases makes base copies in steps of their own, a few at a time, before a program is to be the first that can store. So little is left to keepBasesLocked.
func (a *Area) keepBases() {
	var list []*replicaExtent
	a.mu.Lock()
	if r := &a.mu.replica; r.bare {
		list = slices.Collect(maps.Values(r.extents))
	}
	a.mu.Unlock()
	for more := len(list) > 0; more; {
		more = false // also ends if the area is gone
		a.step(func() {
			r := &a.mu.replica
			for n := 0; len(list) > 0 && n < publishBatch; list = list[1:] {
				if x := list[0]; r.bare && r.extents[x.index] == x { // else it was truncated
					n += a.keepBasesOfLocked(x)
				}
			}
			more = len(list) > 0
		})
	}
}

// bareLocked reports whether no base copy of a page is kept that is here. The home's own bytes may be there.
func (a *Area) bareLocked(p dsm.PageIndex) bool { return a.mu.replica.bare && !a.mu.mem.NeedsBase(p) }

// hereLocked returns which of the pages are here.
func (a *Area) hereLocked(e dsm.ExtentIndex, p dsm.PageSet) dsm.PageSet {
	if !a.mu.replica.demand {
		return p
	}
	return p.And(a.extentLocked(e).have)
}

// residencyChangedLocked follows a change of the setting, which the catalog allows only for empty areas.
// Programs that have the empty memory mapped would not find pages missing, so for them the
// residency stays as it was.
func (a *Area) residencyChangedLocked() {
	if a.mu.mem == nil {
		return
	}
	if a.mu.replica.mapped > 0 {
		a.node.cfg.Log.Warn("the residency of an area changes on this node when no program has the area open any more", "area", a.id)
		return
	}
	newest := a.mu.mem.HasNewest()
	if err := a.mu.mem.SetDemand(a.mu.ino.Spec.Residency == dsm.ResidencyDemand); err != nil {
		a.node.cfg.Log.Error("change the residency", "area", a.id, "err", err)
	}
	if newest { // programs go on to store
		a.mu.mem.WorkingIsNewest()
	}
	a.mu.replica.demand = a.mu.mem.Demand()
	a.mu.replica.slots = slotStates{} // it subscribes anew, in the other way, when there is something
	a.mu.replica.bare = a.mu.mem.Demand() && a.mu.replica.writers == 0
}

// shrinkOnDemandLocked forgets the pages of an extent past the end.
func (a *Area) shrinkOnDemandLocked(e dsm.ExtentIndex, x *replicaExtent) {
	in := a.withinLocked(e)
	gone := x.have.Or(x.asked).Minus(in)
	a.mu.replica.units -= gone.Len()
	a.node.room.forget(a.id, e, x.have.Minus(in))
	for i := range gone.All() {
		delete(a.mu.replica.awaited, page(e, i)) // the waiting program finds that the page is past the end
	}
	x.have, x.asked, x.dirty = x.have.And(in), x.asked.And(in), x.dirty.And(in)
	a.mu.replica.setOutdated(x, x.outdated.And(in))
}

// mustAskLocked reports whether a page of [off, off+n) is neither here nor asked for.
func (a *Area) mustAskLocked(off int64, n int) bool {
	return !a.everyLocked(off, n, func(x *replicaExtent) dsm.PageSet { return x.have.Or(x.asked) })
}

// bring fetches the pages of [off, off+n), and those that will probably be wanted next, as far as
// there is room. It returns when they are here, or when some have left again, so the caller must
// check. If then is not nil it is called as soon as the first page comes.
//
// A READ does not wait for room if the page cache was given some of its pages before. A notice for
// these pages may come, and then waits in the kernel until the READ is answered. All notices that
// would make pages leave wait behind it. (The READ comes because the kernel has dropped the pages
// on its own: when memory was short, or when a program asked it to with fadvise.) Nor does it while the
// kernel is told to drop all pages, which waits for those that are just read.
//
// If asked is not nil it is called in the step in which the last missing page of the range is asked for.
func (a *Area) bring(ctx context.Context, off int64, n int, then, asked func()) error {
	room := &a.node.room
	_, lacks := a.request(a.step, off, n, then, asked)
	if lacks > 0 {
		must := a.dropsUnder
		if then != nil { // a fault: the kernel has no page locked
			must = nil
		}
		// The next try may find that others have taken the room that is made now.
		if err := room.make(ctx, lacks, must); err != nil {
			return &errs.Error{Op: "fetch", Area: a.id, Kind: errs.Timeout, Err: err}
		}
		return nil
	}
	return a.awaitWith(ctx, &waiter{op: "fetch", cond: func() bool {
		left := int(min(int64(n), a.mu.ino.Size-off))
		return left <= 0 || a.presentLocked(off, left) || a.mustAskLocked(off, left)
	}, dead: func() dsm.NodeID { return a.deadForLocked(off, int64(n)) }, onHomes: true, few: n <= dsm.ExtentSize, done: make(chan struct{})})
}

// dropsUnder reports whether the kernel is told to drop all pages, or to drop some by notices of an earlier ledger.
func (a *Area) dropsUnder() (is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.drops.Under()
}

// request asks for the pages of [off, off+n) that are not here, and for those that will probably be
// wanted next. missing reports whether any page is not here. If there is no room for the pages of
// the range, it asks for nothing, and lacks is their number. If then is not nil it is called when
// the first page comes; so is asked, in the step that asks. step is the caller's way to run a step.
func (a *Area) request(step func(event func()), off int64, n int, then, asked func()) (missing bool, lacks int) {
	room := &a.node.room
	taken := 0
	step(func() {
		r := &a.mu.replica
		n = int(min(int64(n), a.mu.ino.Size-off))
		if missing = n > 0 && r.subscribed && !a.presentLocked(off, n); !missing {
			return
		}
		want := a.missingOfLocked(off, n)
		lacks = count(want)
		switch {
		case lacks == 0 || room.tryTake(lacks): // pages that were asked for already have their room
		case then == nil && (a.mu.cached.Given(off, int64(n)) || a.mu.drops.Under()):
			room.overtake(lacks)
		default:
			return
		}
		taken, lacks = lacks, 0
		a.askAllLocked(want)
		if r.ahead == nil {
			r.ahead = new(readahead)
		}
		first, stride, pages := r.ahead.next(off, n, room.window())
		switch ahead := a.missingLocked(first, stride, pages); {
		case len(ahead) == 0:
		case room.tryTake(count(ahead)):
			taken += count(ahead)
			a.askAllLocked(ahead)
		case !r.making:
			r.making = true
			room.tasks.Go(func() { a.bringAhead(first, stride, pages, count(ahead)) })
		}
		if asked != nil {
			asked()
		}
		if then != nil {
			a.onArrivalLocked(dsm.PageIndex(off/dsm.PageSize), then)
		}
	})
	room.give(taken) // it is now charged to the area
	room.keepFree()
	return missing, lacks
}

// staying is a READ that waits for its pages, all of which are here or asked for. In an area on demand its pages are not evicted until it
// has read them: otherwise several READs could evict each other's pages for ever. Room has been taken for all of them, so such a READ
// does not wait for any other call to give up room.
type staying struct {
	area *Area
	off  int64
	n    int
	on   bool
}

// beginLocked has the pages stay until end.
func (s *staying) beginLocked() {
	if !s.on {
		s.on = true
		s.area.mu.replica.staying = append(s.area.mu.replica.staying, s)
	}
}

func (s *staying) end() {
	if !s.on {
		return
	}
	s.area.step(func() {
		r := &s.area.mu.replica
		r.staying = slices.DeleteFunc(r.staying, func(o *staying) bool { return o == s })
		s.area.mu.cleaner = r.demand // they may leave now
	})
}

// bringAhead fetches pages that no program waits for yet, once room has been made for them.
func (a *Area) bringAhead(first dsm.PageIndex, stride int64, pages, n int) {
	err := a.node.room.take(a.node.room.ctx, n, nil)
	a.step(func() {
		r := &a.mu.replica
		r.making = false
		if err == nil && r.subscribed {
			ahead := a.missingLocked(first, stride, pages)
			a.askAllLocked(ahead)
		}
	})
	if err == nil {
		a.node.room.give(n)
	}
}

// askAllLocked asks for pages.
func (a *Area) askAllLocked(list []wire.ExtentPages) {
	for _, x := range list {
		a.askLocked(x.Extent, a.extentLocked(x.Extent), x.Pages)
	}
}

// onArrivalLocked arranges that f is called, with no lock held, when page p comes, or at once if it is
// here.
func (a *Area) onArrivalLocked(p dsm.PageIndex, f func()) {
	r := &a.mu.replica
	if e, i := p.Extent(); a.extentLocked(e).have.Has(i) {
		a.mu.arrived = append(a.mu.arrived, f)
		return
	}
	if r.awaited == nil {
		r.awaited = make(map[dsm.PageIndex][]func())
	}
	r.awaited[p] = append(r.awaited[p], f)
}

// arriveLocked records that pages have come.
func (a *Area) arriveLocked(e dsm.ExtentIndex, came dsm.PageSet) {
	r := &a.mu.replica
	if len(r.awaited) == 0 {
		return
	}
	var used dsm.PageSet
	for i := range came.All() {
		if f := r.awaited[page(e, i)]; f != nil {
			a.mu.arrived = append(a.mu.arrived, f...)
			delete(r.awaited, page(e, i))
			used.Add(i)
		}
	}
	if !used.Empty() {
		a.mu.used = append(a.mu.used, wire.ExtentPages{Extent: e, Pages: used})
	}
}

// tellUsedLocked tells room which of the pages programs have waited for. It does so after these were
// woken, because room then wakes another goroutine, which takes 10 us.
func (a *Area) tellUsedLocked() {
	for _, x := range a.mu.used {
		if int(x.Extent) < a.mu.replica.n {
			a.node.room.waitedForLocked(a, x.Extent, x.Pages.And(a.extentLocked(x.Extent).have))
		}
	}
	a.mu.used = nil
}

// missingOfLocked returns the pages of [off, off+n) that are neither here nor asked for.
func (a *Area) missingOfLocked(off int64, n int) []wire.ExtentPages {
	first, last := off/dsm.PageSize, (off+int64(n)-1)/dsm.PageSize
	return a.missingLocked(dsm.PageIndex(first), 1, int(last-first)+1)
}

// missingLocked returns those of the n pages first, first+stride ... of the area that are neither here
// nor asked for.
func (a *Area) missingLocked(first dsm.PageIndex, stride int64, n int) (list []wire.ExtentPages) {
	r := &a.mu.replica
	for p := int64(first); n > 0 && p >= 0 && p*dsm.PageSize < a.mu.ino.Size; n, p = n-1, p+stride {
		e, i := dsm.PageIndex(p).Extent()
		if int(e) >= r.n || a.extentLocked(e).have.Has(i) || a.extentLocked(e).asked.Has(i) {
			continue
		}
		if k := len(list) - 1; k < 0 || list[k].Extent != e {
			list = append(list, wire.ExtentPages{Extent: e})
		}
		list[len(list)-1].Pages.Add(i)
	}
	return list
}

func count(list []wire.ExtentPages) (n int) {
	for _, x := range list {
		n += x.Pages.Len()
	}
	return n
}

// Fault serves a fault of an attached program on the page at off. It returns when the page is in
// memory, errs.Timeout when ctx ends, or errs.NotExist for a page past the end, which the memory may have: see pages.Area.Sealed. there is called at least once, by any goroutine, when the
// page is in memory: so the program goes on before the home has received the ack. BeginFault has
// counted the fault.
func (a *Area) Fault(ctx context.Context, off int64, there func()) error {
	var told atomic.Bool // once is enough: a thread that begins to wait too late faults again
	then := func() {
		told.Store(true)
		there()
	}
	for {
		var here bool
		var err error
		a.step(func() { here, err = a.faultedLocked(off) })
		switch {
		case err != nil:
			return err
		case here:
			if !told.Load() {
				there()
			}
			return nil
		}
		if err := a.bring(ctx, off, dsm.PageSize, then, nil); err != nil {
			return err
		}
	}
}

// BeginFault begins to serve a fault, and does not wait: it asks for the page, and there is called when the
// page comes. If asking is not enough it returns false, and there is never called; then the caller calls
// Fault. The caller also calls Fault if the page does not come for a long time.
func (a *Area) BeginFault(off int64, there func()) bool {
	a.node.stats.faults.Add(1)
	missing, lacks := a.request(a.stepBriefly, off, dsm.PageSize, there, nil)
	return missing && lacks == 0 // a page that is here by now may be a hole: see faultedLocked
}

// faultedLocked reports whether the page at off, which a program found missing, is here by now. There is
// one special case: the page is here, but a program has punched its memory (MADV_REMOVE). Then it
// contains zeroes which that program stored; if the program may only read, it has stored nothing,
// so the page is fetched again.
func (a *Area) faultedLocked(off int64) (here bool, err error) {
	r := &a.mu.replica
	switch {
	case !r.subscribed:
		return false, &errs.Error{Op: "fetch", Area: a.id, Kind: errs.Closed}
	case off >= a.mu.ino.Size:
		return false, errs.E(errs.NotExist, "fetch", "byte %d is past the end", off)
	}
	e, i := dsm.PageIndex(off / dsm.PageSize).Extent()
	x := a.extentLocked(e)
	if !x.have.Has(i) || !a.mu.mem.Hole(page(e, i)) {
		return x.have.Has(i), nil
	}
	if !r.bare {
		a.dirtyLocked(e, x, dsm.Range(i, i+1))
		return true, a.mu.mem.Refill(page(e, i))
	}
	a.evictLocked(e, dsm.Range(i, i+1), true)
	if x.have.Has(i) {
		return false, errs.E(errs.Busy, "fetch", "a program has punched page %d out of the memory, and the kernel's page cache still has it", page(e, i))
	}
	return false, nil
}

// charged is what room has been told that an area takes.
type charged struct {
	pages  int
	fixed  int64
	copies int64 // of fixed
	drafts int64 // of fixed
}

// fixedLocked returns the bytes that the area takes and that cannot be evicted.
func (a *Area) fixedLocked() int64 {
	n := a.copyBytesLocked() + a.mu.home.rounds.bytes + a.mu.replica.partBytes + a.standbyBytesLocked() + a.conflictBytesLocked()
	if a.mu.mem != nil && !a.mu.mem.Demand() {
		n += a.versionBytesLocked()
	}
	return n
}

// copyBytesLocked returns those of its working and base copies.
func (a *Area) copyBytesLocked() int64 {
	switch {
	case a.mu.mem == nil:
		return 0
	case a.mu.mem.Demand(), !a.mu.replica.subscribed: // without a subscription there is no working copy
		return int64(a.mu.home.pages) * dsm.PageSize
	}
	return 2*a.pagesBytesLocked() + a.draftBytesLocked()
}

// pagesBytesLocked returns the bytes of the whole pages of the area.
func (a *Area) pagesBytesLocked() int64 {
	return (a.mu.ino.Size + dsm.PageSize - 1) / dsm.PageSize * dsm.PageSize
}

// chargeLocked tells room what the area takes now, and reports whether calls that wait for room should
// look again.
func (a *Area) chargeLocked() (more bool) {
	now := charged{pages: a.mu.replica.units, fixed: a.fixedLocked(), copies: a.copyBytesLocked(), drafts: a.draftBytesLocked()}
	if invariants.Enabled && a.mu.replica.demand {
		n := 0
		for _, x := range a.mu.replica.extents {
			both := x.have.Or(x.asked)
			n += both.Len()
		}
		invariants.Check(n == now.pages, "%d pages on demand, counted as %d", n, now.pages)
	}
	was := a.mu.charged
	if now != was {
		a.node.room.charge(now.pages-was.pages, now.fixed-was.fixed, now.copies-was.copies)
		a.node.room.drafts.Add(now.drafts - was.drafts)
		a.mu.charged = now
	}
	more = a.mu.cleaner || now.pages < was.pages || now.fixed < was.fixed
	a.mu.cleaner = false
	return more
}
