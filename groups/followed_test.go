package groups

import (
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// followed has another daemon follow that of a node, which was killed.
func (c *cluster) followed(id dsm.NodeID) {
	w := c.nodes[id-1]
	w.starts()
	v := *c.view.Load()
	v.Epoch++
	v.Members = slices.Clone(v.Members)
	v.Members[id-1].Since = v.Epoch
	c.view.Store(&v)
	w.ViewChanged(&v)
	for _, o := range c.nodes {
		if o != w {
			o.ViewChanged(&v)
			o.SessionReset(id)
		}
	}
}

// TestDaemonFollows: the daemon of a node is killed while members of others are at a barrier, and another follows. It knows nothing of the members that the node had: they have
// gone. The next that joins there is a member like any other. The same if the node coordinates.
func TestDaemonFollows(t *testing.T) {
	for _, coordinator := range []dsm.NodeID{1, 3} {
		c := newCluster(t, 3)
		if coordinator != 1 {
			v := *c.view.Load()
			v.Epoch++
			v.Slots[0].Primary = coordinator
			c.view.Store(&v)
			for _, w := range c.nodes {
				w.ViewChanged(&v)
			}
		}
		members := c.join(3, 0, 1, 2)
		for number := range uint64(3) {
			type met struct {
				r   Result
				err error
			}
			done := make(chan met, 3)
			meet := func(m *Member) {
				r, err := m.Barrier(t.Context(), number+1)
				done <- met{r, err}
			}
			for _, m := range members[:2] {
				go meet(m)
			}
			if number == 1 {
				go meet(members[2])
			} else {
				c.followed(3)
			}
			for range 2 {
				if m := <-done; m.err != nil || len(m.r.Missing) == 0 != (number == 1) {
					t.Errorf("coordinator %d, barrier %d: %+v, %v", coordinator, number+1, m.r, m.err)
				}
			}
			if number == 0 {
				members[2] = c.join(3, 2)[0]
			}
		}
	}
}

// TestViewThatComesLate: who looked the view up before the node became a member tells of it after the catalog has told of the next one.
func TestViewThatComesLate(t *testing.T) {
	c := newCluster(t, 2)
	late := *c.view.Load()
	late.Epoch--
	late.Members = late.Members[:1]
	m := c.join(1, 1)[0]
	c.nodes[1].ViewChanged(&late)
	if r, err := m.Barrier(t.Context(), 1); err != nil || len(r.Missing) > 0 {
		t.Errorf("a member of a node that is in the view: %+v, %v", r, err)
	}
}
