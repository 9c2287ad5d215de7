package coherence

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestTakeoverIsNotTheLastView: a backup takes over, and before it has done so the catalog has gone on.
func TestTakeoverIsNotTheLastView(t *testing.T) {
	for _, c := range []struct {
		name    string
		skips   bool // the backup does not see the view in which it takes over
		starves bool // it has no memory then
		moves   bool // the slots are on their way to another node in the last view
	}{
		{"skipped, on the way to another node", true, false, true},
		{"no memory, on the way to another node", false, true, true},
		{"skipped, no memory, on the way to another node", true, true, true},
		{"no memory", false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
				home, backup, replica := s.nodes[0], s.nodes[1], s.nodes[2]
				s.copies = 2
				s.changeView(func(v *dsm.View) {
					for i := range v.Slots {
						v.Slots[i].Backups[0] = dsm.Backup{Node: backup.id, InSync: true}
					}
				})
				s.catchUp()
				backup.find()
				feed := func() {}
				if c.starves {
					_, feed = backup.starve()
				}
				replica.open(true)
				put(t, replica, 5)
				publish(replica)
				s.drain()

				s.kill(home)
				s.bury(home)
				if !c.skips {
					s.catchUp()
				}
				s.changeView(func(v *dsm.View) {
					if row := s.rowOf(v, 0); c.moves {
						*row = s.movedTo(*row, replica.id, v.Epoch)
					}
				})
				backup.snapshot()
				feed()
				<-time.After(memoryRetry + 1) // of the bubble
				s.calm()

				last := s.nodes[s.rowOf(s.lastView(), 0).Primary-1]
				last.find()
				if x := last.area.mu.home.extents[0]; x == nil || x.writers[replica.id] == 0 || !x.data.Has(0) {
					t.Errorf("node %d, the home, does not have what was published", last.i)
				}
			})
		})
	}
}
