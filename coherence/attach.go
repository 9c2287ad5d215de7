package coherence

import (
	"context"
	"os"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// attached is what programs of this node that map the working copy itself have
// mapped for writing. They store at any time, with no word to anybody: so as long as
// there are any, the working copy is merged into by compare-and-swap, every
// page counts as one that may have unpublished stores, and what was stored is collected
// before each publish.
//
// mu is held over the scans of the programs' memory and the event that takes note of
// what they found, so that whoever publishes next finds all that was collected before.
// A scan may wait for a program that waits for a READ: the area's lock is not held.
type attached struct {
	mu struct {
		lockrank.Mutex
		tracking pages.Tracking
		found    []wire.ExtentPages // by the scan under way; kept for its memory
	}
}

// attachWindow is how many extents are fetched at once before a program may map them.
const attachWindow = 8

// Attachment is a program's hold on an area of which it maps the memory: the working copy, or a draft.
type Attachment struct {
	area  *Area
	write bool
	draft *draft // nil: the working copy
	first bool   // when it came no program could store
}

// Attach readies the area, which the caller has opened for reading, for one more program (0: several) that maps its
// memory, and returns a descriptor of that memory. It waits until all bytes are here; of an area on
// demand, until those that are not are found missing when they are touched. For write it also waits until it is known,
// for each page in the kernel's page cache, which bytes the kernel was given. Detach ends it.
func (a *Area) Attach(ctx context.Context, program int, write bool) (*Attachment, *os.File, error) {
	if err := a.readyToAttach(ctx); err != nil {
		return nil, nil, err
	}
	a.collect() // a child of fork gets what its parent has stored
	t := &Attachment{area: a, write: write}
	err := error(&errs.Error{Op: "attach", Area: a.id, Kind: errs.NotExist})
	fresh := false
	a.step(func() {
		had := len(a.mu.drafts)
		if t.draft, err = a.draftOfLocked(program, write); err != nil {
			return
		}
		fresh = len(a.mu.drafts) > had
		a.enterLocked(t)
	})
	if err != nil {
		return nil, nil, err
	}
	switch {
	case fresh:
		err = a.fill(t.draft)
	case t.draft != nil:
		err = a.await(ctx, "attach", func() bool { return t.draft.filled })
	case write:
		if err = a.Acquire(ctx, t.first); err == nil {
			err = a.await(ctx, "attach", func() bool { return a.mu.cached.Writable() })
		}
	}
	var f *os.File
	if err == nil {
		f, err = t.open(write)
	}
	if err != nil {
		t.Detach()
		return nil, nil, err
	}
	return t, f, nil
}

// open opens the memory, for writing also what is on demand.
func (t *Attachment) open(write bool) (f *os.File, err error) {
	a := t.area
	err = &errs.Error{Op: "attach", Area: a.id, Kind: errs.NotExist}
	a.step(func() {
		switch {
		case t.draft == nil:
			f, err = a.mu.mem.OpenWorking(write || a.mu.replica.demand)
		case slices.Contains(a.mu.drafts, t.draft):
			f, err = t.draft.mem.Open(write)
		default: // the program has detached
			return
		}
		if err != nil {
			a.node.warnOfMemory(a.id, err)
		}
	})
	return f, err
}

// Memory opens the memory once more, for reading.
func (t *Attachment) Memory() (*os.File, error) { return t.open(false) }

// enterLocked counts an attachment; leave ends that.
func (a *Area) enterLocked(t *Attachment) {
	a.mu.replica.mapped++ // from here on the residency stays what it is
	switch {
	case t.draft != nil:
		t.draft.attachments++
	case t.write:
		t.first = a.mu.replica.writers == 0
		a.beginWritingLocked()
		a.countAttachedLocked(+1)
	}
}

func (a *Area) leaveLocked(t *Attachment) {
	a.mu.replica.mapped--
	switch {
	case t.draft != nil:
		t.draft.attachments--
	case t.write:
		a.countAttachedLocked(-1)
		a.endWritingLocked()
	}
}

// Own reports whether the program has a draft.
func (t *Attachment) Own() bool { return t.draft != nil }

// Detach ends an Attach. What was mapped has been removed by Untrack before.
func (t *Attachment) Detach() {
	last := false
	t.area.step(func() {
		t.area.leaveLocked(t)
		last = t.draft != nil && t.draft.attachments == 0
	})
	if last {
		t.area.endDraft(t.draft)
	}
}

// Sync is Area.Sync by the program, and what it brings is in the memory of the program.
func (t *Attachment) Sync(ctx context.Context) error {
	if t.draft == nil || !t.write {
		return t.area.Sync(ctx, t.write)
	}
	if err := t.area.Publish(ctx); err != nil {
		return err
	}
	return t.Acquire(ctx)
}

// Acquire is Area.Acquire, likewise.
func (t *Attachment) Acquire(ctx context.Context) error {
	err := t.area.Acquire(ctx, t.write)
	if err == nil && t.draft != nil && t.write {
		t.area.refresh(t.draft)
	}
	return err
}

func (a *Area) countAttachedLocked(by int) {
	r := &a.mu.replica
	was := a.sharedLocked()
	r.attached += by
	if now := a.sharedLocked(); now != was {
		a.mu.cached.SetShared(now)
	}
}

// sharedLocked reports whether programs may be storing into the working copy now.
func (a *Area) sharedLocked() bool { return a.mu.replica.attached > 0 }

// readyToAttach returns when programs may map the working copy: all pages are here, or
// those that are not are found missing.
func (a *Area) readyToAttach(ctx context.Context) error {
	demand := false
	var err error
	a.step(func() {
		if err = a.growLocked(); err != nil {
			return
		}
		if demand = a.mu.replica.demand; demand {
			err = a.mu.mem.Attachable()
		}
	})
	if demand || err != nil {
		return err
	}
	return a.fetchAll(ctx)
}

// fetchAll returns when every page of the area is here. What comes to the area
// later is here from the start.
func (a *Area) fetchAll(ctx context.Context) error {
	const window = attachWindow * dsm.ExtentSize
	for off := int64(0); ; off += window {
		size := int64(0)
		a.step(func() {
			if size = a.mu.ino.Size; off < size {
				a.fetchLocked(off, window)
			}
		})
		if off >= size {
			return nil
		}
		if err := a.awaitHomes(ctx, "attach", func() bool {
			return a.presentLocked(off, int(max(min(window, a.mu.ino.Size-off), 0)))
		}, func() dsm.NodeID { return a.deadForLocked(off, window) }); err != nil {
			return err
		}
	}
}

// Track takes up a mapping of [off, off+n) in the program, which has attached for
// writing. source finds what the program stores; without one the range is compared
// each time. stop is called when the program cannot store through it any more:
// what it stored last is found by comparing.
func (t *Attachment) Track(source pages.Source, off, n int64) (stop func()) {
	a := t.area
	at := &a.attached
	at.mu.Lock()
	defer at.mu.Unlock()
	tracking := &at.mu.tracking
	if t.draft != nil {
		tracking = &t.draft.tracking
	}
	m := tracking.Add(source, off, n)
	return func() {
		at.mu.Lock()
		tracking.Remove(m)
		if t.draft != nil {
			a.takeRange(t.draft, off, n)
		} else {
			a.note(func() { a.comparedLocked(off, n) })
		}
		at.mu.Unlock()
		a.step(func() {})
	}
}

// TrackingStats says how stores of attached programs were found.
func (a *Area) TrackingStats() pages.TrackingStats {
	a.attached.mu.Lock()
	defer a.attached.mu.Unlock()
	sum := a.attached.mu.tracking.Stats()
	a.note(func() {
		for _, d := range a.mu.drafts {
			sum.Add(d.tracking.Stats())
		}
	})
	return sum
}

// collect takes note of what attached programs have stored.
func (a *Area) collect() {
	if a.scan() {
		a.step(func() {})
	}
}

// scan is collect without the step that follows; false if nobody can have stored.
func (a *Area) scan() bool {
	t := &a.attached
	t.mu.Lock()
	defer t.mu.Unlock()
	drafts := a.takeAll()
	if t.mu.tracking.Empty() {
		return drafts
	}
	t.mu.found = t.mu.found[:0]
	t.mu.tracking.Collect(
		func(off, n int64) { t.mu.found = appendRange(t.mu.found, off, n) },
		func(off, n int64) (looked, changed int) {
			a.note(func() { looked, changed = a.comparedLocked(off, n) })
			return looked, changed
		})
	a.note(func() { a.storedToLocked(t.mu.found) })
	return true
}

// appendRange adds the pages of [off, off+n) to a list, which names an extent once if it is
// added to in increasing order.
func appendRange(list []wire.ExtentPages, off, n int64) []wire.ExtentPages {
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+n; e++ {
		p := pagesOf(e, off, int(n))
		if k := len(list) - 1; k >= 0 && list[k].Extent == e {
			list[k].Pages = list[k].Pages.Or(p)
			continue
		}
		list = append(list, wire.ExtentPages{Extent: e, Pages: p})
	}
	return list
}

// storedToLocked takes note that an attached program stored to pages.
func (a *Area) storedToLocked(list []wire.ExtentPages) {
	r := &a.mu.replica
	if !r.subscribed || len(list) == 0 {
		return
	}
	r.lastStore = a.now()
	for _, s := range list {
		if int(s.Extent) >= r.n {
			continue // past the end
		}
		p := a.hereLocked(s.Extent, s.Pages.And(a.withinLocked(s.Extent)))
		a.dirtyLocked(s.Extent, a.extentLocked(s.Extent), p)
		a.touchedLocked(s.Extent, p)
	}
}

// touchedLocked makes sure that the kernel is told what attached programs stored to the
// pages: later, while somebody waits for it to have been told of everything else, or
// that would never end while they store.
func (a *Area) touchedLocked(e dsm.ExtentIndex, p dsm.PageSet) {
	a.changedLocked(e, p, nil)
	r := &a.mu.replica
	if r.draining > 0 {
		if x := a.extentLocked(e); !p.Empty() {
			if x.untold.Empty() {
				r.busy.untold = append(r.busy.untold, e)
			}
			x.untold = x.untold.Or(p)
		}
		return
	}
	a.mu.cached.Touched(e, p)
}

// drainLocked begins such a wait, for all that is known now, also if another goes on; drained ends it.
func (a *Area) drainLocked() {
	a.tellUntoldLocked()
	a.mu.replica.draining++
}

func (a *Area) drainedLocked() {
	if a.mu.replica.draining--; a.mu.replica.draining == 0 {
		a.tellUntoldLocked()
	}
}

func (a *Area) tellUntoldLocked() {
	r := &a.mu.replica
	untold := r.busy.untold
	r.busy.untold = nil
	slices.Sort(untold)
	for _, e := range untold {
		if int(e) < r.n && !a.extentLocked(e).untold.Empty() {
			a.mu.cached.Touched(e, a.extentLocked(e).untold)
			a.extentLocked(e).untold = dsm.PageSet{}
		}
	}
}

// denseSample: of an area of which nearly all changed at the last comparison all
// counts as stored to, as the diff compares it anyway, and a page in so many is looked at to
// see whether that goes on.
const denseSample = 16

// comparedLocked looks which pages of [off, off+n) differ from the base copy, takes note of
// them as stored to, and returns how many it looked at and how many differ. Those that
// do not may have been stored to as well, and published with something else: the
// kernel may have to be told.
func (a *Area) comparedLocked(off, n int64) (looked, changed int) {
	n = min(n, a.mu.ino.Size-off)
	if !a.mu.replica.subscribed || n <= 0 {
		return 0, 0
	}
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+n; e++ {
		a.touchedLocked(e, a.hereLocked(e, pagesOf(e, off, int(n))))
	}
	r := &a.mu.replica
	all := r.dense
	err := a.mu.mem.DataRanges(off, n, func(off, n int64) {
		for p := dsm.PageIndex(off / dsm.PageSize); int64(p)*dsm.PageSize < off+n; p++ {
			e, i := p.Extent()
			if !a.extentLocked(e).have.Has(i) {
				continue // a program that broke the protocol has touched it
			}
			if all {
				a.dirtyLocked(e, a.extentLocked(e), dsm.Range(i, i+1))
				if p%denseSample != 0 {
					continue
				}
			}
			looked++
			if string(a.mu.mem.Working(p)) != string(a.mu.mem.Base(p)) {
				changed++
				a.dirtyLocked(e, a.extentLocked(e), dsm.Range(i, i+1))
			}
		}
	})
	r.dense = looked >= denseSample && changed*8 > looked*7
	if err != nil {
		a.node.cfg.Log.Warn("compare an attached area", "area", a.id, "err", err)
		a.storedToLocked(appendRange(nil, off, n)) // all of it may be
	}
	if changed > 0 {
		r.lastStore = a.now()
	}
	return looked, changed
}

// bytesOfLocked returns the bytes of page p of the working copy up to the area's end:
// attached programs can store past it in its last page, which means nothing.
func (a *Area) bytesOfLocked(p dsm.PageIndex) []byte {
	w := a.mu.mem.Working(p)
	return w[:min(int64(len(w)), a.mu.ino.Size-int64(p)*dsm.PageSize)]
}

// mergeLocked brings the incoming bytes of a page into the working copy: see merge.Kernel.
func (a *Area) mergeLocked(k merge.Kernel, p dsm.PageIndex, base, incoming []byte) {
	if a.sharedLocked() {
		k.MergeShared(p, base, a.mu.mem.Working(p), incoming)
		return
	}
	k.Merge(p, base, a.mu.mem.Working(p), incoming, nil)
}
