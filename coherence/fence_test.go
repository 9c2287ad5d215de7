package coherence

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
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
