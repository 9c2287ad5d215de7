package coherence

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// A replica subscribes to slots, not to extents: an area may have a million extents, most of which were never touched. The replica makes
// the state of an extent when a call first looks at it. Until then slotState stands for all such extents of a slot.

// subscribing is a Subscribe that the home has not answered.
type subscribing struct {
	home    dsm.NodeID
	slots   []dsm.Slot
	extents []dsm.ExtentIndex
}

// addToLocked adds to set the slots that the Subscribe is for, without those from which the replica has unsubscribed since.
func (s *subscribing) addToLocked(set map[dsm.Slot]struct{}, a *Area) {
	add := func(slot dsm.Slot) {
		if a.hasSlotLocked(slot) && a.mu.replica.slots.asked.has(slotIndex(slot)) {
			set[slot] = struct{}{}
		}
	}
	for _, slot := range s.slots {
		add(slot)
	}
	for _, e := range s.extents {
		add(a.slotLocked(e))
	}
}

// slotsLocked returns the slots of the area's extents from first on.
func (a *Area) slotsLocked(first int) []dsm.Slot {
	list := make([]dsm.Slot, min(max(a.extentsLocked()-first, 0), a.coveringLocked()))
	for i := range list {
		list[i] = a.slotLocked(dsm.ExtentIndex(first + i))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// askedLocked returns the slots that are subscribed to. After a shrink the area may have no extents in some of them. They stay subscribed:
// the area may grow again.
func (a *Area) askedLocked() (list []dsm.Slot) {
	for i := range areaSlots {
		if !a.mu.replica.slots.asked.has(i) {
			continue
		}
		if s, ok := a.slotAtLocked(i); ok {
			list = append(list, s)
		}
	}
	return list
}

// subscribedHomesLocked returns the homes of the slots that are subscribed to.
func (a *Area) subscribedHomesLocked() []dsm.NodeID {
	var ids []dsm.NodeID
	for _, s := range a.askedLocked() {
		ids = append(ids, a.mu.view.Row(s).Primary)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// subscribedLocked reports whether the homes have answered all Subscribes. Those to dead homes do not count if all extents of the area
// have live homes.
func (a *Area) subscribedLocked() bool {
	for _, s := range a.mu.replica.subs {
		if !slices.Contains(a.mu.dead, s.home) {
			return false
		}
	}
	return a.deadInAreaLocked() == 0 || len(a.mu.replica.subs) == 0
}

// extentLocked returns the state of an extent, and makes it at the first call. The area must have the extent.
func (a *Area) extentLocked(e dsm.ExtentIndex) *replicaExtent {
	r := &a.mu.replica
	x := r.extents[e]
	if x == nil {
		slot := r.slots.at(slotIndex(a.slotLocked(e)))
		x = &replicaExtent{index: e, live: slot.live}
		switch {
		case r.demand: // no page is here
		case slot.here || e >= r.zero:
			x.have = dsm.AllPages
		default: // only pages past the end: they are zero at every node, and the kernel may have read them as zero
			x.have = dsm.AllPages.Minus(a.withinLocked(e))
		}
		r.extents[e] = x
	}
	return x
}

// roomFor returns m with room for n more extents, if they are many: to grow a map bit by bit takes as long again.
func roomFor[T any](m map[dsm.ExtentIndex]T, n int) map[dsm.ExtentIndex]T {
	if n < 1000 || n < len(m) {
		return m
	}
	more := make(map[dsm.ExtentIndex]T, len(m)+n)
	maps.Copy(more, m)
	return more
}

// extentsFromLocked returns the extents from first on that have state, in increasing order.
func (a *Area) extentsFromLocked(first dsm.ExtentIndex) []dsm.ExtentIndex {
	return keysFrom(a.mu.replica.extents, first, dsm.ExtentIndex(a.mu.replica.n))
}

// keysFrom returns the extents in m from first on, in increasing order. All that are in it are below end. Of a few at the end of a large area it does not
// look at the others.
func keysFrom[T any](m map[dsm.ExtentIndex]T, first, end dsm.ExtentIndex) (list []dsm.ExtentIndex) {
	if int(end)-int(first) < len(m) {
		for e := first; e < end; e++ {
			if _, ok := m[e]; ok {
				list = append(list, e)
			}
		}
		return list
	}
	for e := range m {
		if e >= first {
			list = append(list, e)
		}
	}
	slices.Sort(list)
	return list
}

// materializeLastLocked makes the state of the last extent. It must exist before the area grows: it records that the pages past the
// present end are here.
func (a *Area) materializeLastLocked() {
	if n := a.mu.replica.n; n > 0 {
		a.extentLocked(dsm.ExtentIndex(n - 1))
	}
}

// startReplicaLocked makes the replica: an empty working copy and a subscription.
func (a *Area) startReplicaLocked() error {
	if err := a.workingCopyLocked(); err != nil {
		return err
	}
	r := &a.mu.replica
	r.subscribed = true
	r.demand = a.mu.mem.Demand()
	r.bare = r.demand
	r.onRequest = a.defersLocked()
	r.n = a.extentsLocked()
	r.zero = dsm.ExtentIndex(r.n)
	a.materializeLastLocked()
	a.subscribeLocked(a.slotsLocked(0), nil)
	return nil
}

const (
	// subscribePart bounds the extents in one Subscribe, and in one answer, so that neither takes more than half
	// of wire.MaxMessage.
	subscribePart = 8192
	// subscribeOnce is about how many extents a Subscribe is about, so that its home is not busy for long with one.
	subscribeOnce = 1024
	// sumsPart bounds the extents in one Subscribe with sums of their pages likewise.
	sumsPart = 240
	// sumsOnce bounds the extents of which a step computes sums: it takes 0.1 s for each GiB. What is beyond it is sent again.
	sumsOnce = 4096
)

// pageSums computes the sums of pages in a step.
type pageSums struct {
	of   *pages.Sums
	left int // extents
}

// slotsAtOnceLocked returns for how many slots one Subscribe is.
func (a *Area) slotsAtOnceLocked() int {
	_, slots := a.mu.ino.Spec.Recur()
	if slots == 1 {
		return areaSlots
	}
	extents := min(int64(a.extentsLocked()), max(a.mu.ino.Pages, int64(len(a.mu.replica.extents)))) // of which something may be known
	return max(subscribeOnce/(int(extents)/slots+1), 1)
}

// subscribeLocked asks the homes of the slots for the updates of all their extents. For extents that have state it asks only for what is
// newer than their versions. old is the view in which it has done so before, if there is another one since, else nil.
func (a *Area) subscribeLocked(list []dsm.Slot, old *dsm.View) {
	if len(list) == 0 {
		return
	}
	r := &a.mu.replica
	slots := make(map[dsm.NodeID][]dsm.Slot)
	for _, s := range list {
		home := a.mu.view.Row(s).Primary
		slots[home] = append(slots[home], s)
		i := slotIndex(s)
		r.slots.asked.put(i, true)
		r.slots.live.put(i, r.slots.live.has(i) && !r.demand)
	}
	once := a.slotsAtOnceLocked()
	sums := &pageSums{pages.NewSums(rand.Uint64()), sumsOnce}
	for _, home := range slices.Sorted(maps.Keys(slots)) {
		for some := range slices.Chunk(slots[home], once) {
			a.subscribeOnceLocked(home, some, old, sums)
		}
	}
}

// subscribeOnceLocked asks a home for some of its slots.
func (a *Area) subscribeOnceLocked(home dsm.NodeID, list []dsm.Slot, old *dsm.View, sums *pageSums) {
	r := &a.mu.replica
	anew := old != nil && a.restartedLocked(home, old)
	in := a.slotSetLocked(slices.Values(list))
	var left []wire.ExtentVersion
	atOnce := subscribePart
	for _, e := range inSlotsLocked(a, r.extents, dsm.ExtentIndex(r.n), &in) {
		x := r.extents[e]
		v := wire.ExtentVersion{Extent: e, Version: x.version}
		x.summed = 0
		if r.demand {
			v.Has = x.have
			x.live = false
		} else if x.anew = x.anew || anew || x.version == 0; x.anew && !a.isSelf(home) {
			if v.Has, v.Sums = a.sumsLocked(e, x, sums); v.Sums != nil {
				atOnce = sumsPart
			}
		}
		left = append(left, v)
	}
	group := r.round + 1
	if home == a.rowLocked(0).Primary { // a versioned area has no other home, and asks for all at once
		a.mu.whole.stage = stage{group: group}
	}
	for last := false; !last; {
		part := left[:min(len(left), atOnce)]
		left = left[len(part):]
		r.round++
		sub := subscribing{home: home, extents: make([]dsm.ExtentIndex, len(part))}
		for i, v := range part {
			if sub.extents[i] = v.Extent; v.Sums != nil {
				r.extents[v.Extent].summed = r.round
			}
		}
		if last = len(left) == 0; last {
			sub.slots = list
		}
		r.subs[r.round] = sub
		a.sendLocked(home, &wire.Subscribe{Stamp: a.stampLocked(), Round: r.round, Group: group, Seed: sums.of.Seed, OnRequest: r.onRequest, Partial: r.demand, Slots: sub.slots, Extents: part})
	}
}

// restartedLocked reports whether a node has another daemon than in the view old. It goes on as the home, and gives all pages a version of its own. A backup that takes over has the versions of the home before, and so has who is handed a slot.
func (a *Area) restartedLocked(n dsm.NodeID, old *dsm.View) bool {
	was, _ := old.Member(n)
	is, _ := a.mu.view.Member(n)
	return was.Since != is.Since
}

// sumsLocked returns the pages of an extent that are here and may be up to date though the home has given them other versions, or this node does not know the versions of what it has, and the sums of their bases. It is so when the daemon of the home, or of this node, was
// killed: then nearly all pages are what they were. Not if this node was evicted meanwhile: the pages that a home sends say what it has merged of what was sent before.
//
// The home compares with its bytes of the moment at which it handles the Subscribe. If they are the same, this node is as one who has had all that was merged before, provided that its base does not change in between but by what the home does after that, though bytes may
// become again what they were. So pushes are not taken until the answer: what the home has sent before counts as not sent when it has the Subscribe. Pages of publications under way are left out, since their acks may come first. The home looks at no sums of another generation:
// this node is about to clear what a shrink has cut off. What this node publishes later comes to the home behind the Subscribe.
func (a *Area) sumsLocked(e dsm.ExtentIndex, x *replicaExtent, s *pageSums) (set dsm.PageSet, sums []byte) {
	if a.versionedLocked() || a.mu.absence.has(e) || s.left == 0 {
		return set, nil
	}
	s.left--
	set = x.have.Minus(x.outdated).And(a.withinLocked(e))
	for pub := range x.publications() {
		set = set.Minus(pub.pages)
	}
	for i := range set.All() {
		sums = binary.BigEndian.AppendUint64(sums, s.of.Base(a.mu.mem, page(e, i)))
	}
	return set, sums
}

// sameLocked returns which of the pages that a subscriber seems to lack it has, by their sums.
func (a *Area) sameLocked(x *wire.ExtentVersion, lacks dsm.PageSet, of *pages.Sums) (same dsm.PageSet) {
	if len(x.Sums) != wire.SumSize*x.Has.Len() || a.mu.mem == nil || !a.mu.mem.Homed(x.Extent) {
		return same
	}
	sums := x.Sums
	for i := range x.Has.All() {
		if lacks.Has(i) && a.inAreaLocked(x.Extent, i) && binary.BigEndian.Uint64(sums) == of.Home(a.mu.mem, page(x.Extent, i)) {
			same.Add(i)
		}
		sums = sums[wire.SumSize:]
	}
	return same
}

// replicaSubscribedLocked handles the answer to a Subscribe: it says which pages the replica lacks. All others are here, because
// they have not changed since the version in the Subscribe. (At version 0 all pages are zero.)
func (a *Area) replicaSubscribedLocked(from dsm.NodeID, m *wire.Subscribed) {
	r := &a.mu.replica
	if _, ok := r.subs[m.Round]; !ok {
		return
	}
	r.extents = roomFor(r.extents, len(m.Lacks))
	full := make(map[dsm.ExtentIndex]bool, len(m.Full))
	for _, e := range m.Full {
		full[e] = true
	}
	for _, l := range m.Lacks {
		delete(full, l.Extent)
		a.extentSubscribedLocked(from, m, l.Extent, l.Pages)
	}
	for _, e := range m.Full {
		if full[e] {
			a.extentSubscribedLocked(from, m, e, dsm.PageSet{})
		}
	}
	if a.mu.wake = true; m.More {
		return
	}
	delete(r.subs, m.Round)
	if len(m.Slots) == 0 {
		return
	}
	var in slotBits
	for _, s := range m.Slots {
		if !a.hasSlotLocked(s) {
			continue
		}
		if row := a.mu.view.Row(s); row.Primary == from && m.Epoch >= row.Epoch {
			r.slots.put(slotIndex(s), slotState{asked: true, live: true, here: true})
			in.put(slotIndex(s), true)
		}
	}
	for _, e := range inSlotsLocked(a, r.extents, dsm.ExtentIndex(r.n), &in) { // extents whose state was made after the Subscribe
		if !r.extents[e].live {
			a.extentSubscribedLocked(from, m, e, dsm.PageSet{})
		}
	}
	a.homeAnsweredLocked(from, m)
}

func (a *Area) extentSubscribedLocked(from dsm.NodeID, m *wire.Subscribed, e dsm.ExtentIndex, lacks dsm.PageSet) {
	if !a.fromHomeLocked(from, m.Epoch, e) {
		return
	}
	x := a.extentLocked(e)
	if x.live = true; x.summed == m.Round {
		x.summed = 0
	}
	if a.mu.replica.demand {
		a.mu.replica.setOutdated(x, lacks.And(x.have))
		return
	}
	a.mu.replica.setOutdated(x, lacks)
	arrived := dsm.AllPages.Minus(x.outdated).Minus(x.have)
	x.have = x.have.Or(arrived)
	a.unstashLocked(e, arrived)
}
