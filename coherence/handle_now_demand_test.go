package coherence

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/pages"
)

// TestHandleNowOnDemand: all that follows from a fault is handled at once, in an area of any size.
func TestHandleNowOnDemand(t *testing.T) {
	s, home, other := pairOf(t, onDemand(dsm.Inode{Size: 4 * dsm.ExtentSize}))
	came := false
	if !other.area.BeginFault(dsm.ExtentSize, func() { came = true }) {
		t.Fatal("the page is not asked for")
	}
	nowTakes[*wire.Fetch](t, s, other, home)
	nowTakes[*wire.Push](t, s, home, other)
	if !came || !other.area.presentLocked(dsm.ExtentSize, dsm.PageSize) {
		t.Error("the page has not come")
	}
	nowTakes[*wire.PushAck](t, s, other, home)
	if l := home.area.mu.home.subs[other.id].extents[1]; len(l.pushes) != 0 || l.has != dsm.Range(0, 1) {
		t.Errorf("the home has noted %+v", l)
	}
	other.kernel.finishNotices()
	other.area.step(func() { other.area.evictLocked(1, dsm.Range(0, 1), true) })
	nowTakes[*wire.Release](t, s, other, home)
	if l := home.area.mu.home.subs[other.id].extents[1]; !l.has.Empty() {
		t.Errorf("the home has noted %+v", l)
	}
	s.drain()
}

// TestHandleNowOnDemandRefuses: it leaves to Handle what may wait, or take long.
func TestHandleNowOnDemandRefuses(t *testing.T) {
	s, home, other := pairOf(t, onDemand(dsm.Inode{Size: 4 * dsm.ExtentSize}))
	bring(s, other, 0)
	refuses := func(why string, n *simNode, from *simNode, msg any, payload []byte, set func(a *Area) (undo func())) {
		t.Helper()
		undo := set(n.area)
		handled, err := n.node.HandleNow(from.id, msg, payload)
		if undo(); handled || err != nil {
			t.Errorf("%T, %s: %v, %v", msg, why, handled, err)
		}
	}
	type obstacle struct {
		why string
		set func(a *Area) (undo func())
	}
	anywhere := []obstacle{
		{"a newer view", func(a *Area) func() {
			now := a.mu.view
			a.mu.view = now.Clone()
			a.mu.view.Epoch--
			return func() { a.mu.view = now }
		}},
		{"short", func(a *Area) func() { return with(&a.mu.short.ino, new(dsm.Inode)) }},
		{"parked messages", func(a *Area) func() { return with(&a.mu.parked, make([]message, 1)) }},
		{"an absence", func(a *Area) func() { return with(&a.mu.absence, new(absence)) }},
		{"a round", func(a *Area) func() { return with(&a.mu.replica.contribution, new(contribution)) }},
		{"drafts", func(a *Area) func() { return with(&a.mu.drafts, make([]*draft, 1)) }},
		{"acks that wait for the kernel", func(a *Area) func() { return with(&a.mu.replica.lateAcks, make([]message, 1)) }},
		{"outputs that wait for a backup", func(a *Area) func() { return with(&a.mu.mute, true) }},
		{"versions", func(a *Area) func() { return with(&a.mu.ino.Spec.Mode, dsm.ModeVersioned) }},
		{"not on demand", func(a *Area) func() { return with(&a.mu.ino.Spec.Residency, dsm.ResidencyFull) }},
		{"somebody waits for all of the area", func(a *Area) func() { return with(&a.mu.waiters, []*waiter{{}}) }},
		{"many wait", func(a *Area) func() {
			var all []*waiter
			for range nowWaits + 1 {
				all = append(all, &waiter{few: true})
			}
			return with(&a.mu.waiters, all)
		}},
	}
	ofHome := []obstacle{
		{"something else to push", func(a *Area) func() { return with(&a.mu.home.subs[other.id].lacking, 1) }},
		{"something else fetched", func(a *Area) func() { return with(&a.mu.home.subs[other.id].fetches, make([]dsm.ExtentIndex, 1)) }},
		{"an acquire", func(a *Area) func() { return with(&a.mu.home.subs[other.id].acquires, []*acquireWait{{left: 1}}) }},
	}
	inFile := areaInFile(t)
	ofReplica := []obstacle{
		{"memory that is written by write(2)", func(a *Area) func() { return with(&a.mu.mem, inFile) }},
		{"memory that is not on demand yet", func(a *Area) func() { return with(&a.mu.replica.demand, false) }},
		{"not open", func(a *Area) func() { return with(&a.mu.replica.subscribed, false) }},
		{"never looked at", func(a *Area) func() { return with(&a.mu.replica.extents, map[dsm.ExtentIndex]*replicaExtent{}) }},
		{"a publication wanted", func(a *Area) func() { return with(&a.mu.replica.extents[1].wanted, true) }},
		{"a publication", func(a *Area) func() { return with(&a.mu.replica.extents[1].pub, new(publication)) }},
		{"parts", func(a *Area) func() { return with(&a.mu.replica.extents[1].parts, []*publication{new(publication)}) }},
		{"stores that wait", func(a *Area) func() {
			return with(&a.mu.replica.extents[1].stash, map[int][]stashed{0: nil})
		}},
		{"many faults", func(a *Area) func() {
			return with(&a.mu.replica.awaited, map[dsm.PageIndex][]func(){dsm.ExtentPages: make([]func(), nowWaits+1)})
		}},
		{"no policy of eviction yet", func(a *Area) func() { return with(&a.node.room.budget, leastRoom) }},
	}
	all := func(n, from *simNode, f frame, lists ...[]obstacle) {
		t.Helper()
		for _, list := range lists {
			for _, o := range list {
				refuses(o.why, n, from, f.msg, f.payload, o.set)
			}
		}
	}

	other.area.BeginFault(dsm.ExtentSize, func() {})
	f := s.take(link{other.i, home.i})
	all(home, other, f, anywhere, ofHome)
	none := func(*Area) func() { return func() {} }
	many := *f.msg.(*wire.Fetch)
	many.Pages = dsm.Range(0, nowPages+1)
	refuses("many pages", home, other, &many, nil, none)
	refuses("another request", home, other, &wire.Acquire{Stamp: many.Stamp}, nil, none)
	all(home, other, frame{msg: &wire.Release{Stamp: many.Stamp, Extent: 1}}, anywhere, ofHome)
	takeNow(t, home, other, f)

	f = s.take(link{home.i, other.i})
	all(other, home, f, anywhere, ofReplica)
	large := *f.msg.(*wire.Push)
	large.Pages = dsm.Range(0, nowPages+1)
	refuses("many pages", other, home, &large, f.payload, none)
	takeNow(t, other, home, f)

	f = s.take(link{other.i, home.i})
	all(home, other, f, anywhere, ofHome)
	declined := *f.msg.(*wire.PushAck)
	declined.Declined = dsm.Range(0, 1)
	refuses("declined", home, other, &declined, nil, none)
	takeNow(t, home, other, f)
	s.drain()
}

// TestPolicyIsToldLater: what another goroutine tells the policy of eviction is what is here by then.
func TestPolicyIsToldLater(t *testing.T) {
	s, _, other := pairOf(t, onDemand(dsm.Inode{Size: 4 * dsm.ExtentSize}))
	bring(s, other, 0)
	bring(s, other, 1)
	other.kernel.finishNotices()
	a, m := other.area, &other.node.room
	told := make(chan dsm.PageSet, 1) // the step goes on to lock the area
	tell := func(_ dsm.AreaID, _ dsm.ExtentIndex, p dsm.PageSet) { told <- p }
	a.step(func() {
		m.tellLaterLocked(a, 0, dsm.Range(0, 2), tell)
		a.evictLocked(0, dsm.Range(1, 2), true)
	})
	if p := <-told; p != dsm.Range(0, 1) {
		t.Errorf("it is told of %v", p)
	}
	m.waiters.Add(1) // a call that waits for room, and has looked before the policy is told
	bell := m.hear()
	a.mu.Lock()
	m.tellLaterLocked(a, 0, dsm.Range(0, 1), tell)
	a.mu.Unlock()
	<-told
	<-bell
	m.waiters.Add(-1)
	s.drain()
}

// areaInFile returns the memory of an area whose working copy is a file, and has no filler.
func areaInFile(t *testing.T) *pages.Area {
	t.Helper()
	mem, err := pages.NewArea(simArea, 4*dsm.ExtentSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close() }) // nobody needs it any more
	if err := mem.BeginReplica(); err != nil {
		t.Fatal(err)
	}
	f, err := mem.OpenWorking(false)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close() // nothing was written
	return mem
}

// bring has a program of the node wait for a page.
func bring(s *sim, n *simNode, p dsm.PageIndex) {
	n.area.BeginFault(int64(p)*dsm.PageSize, func() {})
	s.drain()
}

// with sets a field, and returns what sets it back.
func with[T any](field *T, v T) (undo func()) {
	was := *field
	*field = v
	return func() { *field = was }
}

func takeNow(t *testing.T, to, from *simNode, f frame) {
	t.Helper()
	if handled, err := to.node.HandleNow(from.id, f.msg, f.payload); !handled || err != nil {
		t.Errorf("%T: %v, %v", f.msg, handled, err)
	}
	if f.shared != nil {
		f.shared.Release()
	}
}

// nowTakes hands over the next message from a node to another, which must handle it at once.
func nowTakes[M any](t *testing.T, s *sim, from, to *simNode) {
	t.Helper()
	f := s.take(link{from.i, to.i})
	if _, ok := f.msg.(M); !ok {
		t.Fatalf("a %T", f.msg)
	}
	takeNow(t, to, from, f)
}
