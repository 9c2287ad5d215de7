package coherence

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/head"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// Area is one area on one node: its replica, the extents that this node is the home of, and the
// messages between these two and other nodes.
type Area struct {
	id       dsm.AreaID
	node     *Node
	attached attached
	ages     atomic.Pointer[ages] // nil before the first read or sync

	mu struct {
		lockrank.Mutex
		ino        dsm.Inode
		view       *dsm.View // the view that replica and home act on
		backed     bool      // some slot of it here has a backup
		mute       bool      // some slot of it here has a backup that could take over and lack something: see Backup.Former
		handed     bool      // some slot of it has been handed over to this node, or is on its way, and has a backup that takes over if the source dies
		removed    bool
		sending    bool         // a goroutine is sending, in order
		own        dsm.Slot     // the slot that the view gives to this area alone; 0: none
		dead       []dsm.NodeID // its members that are gone
		mem        *pages.Area
		cached     *pages.Cached
		drops      pages.Drops // outlives the memory
		kernel     merge.Kernel
		ruleErr    error      // why there is no kernel: then nothing can be published
		notFinite  *notFinite // nil: it has found none
		header     header
		drafts     []*draft
		heads      heads // of the copies; drafts have their own
		replica    replica
		home       home
		lingering  lingering
		absence    *absence // nil: this node was never evicted while it had stores
		freshening freshening
		whole      whole
		copies     *copies  // nil: no slot here ever had a backup
		standby    *standby // nil: this node never was a backup of the area
		owning     owning
		versions   uint64      // that this node has published
		parked     []message   // messages to slots that are still being handed to this node, or that need memory
		receiving  int32       // calls of receiveAgainLocked
		telling    int32       // number of calls of awaitNotices
		newest     dsm.Version // newest version heard of: see heardLocked

		out          []message // to send when the step is over
		waiters      []*waiter
		over         []*waiter          // whose wait is over, and that are to be told when the lock is released
		wake         bool               // this step did something that waiters wait for
		cleaner      bool               // this step made pages clean, or the kernel dropped some
		again        bool               // something is left to a step of its own: see goOnLocked
		recount      bool               // see Recounts
		miscounted   bool               // this step set recount, and the page cache is to be told
		writeRefused bool               // CheckWrite has refused something, and the log says so
		handled      uint16             // pages that this step diffed, or pushed to this node itself, and extents to which it subscribed
		charged      charged            // what room has been told that this area takes
		arrived      []func()           // to call when the step is over: see onArrivalLocked
		used         []wire.ExtentPages // pages that the functions in arrived waited for: see tellUsedLocked
		looked       dsm.PageIndex      // the last page that checkLocked compared
		arriving     *wire.Shared       // the payload of the message that is handled, if it may be retained

		counted     counted
		surveys     map[uint64]*surveying
		memoryRetry *time.Timer // if not nil, it will try again what waits for memory
		short       short       // why the memory is not as long as the catalog says
		kernelHad   int64       // while programs open it again: the end of what the page cache may have of an earlier daemon, of which nothing else is left
	}
}

func newArea(n *Node, ino dsm.Inode) *Area {
	a := &Area{id: ino.Area(), node: n}
	a.mu.Init("coherence.Area")
	a.attached.mu.Init("coherence.attached")
	a.mu.ino = ino
	a.mu.view = n.cfg.View.Current()
	a.mu.dead, a.mu.own = deadOf(a.mu.view), a.mu.view.Placed(a.id)
	a.lookForBackupsLocked()
	a.mu.kernel, a.mu.ruleErr = kernelOf(ino)
	a.mu.replica.init()
	a.mu.home.init()
	a.mu.replica.seq, a.mu.replica.round, a.mu.home.lastPush = dsm.Seq(n.cfg.First), n.cfg.First, n.cfg.First
	return a
}

// step runs one event under the area's lock, then handles what it asked of this node as a home,
// and sends the other messages after the lock is released. If there are more publications than a
// batch, or more that the home has to push to this node, that is done in further steps: between these
// other goroutines get the lock, and messages leave.
func (a *Area) step(event func()) { a.steps(0, event) }

// stepBriefly is step for a goroutine that others wait for: another goroutine takes the further
// steps, and sends the messages of others.
func (a *Area) stepBriefly(event func()) {
	if a.oneStep(0, true, event) {
		go a.step(a.goOnLocked)
	}
}

// steps is step in Handle: messages to the node from may wait.
func (a *Area) steps(from dsm.NodeID, event func()) {
	for a.oneStep(from, false, event) {
		event = a.goOnLocked
	}
}

// goOnLocked is the event of a further step.
func (a *Area) goOnLocked() {
	a.startPublicationsLocked()
	self := a.node.cfg.Self
	a.pumpLocked(self, a.mu.home.subs[self])
}

// oneStep is one step. It returns true if something is left to a further one. from and brief are those
// of deliverLocked.
func (a *Area) oneStep(from dsm.NodeID, brief bool, event func()) (again bool) {
	a.mu.Lock()
	a.catchUpLocked()
	return a.takeStepLocked(from, brief, event)
}

// tryStep is steps for a goroutine that must not wait: it returns false, and has done nothing, if another one is at work on the area.
// Another goroutine takes the further steps.
func (a *Area) tryStep(from dsm.NodeID, event func()) bool {
	if !a.mu.TryLock() {
		return false
	}
	a.catchUpLocked()
	a.takeTriedStepLocked(from, event)
	return true
}

// takeTriedStepLocked is tryStep by a caller that has the lock, which it releases, and has the area act on the newest view if that is to be.
func (a *Area) takeTriedStepLocked(from dsm.NodeID, event func()) {
	if a.takeStepLocked(from, true, event) {
		go a.step(a.goOnLocked)
	}
}

// takeStepLocked is oneStep by a caller that has the lock, which it releases, and that has the area act on the newest view.
func (a *Area) takeStepLocked(from dsm.NodeID, brief bool, event func()) (again bool) {
	if !a.mu.removed {
		a.wakingWhenToldLocked(func() {
			event()
			a.localLocked()
			for a.comparedAllLocked() || a.ackLateLocked() || a.markLocked() || a.pumpWaitingLocked() {
				a.localLocked()
			}
			a.followLocked()
			a.keepUnansweredLocked()
		})
	}
	a.toldKeepLocked()
	more := a.chargeLocked()
	a.checkLocked()
	notify, miscounted := a.mu.cached != nil && a.mu.cached.Pending(), a.mu.miscounted
	a.mu.miscounted = false
	if a.mu.wake {
		a.mu.wake = false
		a.mu.waiters = slices.DeleteFunc(a.mu.waiters, a.overLocked)
	}
	if arrived := a.mu.arrived; len(arrived) > 0 {
		a.mu.arrived = nil
		a.mu.Unlock()
		for _, f := range arrived {
			f()
		}
		a.mu.Lock()
		a.tellUsedLocked()
	}
	var room [4]head.Waiters
	if wake := a.tellHeadsLocked(room[:0]); len(wake) > 0 {
		a.mu.Unlock()
		for _, w := range wake { // a program may end meanwhile, and its line with it
			w.Wake()
		}
		a.mu.Lock()
	}
	again, a.mu.again, a.mu.handled = a.mu.again, false, 0
	if again {
		from = 0 // it takes a while until Handle returns
	}
	a.deliverLocked(from, brief)
	over := a.mu.over
	a.mu.over = nil
	a.mu.Unlock()
	for _, w := range over {
		w.then(a.outcome(w))
	}
	if more {
		a.node.room.ring()
	}
	a.node.room.tell()
	a.node.room.fit()
	if c := a.node.cache.Load(); c != nil {
		if notify {
			(*c).Changed(a.id)
		}
		if miscounted {
			(*c).Miscounted(a.id)
		}
	}
	return again
}

// note runs an event whose messages and notices are sent by the next step. It is for callers that
// have another lock, and that take that step after they have released it.
func (a *Area) note(event func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.catchUpLocked()
	if !a.mu.removed {
		a.wakingWhenToldLocked(event)
		a.localLocked() // another goroutine may be sending at this moment, and it sends all that is there
		a.followLocked()
		a.keepUnansweredLocked()
	}
}

// wakingWhenToldLocked runs the event. If after it the kernel has been told everything, or an open for
// writing may be answered, it wakes those that wait for that.
func (a *Area) wakingWhenToldLocked(event func()) {
	told, writable := a.toldLocked()
	event()
	if t, w := a.toldLocked(); t && !told || w && !writable || a.mu.telling > 0 {
		a.mu.wake = true
	}
}

// toldLocked reports whether the kernel has been told everything, and whether an open for writing may be
// answered.
func (a *Area) toldLocked() (all, writable bool) {
	if a.mu.cached == nil {
		return true, true
	}
	return a.mu.cached.Idle(), a.mu.cached.Writable()
}

func (a *Area) isSelf(n dsm.NodeID) bool { return n == a.node.cfg.Self }

// stampLocked returns the stamp of a message made now.
func (a *Area) stampLocked() wire.Stamp {
	return wire.Stamp{Area: a.id, Gen: a.mu.ino.Gen, Rev: a.revLocked(), Epoch: a.mu.view.Epoch, Newest: a.mu.newest}
}

// revLocked returns the entry of the catalog that others must have applied to understand what this node does now. While it has no memory for
// its newest inode, it may have truncated what a shrink in between truncated, and be at the generation of that: see inodeChangedLocked.
func (a *Area) revLocked() dsm.Generation { return max(a.mu.ino.Rev, a.mu.ino.Gen) }

// rowLocked returns the home of an extent in the view that the area acts on.
func (a *Area) rowLocked(e dsm.ExtentIndex) *dsm.SlotHome {
	return a.mu.view.Row(a.slotLocked(e))
}

// extentsLocked returns the number of extents of the area.
func (a *Area) extentsLocked() int { return dsm.Extents(a.mu.ino.Size) }

// inAreaLocked reports whether page i of extent e lies within the area.
func (a *Area) inAreaLocked(e dsm.ExtentIndex, i int) bool {
	return int64(page(e, i))*dsm.PageSize < a.mu.ino.Size
}

// withinLocked returns the pages of extent e that lie within the area.
func (a *Area) withinLocked(e dsm.ExtentIndex) dsm.PageSet {
	n := (a.mu.ino.Size - int64(e)*dsm.ExtentSize + dsm.PageSize - 1) / dsm.PageSize
	return dsm.Range(0, int(min(max(n, 0), dsm.ExtentPages)))
}

// page returns the index in the area of page i of extent e.
func page(e dsm.ExtentIndex, i int) dsm.PageIndex {
	return dsm.PageIndex(e)*dsm.ExtentPages + dsm.PageIndex(i)
}

// catchUpLocked makes the area act on the newest view.
func (a *Area) catchUpLocked() {
	v := a.node.cfg.View.Current()
	if v.Epoch <= a.mu.view.Epoch {
		return
	}
	old := a.mu.view
	a.mu.view, a.mu.dead = v, deadOf(v)
	a.node.fills.follow(v)
	a.placedLocked(v.Placed(a.id))
	if a.mu.removed {
		return
	}
	a.lookForBackupsLocked()
	a.copiesViewChangedLocked(old)
	a.standbyViewChangedLocked(old)
	a.homeViewChangedLocked(old)
	a.homesReturnedLocked(old) // before anything is sent to them
	a.replicaViewChangedLocked(old)
	a.returnedLocked(old)
	a.releaseLocked()
	a.unparkLocked() // a slot that this node waited for may not come any more, or have another home
	a.mu.wake = true
}

// inodeChangedLocked takes over a new size, spec or layout.
func (a *Area) inodeChangedLocked(now dsm.Inode) {
	old := a.mu.ino
	if s := a.mu.short.ino; now.Rev < old.Rev || s != nil && now.Rev < s.Rev {
		return
	}
	if now.Spec.Residency != old.Spec.Residency || now.Spec.Mode != old.Spec.Mode || replaced(old, now) {
		// These change only while the file is empty. A snapshot of the catalog skips that moment.
		empty := now
		empty.Rev = old.Rev // what is made under now waits until the area has become now
		empty.Size, empty.Spec = 0, fixedAs(now.Spec, old.Spec)
		there := old.Size == 0 || a.becomeLocked(empty)
		empty.Spec = now.Spec
		if there = there && (now.Size == 0 || a.becomeLocked(empty)); !there {
			a.mu.short.ino = &now
			return
		}
	}
	if a.becomeLocked(now) {
		a.endShortLocked()
	}
}

// fixedAs returns s with the settings that change only while the file is empty, as they were.
func fixedAs(s, was dsm.Spec) dsm.Spec {
	s.Mode, s.Residency, s.Placement = was.Mode, was.Residency, was.Placement
	return s
}

// newestRev returns the newest catalog entry that the area has heard of.
func (a *Area) newestRev() dsm.Generation {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.mu.short.ino; s != nil {
		return s.Rev
	}
	return a.mu.ino.Rev
}

// shrinkMeanwhileLocked truncates what the area has past the smallest size that it has had before it became now, as by a shrink at gen.
// inodeChangedLocked follows.
func (a *Area) shrinkMeanwhileLocked(now dsm.Inode, least int64, gen dsm.Generation) {
	old := a.mu.ino
	if least >= old.Size || now.Size == least || now.Rev <= old.Rev {
		return
	}
	shrunk := old // the rules of that moment are not known, but homes refuse what is made by them
	if gen == now.Gen {
		shrunk = now
		shrunk.Spec = fixedAs(now.Spec, old.Spec)
	}
	shrunk.Size, shrunk.Gen = least, gen
	shrunk.Rev = old.Rev // what is made under now waits until the area has become now
	a.becomeLocked(shrunk)
}

// becomeLocked has the area act on the inode, or returns false if there is no memory for it: see short.
func (a *Area) becomeLocked(now dsm.Inode) bool {
	old := a.mu.ino
	if now.Size < old.Size {
		a.changingLocked()
		a.shrinkVersionsLocked(now.Size)
	}
	if now.Size != old.Size && a.mu.mem != nil {
		if err := a.resizeMemoryLocked(now.Size); err != nil {
			a.fallShortLocked(now, err)
			return false
		}
	}
	covering := a.coveringLocked()
	a.mu.ino, a.mu.counted.known = now, false
	if a.coveringLocked() != covering || now.Spec != old.Spec {
		a.lookForBackupsLocked()
	}
	if now.Gen != old.Gen {
		a.miscountedLocked()
	}
	for _, d := range a.mu.drafts {
		d.resizedLocked(a)
	}
	if now.Spec.Merge != old.Spec.Merge || now.Layout != old.Layout || now.Spec.OnNonFinite != old.Spec.OnNonFinite {
		a.mu.kernel, a.mu.ruleErr = kernelOf(now)
		a.mu.writeRefused = false
	}
	if now.Spec.Residency != old.Spec.Residency {
		a.residencyChangedLocked()
	}
	if now.Spec.Mode != old.Spec.Mode {
		a.modeChangedLocked()
	}
	a.replicaResizedLocked(old.Size, now.Size)
	a.replicaOnRequestChangedLocked()
	if a.keepFreshLocked(); now.Size != old.Size {
		a.homesAddedLocked(covering)
	}
	a.contributionChangedLocked(now.Gen != old.Gen)
	if now.Size < old.Size && a.versionedLocked() {
		a.versionShrunkLocked()
	}
	if now.Gen != old.Gen {
		a.standbyShrunkLocked(now.Size < old.Size)
		a.homeGenChangedLocked(dsm.ExtentIndex(dsm.Extents(old.Size))) // it pushes, to this node too
	}
	if now.Size > old.Size && a.versionedLocked() {
		for _, id := range a.subscribersLocked() {
			a.pumpLocked(id, a.mu.home.subs[id])
		}
	}
	if now.Spec.Placement != old.Spec.Placement || now.Spec.Detours != old.Spec.Detours {
		a.resignOthersLocked()
	}
	a.stillHeldLocked()
	a.followedLocked()
	a.mu.wake = true
	return true
}

// sessionResetLocked sends again what may not have arrived because a session with peer has broken.
func (a *Area) sessionResetLocked(peer dsm.NodeID) {
	a.dropWaitingLocked(peer)
	a.copiesResetLocked(peer)
	a.homeResetLocked(peer)
	a.replicaResetLocked(peer)
	a.takesResetLocked(peer)
	a.mu.wake = true // a subscription that is not needed any more is not repeated
}

// removeLocked frees the area for good; the catalog has forgotten it.
func (a *Area) removeLocked() {
	a.mu.removed = true
	for _, m := range a.mu.out {
		if m.shared != nil {
			m.shared.Release()
		}
	}
	a.mu.out, a.mu.parked = nil, nil
	a.mu.short.waiting = nil
	a.endShortLocked()
	a.endCopiesLocked()
	if a.mu.standby != nil {
		a.mu.standby.close()
	}
	for _, s := range a.mu.home.subs {
		s.endLocked()
	}
	for _, hr := range a.mu.home.rounds.open {
		for e := range hr.parts {
			a.dropPartsLocked(hr, e, func(*stagedPart) bool { return true })
		}
	}
	for _, x := range a.mu.home.extents {
		x.forgetWriters()
	}
	a.mu.home.init()
	a.clearConflictsLocked(0)
	for _, e := range a.busyExtentsLocked() {
		a.endUnmergedLocked(a.extentLocked(e))
	}
	a.forgetPagesLocked()
	a.mu.replica.init()
	if a.mu.mem != nil {
		a.closeMemoryLocked()
	}
	a.mu.wake = true
}

func (a *Area) closeMemoryLocked() {
	for _, d := range a.mu.drafts {
		a.mu.heads = append(a.mu.heads, d.heads...)
		d.heads = nil
		a.freeLocked(d.mem.Close)
	}
	a.mu.drafts = nil
	a.mu.cached.Replaced()
	a.dropHistoryLocked()
	a.freeLocked(a.mu.mem.CloseLater())
	a.mu.mem, a.mu.cached = nil, nil
}

// freeLocked frees memory when the step is over: for a large area that takes the kernel a while.
func (a *Area) freeLocked(free func() error) {
	a.mu.arrived = append(a.mu.arrived, func() {
		if err := free(); err != nil {
			a.node.cfg.Log.Error("memory is not given back", "area", a.id, "err", err)
		}
		a.node.memoryFreed()
	})
}

// forgetLocked frees the replica's bytes of an extent.
func (a *Area) forgetLocked(e dsm.ExtentIndex) {
	if err := a.mu.mem.Forget(e); err != nil {
		a.node.cfg.Log.Error("memory is not given back", "area", a.id, "extent", e, "err", err)
	}
}

// neededAsHomeLocked reports whether this node needs the memory as a home: for what it has merged, or for parts that it will merge.
func (a *Area) neededAsHomeLocked() bool {
	return len(a.mu.home.extents) > 0 || a.mu.home.rounds.parts > 0
}

// freeIfUnusedLocked frees the memory when neither a replica nor a home needs it.
func (a *Area) freeIfUnusedLocked() {
	if a.mu.mem != nil && !a.mu.replica.subscribed && !a.neededAsHomeLocked() {
		a.closeMemoryLocked()
	}
}

func (a *Area) now() time.Time { return a.node.cfg.Now() }
