package coherence

import (
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestForfeitAfterAKill: the daemon of a node is killed, and the cluster evicts the node before another daemon follows. What programs had stored under locks is not published, whether
// it had been sent or not.
func TestForfeitAfterAKill(t *testing.T) {
	for _, c := range []struct {
		name       string
		sent, lost bool
		want       int32
	}{
		{"stored", false, true, 0}, {"sent", true, true, 0}, {"stored, the locks stay", false, false, 7}, {"sent, the locks stay", true, false, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, n := heldBesideHome(t, dsm.Inode{Size: dsm.ExtentSize})
				put(t, n, 7)
				if c.sent {
					publish(n)
				}
				n.lost.Store(c.lost)
				n.follow()
				publish(n)
				s.calm()
				for _, o := range s.nodes {
					want(t, o, c.want)
				}
				if got := n.area.ConflictCount(); (got > 0) != c.lost {
					t.Errorf("%d conflicts are kept", got)
				}
			})
		})
	}
}

// TestStoredAfterAForfeit: a home has merged what a node has stored, and the answer is lost. The node is put out twice, and the second time its locks are lost: what it has stored is given up. Its programs close the file, open
// it again and store to the same place. That is in no conflict with their own store of before.
func TestStoredAfterAForfeit(t *testing.T) {
	for _, killed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, home, n := heldBesideHome(t, dsm.Inode{Size: dsm.ExtentSize})
			lose := func() {
				for _, l := range []link{{home.i, n.i}, {n.i, home.i}} {
					for len(s.net[l]) > 0 {
						if f := s.take(l); f.shared != nil {
							f.shared.Release()
						}
					}
				}
			}
			put(t, n, 7)
			publish(n)
			for home.area.mu.home.extents[0] == nil {
				s.deliver()
			}
			s.isEvicted(n)
			lose()
			s.comesBack(n)
			lose() // it compares
			s.isEvicted(n)
			n.lost.Store(true)
			if killed {
				n.follow()
			} else {
				s.comesBack(n)
			}
			n.area.Forfeit()
			n.lost.Store(false)
			put(t, n, 8)
			publish(n)
			s.calm()
			for _, o := range s.nodes {
				want(t, o, 8)
			}
			if got := n.area.ConflictCount(); got != 1 {
				t.Errorf("%d conflicts are kept, want that which was given up", got)
			}
		})
	}
}

// TestForfeitEndsTheWait: a publish waits when all that it has is given up, because the node is back or because the programs close the file. Nothing else comes to the extent: nobody has published there.
func TestForfeitEndsTheWait(t *testing.T) {
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 2, dsm.Inode{Size: dsm.ExtentSize})
			n := s.nodes[1]
			n.open(true)
			s.calm()
			put(t, n, 7)
			n.ask("publish", n.area.Publish, nil)
			s.rest()
			for k := range s.net {
				for len(s.net[k]) > 0 {
					if f := s.take(k); f.shared != nil {
						f.shared.Release()
					}
				}
			}
			n.lost.Store(true)
			if closes {
				n.area.Forfeit()
				n.lost.Store(false)
			} else {
				s.isEvicted(n)
				s.comesBack(n)
			}
			s.calm()
			want(t, n, 0)
			if n.area.ConflictCount() == 0 {
				t.Error("what is given up is not kept")
			}
		})
	}
}
