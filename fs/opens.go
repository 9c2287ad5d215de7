package fs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// forgetAfter is how long an area that nobody has open is remembered. For some seconds more the
// data plane may have something to tell the kernel about it.
const forgetAfter = 10 * time.Minute

// sweepEvery is the least time between two searches for areas to forget. With thousands of areas, a
// search at each open made the last opens three times as slow.
const sweepEvery = time.Minute

// opens has the areas that programs of this node have, or had, open.
type opens struct {
	b  *bridge
	mu struct {
		lockrank.RWMutex
		areas map[dsm.AreaID]*openArea
		swept time.Time // when forgetLocked last looked through them
	}
}

// openArea is one area of this node with all its handles.
//
// gate serializes opening and closing: the first open claims the inode in the catalog, and some time after the last close the claim is given up (claims).
// Whoever has the gate may wait for the network, so it is not a mutex.
type openArea struct {
	id   dsm.AreaID
	gate chan struct{}
	// claimed says that this node claims the inode in the catalog; claimedUntil says until when it must stay claimed without handles. Both are guarded by the
	// gate.
	claimedUntil time.Time
	claimed      bool
	// perhaps says that a claim was asked for, and that nobody knows whether it was made. It is given up. The gate guards it, too.
	perhaps bool
	// removed says that the area is gone, so nobody opens it again.
	removed atomic.Bool

	// used says that a request came by a handle of the mount since it had none: so the kernel has taken the answer to an open that had it drop its pages.
	// To tell it to drop them (FUSE_NOTIFY_INVAL_INODE) would drop the attributes too.
	used atomic.Bool

	// stored counts the stores that were accepted, and published those of them that are published.
	// If they are equal, a close or an interval has nothing to do.
	stored    atomic.Uint64
	published atomic.Uint64
	// timed counts the stores whose time of modification the catalog has, or over which a program has set another. timing belongs to who tells the catalog one.
	timed  atomic.Uint64
	timing chan struct{}
	// uncounted says that the number of pages with data may not be that in the catalog, counting that it is counted soon.
	uncounted, counting atomic.Bool
	// recounting says that it is to be counted later because of publishes of other nodes; recounts is how often it was in a row.
	recounting atomic.Bool
	recounts   atomic.Int32
	// counted is when it last was, in nanoseconds.
	counted atomic.Int64
	// entering is how many counts are under way to the catalog.
	entering atomic.Int32
	// publishing is the number of publishes under way.
	publishing atomic.Int32
	// live is the number of writable handles whose RELEASE has not come.
	live atomic.Int32
	// attached is the number of programs that have attached for writing.
	attached atomic.Int32
	// kernelSize is the least size that the kernel is certain to know: see tellSize.
	kernelSize atomic.Int64
	// kernelGen is the generation up to which the kernel has dropped the pages that shrinks made
	// invalid.
	kernelGen atomic.Uint64
	// kernelPages says that the kernel may have pages of the area in its page cache. Without any no
	// program can have stored into a mapping. Each open that makes the kernel drop them begins anew.
	kernelPages atomic.Bool
	// expecting says that the harvest child has been told to open the area before somebody waits.
	expecting atomic.Bool
	// writeLocked says that a program of this node has had a lock for writing.
	writeLocked atomic.Bool
	// forfeited says that stores were given up together with locks, and no call has said so yet.
	forfeited atomic.Bool
	// lockers has, for each owner that asks for locks, the last handle through which it did (*fileHandle by locks.Owner).
	lockers sync.Map
	// sizeChanges counts how often the size may have changed on another node, sizeHeard how many of these changes are noted.
	sizeChanges, sizeHeard atomic.Uint64
	// every is the interval in nanoseconds, written with mu held.
	every atomic.Int64

	mu struct {
		lockrank.Mutex
		area     Area // nil before the first open
		handles  int  // of the mount, and attachments
		kernel   int  // of the mount
		closedAt time.Time
		// inode is the newest one that the kernel was told; size, gen, spec and every belong to its
		// rev.
		inode    dsm.Inode
		size     int64
		gen, rev dsm.Generation
		spec     dsm.Spec
		// settled is the time up to which the catalog's time of modification is right. The data
		// plane's time counts only if it is later.
		settled time.Time
	}
	programs programs
	notices  noticeWorker
	pace     intervalState
	direct   directState
}

func newOpens(b *bridge) *opens {
	o := &opens{b: b}
	o.mu.Init("fs.opens")
	o.mu.areas = make(map[dsm.AreaID]*openArea)
	return o
}

func newOpenArea(id dsm.AreaID) *openArea {
	a := &openArea{id: id, gate: make(chan struct{}, 1), timing: make(chan struct{}, 1)}
	a.mu.Init("fs.openArea")
	a.programs.init()
	a.notices.mu.Init("fs.noticeWorker")
	a.pace.mu.Init("fs.intervalState")
	return a
}

// find returns the area if it is or was open on this node.
func (o *opens) find(id dsm.AreaID) *openArea {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.mu.areas[id]
}

// get returns the area, with its gate taken.
func (o *opens) get(ctx context.Context, id dsm.AreaID) (*openArea, error) {
	for {
		o.mu.Lock()
		a := o.mu.areas[id]
		if a == nil {
			if now := time.Now(); now.Sub(o.mu.swept) > sweepEvery {
				o.forgetLocked(now)
			}
			a = newOpenArea(id)
			o.mu.areas[id] = a
		}
		o.mu.Unlock()
		select {
		case a.gate <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if o.find(id) == a {
			return a, nil
		}
		<-a.gate // it was forgotten meanwhile
	}
}

// removed forgets an area that is gone. Whoever has its gate does so later, or else the next search.
func (o *opens) removed(id dsm.AreaID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := o.mu.areas[id]
	if a == nil {
		return
	}
	a.removed.Store(true)
	o.forgetOneLocked(a, time.Now())
}

// forgetLocked drops areas that nobody has had open for long.
func (o *opens) forgetLocked(now time.Time) {
	o.mu.swept = now
	for _, a := range o.mu.areas {
		o.forgetOneLocked(a, now)
	}
}

// forgetOneLocked drops an area, unless somebody has it open or has its gate.
func (o *opens) forgetOneLocked(a *openArea, now time.Time) {
	select {
	case a.gate <- struct{}{}:
	default:
		return
	}
	defer func() { <-a.gate }()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.handles == 0 && (a.removed.Load() || now.Sub(a.mu.closedAt) > forgetAfter) {
		delete(o.mu.areas, a.id)
	}
}

// all returns the areas that satisfy want.
func (o *opens) all(want func(*openArea) bool) []*openArea {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var out []*openArea
	for _, a := range o.mu.areas {
		if want(a) {
			out = append(out, a)
		}
	}
	return out
}

// open opens an area for another handle of the mount. claimed is the inode if it is claimed for this handle already, as after Create. drops reports that pages
// which the kernel has kept may be stale: the mount had no handle before, and the kernel need not have taken the answer to the open of any since.
func (o *opens) open(ctx context.Context, ino dsm.Ino, write bool, claimed *dsm.Inode) (_ *openArea, drops bool, err error) {
	a, err := o.enter(ctx, ino, write, claimed)
	if err != nil {
		return nil, false, err
	}
	defer func() { <-a.gate }()
	a.mu.Lock()
	first := a.mu.kernel == 0
	a.mu.kernel++
	alone := a.mu.handles == 1
	a.mu.Unlock()
	if first {
		a.kernelPages.Store(false) // no handle is there, and what a notice may bring now enterPlaneLocked waits for
		a.expecting.Store(false)
		a.used.Store(o.b.resuming.Load())
		err = o.choose(ctx, a, alone)
	}
	if err == nil {
		err = o.enterPlaneLocked(ctx, a, write)
	}
	if err != nil {
		o.closeLocked(a, write, true, false)
		o.lookLocked(a)
		return nil, false, err
	}
	return a, !a.used.Load(), nil
}

// enterPlaneLocked prepares the area for another handle of the mount, which has already been counted.
func (o *opens) enterPlaneLocked(ctx context.Context, a *openArea, write bool) error {
	if a.direct.on.Load() {
		err := o.enterDirectLocked(ctx, a, write)
		if !errors.Is(err, errRefused) {
			return err
		}
		a.direct.on.Store(false)
		o.lookLocked(a)
	}
	if write && a.live.Add(1) == 1 {
		// The data plane stores into pages of an area without writers. A store that is still under
		// way could overwrite a store made through this handle, so wait for it.
		if err := a.notices.delivered(ctx); err != nil {
			a.live.Add(-1)
			return err
		}
		o.b.intervals.opened(a)
	}
	return nil
}

// attach opens an area for a program that maps its working copy; detach closes it. claimed is that of open.
func (o *opens) attach(ctx context.Context, ino dsm.Ino, write bool, claimed *dsm.Inode) (*openArea, error) {
	a, err := o.enter(ctx, ino, false, claimed)
	if err != nil {
		return nil, err
	}
	defer func() { <-a.gate }()
	if write && a.attached.Add(1) == 1 {
		o.b.intervals.opened(a)
	}
	return a, nil
}

func (o *opens) detach(a *openArea, write bool) {
	if write {
		ctx, cancel := o.b.lasting()
		o.b.keepModTime(ctx, a)
		cancel()
		a.attached.Add(-1)
	}
	a.gate <- struct{}{}
	defer func() { <-a.gate }()
	o.closeLocked(a, false, false, false)
}

// enter counts another handle of an area, and returns with its gate taken unless it fails.
func (o *opens) enter(ctx context.Context, ino dsm.Ino, write bool, claimed *dsm.Inode) (_ *openArea, err error) {
	a, err := o.get(ctx, dsm.AreaID(ino))
	if err != nil {
		if claimed != nil {
			o.b.background.run(func() { o.b.claims.made(ino) }) // which gives the claim up
		}
		return nil, err
	}
	defer func() {
		if err != nil {
			<-a.gate
		}
	}()
	first := a.handles() == 0
	if claimed == nil && first {
		var inode dsm.Inode
		if a.claimed { // it was closed a moment ago
			inode, err = o.b.cfg.Names.Getattr(ctx, ino)
		} else {
			inode, err = o.b.claims.claimLocked(ctx, a, write)
		}
		if err != nil {
			return nil, err
		}
		claimed = &inode
	}
	if claimed != nil {
		a.claimed, a.perhaps, a.claimedUntil = true, false, time.Time{}
		a.note(*claimed)
		a.kernelSize.Store(claimed.Size)
		a.kernelGen.Store(uint64(claimed.Gen))
		a.settle(claimed.Ctime)
	}
	acquired := func() {}
	if o.b.cfg.Locks != nil && first && write {
		acquired = o.b.cfg.Locks.Opening(ino)
	}
	if err := o.addLocked(ctx, a, write); err != nil {
		if first {
			o.b.claims.giveUp(a)
		}
		return nil, err
	}
	acquired()
	return a, nil
}

// addLocked counts another handle in the data plane. The caller has the gate.
func (o *opens) addLocked(ctx context.Context, a *openArea, write bool) error {
	open := o.b.cfg.Areas.Open
	if o.b.resuming.Load() {
		open = o.b.cfg.Areas.Reopen
	}
	area, err := open(ctx, a.id, write)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.mu.area = area
	a.mu.handles++
	a.mu.Unlock()
	if !o.b.resuming.Load() { // or it could wait for a WRITE, which nobody serves yet: FS.AttrChanged and Changed follow for all areas
		o.b.notify.kick(a)
	}
	return nil
}

// release ends a handle: its stores are published, then the data plane and, at the last handle, the
// catalog are told. The kernel does not wait for it.
func (o *opens) release(a *openArea, write bool) {
	o.releasing(a, write, false)
	o.releaseThen(a, write, func() {})
}

// releasing comes before releaseThen, at once: the next program that opens the area may wait for what other nodes have published.
func (o *opens) releasing(a *openArea, write, killed bool) {
	switch {
	case !write || a.direct.on.Load():
	case killed:
		a.current().Killed()
	default:
		a.current().Released()
	}
}

// releaseThen is release. It calls published when what was stored is published, and the file is still claimed.
func (o *opens) releaseThen(a *openArea, write bool, published func()) {
	if a.direct.on.Load() {
		published()
		o.releaseDirect(a, write)
		return
	}
	if write {
		if a.live.Add(-1) == 0 {
			o.b.harvest.Forget(a)
		}
		ctx, cancel := o.b.lasting()
		if err := o.b.publishReleased(ctx, a); err != nil {
			o.b.log.Warn("stores of a closed file are not published yet", "area", a.id, "err", err)
		}
		o.b.keepModTime(ctx, a)
		cancel()
	}
	published()
	a.gate <- struct{}{}
	defer func() { <-a.gate }()
	o.closeLocked(a, write, true, write)
}

// closeLocked ends a handle in the data plane; kernel says that it was one of the mount, released that it was one for writing and is
// Released. The caller has the gate.
func (o *opens) closeLocked(a *openArea, write, kernel, released bool) {
	a.mu.Lock()
	area := a.mu.area
	a.mu.handles--
	if kernel {
		a.mu.kernel--
	}
	last := a.mu.handles == 0
	if last {
		a.mu.closedAt = time.Now()
	}
	a.mu.Unlock()
	if released {
		area.CloseReleased()
	} else {
		area.Close(write)
	}
	if last {
		o.b.claims.giveUp(a)
	}
}

func (a *openArea) handles() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.handles
}

// current returns the data plane's area, nil before the first open.
func (a *openArea) current() Area {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.area
}

// note records an inode that the kernel is about to be told of, or knows by itself. It ignores
// inodes older than the newest.
func (a *openArea) note(i dsm.Inode) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i.Rev < a.mu.rev {
		return
	}
	a.mu.inode = i
	a.mu.rev, a.mu.gen, a.mu.size, a.mu.spec = i.Rev, i.Gen, i.Size, i.Spec
	a.every.Store(int64(i.Spec.Every()))
}

// tookStore counts a store that was taken over. timed says that the catalog's time of modification
// is that of the store, as when the file has just grown for it; then nobody need tell the catalog later.
func (a *openArea) tookStore(timed bool) {
	n := a.stored.Add(1)
	if timed && a.timed.CompareAndSwap(n-1, n) {
		a.settle(time.Now())
	}
}

// settle says that the catalog's time of modification covers all stores up to t. It does nothing if
// there are stores whose time the catalog has not been told.
func (a *openArea) settle(t time.Time) {
	if a.stored.Load() == a.timed.Load() {
		a.mu.Lock()
		if t.After(a.mu.settled) {
			a.mu.settled = t
		}
		a.mu.Unlock()
	}
}

// modTime returns when the area was last modified; i is the catalog's inode. A time that a program
// set, as cp -p does, stays until the next store.
func (a *openArea) modTime(i dsm.Inode) time.Time {
	a.mu.Lock()
	area, settled := a.mu.area, a.mu.settled
	a.mu.Unlock()
	if area != nil {
		if t := area.ModTime(); t.After(settled) && t.After(i.Mtime) {
			return t
		}
	}
	return i.Mtime
}

// sizeStale reports whether the size may have changed on another node after it was noted.
func (a *openArea) sizeStale() bool { return a.sizeChanges.Load() != a.sizeHeard.Load() }

// noted returns the size and the generation recorded last.
func (a *openArea) noted() (size int64, gen dsm.Generation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.size, a.mu.gen
}

// areaStats returns the figures of an area that is or was open.
func (b *bridge) areaStats(a *openArea) []control.Stat {
	a.mu.Lock()
	area, handles := a.mu.area, a.mu.handles
	a.mu.Unlock()
	_, storing := a.programs.counts()
	return slices.Concat([]control.Stat{
		control.Figure("version", uint64(area.Version())),
		control.Figure("resident_bytes", area.ResidentBytes()),
		control.Figure("handles", handles),
		control.Figure("writable_handles", a.live.Load()+a.direct.writers.Load()),
		control.Figure("access", b.accessNow(a)),
		control.Figure("storing_programs", storing),
		control.Figure("sums", cmp.Or(a.sums(), "none")),
		control.Figure("attached_writers", a.attached.Load()),
		control.Figure("tracking", strings.TrimSpace(b.cfg.Tracking.String()+" "+b.cfg.TrackingReason)),
		control.Figure("compare_ms", area.CompareTime().Milliseconds()),
		control.Figure("compare_rest_ms", time.Duration(a.direct.rest.Load()).Milliseconds()),
		control.Figure("residency", residency(area)),
	}, area.Figures(), versionStats(a.spec(), area))
}

// versionStats returns the figures of a versioned area.
func versionStats(s dsm.Spec, area Area) []control.Stat {
	if s.Mode != dsm.ModeVersioned {
		return nil
	}
	list := area.Versions()
	oldest := dsm.Version(0)
	if len(list) > 0 {
		oldest = list[0].Version
	}
	return []control.Stat{
		control.Figure("versions", len(list)),
		control.Figure("oldest_version", uint64(oldest)),
		control.Figure("whole", "read versions/ snapshot; a mapping of the file itself shows a version while it comes in"),
	}
}

func residency(a Area) dsm.Residency {
	if a.Demand() {
		return dsm.ResidencyDemand
	}
	return dsm.ResidencyFull
}

// ID, Live and Interval make it a harvest.Area.
func (a *openArea) ID() dsm.AreaID { return a.id }

// Live reports whether the mount has handles of the area that may store.
func (a *openArea) Live() bool { return a.live.Load() > 0 }

// Interval returns how often the area's stores are to be published.
func (a *openArea) Interval() time.Duration { return time.Duration(a.every.Load()) }
