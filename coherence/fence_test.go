package coherence

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestHomeWithoutALeaseSaysNothing: a backup may have taken over from a home whose lease has run out. So it does not say that a node has everything,
// until its lease goes on. Without a backup nobody can have taken over.
func TestHomeWithoutALeaseSaysNothing(t *testing.T) {
	for _, copies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
			if copies {
				s.changeView(func(v *dsm.View) {
					v.Row(dsm.SlotOf(simArea, 0)).Backups[0] = dsm.Backup{Node: 2, InSync: true, Since: v.Epoch}
				})
				s.catchUp()
			}
			home, n, late := s.nodes[0], s.nodes[2], s.nodes[1]
			n.open(true)
			s.drain()
			home.fenced.Store(true)
			op := n.startAcquire()
			late.find()
			late.startOpen(false)
			s.drain()
			if answered := len(op.pending) == 0; answered == copies {
				t.Errorf("there are copies: %v: an acquire is answered: %v", copies, answered)
			}
			if answered := len(late.area.mu.replica.subs) == 0; answered == copies {
				t.Errorf("there are copies: %v: an open is answered: %v", copies, answered)
			}
			home.fenced.Store(false)
			time.Sleep(shortRetryMost)
			s.drain()
			if len(op.pending) > 0 || len(late.area.mu.replica.subs) > 0 {
				t.Errorf("there are copies: %v: nothing is answered when the lease goes on", copies)
			}
			n.area.step(func() { n.area.endAcquireLocked(op) })
		})
	}
}

// TestNewHomeAwaitsTheCatalog: a home that hands a slot over is evicted, and a backup takes over before the catalog hears that the new home has everything. What the old home sent
// before arrives at the new home, which has a lease, and has not heard of that. It does not say that a node has everything.
func TestNewHomeAwaitsTheCatalog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 4, sums(1, dsm.ApplyArrival))
		s.copies = 2
		s.backUp(s.nodes[1])
		source, backup, next, publisher := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
		next.open(true)
		publisher.open(true)
		s.drain()
		s.move(next, 1)
		s.until("hand over", func() bool { return sends[*wire.HandoverDone](s, link{0, 2}) > 0 })
		s.changeView(func(v *dsm.View) {
			v.Members[source.i].Gone = true
			s.takeOver(v, source.id)
		})
		backup.apply()
		publisher.apply()
		put(t, publisher, 5)
		publish(publisher)
		s.deliverAll(link{3, 1})
		s.deliverAll(link{1, 3})
		if publisher.area.extentLocked(0).publishing() {
			t.Fatal("the backup has not taken over")
		}
		s.deliverAll(link{0, 2})
		s.rest()
		op := next.startAcquire()
		if len(op.pending) == 0 && get(next) != 5 {
			t.Error("an acquire is answered, and something published before it is missing")
		}
		s.catchUp()
		s.until("acquire", func() bool { return len(op.pending) == 0 })
		want(t, next, 5)
		next.area.step(func() { next.area.endAcquireLocked(op) })
	})
}
