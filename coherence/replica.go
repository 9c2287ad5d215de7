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

// replica serves the programs of this node: it knows which pages are here, which of them have unpublished
// stores, and what was asked of the homes.
type replica struct {
	subscribed bool                       // from the first open until dropped
	onRequest  bool                       // what the homes were last told: whether to push only for an Acquire or Fetch
	demand     bool                       // pages are here only while they are needed: see demand.go
	bare       bool                       // of demand: no program has been able to store yet, so no base copies are kept
	direct     int32                      // attachments of the mount: see Attach
	opens      int                        // open handles
	writers    int                        // handles for writing, and attachments that store into the working copy: see beginWritingLocked
	released   int                        // writers that cannot store any more: see Released
	attached   int                        // writers that are attachments
	mapped     int                        // all attachments, also those that only read or have a draft
	syncing    int                        // sync calls under way of programs that store: updates may enter memory
	draining   int                        // calls that wait until the kernel has been told everything: see drainLocked
	units      int                        // of demand: pages that are here or asked for
	ahead      *readahead                 // of demand, once a program has waited for a page
	making     bool                       // bringAhead is about to ask
	early      bool                       // publishAheadLocked is about to run
	stuck      bool                       // the log says that pages cannot be evicted
	silent     []dsm.NodeID               // homes that did not answer a publish in time, and have sent nothing since
	awaited    map[dsm.PageIndex][]func() // what to call when a page comes
	staying    []*staying                 // READs that wait for pages: see staying

	// extents has the extents that a call has looked at: see extentLocked. n is how many the area has.
	extents map[dsm.ExtentIndex]*replicaExtent
	n       int
	zero    dsm.ExtentIndex // extents from here on were added when the area grew, and were zero then
	slots   slotStates

	seq        dsm.Seq  // of the last publication
	underWay   int      // bytes of publications under way
	wants      wants    // extents to be published
	leaving    *leaving // nil before the first publication: see leaves
	busy       busy
	round      uint64
	version    dsm.Version            // newest version that is here: see arrivedLocked
	whole      dsm.Version            // everything that was published up to this version is here: see cameUptoLocked
	outdated   int                    // extents with outdated pages
	subs       map[uint64]subscribing // Subscribes not answered, by round
	acquires   map[uint64]*acquiring
	fresh      time.Time  // everything that was published before is here; zero: nothing is known
	refresh    *acquiring // the acquire in the background, or nil
	freshening int        // READs that wait for it
	inquiry    map[uint64]*inquiring
	waits      waits

	contribution *contribution              // to the round under way, or nil
	partBytes    int64                      // of the parts that are in no window
	dropped      map[dsm.AreaID]dsm.RoundID // the last round of each group of which something that was handed over is dropped
	changes      uint64                     // how often something came into the working copy that others have published
	brought      *broughts                  // by programs that store; or nil

	dense     bool // the last comparison found nearly all pages changed: see denseSample
	lastStore time.Time
	lateAcks  []message // PushAcks withheld until the kernel has taken more notices
}

// replicaExtent is the replica's side of an extent.
type replicaExtent struct {
	index    dsm.ExtentIndex
	live     bool        // the home has answered the Subscribe; pushes that came before belong to an earlier subscription
	version  dsm.Version // all changes up to here are in the base copy
	anew     bool        // the home may have given all pages other versions since
	summed   uint64      // the round of a Subscribe with sums that is not answered; 0: there is none. The base stays what it is until then: see sumsLocked
	have     dsm.PageSet // pages whose bytes are here
	outdated dsm.PageSet // pages known to be newer at the home
	dirty    dsm.PageSet // pages stored to since they were last published
	asked    dsm.PageSet // pages with a Fetch under way
	pub      *publication
	parts    []*publication    // this node's parts of a round that the home keeps apart, oldest first
	joins    bool              // the next publication is a part of the round in replica.contribution
	wanted   bool              // publish as soon as pub is nil
	queued   bool              // in wants
	busy     bool              // in replica.busy
	started  uint64            // number of the last publication: see publication.number
	acked    uint64            // the stores of all publications up to this number are at the home
	stash    map[int][]stashed // stores to pages that are not here yet
	untold   dsm.PageSet       // pages that attached programs stored to, and that the ledger has not been told of
}

// leaving is what is about to be published, or sent. It is apart because an area is small that publishes nothing.
type leaving struct {
	written map[dsm.PageIndex]*writtenBytes // of dirty pages: what was written by write(2)
	unsent  []dsm.ExtentIndex               // they wait for credit
	unkept  []dsm.ExtentIndex               // they were made in this step, and are not kept yet
}

func (r *replica) leaves() *leaving {
	if r.leaving == nil {
		r.leaving = new(leaving)
	}
	return r.leaving
}

// acquiring is an Acquire that not all homes have answered.
type acquiring struct {
	began   time.Time    // when it was sent
	storing bool         // the caller stores: updates may enter memory until it ends
	finish  *wire.Finish // if not nil, it ends a round first
	round   uint64
	pending map[dsm.NodeID]struct{} // the homes that have not answered
	version dsm.Version             // the oldest of the versions that homes have answered with
	late    bool                    // when the last home answered, something that was accumulated on this node was not merged: see awaitGivenBack
	partly  bool                    // some pages were kept out of memory meanwhile
	kept    uint64                  // the last acquire that was sent before the last of these; the home answers a later one with them
	changes uint64                  // how many replica.changes there were when the working copy had all of this, but for what was kept out
}

func (r *replica) init() {
	inquiry := r.inquiry
	if inquiry == nil {
		inquiry = make(map[uint64]*inquiring)
	}
	// seq and round are not set back, so that late answers to an earlier replica match nothing.
	*r = replica{seq: r.seq, round: r.round, changes: r.changes, inquiry: inquiry, waits: r.waits, wants: make(wants), extents: make(map[dsm.ExtentIndex]*replicaExtent),
		subs: make(map[uint64]subscribing), acquires: make(map[uint64]*acquiring), dropped: make(map[dsm.AreaID]dsm.RoundID)}
}

// homesLocked returns the distinct homes of the area's extents.
func (a *Area) homesLocked() []dsm.NodeID { return a.homesOfLocked(a.coveringLocked()) }

// homesOfLocked returns the distinct homes of the first n extents.
func (a *Area) homesOfLocked(n int) []dsm.NodeID {
	ids := make([]dsm.NodeID, n)
	for e := range ids {
		ids[e] = a.rowLocked(dsm.ExtentIndex(e)).Primary
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// replicaHasLocked reports whether page i of e is in the working copy of a program.
func (a *Area) replicaHasLocked(e dsm.ExtentIndex, i int) bool {
	r := &a.mu.replica
	return r.subscribed && int(e) < r.n && a.extentLocked(e).have.Has(i)
}

// defersLocked reports whether updates must stay out of memory except in sync calls: the area has apply=sync,
// and the node has a writer that can still store.
func (a *Area) defersLocked() bool {
	return a.mu.ino.Spec.AppliesInSync() && a.mu.replica.writers > a.mu.replica.released
}

// pausesUpdatesLocked reports whether updates must stay out of memory now: defersLocked, and no program that stores is in a sync call.
func (a *Area) pausesUpdatesLocked() bool { return a.defersLocked() && a.mu.replica.syncing == 0 }

// dropReplicaLocked frees the working copy, which must have nothing unpublished.
func (a *Area) dropReplicaLocked() {
	for _, home := range a.subscribedHomesLocked() {
		a.sendLocked(home, &wire.Unsubscribe{Stamp: a.stampLocked()})
	}
	a.forgetPagesLocked()
	a.freeLocked(a.mu.mem.EndReplicaLater())
	if a.neededAsHomeLocked() { // else freeIfUnusedLocked frees it all
		for _, e := range a.extentsFromLocked(0) {
			a.forgetLocked(e)
		}
	}
	a.mu.cached = pages.NewCached(a.mu.mem)
	a.mu.replica.init()
	if !a.ownHomeLocked() || a.mu.whole.taking { // else all of it is about the home's bytes
		a.dropHistoryLocked()
	}
	a.mu.whole.replica, a.mu.whole.stage = 0, stage{}
	a.mu.whole.id = dsm.RoundID{} // nothing is left of a version that did not end in time
	a.localLocked()
	a.freeIfUnusedLocked()
}

// forgetPagesLocked tells room that no page is here any more.
func (a *Area) forgetPagesLocked() {
	if r := &a.mu.replica; r.demand {
		for _, e := range a.extentsFromLocked(0) {
			a.node.room.forget(a.id, e, r.extents[e].have)
		}
	}
}

// replicaPushLocked merges pushed pages into the working copy and makes them the base.
func (a *Area) replicaPushLocked(from dsm.NodeID, m *wire.Push, payload [][]byte) error {
	r := &a.mu.replica
	a.miscountedLocked()
	a.heardLocked(m.Version)
	if !r.subscribed {
		a.sendLocked(from, &wire.Unsubscribe{Stamp: a.stampLocked()}) // an earlier one was dropped
		return nil
	}
	if m.Gen < a.mu.ino.Gen {
		return nil // the home pushes again when it applies the same catalog entry: see homeGenChangedLocked
	}
	x := a.extentLocked(m.Extent)
	if !x.live || x.summed != 0 || a.awaitsAnswerLocked(m.Extent) {
		return nil
	}
	if a.versionedLocked() {
		return a.stagePushLocked(from, m, payload)
	}
	return a.takePushLocked(from, m, payload, true)
}

// takePushLocked puts the pages of a push in place, and acks it if ack is set.
func (a *Area) takePushLocked(from dsm.NodeID, m *wire.Push, payload [][]byte, acks bool) error {
	r := &a.mu.replica
	x := a.extentLocked(m.Extent)
	a.takeBackUnmergedLocked(m, x)
	a.takeBackVoidLocked(m, x)
	if pub := x.publish(); pub != nil && pub.seq <= m.Contains {
		a.overtakeLocked(x, pub) // its ack was dropped, or is on its way
	}
	came, declined, err := a.placeLocked(m, x, payload)
	if err != nil {
		return err
	}
	r.changes++
	a.changedLocked(m.Extent, m.Pages.Minus(declined), nil)
	ack := &wire.PushAck{Stamp: a.stampLocked(), Extent: m.Extent, ID: m.ID, Declined: declined}
	if r.demand {
		x.asked = a.answeredLocked(x, m.Answer, came)
	} else {
		x.asked = x.asked.Minus(m.Pages)
	}
	x.have = x.have.Or(came)
	a.mu.cleaner = a.mu.cleaner || r.demand && !came.Empty() // pages that have come may leave
	r.setOutdated(x, x.outdated.Or(declined))
	if m.Complete && x.outdated.Empty() && m.Version > x.version {
		x.version, x.anew = m.Version, false
		if !a.versionedLocked() {
			a.arrivedLocked(m.Version)
		}
	}
	a.cameUptoLocked(m.Upto)
	if !declined.Empty() {
		for _, op := range r.acquires {
			op.partly, op.kept = true, r.round
		}
	}
	a.unstashLocked(m.Extent, came)
	a.arriveLocked(m.Extent, came)
	ack.Newest = a.mu.newest
	switch {
	case !acks:
	case declined.Empty() && a.kernelLagsLocked(from):
		r.lateAcks = append(r.lateAcks, message{peer: from, msg: ack})
	default:
		a.sendLocked(from, ack)
	}
	a.node.stats.pagesReceived.Add(uint64(m.Pages.Len()))
	a.mu.wake = true
	if x.wanted {
		a.wantLocked(m.Extent, x)
		a.startPublicationsLocked()
	}
	return nil
}

// placeLocked puts the pages of a push in the working copy. It returns the pages that were not here before (came),
// and those that it left out because updates must stay out of memory now (declined).
func (a *Area) placeLocked(m *wire.Push, x *replicaExtent, payload [][]byte) (came, declined dsm.PageSet, err error) {
	r := &a.mu.replica
	pauses := a.pausesUpdatesLocked() && !a.mu.absence.has(m.Extent)
	next, delta, err := a.pushedPagesLocked(m, x, payload)
	if err != nil {
		return came, declined, err
	}
	fresh := arrivals{extent: m.Extent}
	outdated := x.outdated
	for i := range m.Pages.All() {
		if x.have.Has(i) { // the memory of other pages must not be touched: see demand.go
			a.mu.mem.PrefetchNext(m.Extent, &m.Pages, i)
		}
		n := zeroPages[i*dsm.PageSize:][:dsm.PageSize]
		if !m.Zero.Has(i) && delta == nil {
			n = next()
		}
		switch {
		case !a.inAreaLocked(m.Extent, i):
		case r.demand && !x.have.Has(i):
			if m.Answer.Has(i) && x.asked.Has(i) { // else it was pushed before a Release: see demand.go
				fresh.addLocked(a, i, n)
			}
		case !x.have.Has(i):
			a.installLocked(m.Extent, i, n, m.Zero.Has(i))
			came.Add(i)
		case pauses:
			declined.Add(i)
			continue
		default:
			a.mergePageLocked(m.Extent, i, x, n, delta, m.Version, contained{m.Contains, m.Parts})
		}
		outdated.Remove(i)
	}
	r.setOutdated(x, outdated)
	return came.Or(fresh.installedLocked(a)), declined, nil
}

// untakenLimit bounds the copies that pages.Cached keeps for notices which the kernel has not taken. Beyond it homes
// have to wait with further pushes.
const untakenLimit = 8 << 20

// kernelLagsLocked reports whether a home should wait with further pushes, because the kernel is slow to take notices. PushAcks are
// then withheld. A home that a READ waits for need not wait. Notices for the pages of a READ wait until it is answered. And the answer
// may need credit of the link, which pushes that are not acked may have used up. So it is with READs that wait for an acquire.
func (a *Area) kernelLagsLocked(home dsm.NodeID) bool {
	r := &a.mu.replica
	if r.freshening > 0 {
		return false
	}
	if r.draining > 0 && len(r.staying) == 0 {
		return true
	}
	return a.mu.cached.CopyBytes() > untakenLimit && !a.pausesUpdatesLocked() && !a.readFromLocked(home)
}

// readFromLocked reports whether a READ waits for pages from a home.
func (a *Area) readFromLocked(home dsm.NodeID) bool {
	return slices.ContainsFunc(a.mu.replica.staying, func(s *staying) bool {
		for e := dsm.ExtentOf(s.off); int64(e)*dsm.ExtentSize < s.off+int64(s.n) && int(e) < a.mu.replica.n; e++ {
			if asked := pagesOf(e, s.off, s.n).And(a.extentLocked(e).asked); a.rowLocked(e).Primary == home && !asked.Empty() {
				return true
			}
		}
		return false
	})
}

// ackLateLocked sends the PushAcks that need not be withheld any more, and reports whether there were any.
func (a *Area) ackLateLocked() bool {
	r := &a.mu.replica
	n := len(r.lateAcks)
	r.lateAcks = slices.DeleteFunc(r.lateAcks, func(m message) bool {
		lags := a.kernelLagsLocked(m.peer)
		if !lags {
			a.mu.out = append(a.mu.out, m)
		}
		return !lags
	})
	return len(r.lateAcks) < n
}

var zeroPages = make([]byte, dsm.ExtentSize)

// isZero reports whether a page is all zero.
func isZero(p []byte) bool { return string(p) == string(zeroPages[:len(p)]) }

// pushedPagesLocked returns a function that returns the pages of a push one after the other. If a publish was pushed in place of
// pages (forwardLocked), it returns that. A push that does not add up is refused before any of its pages is in place.
func (a *Area) pushedPagesLocked(m *wire.Push, x *replicaExtent, payload [][]byte) (next func() []byte, delta *merge.Delta, err error) {
	if len(m.Index) == 0 {
		return pageReader(payload), nil, wholePages(m, payload)
	}
	if lacks := m.Pages.And(a.withinLocked(m.Extent)).Minus(x.have); !a.mu.replica.demand && !lacks.Empty() {
		return nil, nil, errs.E(errs.Corrupt, "push", "a publish of pages %v of extent %d of area %d, which are not here", lacks, m.Extent, a.id)
	}
	delta = &merge.Delta{Extent: m.Extent, Pages: m.Pages, Index: m.Index, Data: flat(payload)}
	return nil, delta, delta.Validate(a.mu.kernel)
}

// wholePages checks that the payload of a push has the pages that it names.
func wholePages(m *wire.Push, payload [][]byte) error {
	data := m.Pages.Minus(m.Zero)
	n, want := 0, data.Len()*dsm.PageSize
	for _, b := range payload {
		n += len(b)
	}
	if n != want {
		return errs.E(errs.Corrupt, "push", "%d bytes for pages of extent %d of area %d that take %d", n, m.Extent, m.Area, want)
	}
	return nil
}

// pageReader returns a function that returns the pages of a payload one after the other.
func pageReader(payload [][]byte) func() []byte {
	return func() []byte {
		for len(payload) > 0 && len(payload[0]) == 0 {
			payload = payload[1:]
		}
		p := payload[0][:dsm.PageSize]
		payload[0] = payload[0][dsm.PageSize:]
		return p
	}
}

// replicaViewChangedLocked follows a new view. It subscribes to the slots that moved at their new homes, and repeats there what the old
// homes have not answered.
func (a *Area) replicaViewChangedLocked(old *dsm.View) {
	r := &a.mu.replica
	if !r.subscribed {
		a.restartInquiriesLocked()
		return
	}
	a.wantsMovedLocked()
	moved := make(map[dsm.Slot]struct{})
	for _, slot := range a.askedLocked() {
		if a.movedLocked(old, slot) || a.revivedLocked(old, slot) {
			moved[slot] = struct{}{}
			r.whole = 0 // the home may have died
		}
	}
	for round, sub := range r.subs { // Subscribes without an answer are sent again: their slots may have moved
		sub.addToLocked(moved, a)
		delete(r.subs, round)
	}
	if len(a.mu.dead) > 0 || len(deadOf(old)) > 0 { // the last of them may be back
		a.abandonDeadLocked()
	}
	a.resubscribeLocked(slices.Sorted(maps.Keys(moved)), old)
	a.markAgainLocked()
	a.restartInquiriesLocked()
}

// replicaResetLocked sends again what may not have arrived because a session with peer has broken.
func (a *Area) replicaResetLocked(peer dsm.NodeID) {
	r := &a.mu.replica
	if r.subscribed {
		for round, sub := range r.subs {
			if sub.home == peer {
				delete(r.subs, round)
			}
		}
		a.resubscribeLocked(a.homedAtLocked(peer), nil)
		a.markAgainAfterResetLocked(peer)
	}
	a.restartInquiriesLocked()
}

// homedAtLocked returns the slots that are subscribed to and whose home is the node.
func (a *Area) homedAtLocked(n dsm.NodeID) []dsm.Slot {
	return slices.DeleteFunc(a.askedLocked(), func(s dsm.Slot) bool { return a.mu.view.Row(s).Primary != n })
}

// resubscribeLocked subscribes to the slots, and sends everything again that is under way for their extents. It also sends
// all Acquires again. old is that of subscribeLocked.
func (a *Area) resubscribeLocked(list []dsm.Slot, old *dsm.View) {
	r := &a.mu.replica
	a.subscribeLocked(list, old)
	in := a.slotSetLocked(slices.Values(list))
	for _, e := range a.busyExtentsLocked() {
		if !in.has(slotIndex(a.slotLocked(e))) {
			continue
		}
		x := r.extents[e]
		a.resendAllLocked(e, x)
		if !x.asked.Empty() {
			a.sendLocked(a.rowLocked(e).Primary, &wire.Fetch{Stamp: a.stampLocked(), Extent: e, Pages: x.asked})
		}
	}
	a.acquireAgainLocked()
}

// acquireAgainLocked sends all Acquires that are not answered again.
func (a *Area) acquireAgainLocked() {
	r := &a.mu.replica
	for _, round := range slices.Sorted(maps.Keys(r.acquires)) {
		a.sendAcquireLocked(r.acquires[round])
	}
}

// replicaResizedLocked follows the size of the area.
func (a *Area) replicaResizedLocked(was, is int64) {
	r := &a.mu.replica
	if !r.subscribed || was == is {
		return
	}
	if is > was {
		// What was added is zero at every node, so it is here. Only a subscription is needed, for slots
		// that the area had no extent in.
		first := r.n
		r.n = a.extentsLocked()
		a.materializeLastLocked()
		added := slices.DeleteFunc(a.slotsLocked(first), func(s dsm.Slot) bool { return r.slots.asked.has(slotIndex(s)) })
		if len(added) > 0 {
			r.whole = 0 // others may have published there, and this node may have heard of the versions
		}
		a.subscribeLocked(added, nil)
		if len(added) > 0 { // what others have stored there is behind the Subscribe
			a.acquireAgainLocked()
		}
		return
	}
	r.cutWritten(is)
	a.extentLocked(dsm.ExtentIndex(min(is/dsm.ExtentSize, int64(r.n)-1))) // its pages past the end are zero, and so here
	r.zero = min(r.zero, dsm.ExtentIndex(a.extentsLocked()))
	for _, e := range a.extentsFromLocked(dsm.ExtentIndex(is / dsm.ExtentSize)) { // the extents before lose nothing
		x := r.extents[e]
		a.shrinkStashLocked(x, is)
		for pub := range x.publications() {
			pub.shrink(e, is)
		}
		if x.wanted && int(e) < a.extentsLocked() { // the pages that its stores wait for may have been truncated
			a.wantLocked(e, x)
		}
		if r.demand {
			a.shrinkOnDemandLocked(e, x)
			continue
		}
		in := a.withinLocked(e)
		x.dirty, x.asked, x.have = x.dirty.And(in), x.asked.And(in), x.have.Or(dsm.AllPages.Minus(in))
		r.setOutdated(x, x.outdated.And(in))
	}
	for _, e := range a.extentsFromLocked(dsm.ExtentIndex(a.extentsLocked())) {
		x := r.extents[e]
		a.endUnmergedLocked(x)
		x.truncated()
		r.setOutdated(x, dsm.PageSet{})
		delete(r.extents, e)
		a.endComparisonLocked(e)
	}
	r.n = a.extentsLocked()
	a.startPublicationsLocked()
}

// replicaOnRequestChangedLocked tells the homes when it changes whether they may push on their own.
func (a *Area) replicaOnRequestChangedLocked() {
	r := &a.mu.replica
	a.pauseNoticesLocked()
	if !r.subscribed || r.onRequest == a.defersLocked() {
		return
	}
	r.onRequest = a.defersLocked()
	a.miscountedLocked() // from here on it may not hear of changes
	for _, home := range a.subscribedHomesLocked() {
		a.sendLocked(home, &wire.Subscribe{Stamp: a.stampLocked(), OnRequest: r.onRequest, Partial: r.demand})
	}
}
