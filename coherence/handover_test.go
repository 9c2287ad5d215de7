package coherence

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// lossy is a Sender whose session breaks under the first HandoverDone: the reset is
// told before Send returns.
type lossy struct {
	node  *Node
	dones int
}

func (l *lossy) Flush(dsm.NodeID)                               {}
func (l *lossy) SendShared(dsm.NodeID, any, *wire.Shared, bool) {}

func (l *lossy) Send(to dsm.NodeID, m any, _ [][]byte, _ bool) {
	if _, ok := m.(*wire.HandoverDone); !ok {
		return
	}
	if l.dones++; l.dones > 1 {
		return
	}
	told := make(chan struct{})
	go func() {
		l.node.SessionReset(to)
		close(told)
	}()
	<-told
}

func TestDroppedHandoverDoneIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1, 2, dsm.Inode{Size: dsm.ExtentSize})
		n := s.nodes[0]
		v := *n.view
		v.Epoch++
		for i := range v.Slots {
			v.Slots[i] = dsm.SlotHome{Primary: 2, Source: n.id, Epoch: v.Epoch}
		}
		n.view = &v
		l := &lossy{}
		l.node = New(Config{Self: n.id, View: n, Sender: l, Log: slog.New(slog.DiscardHandler)})
		defer l.node.Close()
		l.node.ViewChanged(&v)
		synctest.Wait()
		if l.dones != 2 {
			t.Errorf("HandoverDone was sent %d times, want 2: the first was lost, and the new home waits for it", l.dones)
		}
	})
}

// TestPublishParkedBehindAnOpen: a new home opens the area while the slot is on
// its way, and another node publishes. Both are served when the slot is here: the Subscribe,
// whose answer says that nothing is lacking, and then the publish, which makes that untrue.
func TestPublishParkedBehindAnOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyAuto))
		before, after := s.nodes[0], s.nodes[1]
		before.open(true)
		s.move(after, 1)

		after.find()
		after.startOpen(false)
		after.startOpen(true)
		put(t, before, 5)
		publish(before)
		s.deliverAll(link{0, 1})
		s.drain()
		if err := after.area.WriteAt(context.Background(), []byte{1, 0, 0, 0}, 8); err != nil { // to another element
			t.Fatal(err)
		}
		s.rested()
		want(t, before, 5)
		want(t, after, 5)
	})
}

// TestOpenForWritingInTheStepThatMerges: a publish waits for a slot, or for memory. The step that merges it is that in which a program
// opens the area for writing, which keeps updates out of memory from then on. The base copy, which is the home's too, must not get
// ahead of the working copy: the difference would count as a store, which undoes the publish.
func TestOpenForWritingInTheStepThatMerges(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, s *sim, from, home *simNode) (end func()){
		"slot": func(t *testing.T, s *sim, from, home *simNode) func() {
			s.move(home, 1)
			put(t, from, 5)
			publish(from)
			s.deliverAll(link{0, 1})
			return func() {
				v := *home.view
				v.Epoch++
				row := &v.Slots[dsm.SlotOf(simArea, 0)]
				row.Source = 0
				home.view = &v
			}
		},
		"memory": func(t *testing.T, s *sim, from, home *simNode) func() {
			s.changeView(func(v *dsm.View) {
				for i := range v.Slots {
					v.Slots[i].Primary = home.id
				}
			})
			s.catchUp()
			s.drain()
			home.starving.Store(true)
			s.resized(2 * dsm.ExtentSize)
			put(t, from, 5)
			publish(from)
			s.deliverAll(link{0, 1})
			home.starving.Store(false)
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHomed(t, 2, sums(1, dsm.ApplySync))
			from, home := s.nodes[0], s.nodes[1]
			from.open(true)
			home.open(false)
			end := begin(t, s, from, home)
			if home.area.mu.home.pages > 0 {
				t.Fatal("the publish does not wait")
			}
			end()
			home.startOpen(true)
			if home.area.mu.home.pages == 0 {
				t.Fatal("the publish was not merged")
			}
			s.check()
		})
	}
}

// TestHandoverSendsManySmallExtents: so many are under way that a node with many small files does not wait for a round trip with
// every few of them, and of large ones not more than fit the bound.
func TestHandoverSendsManySmallExtents(t *testing.T) {
	const extents = 40
	for _, x := range []struct{ pages, want int }{{1, extents}, {dsm.ExtentPages, handoverBytes / dsm.ExtentSize}} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 2, sums(extents, dsm.ApplyArrival))
			before, after := s.nodes[0], s.nodes[1]
			before.open(true)
			data := make([]byte, x.pages*dsm.PageSize)
			for p := range x.pages {
				data[p*dsm.PageSize] = 7
			}
			for e := range int64(extents) {
				if err := before.area.WriteAt(t.Context(), data, e*dsm.ExtentSize); err != nil {
					t.Fatal(err)
				}
			}
			publish(before)
			s.drain()
			after.find()
			s.move(after, extents)
			synctest.Wait()
			under := 0
			for _, m := range s.net[link{0, 1}] {
				if _, ok := m.msg.(*wire.HandoverExtent); ok {
					under++
				}
			}
			if under != x.want {
				t.Errorf("%d extents of %d pages are under way, want %d", under, x.pages, x.want)
			}
			for range 3 { // the handover ends, and what waited for it
				s.catchUp()
				s.drain()
			}
			for e := range dsm.ExtentIndex(extents) {
				if after.area.mu.home.extents[e] == nil {
					t.Errorf("extent %d has not arrived", e)
				}
			}
		})
	}
}

// handingOver returns a simulator in which the slot of an area, with a store of the third node, is on its way from the first node to the second. offered: it has
// arrived there, and the catalog has not heard of that.
func handingOver(t *testing.T, offered bool) *sim {
	t.Helper()
	s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
	n := s.nodes[2]
	n.open(true)
	put(t, n, 5)
	publish(n)
	s.drain()
	s.move(s.nodes[1], 1)
	if offered {
		s.deliverOn(link{0, 1}) // the extent
		s.deliverOn(link{1, 0}) // its ack
	}
	return s
}

// TestNewHomeDies: the node to which a slot is on its way dies. A slot that was not offered to it comes back, whole, and goes to another
// node. One that was is lost with it: it may have served it.
func TestNewHomeDies(t *testing.T) {
	for _, offered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := handingOver(t, offered)
			old, taker, n := s.nodes[0], s.nodes[1], s.nodes[2]
			put(t, n, 7)
			var goal publishGoal
			n.area.step(func() { goal = n.area.requestPublishLocked() })
			s.kill(taker)
			s.bury(taker)
			s.catchUp() // the source tells the catalog what becomes of it
			s.rest()
			s.catchUp()
			s.drain()
			row := s.lastView().Slots[dsm.SlotOf(simArea, 0)]
			if offered {
				if row.Primary != taker.id || row.Source != 0 {
					t.Errorf("%+v, want it to stay with the dead", row)
				}
				if x := old.area; x != nil && len(x.mu.home.extents) > 0 {
					t.Error("the source keeps what nobody will ask for")
				}
				return
			}
			if row.Primary != old.id || row.Source != 0 || !n.reached(goal) {
				t.Fatalf("%+v, want it back; a publish that waited is over: %v", row, n.reached(goal))
			}
			s.move(n, 1)
			for s.drain(); n.behindCatalog(); s.drain() {
				s.catchUp()
			}
			want(t, n, 7)
			if got := int32(n.area.mu.mem.Home(0)[0]); got != 7 {
				t.Errorf("the next home has %d, want 7", got)
			}
		})
	}
}

// TestSlotGoesBackToItsSource: the daemon of a node to which a slot is on its way is killed before it had all of it, and another follows. The slot goes back to its source, which serves it
// also if it has offered it. The offer that arrives late is none.
func TestSlotGoesBackToItsSource(t *testing.T) {
	for _, offered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := handingOver(t, offered)
			old, taker, n := s.nodes[0], s.nodes[1], s.nodes[2]
			slot := dsm.SlotOf(simArea, 0)
			s.changeView(func(v *dsm.View) { v.Slots[slot] = dsm.SlotHome{Primary: old.id, Epoch: v.Epoch} })
			s.catchUp()
			s.rest()
			s.drain()
			if x := taker.area; x != nil && len(x.mu.home.extents) > 0 {
				t.Error("the node still has it")
			}
			put(t, n, 7)
			publish(n)
			s.drain()
			old.find()
			if got := int32(old.area.mu.mem.Home(0)[0]); got != 7 {
				t.Errorf("the home has %d, want 7", got)
			}
		})
	}
}

// TestSlotIsTakenFromItsSource: a node that hands a slot over is evicted, and when it is back the slot is not its own any more. What had not arrived is not sent, so
// it does not say that everything was: the new home may not have heard of that view, and would go on without what it has as a backup.
func TestSlotIsTakenFromItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := handingOver(t, false)
		old, taker := s.nodes[0], s.nodes[1]
		s.resize(dsm.ExtentSize - dsm.PageSize)
		taker.apply()
		s.deliverOn(link{0, 1}) // the extent, of before the shrink
		s.deliverOn(link{1, 0}) // it is to be sent again
		s.changeView(func(v *dsm.View) { *s.rowOf(v, 0) = dsm.SlotHome{Primary: taker.id, Epoch: v.Epoch} })
		old.snapshot()
		for _, f := range s.queue(link{0, 1}) {
			if m, ok := f.msg.(*wire.HandoverDone); ok {
				t.Errorf("%+v, and no extent was sent", m)
			}
		}
	})
}

// TestAcksOfAnEarlierHandover: acks of what was sent before a handover began anew take no room of those that it waits for.
func TestAcksOfAnEarlierHandover(t *testing.T) {
	s := newSim(t, 1, 2, dsm.Inode{Size: dsm.ExtentSize})
	h := &s.nodes[0].node.handovers
	r := &handoverRun{to: 2, acks: make(chan *wire.HandoverAck, 2*handoverWindow), restart: make(chan struct{}, 1)}
	h.mu.runs[r.to] = r
	defer delete(h.mu.runs, r.to)
	const earlier = 3 * handoverWindow
	h.lastID.Store(earlier)
	h.acked(r.to, &wire.HandoverAck{ID: 1})
	if !h.send(r, nil) || len(r.acks) != 0 {
		t.Fatalf("%d acks are left when it begins anew", len(r.acks))
	}
	for id := range uint64(earlier) {
		h.acked(r.to, &wire.HandoverAck{ID: id + 1})
	}
	for id := range uint64(handoverWindow) {
		h.acked(r.to, &wire.HandoverAck{ID: earlier + id + 1})
	}
	if len(r.acks) != handoverWindow {
		t.Errorf("%d acks, want the %d of what is under way", len(r.acks), handoverWindow)
	}
}

// TestVersionMovesOnUnseen: a versioned area that nobody has open moves on from a home that nobody has asked for its newest version.
func TestVersionMovesOnUnseen(t *testing.T) {
	for _, c := range []struct {
		name string
		dies bool // the home of the version: a backup takes over, and sees the next view only
	}{{"moved", false}, {"taken over", true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, 1, 4, dsm.Inode{Size: simSize, Spec: dsm.Spec{Mode: dsm.ModeVersioned}})
				if c.dies {
					s.withBackups(2, true)
				}
				owner := s.nodes[2]
				for _, n := range s.nodes {
					n.find()
					n.node.cfg.Linger = time.Second
				}
				if err := (ownCase{s}).opens(owner); err != nil {
					t.Fatal(err)
				}
				ownCase{s}.publishes(owner, 5, 7)
				owner.area.Close(true)
				<-time.After(2 * time.Second) // of the bubble
				s.calm()

				row := s.rowOf(s.lastView(), 0)
				home, next := s.nodes[row.Primary-1], s.nodes[0]
				if c.dies {
					next = s.nodes[row.Backups[0].Node-1]
					s.kill(home)
					s.bury(home)
				} else {
					s.move(next, 1)
					s.calm()
				}
				late := s.nodes[slices.IndexFunc(s.nodes, func(n *simNode) bool { return n != owner && n != home && n != next })]
				s.changeView(func(v *dsm.View) {
					row := s.rowOf(v, 0)
					*row = s.movedTo(v, *row, late.id)
				})
				next.snapshot()
				s.calm()
				if err := (ownCase{s}).does(late, func(ctx context.Context) error {
					_, err := late.node.Open(ctx, simArea, false)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				list := late.area.Versions()
				if len(list) != 1 || list[0].Size != simSize || list[0].Writer != owner.id || late.byteOf(list[0].Version, 5) != "7" {
					t.Errorf("the versions are %+v", list)
				}
			})
		})
	}
}
