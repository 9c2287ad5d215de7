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
)

// attached tracks the ranges of the working copy that attached programs have mapped for writing. These programs
// store at any time, and tell nobody. So while there are such programs:
//
//   - updates enter the working copy by compare-and-swap;
//   - every page counts as one that may have unpublished stores;
//   - each publish first collects what was stored.
//
// mu is held while the programs' memory is scanned and the result is recorded. So the next publish finds
// everything that earlier scans found. The area's lock is not held during a scan: the scan may wait for a program,
// and the program for a READ.
type attached struct {
	mu struct {
		lockrank.Mutex
		tracking pages.Tracking
		found    []wire.ExtentPages // by the scan under way; the slice is used again by the next one
	}
}

// attachWindow is how many extents are fetched at once before a program may map them.
const attachWindow = 8

// Attachment is one attached program. The program maps the working copy of the area, or a draft, or the base copy: see mapsLocked.
type Attachment struct {
	area     *Area
	write    bool
	mount    bool       // it is that of the mount
	draft    *draft     // nil: it maps a copy of the area
	which    pages.Copy // that one
	released bool       // the program cannot store any more: see Released
}

// Attach prepares the area for one more program that maps its memory, and returns a descriptor of that memory. The
// caller has just opened the area for reading, which has acquired. program is the process, 0 if it has no number here, or
// dsm.ByMount. The descriptor of the mount is for reading, also if its programs write.
//
// A program that may write has a descriptor with which it could make the memory shorter, so that is sealed: see pages.Area.Sealed. Then it cannot
// be a file of the mount as well, and the one who comes second is refused: errs.Unsupported to a program, errs.Busy to the mount.
//
// Attach waits until all bytes are here. An area on demand needs no such wait: programs fault on pages that are not
// here. For write, Attach also waits until the ledger knows what the kernel was given of each page in its page cache.
// Detach ends the attachment.
//
// Programs that attach to a versioned area for reading get the bytes that are published, never what is only stored.
func (a *Area) Attach(ctx context.Context, program int, write bool) (*Attachment, *os.File, error) {
	for {
		t, f, err := a.attach(ctx, program, write)
		if err != errNeedsFile || ctx.Err() != nil {
			return t, f, err
		}
	}
}

// attach is Attach. errNeedsFile if the area changed meanwhile: then it has to begin anew.
func (a *Area) attach(ctx context.Context, program int, write bool) (*Attachment, *os.File, error) {
	if write {
		if err := a.ownToStore(ctx); err != nil {
			return nil, nil, err
		}
	}
	if err := a.readyToAttach(ctx); err != nil {
		return nil, nil, err
	}
	file, err := a.heldFile(ctx, program, write)
	if err != nil {
		return nil, nil, err
	}
	defer a.giveUp(file)
	if write {
		a.keepBases()
		a.followAll() // the program may have one of the drafts, and stores into it from now on
	}
	a.collect() // the program may be a child of fork: it gets what its parent has stored
	t := &Attachment{area: a, write: write, mount: program == dsm.ByMount}
	err = &errs.Error{Op: "attach", Area: a.id, Kind: errs.NotExist}
	fresh, promised := false, int64(0)
	if write && program > 0 { // it may need a draft
		promised = a.node.cfg.View.Promised()
	}
	a.step(func() {
		had := len(a.mu.drafts)
		if err = a.heldRefusalLocked(program, write); err != nil {
			return
		}
		if write {
			if err = a.refusalLocked(); err != nil {
				return
			}
		}
		needs := false
		if t.which, needs = a.needsFileLocked(program, write); needs && file == nil {
			err = errNeedsFile
			return
		}
		if t.which == pages.WorkingCopy {
			if t.draft, err = a.draftOfLocked(program, write, promised, file); err != nil {
				return
			}
		}
		if err = a.exclusiveLocked(t); err != nil {
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
		err = a.await(ctx, "attach", func() bool { return a.mu.cached.Writable() })
	}
	if err == nil && write {
		err = a.leftPublished(ctx)
	}
	if err == nil && t.draft != nil && !write {
		a.follow(t.draft) // it may be on the way still: what the open has acquired is there when the program has it
	}
	var f *os.File
	if err == nil {
		f, err = t.open(write, file)
	}
	if err != nil {
		t.Detach()
		return nil, nil, err
	}
	return t, f, nil
}

// open opens the memory. The working copy of an area on demand is always opened for writing: userfaultfd takes a
// shared mapping only if the process may write to the file.
//
// In a mount that is held it moves into file first, if it must.
func (t *Attachment) open(write bool, file *pages.HeldFile) (f *os.File, err error) {
	a := t.area
	write = write && !t.mount
	err = &errs.Error{Op: "attach", Area: a.id, Kind: errs.NotExist}
	a.step(func() {
		switch {
		case t.which == pages.BaseCopy:
			if err = a.mu.mem.TakeFile(t.which, file); err == nil {
				f, err = a.mu.mem.OpenBase()
			}
		case t.draft == nil:
			if err = a.mu.mem.TakeFile(t.which, file); err == nil {
				f, err = a.mu.mem.OpenWorking(write || a.mu.replica.demand)
			}
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
func (t *Attachment) Memory() (*os.File, error) { return t.open(false, nil) }

// enterLocked counts an attachment; leaveLocked ends that.
func (a *Area) enterLocked(t *Attachment) {
	a.mu.replica.mapped++ // while it is not 0 the residency does not change
	if t.mount {
		a.mu.replica.direct++
	}
	switch {
	case t.draft != nil:
		t.draft.countLocked(t.write, +1)
	case t.write:
		a.beginWritingLocked()
		a.countAttachedLocked(+1)
	}
}

func (a *Area) leaveLocked(t *Attachment) {
	a.mu.replica.mapped--
	if t.mount {
		a.mu.replica.direct--
	}
	switch {
	case t.draft != nil:
		t.draft.countLocked(t.write && !t.released, -1)
	case t.write:
		a.countAttachedLocked(-1)
		a.endWritingLocked(t.released)
		if a.mu.replica.attached == 0 && a.mu.mem != nil {
			a.dropPastLocked(a.mu.mem)
		}
	}
}

// Own reports whether the program has a draft.
func (t *Attachment) Own() bool { return t.draft != nil }

// Released is Area.Released for a program that has attached for writing: none of its mappings is for storing any more. Detach follows.
func (t *Attachment) Released() { t.ends(func() {}) }

// Killed is Area.Killed likewise.
func (t *Attachment) Killed() { t.ends(t.area.killedLocked) }

// ends says that the program stores no more, and calls also in the same step.
func (t *Attachment) ends(also func()) {
	t.area.step(func() {
		if t.released = true; t.draft == nil {
			t.area.releasedLocked()
		} else {
			t.draft.storesLocked(-1)
			t.area.mu.wake = true
		}
		also()
	})
	if t.draft != nil {
		t.area.follow(t.draft)
	}
}

// Detach ends the attachment. The caller has called the stop function of every Track before.
func (t *Attachment) Detach() {
	last := false
	t.area.step(func() {
		t.area.leaveLocked(t)
		last = t.draft != nil && t.draft.attachments == 0
	})
	switch {
	case last:
		t.area.endDraft(t.draft)
	case t.draft != nil:
		t.area.follow(t.draft)
	}
}

// Sync is Area.Sync by the program. When it returns, the updates are in the memory that the program maps.
func (t *Attachment) Sync(ctx context.Context) error {
	if t.draft == nil || !t.write {
		err := t.area.Sync(ctx, t.write)
		if err == nil {
			t.acquired()
		}
		return err
	}
	err := t.area.Publish(ctx)
	if err != nil && !errs.Is(err, errs.NotFinite) {
		return err
	}
	if failed := t.Acquire(ctx); failed != nil {
		return failed
	}
	return err
}

// sawLocked counts how old the program's memory is.
func (t *Attachment) sawLocked() {
	fresh := t.area.mu.replica.fresh
	if t.draft != nil && t.write {
		fresh = t.draft.fresh
	}
	t.area.sawLocked(atSync, fresh, t.area.now())
}

// Acquire is Area.Acquire by the program. When it returns, the updates are in the memory that the program maps.
func (t *Attachment) Acquire(ctx context.Context) error {
	t.area.note(t.sawLocked)
	err := t.area.Acquire(ctx, t.write)
	if err == nil {
		t.acquired()
	}
	return err
}

// acquired brings into a draft what an acquire has brought into the working copy. If the program stores, only its attachments for writing do.
func (t *Attachment) acquired() {
	switch {
	case t.draft == nil:
	case t.write:
		t.area.refresh(t.draft)
	default:
		t.area.follow(t.draft)
	}
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

// readyToAttach returns when programs may map the working copy: all pages are here, or programs fault on
// those that are not.
func (a *Area) readyToAttach(ctx context.Context) error {
	demand := false
	err := a.onceGrown(ctx, func() (err error) {
		a.step(func() {
			if err = a.growLocked(); err != nil {
				return
			}
			if demand = a.mu.replica.demand; demand {
				err = a.mu.mem.Attachable()
			}
		})
		return err
	})
	if demand || err != nil {
		return err
	}
	return a.fetchAll(ctx)
}

// fetchAll returns when every page of the area is here. Pages that the area gets later, by growing, are zero and
// so need no fetch.
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

// Track starts to track a mapping of [off, off+n) in the program, which has attached for writing. source finds what
// the program stores. If it is nil, each scan compares the range with the base copy. The caller calls stop when the
// program cannot store through the mapping any more. stop finds the last stores by comparing.
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
			a.compared(off, n)
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

// collect finds and records what attached programs have stored.
func (a *Area) collect() {
	if a.scan(nil) {
		a.step(func() {})
	}
}

// scan is collect without the step that follows. If own is not nil, it does not look for what programs have stored in other drafts. It returns false if no program can have stored.
func (a *Area) scan(own *draft) bool {
	t := &a.attached
	t.mu.Lock()
	defer t.mu.Unlock()
	drafts := a.takeAll(own)
	if t.mu.tracking.Empty() {
		return drafts
	}
	t.mu.found = t.mu.found[:0]
	t.mu.tracking.Collect(
		func(off, n int64) { t.mu.found = appendRange(t.mu.found, off, n) },
		a.compared)
	a.note(func() { a.storedToLocked(t.mu.found) })
	return true
}

// appendRange adds the pages of [off, off+n) to a list. The list names each extent once if ranges are added in
// increasing order.
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

// storedToLocked records that an attached program stored to pages.
func (a *Area) storedToLocked(list []wire.ExtentPages) {
	r := &a.mu.replica
	if !r.subscribed || len(list) == 0 {
		return
	}
	r.lastStore = a.now()
	past := false
	for _, s := range list {
		within := a.withinLocked(s.Extent)
		past = past || s.Pages.Minus(within) != (dsm.PageSet{})
		if int(s.Extent) >= r.n {
			continue
		}
		p := a.hereLocked(s.Extent, s.Pages.And(within))
		a.dirtyLocked(s.Extent, a.extentLocked(s.Extent), p)
		a.touchedLocked(s.Extent, p)
	}
	if past {
		a.dropPastLocked(a.mu.mem)
	}
}

// pastLocked reports whether [off, off+n) of the memory of programs goes past the last page. What was stored there is not looked for.
func (a *Area) pastLocked(off, n int64) bool {
	return a.mu.replica.subscribed && off+n > (a.mu.ino.Size+dsm.PageSize-1)/dsm.PageSize*dsm.PageSize
}

// touchedLocked makes sure that the kernel is told of pages that attached programs stored to. If a call waits
// until the kernel has been told everything (drainLocked), these pages have to wait: else the call would wait as
// long as programs store.
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

// drainLocked begins a wait for the kernel to be told everything that is known now. drainedLocked ends it. Several
// calls may wait at the same time.
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

// denseSample is how comparedLocked saves time in a dense area: one where the last comparison found nearly all
// pages changed. Every page then counts as stored to, because the diff compares it anyway. One page in denseSample
// is still compared, to see whether the area stays dense.
const denseSample = 16

// compared is comparedLocked for a range of any length: others get the lock in between.
func (a *Area) compared(off, n int64) (looked, changed int) {
	const batch = publishBatch * dsm.PageSize
	for more := true; more && n > 0; off, n = off+batch, n-batch {
		a.note(func() {
			part := n
			if more = off+batch < a.mu.ino.Size; more {
				part = min(n, batch)
			} // else all that is past the end, too
			l, c := a.comparedLocked(off, part)
			looked, changed = looked+l, changed+c
		})
	}
	return looked, changed
}

// comparedLocked compares the pages of [off, off+n) with the base copy, and records those that differ as stored
// to. It returns how many it compared and how many differ. Pages that do not differ may have been stored to as
// well, and been published since. So the kernel may have to be told of any of them.
func (a *Area) comparedLocked(off, n int64) (looked, changed int) {
	if a.pastLocked(off, n) {
		a.dropPastLocked(a.mu.mem)
	}
	n = min(n, a.mu.ino.Size-off)
	if !a.mu.replica.subscribed || n <= 0 {
		return 0, 0
	}
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+n; e++ {
		a.touchedLocked(e, a.hereLocked(e, pagesOf(e, off, int(n))))
	}
	r := &a.mu.replica
	all := r.dense
	var accounted [dsm.PageSize]byte
	err := a.mu.mem.DataRanges(off, n, func(off, n int64) {
		for p := dsm.PageIndex(off / dsm.PageSize); int64(p)*dsm.PageSize < off+n; p++ {
			e, i := p.Extent()
			x := a.extentLocked(e)
			if !x.have.Has(i) {
				continue // a program that broke the protocol has touched it
			}
			if all {
				a.dirtyLocked(e, x, dsm.Range(i, i+1))
				if p%denseSample != 0 {
					continue
				}
			}
			looked++
			base := a.mu.mem.Base(p)
			if x.unmerged(i) { // a store that goes back to the base is one, too
				x.accounted(accounted[:], i, base)
				base = accounted[:]
			}
			if string(a.mu.mem.Working(p)) != string(base) {
				changed++
				a.dirtyLocked(e, x, dsm.Range(i, i+1))
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

// bytesOfLocked returns the bytes of page p of the working copy, up to the end of the area. Attached programs can
// store past the end in the last page; such stores have no effect.
func (a *Area) bytesOfLocked(p dsm.PageIndex) []byte {
	w := a.mu.mem.Working(p)
	return w[:min(int64(len(w)), a.mu.ino.Size-int64(p)*dsm.PageSize)]
}
