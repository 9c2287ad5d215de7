package coherence

import (
	"bytes"
	"cmp"
	"context"
	"errors"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// Open opens the area for one more file handle. It subscribes if this is the first one, and acquires.
// write says that programs may store through the handle. Of a versioned area this makes the node the owner, if there
// is none: errs.Access if another node owns it, errs.Busy while it is being given away. The caller never runs two calls of Open or Close of one
// area at the same time.
func (n *Node) Open(ctx context.Context, id dsm.AreaID, write bool) (*Area, error) {
	a, err := n.area(id)
	if err != nil {
		return nil, err
	}
	if write {
		if err := a.ownToStore(ctx); err != nil {
			return nil, err
		}
		a.keepBases()
	}
	var op *acquiring
	err = a.onceGrown(ctx, func() (err error) {
		a.step(func() {
			first := write && a.mu.replica.writers == 0 // no program can store yet, so updates may enter memory even with apply=sync
			if err = a.openedLocked(write); err == nil && (first || !a.defersLocked()) {
				op = a.startAcquireLocked(first) // right behind the Subscribe, so the home answers both at once
			}
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = a.awaitHomes(ctx, "open", a.subscribedLocked, a.deadInAreaLocked)
	err = a.finishAcquire(ctx, op, err)
	if err == nil && write {
		err = a.awaitAllHere(ctx)
	}
	if err == nil && write {
		err = a.await(ctx, "open", func() bool { return a.mu.cached.Writable() })
	}
	if err == nil && write {
		err = a.leftPublished(ctx)
	}
	if err != nil {
		a.Close(write)
		return nil, err
	}
	return a, nil
}

// openedLocked counts one more handle.
func (a *Area) openedLocked(write bool) error {
	if err := a.growLocked(); err != nil {
		return err
	}
	return a.openLocked(write)
}

// openLocked is openedLocked, also for an area that is short.
func (a *Area) openLocked(write bool) error {
	if err := a.refusalLocked(); write && err != nil {
		return err
	}
	return a.openAgainLocked(write)
}

// beginWritingLocked counts one more writer: a handle for writing, or a program attached for writing to the working copy.
// endWritingLocked ends that; released says that Released, or Killed, was called before.
func (a *Area) beginWritingLocked() {
	a.mu.replica.writers++
	a.keepBasesLocked()
	a.mu.cached.SetWriters(true)
	a.replicaOnRequestChangedLocked()
}

func (a *Area) endWritingLocked(released bool) {
	r := &a.mu.replica
	r.writers--
	if released {
		r.released--
	}
	r.released = max(min(r.released, r.writers), 0)
	a.nobodyLostLocked()
	a.mu.wake = true
	a.mu.cached.SetWriters(r.writers > 0)
	a.replicaOnRequestChangedLocked()
	if r.writers == 0 && r.opens > 0 && a.leavesLocked() {
		a.lingerLocked()
	}
}

// Released says that no more stores come through a handle for writing. Close follows, perhaps much later, because it publishes first.
// Where updates enter memory in sync calls only, the handle does not keep them out of memory any more. So the next program that opens
// the area sees what other nodes have published, and need not wait for that Close.
func (a *Area) Released() { a.step(a.releasedLocked) }

func (a *Area) releasedLocked() {
	a.mu.replica.released++
	a.mu.wake = true
	a.replicaOnRequestChangedLocked()
}

// Killed is Released for a program that was killed. It may have been in the midst of a version of a versioned area: PublishReleased takes back what it has stored and not published, and keeps that as conflicts. If other programs
// may store to the area nobody knows whose stores are whose, and all go with their next publish.
func (a *Area) Killed() {
	a.step(func() {
		a.releasedLocked()
		a.killedLocked()
	})
}

// killedLocked has what is left be taken back, if nobody may store to it. It is called in the step in which the program is counted as gone.
func (a *Area) killedLocked() {
	a.mu.whole.killed = a.mu.whole.killed || a.versionedLocked() && !a.storesLocked()
}

// Close ends a handle that was not Released. The replica stays for a while after the last one: see lingerLocked.
func (a *Area) Close(write bool) { a.close(write, false) }

// CloseReleased is Close for a handle for writing that was Released, or whose program was Killed.
func (a *Area) CloseReleased() { a.close(true, true) }

func (a *Area) close(write, released bool) {
	a.step(func() {
		r := &a.mu.replica
		r.opens--
		if write {
			a.endWritingLocked(released)
		}
		if r.opens == 0 {
			a.mu.whole.paused = 0
			a.lingerLocked()
		}
	})
}

// ReadAt fills p with the bytes from off on, for the kernel's page cache. From then on the kernel is
// told when these bytes change. Pages that are not here are fetched; errs.Timeout if their home does not
// send them before ctx ends. n is short at the end of the area.
func (a *Area) ReadAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	return a.readBy(ctx, p, off, a.readLocked, false)
}

// readBy fetches the pages of [off, off+len(p)) and calls read, until read reports that they are all here and memory is within its bound.
// strict says that it is an error if no read may bring that about.
func (a *Area) readBy(ctx context.Context, p []byte, off int64, read func(p []byte, off int64) (n int, ok bool), strict bool) (n int, err error) {
	began := a.now()
	stay := staying{area: a, off: off, n: len(p)}
	defer stay.end()
	for {
		done, demand, old, failed := false, false, false, error(nil)
		a.step(func() {
			r := &a.mu.replica
			if failed = a.missesLocked(off, int64(len(p))); failed != nil {
				return
			}
			if old = r.subscribed && !a.withinBoundLocked(r.fresh, began); old && a.defersLocked() {
				if old = false; strict {
					failed = a.errPastBoundLocked("read", r.fresh, began)
					return
				}
			}
			if old {
				return
			}
			demand = r.demand
			if n, done = read(p, off); done {
				a.sawLocked(atRead, r.fresh, began)
			} else if !demand {
				a.fetchLocked(off, len(p))
				stay.beginLocked()
			}
		})
		switch {
		case errors.Is(failed, errGrowing):
			err = a.awaitGrown(ctx)
		case failed != nil:
			return 0, failed
		case old:
			err = a.freshen(ctx, began)
		case done:
			return n, nil
		case demand:
			err = a.bring(ctx, off, len(p), nil, stay.beginLocked)
		default:
			err = a.awaitHomes(ctx, "read", func() bool { return a.presentLocked(off, int(min(int64(len(p)), a.mu.ino.Size-off))) },
				func() dsm.NodeID { return a.deadForLocked(off, int64(len(p))) })
		}
		if err != nil {
			return 0, err
		}
	}
}

// readLocked is ReadAt if the pages are here. A kernel that does not know of a shrink yet may ask for
// pages past the end. It fills what the reply lacks with zeroes, and keeps those pages too. So they
// count as given like all others: the area may grow again before the kernel hears of the shrink.
func (a *Area) readLocked(p []byte, off int64) (n int, ok bool) {
	if n = int(min(int64(len(p)), a.mu.ino.Size-off)); n > 0 && !a.presentLocked(off, n) {
		return 0, false
	}
	a.useLocked(off, n)
	return a.mu.cached.Read(off, p), true
}

// useLocked records that pages on demand are being used. If the kernel has been told to drop some of them, they stay all the same.
// So calls that wait for room are made to look for other pages.
func (a *Area) useLocked(off int64, n int) {
	if !a.mu.replica.demand || n <= 0 {
		return
	}
	a.mu.cleaner = true
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+int64(n); e++ {
		a.node.room.used(a.id, e, pagesOf(e, off, n))
	}
}

// presentLocked reports whether the pages of [off, off+n) are here.
func (a *Area) presentLocked(off int64, n int) bool {
	return a.everyLocked(off, n, func(x *replicaExtent) dsm.PageSet { return x.have })
}

// everyLocked reports whether all pages of [off, off+n) are in the sets of their extents.
func (a *Area) everyLocked(off int64, n int, in func(x *replicaExtent) dsm.PageSet) bool {
	r := &a.mu.replica
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+int64(n); e++ {
		if int(e) >= r.n {
			return false
		}
		if pagesOf(e, off, n).Minus(in(a.extentLocked(e))) != (dsm.PageSet{}) {
			return false
		}
	}
	return true
}

// pagesOf returns the pages of extent e that [off, off+n) touches.
func pagesOf(e dsm.ExtentIndex, off int64, n int) dsm.PageSet {
	if n <= 0 {
		return dsm.PageSet{}
	}
	base := int64(e) * dsm.ExtentSize
	first := max(off-base, 0) / dsm.PageSize
	last := (min(off+int64(n)-base, dsm.ExtentSize) + dsm.PageSize - 1) / dsm.PageSize
	return dsm.Range(int(first), int(last))
}

// fetchLocked asks the homes for the missing pages of [off, off+n).
func (a *Area) fetchLocked(off int64, n int) {
	r := &a.mu.replica
	end := min(off+int64(n), a.mu.ino.Size)
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < end && int(e) < r.n; e++ {
		x := a.extentLocked(e)
		a.askLocked(e, x, pagesOf(e, off, int(end-off)))
	}
}

// askLocked asks the home for those pages of an extent that are not here.
func (a *Area) askLocked(e dsm.ExtentIndex, x *replicaExtent, p dsm.PageSet) {
	miss := p.Minus(x.have).Minus(x.asked)
	if miss.Empty() {
		return
	}
	x.asked = x.asked.Or(miss)
	a.busyLocked(e, x)
	if r := &a.mu.replica; r.demand {
		r.units += miss.Len()
	}
	a.sendLocked(a.rowLocked(e).Primary, &wire.Fetch{Stamp: a.stampLocked(), Extent: e, Pages: miss})
}

// WriteAt takes a WRITE of the kernel. It does not wait for the network, unless another daemon may follow: a store to a page that is not
// here is kept apart until the page comes (see awaitUnstashed). Bytes past the end are dropped: another node has just truncated
// them off. In an area on demand it waits for room for the pages that are not here; errs.NoSpace if there
// is none before ctx ends. In rare cases it waits for notices, but not for long: see awaitSure.
func (a *Area) WriteAt(ctx context.Context, p []byte, off int64) error {
	if err := a.writeWithRoom(ctx, p, off, writtenThrough); err != nil {
		return err
	}
	a.awaitSure(ctx, off, int64(len(p)))
	return nil
}

// writeWithRoom waits until there is room for the pages that are not here, then calls write.
func (a *Area) writeWithRoom(ctx context.Context, p []byte, off int64, w way) error {
	lacks := 0
	a.step(func() {
		r := &a.mu.replica
		if r.subscribed {
			a.mu.cached.KernelLocks()
		}
		if r.subscribed && r.demand {
			lacks = count(a.missingOfLocked(off, len(p)))
		}
	})
	if err := a.node.room.take(ctx, lacks, a.dropsUnder); err != nil { // the kernel has the pages locked meanwhile: see bring
		if w != writtenPast {
			a.step(func() {
				if a.mu.replica.subscribed {
					a.mu.cached.NotTaken(off, p)
				}
			})
		}
		return &errs.Error{Op: "write", Area: a.id, Kind: errs.NoSpace, Err: err}
	}
	defer a.node.room.give(lacks)
	return a.write(ctx, p, off, w)
}

// write is WriteAt without the waits, unless the area is busy, or another daemon may follow.
func (a *Area) write(ctx context.Context, p []byte, off int64, w way) error {
	defer a.awaitUnstashed(ctx, off, len(p))
	for {
		err := a.writeNow(p, off, w, true)
		if !errors.Is(err, errGrowing) {
			return err
		}
		if late := a.awaitGrown(ctx); late != nil {
			if err = a.writeNow(p, off, w, false); errors.Is(err, errGrowing) {
				return late
			}
			return err
		}
	}
}

// writeNow is write without waiting. If the area is busy, it does nothing if the caller can wait.
func (a *Area) writeNow(p []byte, off int64, w way, wait bool) (err error) {
	ahead := false
	defer func() {
		if ahead {
			go a.step(a.publishAheadLocked)
		}
	}()
	a.step(func() {
		r := &a.mu.replica
		if !r.subscribed {
			err = &errs.Error{Op: "write", Area: a.id, Kind: errs.Closed}
			return
		}
		if err = a.missesLocked(off, int64(len(p))); wait && errors.Is(err, errGrowing) {
			return
		}
		if w == writtenThrough {
			defer a.mu.cached.EndWrite()
		}
		taken := min(int64(len(p)), max(a.mu.ino.Size-off, 0))
		if err != nil && w != writtenBack { // else what there is memory for is taken: the kernel does not write it back again
			taken = 0
		}
		if taken < int64(len(p)) && w != writtenPast { // else the page cache has nothing of it
			a.mu.cached.NotTaken(off+taken, p[taken:])
		}
		if p = p[:taken]; taken == 0 {
			return
		}
		if w != writtenPast {
			a.mu.cached.Delivered(off, p, w == writtenBack)
		}
		r.lastStore = a.now()
		if a.presentLocked(off, len(p)) {
			err = cmp.Or(a.storeLocked(p, off, w), err)
			ahead = len(p) >= aheadBytes && a.canPublishAheadLocked()
			return
		}
		for len(p) > 0 {
			n := min(len(p), dsm.PageSize-int(off%dsm.PageSize))
			err = cmp.Or(a.storeLocked(p[:n], off, w), err)
			p, off = p[n:], off+int64(n)
		}
	})
	return err
}

// storeLocked takes stores to pages that are all here, or to one page that is not.
func (a *Area) storeLocked(p []byte, off int64, w way) error {
	e, i := dsm.PageIndex(off / dsm.PageSize).Extent()
	if x := a.extentLocked(e); !x.have.Has(i) {
		if w == writtenBack && a.mu.cached.Refuses(page(e, i)) { // it cannot be refused later: by then it has been answered
			return errRefused()
		}
		if w == writtenBack {
			a.stashValidLocked(x, p, off)
		} else {
			a.stashLocked(x, stashed{off, bytes.Clone(p), w})
		}
		return nil
	}
	return a.storeHereLocked(p, off, w, false)
}

// storeHereLocked takes stores to pages that are here. Stores that have waited for their page have been answered, and are not refused.
func (a *Area) storeHereLocked(p []byte, off int64, w way, waited bool) error {
	r := &a.mu.replica
	invariants.Check(!r.bare, "area %d: a store with no base copies", a.id)
	a.useLocked(off, len(p))
	ok := true
	switch {
	case w == writtenPast:
		a.mu.cached.WroteDirect(off, p)
	case waited:
		a.mu.cached.WroteLate(a.mu.kernel, off, p, w == writtenBack)
	default:
		_, _, ok = a.mu.cached.Wrote(a.mu.kernel, off, p, w == writtenBack)
	}
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+int64(len(p)); e++ {
		a.dirtyLocked(e, a.extentLocked(e), pagesOf(e, off, len(p)))
		a.changedLocked(e, pagesOf(e, off, len(p)), nil)
	}
	if w != writtenBack {
		a.noteWrittenLocked(off, len(p))
	}
	if !ok {
		return errRefused()
	}
	return nil
}

func errRefused() error {
	return errs.E(errs.Unavailable, "write", "stores to memory that another node has truncated meanwhile, of which nobody can tell whether they were made before that")
}

// Notice is something that the kernel must be told about a range of the area.
type Notice = pages.Notice

// NextNotice returns the next notice for the kernel. The caller calls NoticeDone when the kernel has been told.
// Several notices may be under way at once, for different pages.
func (a *Area) NextNotice() (n Notice, ok bool) {
	a.step(func() {
		if a.mu.cached != nil {
			n, ok = a.mu.cached.NextNotice()
		}
	})
	return n, ok
}

// NoticeDone says that the kernel has been told.
func (a *Area) NoticeDone(n Notice) {
	a.step(func() {
		if a.mu.cached != nil {
			a.droppedLocked(a.mu.cached.Done(n))
		} else {
			a.mu.drops.Done(n)
		}
	})
}
