package pages

import (
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestKilledWhileAdding: a daemon is killed at any moment while the home adds what two nodes have published to three of its pages. The next one has all of that, and knows it, or nothing.
func TestKilledWhileAdding(t *testing.T) {
	const size, writers = 3 * dsm.PageSize, 2
	for _, replica := range []bool{false, true} {
		for moment := range 3*2 + 2 + writers + 1 {
			t.Run(fmt.Sprint(replica, moment), func(t *testing.T) {
				m, a, _ := newHeldReplica(t, size)
				a.BecomeHome(0)
				store := a.kept.store
				for p := range dsm.PageIndex(3) {
					copy(a.Working(p), fill(3))
					copy(a.Home(p), fill(3))
					if replica { // it is behind
						a.BeforeHomeWrite(p, false)
						copy(a.Home(p), fill(4))
					}
				}
				before := a.Home(0)[0]
				left := moment
				lives := func() bool { left--; return left >= 0 }
				killed := func() bool {
					if a.BeginAdding(0); !lives() {
						return true
					}
					for p := range dsm.PageIndex(3) {
						if a.BeforeAdding(p); !lives() {
							return true
						}
						if copy(a.Home(p), fill(byte(7+p))); !lives() {
							return true
						}
					}
					a.Added([]AddedBy{{1, 11, 12}, {2, 21, 22}})
					for w := range dsm.NodeID(writers) {
						if !lives() {
							return true
						}
						store.KeepMerged(a.id, 0, w+1).Set(dsm.Seq(10*w+11), dsm.Seq(10*w+12))
					}
					if !lives() {
						return true
					}
					a.EndAdding()
					return !lives()
				}()
				next := goesOn(t, newTestStore(t, m), size, size)
				if !next.Homed(0) {
					next.BecomeHome(0)
				}
				all := moment > 3*2
				for p := range dsm.PageIndex(3) {
					want := before
					if all {
						want = byte(7 + p)
					}
					if got := next.Home(p)[9]; got != want {
						t.Errorf("killed %v: page %d has %d, want %d", killed, p, got, want)
					}
				}
				merged := next.kept.store.MergedOf(next.id)
				if n := len(merged); all && n != writers || !all && n > 0 {
					t.Errorf("killed %v: it knows of %d nodes", killed, n)
				}
				for _, x := range merged {
					seq, part := x.Get()
					if w := dsm.Seq(10*(x.Writer()-1) + 11); seq != w || part != w+1 {
						t.Errorf("killed %v: of node %d it has %d and part %d", killed, x.Writer(), seq, part)
					}
				}
				if got := len(next.frames.all); next.frames.used > len(next.twins) {
					t.Errorf("killed %v: %d frames are in use, of %d slabs, for %d twins", killed, next.frames.used, got, len(next.twins))
				}
			})
		}
	}
}
