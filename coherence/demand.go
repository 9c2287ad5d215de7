package coherence

import (
	"context"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Pages on demand: a replica of an area of residency demand has a page only from when
// a program needed it until it is evicted.
//
//	not here   a hole in the working copy; the home pushes nothing of it
//	asked      Fetch under way
//	here       as in any other replica: pushed to, stored to, published
//	evicted    not here again, after Release has told the home
//
// The directory entry at the home (lag.holds) says which pages the replica has; messages of
// one pair of nodes are in order, so it is right but for what is on its way. Pages that are not here
// come by the answer to a Fetch only. A page that was pushed before a Release came is ignored, also if it is
// asked for again by then: the home may have published it since, and have told of versions (Complete)
// at which it took the page for given up. Likewise nothing is taken between a Subscribe
// and its answer: what was pushed before is pushed again.
//
// Where updates enter memory in sync calls only (apply=sync), a page that had to leave comes
// back as its home has it then. Pages that are known to be newer at their home do not leave while
// others can.

// arrivals are pages of one extent that were asked for and came. Those that follow each other in the
// area and in the message are put in place by one call.
type arrivals struct {
	extent dsm.ExtentIndex
	first  int
	bytes  []byte
	here   dsm.PageSet
}

// add takes the bytes of page i, in increasing order.
func (r *arrivals) add(a *Area, i int, n []byte) {
	if k := len(r.bytes); k > 0 && i == r.first+k/dsm.PageSize && cap(r.bytes) >= k+dsm.PageSize && &r.bytes[:k+1][k] == &n[0] {
		r.bytes = r.bytes[:k+dsm.PageSize]
		return
	}
	r.install(a)
	r.first, r.bytes = i, n
}

// install puts what add has taken in place.
func (r *arrivals) install(a *Area) {
	if len(r.bytes) == 0 {
		return
	}
	here, stored, err := a.mu.mem.Install(a.mu.kernel, page(r.extent, r.first), r.bytes, !a.mu.replica.bare)
	if err != nil {
		a.node.cfg.Log.Error("pages that were fetched are lost", "area", a.id, "extent", r.extent, "err", err)
	}
	x := a.mu.replica.extents[r.extent]
	a.dirtyLocked(r.extent, x, stored)
	r.here, r.bytes = r.here.Or(here), nil
	a.node.room.brought(a.id, r.extent, here)
}

// installed returns all that are in place.
func (r *arrivals) installed(a *Area) dsm.PageSet {
	r.install(a)
	return r.here
}

// answered returns what is still asked for of an extent after an answer of which the pages that
// came are in place. The others could not be, and are not here.
func (a *Area) answered(x *replicaExtent, answer, came dsm.PageSet) (asked dsm.PageSet) {
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
	for _, e := range a.touchedLocked() {
		x := a.mu.replica.extents[e]
		d.Here += x.have.Len()
		d.Asked += x.asked.Len()
	}
	return d
}

// keepBases is called before the first program can store: from then on stores are compared with the
// base copy. Until then a page needs none, which spares a third of the time of a fetch.
func (a *Area) keepBases() {
	r := &a.mu.replica
	if !r.bare {
		return
	}
	r.bare = false
	for _, e := range a.touchedLocked() {
		x := r.extents[e]
		clean := x.have.Minus(x.dirty)
		if x.pub != nil { // a page that a program broke the protocol with
			clean = clean.Minus(x.pub.sent)
		}
		a.mu.mem.KeepBases(e, clean)
	}
}

// here returns those of the pages that are here.
func (a *Area) here(e dsm.ExtentIndex, p dsm.PageSet) dsm.PageSet {
	if !a.mu.replica.demand {
		return p
	}
	return p.And(a.mu.replica.extents[e].have)
}

// residencyChanged follows a change of the setting, which the catalog allows of empty areas
// only. Programs that have the empty memory mapped would not find pages missing: for them it
// stays what it was.
func (a *Area) residencyChanged() {
	if a.mu.mem == nil {
		return
	}
	if a.mu.replica.mapped > 0 {
		a.node.cfg.Log.Warn("the residency of an area changes on this node when no program has the area open any more", "area", a.id)
		return
	}
	if err := a.mu.mem.SetDemand(a.mu.ino.Spec.Residency == dsm.ResidencyDemand); err != nil {
		a.node.cfg.Log.Error("change the residency", "area", a.id, "err", err)
	}
	a.mu.replica.demand = a.mu.mem.Demand()
	a.mu.replica.bare = a.mu.mem.Demand() && a.mu.replica.writers == 0
}

// cutOnDemand forgets the pages of an extent past the end.
func (a *Area) cutOnDemand(e dsm.ExtentIndex, x *replicaExtent) {
	in := a.within(e)
	gone := x.have.Or(x.asked).Minus(in)
	a.mu.replica.units -= gone.Len()
	a.node.room.forget(a.id, e, x.have.Minus(in))
	for i := range gone.All() {
		delete(x.stash, i)
		delete(a.mu.replica.awaited, page(e, i)) // who waits finds that the page is past the end
	}
	x.have, x.asked, x.dirty, x.behind = x.have.And(in), x.asked.And(in), x.dirty.And(in), x.behind.And(in)
}

// lost reports whether any page of [off, off+n) is neither here nor asked for.
func (a *Area) lost(off int64, n int) bool {
	return !a.every(off, n, func(x *replicaExtent) dsm.PageSet { return x.have.Or(x.asked) })
}

// bring fetches the pages of [off, off+n), and what is likely to be wanted next, as far as
// there is room. It returns when they are here, or some have gone again: the caller looks. then, if
// not nil, is called as soon as the first page comes.
//
// A READ of pages some of which the page cache was given before does not wait for room: a notice of
// those, or one that is to come, waits in the kernel until the READ is answered, and behind it all
// notices that make pages leave. The kernel drops pages by itself when memory is short, or for
// a program (fadvise).
func (a *Area) bring(ctx context.Context, off int64, n int, then func()) error {
	room := &a.node.room
	_, lacks := a.request(a.step, off, n, then)
	if lacks > 0 {
		// The next try may find that others have taken what is made now.
		if err := room.make(ctx, lacks); err != nil {
			return &errs.Error{Op: "fetch", Area: a.id, Kind: errs.Timeout, Err: err}
		}
		return nil
	}
	return a.await(ctx, "fetch", func() bool {
		left := int(min(int64(n), a.mu.ino.Size-off))
		return left <= 0 || a.present(off, left) || a.lost(off, left)
	})
}

// request asks for the pages of [off, off+n) that are not here, and for what is likely to be wanted next, and
// reports whether any is missing. If there is no room for the former it asks for nothing, and returns how
// many they are. then, if not nil, is called when the first page comes. step is that of the caller.
func (a *Area) request(step func(event func()), off int64, n int, then func()) (missing bool, lacks int) {
	room := &a.node.room
	taken := 0
	step(func() {
		r := &a.mu.replica
		n = int(min(int64(n), a.mu.ino.Size-off))
		if missing = n > 0 && r.subscribed && !a.present(off, n); !missing {
			return
		}
		want := a.missingOf(off, n)
		lacks = count(want)
		switch {
		case lacks == 0 || room.tryTake(lacks): // what was asked for already has its room
		case then == nil && a.mu.cached.Given(off, int64(n)):
			room.overtake(lacks)
		default:
			return
		}
		taken, lacks = lacks, 0
		a.askAll(want)
		first, stride, pages := r.ahead.next(off, n, room.window())
		switch ahead := a.missing(first, stride, pages); {
		case len(ahead) == 0:
		case room.tryTake(count(ahead)):
			taken += count(ahead)
			a.askAll(ahead)
		case !r.making:
			r.making = true
			room.tasks.Go(func() { a.bringAhead(first, stride, pages, count(ahead)) })
		}
		if then != nil {
			a.onArrival(dsm.PageIndex(off/dsm.PageSize), then)
		}
	})
	room.give(taken) // what was asked for has been charged to the area
	room.keepFree()
	return missing, lacks
}

// bringAhead fetches pages that no program waits for yet when room has been made for them.
func (a *Area) bringAhead(first dsm.PageIndex, stride int64, pages, n int) {
	err := a.node.room.take(a.node.room.ctx, n)
	a.step(func() {
		r := &a.mu.replica
		r.making = false
		if err == nil && r.subscribed {
			ahead := a.missing(first, stride, pages)
			a.askAll(ahead)
		}
	})
	if err == nil {
		a.node.room.give(n)
	}
}

// askAll asks for pages.
func (a *Area) askAll(list []wire.ExtentPages) {
	for _, x := range list {
		a.ask(x.Extent, a.mu.replica.extents[x.Extent], x.Pages)
	}
}

// onArrival has f called, with no lock held, when page p comes; at once if it is here.
func (a *Area) onArrival(p dsm.PageIndex, f func()) {
	r := &a.mu.replica
	if e, i := p.Extent(); r.extents[e].have.Has(i) {
		a.mu.arrived = append(a.mu.arrived, f)
		return
	}
	if r.awaited == nil {
		r.awaited = make(map[dsm.PageIndex][]func())
	}
	r.awaited[p] = append(r.awaited[p], f)
}

// arrive takes note that pages have come.
func (a *Area) arrive(e dsm.ExtentIndex, came dsm.PageSet) {
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

// tellUsed tells room of the pages that programs have waited for. It does so after they were woken, since
// room then wakes another goroutine, which takes 10 us.
func (a *Area) tellUsed() {
	for _, x := range a.mu.used {
		if int(x.Extent) < len(a.mu.replica.extents) {
			a.node.room.used(a.id, x.Extent, x.Pages.And(a.mu.replica.extents[x.Extent].have))
		}
	}
	a.mu.used = nil
}

// missingOf returns the pages of [off, off+n) that are neither here nor asked for.
func (a *Area) missingOf(off int64, n int) []wire.ExtentPages {
	first, last := off/dsm.PageSize, (off+int64(n)-1)/dsm.PageSize
	return a.missing(dsm.PageIndex(first), 1, int(last-first)+1)
}

// missing returns those of the n pages first, first+stride ... of the area that are neither here nor
// asked for.
func (a *Area) missing(first dsm.PageIndex, stride int64, n int) (list []wire.ExtentPages) {
	r := &a.mu.replica
	for p := int64(first); n > 0 && p >= 0 && p*dsm.PageSize < a.mu.ino.Size; n, p = n-1, p+stride {
		e, i := dsm.PageIndex(p).Extent()
		if int(e) >= len(r.extents) || r.extents[e].have.Has(i) || r.extents[e].asked.Has(i) {
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

// Fault serves a fault of an attached program on the page at off that was missing: it
// returns when the page is in memory, or errs.Timeout when ctx ends. there is called, by any goroutine and at least
// once, when the page is in memory: the program goes on before the home has its ack. BeginFault has counted it.
func (a *Area) Fault(ctx context.Context, off int64, there func()) error {
	var told atomic.Bool // once is enough: a thread that comes too late for the page faults again
	then := func() {
		told.Store(true)
		there()
	}
	for {
		var here bool
		var err error
		a.step(func() { here, err = a.faulted(off) })
		switch {
		case err != nil:
			return err
		case here:
			if !told.Load() {
				there()
			}
			return nil
		}
		if err := a.bring(ctx, off, dsm.PageSize, then); err != nil {
			return err
		}
	}
}

// BeginFault begins what Fault does and does not wait: it asks for the page and has there called when it
// comes. It returns false, and there is not called, if asking is not enough: then the caller calls Fault. It
// does so also if there has not been called for long.
func (a *Area) BeginFault(off int64, there func()) bool {
	a.node.stats.faults.Add(1)
	missing, lacks := a.request(a.stepBriefly, off, dsm.PageSize, there)
	return missing && lacks == 0 // one that is here by now may be a hole: see faulted
}

// faulted reports whether the page at off, that a program found missing, is here by now. One
// that is, but of which the program has punched the memory (MADV_REMOVE), holds zeroes that it stored; a
// program that may only read has stored nothing, so for that the page comes again.
func (a *Area) faulted(off int64) (here bool, err error) {
	r := &a.mu.replica
	switch {
	case !r.subscribed:
		return false, &errs.Error{Op: "fetch", Area: a.id, Kind: errs.Closed}
	case off >= a.mu.ino.Size:
		return true, nil // SIGBUS is the kernel's business
	}
	e, i := dsm.PageIndex(off / dsm.PageSize).Extent()
	x := r.extents[e]
	if !x.have.Has(i) || !a.mu.mem.Hole(page(e, i)) {
		return x.have.Has(i), nil
	}
	if !r.bare {
		a.dirtyLocked(e, x, dsm.Range(i, i+1))
		return true, a.mu.mem.Refill(page(e, i))
	}
	a.evict(e, dsm.Range(i, i+1), true)
	if x.have.Has(i) {
		return false, errs.E(errs.Busy, "fetch", "a program has punched page %d out of the memory, and the kernel's page cache still has it", page(e, i))
	}
	return false, nil
}

// charged is what room has been told that an area takes.
type charged struct {
	pages int
	fixed int64
}

// charge tells room what the area takes now, and reports whether somebody who waits for room
// should look again.
func (a *Area) charge() (more bool) {
	now := charged{pages: a.mu.replica.units}
	switch {
	case a.mu.mem == nil:
	case a.mu.mem.Demand():
		now.fixed = int64(a.mu.home.pages) * dsm.PageSize
	default:
		now.fixed = a.mu.ino.Size * int64(1+len(a.mu.drafts))
	}
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
		a.node.room.charge(now.pages-was.pages, now.fixed-was.fixed)
		a.mu.charged = now
	}
	more = a.mu.cleaner || now.pages < was.pages || now.fixed < was.fixed
	a.mu.cleaner = false
	return more
}
