package coherence

import (
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// What HandleNow does has to be brief: meanwhile the loop serves no other node. The bound is what a step of an area of one extent may take:
// 256 pages merged, and as many pushed to each subscriber. On demand, areas are large, and some things that a step may do grow with them, or wait:
//
//	acting on a newer view, or size           all extents
//	what waits: parked, short, a round ...    any number of messages
//	pushing what a subscriber lacks           4 MiB
//	publishing what is wanted                 up to a batch, compared with the base
//	conditions of those that wait             perhaps all extents
//	putting pages in place by write(2)        the file's lock, which a program may have for as long as it likes
//	telling the policy of eviction            its lock, held while victims are looked for among all pages
//
// takesNowLocked refuses what may come to any of the first six. The last is left to another goroutine if the lock is not free: see room.broughtLocked.
// No room is made, and nothing is evicted: who asks for a page takes the room for it before, and eviction has goroutines of its own.
// What is left is at most nowPages pages found, copied and sent, or copied into place by UFFDIO_COPY or merged, and nowWaits programs woken:
// at 1 to 2 us for each of them some 50 us, less than to merge an extent. A scan soon asks for more pages at once, and does not come here.
const (
	nowPages = 16
	nowWaits = 16
)

// smallLocked reports whether any step of the area is brief.
func (a *Area) smallLocked() bool {
	return a.mu.ino.Size <= dsm.ExtentSize && !a.mu.replica.demand
}

// takesNowLocked reports whether the step of a message to an area on demand is certain to be brief. A replica asks with Fetch, gives up pages with
// Release, and acks; a home answers with Push.
func (a *Area) takesNowLocked(from dsm.NodeID, msg any) bool {
	r := &a.mu.replica
	switch {
	case a.mu.ino.Spec.Residency != dsm.ResidencyDemand || a.versionedLocked() || a.mu.removed:
		return false
	case a.node.cfg.View.Current().Epoch > a.mu.view.Epoch || a.mu.short.ino != nil || len(a.mu.parked) > 0:
		return false
	case a.mu.absence != nil || r.contribution != nil || len(a.mu.drafts) > 0 || len(r.lateAcks) > 0 || a.withholdsLocked():
		return false
	case len(a.mu.waiters) > nowWaits:
		return false
	}
	for _, w := range a.mu.waiters {
		if !w.few {
			return false
		}
	}
	switch m := msg.(type) {
	case *wire.Fetch:
		return m.Pages.Len() <= nowPages && a.pumpsNothingLocked(from)
	case *wire.Release:
		return a.pumpsNothingLocked(from)
	case *wire.PushAck:
		return m.Declined.Empty() && a.pumpsNothingLocked(from)
	case *wire.Push:
		return m.Pages.Len() <= nowPages && a.takesPushNowLocked(m)
	}
	return false
}

// pumpsNothingLocked reports whether a home has nothing to push to a node but what that is about to ask for.
func (a *Area) pumpsNothingLocked(to dsm.NodeID) bool {
	s := a.mu.home.subs[to]
	return s == nil || s.lacking == 0 && len(s.fetches) == 0 && len(s.acquires) == 0
}

// takesPushNowLocked reports whether a push of few pages is put in place without a wait, and nothing else follows from it.
func (a *Area) takesPushNowLocked(m *wire.Push) bool {
	r := &a.mu.replica
	x := r.extents[m.Extent]
	if !r.subscribed || !r.demand || x == nil || x.wanted || x.pub != nil || len(x.parts) > 0 || len(x.stash) > 0 {
		return false
	}
	if !a.mu.mem.InstallsAtOnce() || !a.node.room.chooses() {
		return false
	}
	wakes := 0
	if len(r.awaited) > 0 {
		for i := range m.Pages.All() {
			wakes += len(r.awaited[page(m.Extent, i)])
		}
	}
	return wakes <= nowWaits
}
