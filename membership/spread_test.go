package membership

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// News does not wait for the ticker of the gossip: all hear of a node that comes, and of one
// that leaves, and it may go, in less time than that takes.
func TestNewsTravelsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = gossipInterval / 4
		net := newNetwork()
		nodes := cluster(t, net, 3) // no more than a node tells at once, so chance plays no part
		newcomer := start(t, net, dsm.NodeID(4), 4)
		if err := newcomer.Join([]string{nodes[0].port.addr}); err != nil {
			t.Fatal(err)
		}
		within(t, limit, "all to know the newcomer", func() bool {
			for _, g := range nodes {
				if g.state(4) != Alive {
					return false
				}
			}
			return true
		})
		began := time.Now()
		if err := newcomer.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > limit {
			t.Errorf("leaving took %v", took)
		}
		for _, g := range nodes {
			within(t, limit, "all to know that it left", func() bool { return g.state(4) == Left })
		}
	})
}
