package coherence

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// die commits a view in which the node is gone. What was on its way to and from it is dropped.
func (s *sim) die(n *simNode) {
	for i := range s.nodes {
		delete(s.net, link{i, n.i})
		delete(s.net, link{n.i, i})
	}
	s.changeView(func(v *dsm.View) {
		v.Members = append([]dsm.Member(nil), v.Members...)
		v.Members[n.i].Gone, v.Members[n.i].Leaving, v.Members[n.i].Name = true, true, "victim"
	})
}

// failing is a call that no home answers.
type failing struct {
	what   string
	call   func(ctx context.Context) error
	cancel context.CancelFunc
	err    error
	over   bool
}

func (f *failing) start() {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go func() {
		f.err = f.call(ctx)
		f.over = true
	}()
	synctest.Wait()
}

// refused wants the call over, because of the dead home.
func (f *failing) refused(t *testing.T) {
	t.Helper()
	synctest.Wait()
	switch {
	case !f.over:
		t.Errorf("%s waits for a home that has died", f.what)
	case errs.KindOf(f.err) != errs.Unavailable || !strings.Contains(f.err.Error(), "victim"):
		t.Errorf("%s: %v, want an error that names the home", f.what, f.err)
	}
	f.cancel()
	synctest.Wait()
}

// TestDeadHome: calls that need a home fail as soon as the catalog says that it has died: those that wait then, and those that come.
func TestDeadHome(t *testing.T) {
	for _, ino := range []dsm.Inode{sums(2, dsm.ApplyArrival), onDemand(sums(2, dsm.ApplyArrival))} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 3, ino)
			s.changeView(func(v *dsm.View) { v.Slots[dsm.SlotOf(simArea, 1)].Primary = 2 }) // the other extent lives on
			s.catchUp()
			home, living, n := s.nodes[0], s.nodes[1], s.nodes[2]
			living.find()
			n.open(true)
			put(t, n, 5)
			s.drain()
			a := n.area
			page := make([]byte, dsm.PageSize)
			calls := func(when string) (all []*failing) {
				if err := a.WriteAt(t.Context(), []byte{1}, 8); err != nil {
					t.Fatal(err)
				}
				for what, call := range map[string]func(ctx context.Context) error{
					"publish": a.Publish,
					"sync":    func(ctx context.Context) error { return a.Sync(ctx, true) },
					"acquire": func(ctx context.Context) error { return a.Acquire(ctx, false) },
					"open":    func(ctx context.Context) error { _, err := living.node.Open(ctx, simArea, false); return err },
					"count":   func(ctx context.Context) error { _, err := n.node.CountPages(ctx, simArea); return err },
					"inspect": func(ctx context.Context) error { _, err := n.node.Inspect(ctx, simArea); return err },
				} {
					all = append(all, &failing{what: what + " " + when, call: call})
				}
				if ino.Spec.Residency == dsm.ResidencyDemand {
					all = append(all, &failing{what: "read " + when, call: func(ctx context.Context) error {
						_, err := a.ReadAt(ctx, page, 7*dsm.PageSize)
						return err
					}})
				}
				for _, f := range all {
					f.start()
				}
				return all
			}
			waiting := calls("that waited")
			s.die(home)
			s.catchUp()
			for _, f := range append(waiting, calls("that came later")...) {
				f.refused(t)
			}
			// What lives is not delayed.
			if err := a.WriteAt(t.Context(), []byte{7}, dsm.ExtentSize); err != nil {
				t.Fatal(err)
			}
			publish(n)
			s.drain()
			if x := living.area.mu.home.extents[1]; x == nil || living.area.mu.mem.Home(dsm.ExtentPages)[0] != 7 {
				t.Error("the extent with a living home is not published")
			}
			// Without what was lost the area is as any other.
			s.resized(0)
			s.drain()
			for _, f := range []*failing{
				{what: "open", call: func(ctx context.Context) error { _, err := living.node.Open(ctx, simArea, false); return err }},
				{what: "sync", call: func(ctx context.Context) error { return a.Sync(ctx, true) }},
			} {
				f.start()
				s.drain()
				n.kernel.finishNotices()
				if synctest.Wait(); !f.over || f.err != nil {
					t.Errorf("%s of the area, shrunk to 0: over %v, %v", f.what, f.over, f.err)
				}
				f.cancel()
			}
		})
	}
}

// TestCloseAfterASync: of a sync and a close only one waits for a home that does not answer. When the home is heard of again the next
// close waits for it.
func TestCloseAfterASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, replica := pair(t, dsm.ApplyArrival)
		a := replica.area
		put(t, replica, 5)
		const limit = 30 * time.Second
		waited := func(call func(ctx context.Context) error) time.Duration {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			if err := call(ctx); errs.KindOf(err) != errs.Timeout || !strings.Contains(err.Error(), home.id.String()) {
				t.Errorf("%v, want an error that names the home", err)
			}
			return time.Since(began)
		}
		if d := waited(func(ctx context.Context) error { return a.Sync(ctx, true) }); d != limit {
			t.Errorf("a sync waits %v, want %v", d, limit)
		}
		if d := waited(a.PublishLast); d != 0 {
			t.Errorf("a close after it waits %v more", d)
		}
		if d := waited(a.Publish); d != limit {
			t.Errorf("a publish after it waits %v, want %v", d, limit)
		}
		s.deliverOn(link{1, 0})
		s.deliverOn(link{0, 1}) // it has sent something
		put(t, replica, 6)
		if d := waited(a.PublishLast); d != limit {
			t.Errorf("a close after a sign of life waits %v, want %v", d, limit)
		}
		s.drain()
		if err := a.PublishLast(t.Context()); err != nil {
			t.Error(err)
		}
		want(t, home, 6)
	})
}

// TestSourceDiesAfterItsSlotHasGone: a publication to a new home is not taken back when the source of the slot has died: that home
// may have merged it. It keeps no credit. Nor when the home has died, too: it may join again, or have a successor that knows of it.
func TestSourceDiesAfterItsSlotHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		source, next, n := s.nodes[0], s.nodes[1], s.nodes[2]
		n.open(true)
		put(t, n, 5)
		publish(n)
		x := n.area.extentLocked(0)
		if x.pub == nil || x.pub.credit == 0 {
			t.Fatal("nothing is under way")
		}
		s.changeView(func(v *dsm.View) {
			v.Slots[dsm.SlotOf(simArea, 0)] = dsm.SlotHome{Primary: next.id, Source: source.id, Epoch: v.Epoch}
		})
		n.apply()
		dies := func(home *simNode) {
			s.changeView(func(v *dsm.View) {
				v.Members = append([]dsm.Member(nil), v.Members...)
				v.Members[home.i].Gone, v.Members[home.i].Leaving = true, true
			})
			n.apply()
		}
		dies(source)
		if x.pub == nil || x.pub.credit != 0 {
			t.Errorf("the source has died: publication %+v", x.pub)
		}
		dies(next)
		if x.pub == nil || x.pub.credit != 0 {
			t.Errorf("its home has died: publication %+v, dirty %v", x.pub, x.dirty)
		}
	})
}

// TestSourceDiesWithoutACopy: a slot is on its way to a node, and what it had dies with its source. Requests that waited for the slot delay
// nothing that lives, and when the file has shrunk and grows again all is as ever.
func TestSourceDiesWithoutACopy(t *testing.T) {
	for _, ino := range []dsm.Inode{sums(2, dsm.ApplyArrival), onDemand(sums(2, dsm.ApplyArrival))} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 3, ino)
			s.changeView(func(v *dsm.View) { v.Slots[dsm.SlotOf(simArea, 1)].Primary = 2 })
			s.catchUp()
			source, home, n := s.nodes[0], s.nodes[1], s.nodes[2]
			for _, o := range []*simNode{home, n} {
				o.open(true)
			}
			put(t, n, 5)
			publish(n)
			s.drain()
			a := n.area
			s.changeView(func(v *dsm.View) {
				v.Slots[dsm.SlotOf(simArea, 0)] = dsm.SlotHome{Primary: home.id, Source: source.id, Epoch: v.Epoch}
			})
			for _, o := range []*simNode{home, n} {
				o.apply()
			}
			acquire := &failing{what: "acquire", call: func(ctx context.Context) error { return a.Acquire(ctx, true) }}
			acquire.start()
			s.deliverAll(link{2, 1})
			if len(home.area.mu.parked) == 0 {
				t.Fatal("nothing waits for the slot")
			}
			s.killAfter(source, func(int) int { return 0 })
			s.die(source)
			for _, o := range []*simNode{home, n} {
				o.apply()
			}
			s.drain()
			acquire.refused(t)
			// What lives is not delayed.
			if err := a.WriteAt(t.Context(), []byte{7, 0, 0, 0}, dsm.ExtentSize); err != nil {
				t.Fatal(err)
			}
			var goal publishGoal
			a.step(func() { goal = a.requestPublishLocked() })
			s.drain()
			if !a.reachedLocked(goal) {
				t.Error("a publish to an extent that lives waits for one that is lost")
			}
			if k := len(home.area.mu.parked); k > 0 {
				t.Errorf("%d requests wait for ever", k)
			}
			// Without what was lost the area is as any other.
			s.resize(0)
			s.changeView(func(v *dsm.View) { v.Slots[dsm.SlotOf(simArea, 0)].Source = 0 }) // as the catalog does then
			s.resize(2 * dsm.ExtentSize)
			for _, o := range []*simNode{home, n} {
				for o.behindCatalog() {
					o.apply()
				}
			}
			s.drain()
			put(t, n, 9)
			publish(n)
			s.drain()
			home.bring(0)
			s.drain()
			want(t, home, 9)
		})
	}
}

// TestHandedOverByADeadNode: a slot arrives after its source is marked as gone. Requests for it have been dropped, so none is answered before a
// view has said that the slot has a home: an Acquire would be, with nothing subscribed to.
func TestHandedOverByADeadNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		source, home, replica := s.nodes[0], s.nodes[1], s.nodes[2]
		source.open(true)
		put(t, source, 5)
		publish(source)
		s.drain()
		s.move(home, 1)
		s.rest()
		s.deliverAll(link{source.i, home.i}) // the extent
		s.deliverAll(link{home.i, source.i})
		s.rest() // HandoverDone is under way

		s.isEvicted(source)
		var acquires []*acquiring
		for _, n := range []*simNode{home, replica} {
			n.apply()
			n.find()
			n.startOpen(false)
		}
		s.deliverAll(link{replica.i, home.i})
		s.deliverAll(link{home.i, replica.i})
		s.deliverAll(link{source.i, home.i})
		for _, n := range []*simNode{home, replica} {
			acquires = append(acquires, n.startAcquire())
		}
		s.deliverAll(link{replica.i, home.i})
		s.deliverAll(link{home.i, replica.i})
		for i, n := range []*simNode{home, replica} {
			if r := &n.area.mu.replica; len(acquires[i].pending) == 0 || r.whole != 0 || !r.fresh.IsZero() {
				t.Errorf("node %d takes for complete what it has, up to version %d, and is subscribed to nothing", n.i, r.whole)
			}
		}
		for _, n := range []*simNode{home, replica} { // the home has told the catalog
			n.apply()
			s.deliverAll(link{replica.i, home.i})
			s.deliverAll(link{home.i, replica.i})
		}
		for i, n := range []*simNode{home, replica} {
			if want(t, n, 5); len(acquires[i].pending) > 0 {
				t.Errorf("node %d: an acquire is not answered", n.i)
			}
		}
	})
}

// TestPushOfAHomeWhoseSourceDied: a home has one slot, and waits in vain for another, whose source has died. What it pushes of the first says nothing of the second.
func TestPushOfAHomeWhoseSourceDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sums(2, dsm.ApplyArrival)
		ino.Spec.Placement = dsm.PlaceSpread
		s := newHomed(t, 3, ino)
		source, home, replica := s.nodes[0], s.nodes[1], s.nodes[2]
		s.openAll()
		s.drain()
		s.move(home, 1)
		s.rested()
		s.changeView(func(v *dsm.View) {
			row := s.rowOf(v, 1)
			*row = s.movedTo(v, *row, home.id)
		})
		s.isEvicted(source)
		for _, n := range []*simNode{home, replica} {
			n.apply()
			n.apply()
		}
		both := func() {
			for range 3 {
				s.deliverAll(link{replica.i, home.i})
				s.deliverAll(link{home.i, replica.i})
			}
		}
		both()
		put(t, home, 5)
		publish(home)
		both()
		want(t, replica, 5)
		if r := &replica.area.mu.replica; r.whole != 0 || len(r.subs) > 0 {
			t.Errorf("the replica takes all up to version %d for here, with a slot that nobody has", r.whole)
		}
	})
}

// TestGrowAroundTheDead: what is stored in a file that grows after a home has died is at homes that live, on all nodes: of a file that was truncated, and of one of which the other
// extents live.
func TestGrowAroundTheDead(t *testing.T) {
	for _, from := range []int64{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			const extents = 20
			s := newHomed(t, 3, sums(extents, dsm.ApplyArrival))
			home, living, n := s.nodes[0], s.nodes[1], s.nodes[2]
			s.changeView(func(v *dsm.View) {
				v.Row(dsm.SlotOf(simArea, 0)).Primary = living.id
				v.Row(dsm.SlotOf(simArea, 300)).Primary = n.id
			})
			s.catchUp()
			living.open(true)
			n.open(true)
			s.drain()
			s.die(home)
			s.catchUp()
			s.resized(from * dsm.ExtentSize)
			s.resized(extents * dsm.ExtentSize)
			s.drain()
			for e := range dsm.ExtentIndex(extents) {
				if row := s.rowOf(s.lastView(), e); row.Primary == home.id {
					t.Fatalf("from %d: extent %d is at the dead node", from, e)
				}
				if err := n.area.WriteAt(t.Context(), []byte{5}, int64(e)*dsm.ExtentSize); err != nil {
					t.Fatal(err)
				}
			}
			publish(n)
			s.drain()
			for e := range dsm.PageIndex(extents) {
				if got := living.area.mu.mem.Working(e * dsm.ExtentPages)[0]; got != 5 {
					t.Errorf("from %d: extent %d has %d", from, e, got)
				}
			}
			living.checked(t)
			n.checked(t)
			// The slots of the dead go to others, and the file begins anew in them.
			s.changeView(func(v *dsm.View) {
				for _, row := range v.Rows() {
					if row.Primary == home.id {
						*row = dsm.SlotHome{Primary: n.id, Epoch: v.Epoch}
					}
				}
			})
			s.catchUp()
			s.resized(0)
			s.resized(extents * dsm.ExtentSize)
			s.drain()
			for _, o := range []*simNode{living, n} {
				for e := range o.area.mu.home.extents {
					if row := s.rowOf(s.lastView(), e); row.Primary != o.id {
						t.Errorf("from %d: node %d has the state of extent %d, of which node %s is the home", from, o.i, e, row.Primary)
					}
				}
			}
		})
	}
}

// TestOpenWithoutTheDead: a file that was truncated after its home had died can be opened to store, also while the Subscribe to that home has no answer, where mounts outlive their daemons: all of it is here.
func TestOpenWithoutTheDead(t *testing.T) {
	for _, size := range []int64{0, dsm.ExtentSize} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
			home, living, n := s.nodes[0], s.nodes[1], s.nodes[2]
			s.changeView(func(v *dsm.View) { v.Row(dsm.SlotOf(simArea, 300)).Primary = living.id })
			s.catchUp()
			n.hold()
			s.die(home)
			s.catchUp()
			open := func() (err error) {
				over := false
				go func() {
					_, err = n.node.Open(t.Context(), simArea, true)
					over = true
				}()
				for range 3 { // the dead home gets nothing
					synctest.Wait()
					s.deliverAll(link{n.i, living.i})
					s.deliverAll(link{living.i, n.i})
				}
				synctest.Wait()
				if !over {
					t.Fatalf("%d bytes: an open waits for a home that has died", size)
				}
				return err
			}
			if err := open(); !errors.Is(err, errs.ErrLost) {
				t.Fatalf("open: %v", err)
			}
			s.resized(0)
			if size > 0 {
				s.resized(size)
			}
			if err := open(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOpenWhileASlotIsOnItsWayToTheDead: a home dies to which a slot was on its way. Its source lives, so nothing is lost; but who opens the file to store waits, where mounts outlive
// their daemons, until the source has the slot again: its bytes are not here.
func TestOpenWhileASlotIsOnItsWayToTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
		taker, source, n := s.nodes[0], s.nodes[1], s.nodes[2]
		first := func(change func(h *dsm.SlotHome)) {
			s.changeView(func(v *dsm.View) { change(s.rowOf(v, 0)) })
			s.catchUp()
		}
		s.changeView(func(v *dsm.View) { s.rowOf(v, 0).Primary, s.rowOf(v, 1).Primary = source.id, source.id })
		s.catchUp()
		source.open(true)
		s.drain()
		if err := source.area.WriteAt(t.Context(), []byte{5}, 0); err != nil {
			t.Fatal(err)
		}
		publish(source)
		s.drain()
		n.hold()
		first(func(h *dsm.SlotHome) { h.Primary, h.Source = taker.id, source.id })
		s.die(taker)
		for n.behindCatalog() { // the source has not heard of the death
			n.apply()
		}
		over, a := false, (*Area)(nil)
		go func() {
			var err error
			if a, err = n.node.Open(t.Context(), simArea, true); err != nil {
				t.Error(err)
			}
			over = true
		}()
		meet := func() {
			for range 5 {
				synctest.Wait()
				s.deliverAll(link{n.i, source.i})
				s.deliverAll(link{source.i, n.i})
			}
			synctest.Wait()
		}
		if meet(); over || n.node.known(simArea).allHere() {
			t.Errorf("the bytes of the source are taken to be here; the open is over: %v", over)
		}
		first(func(h *dsm.SlotHome) { h.Primary, h.Source = source.id, 0 })
		if meet(); !over {
			t.Fatal("an open waits, and its home lives")
		}
		if got := a.mu.mem.Working(0)[0]; got != 5 {
			t.Errorf("it has %d", got)
		}
	})
}

func (a *Area) allHere() (all bool) {
	a.note(func() { all = a.allHereLocked() })
	return all
}
