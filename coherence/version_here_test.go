package coherence

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// layouts is a node's View that counts what it is told of the types of elements.
type layouts struct {
	*simNode
	told int
}

func (v *layouts) SetLayout(context.Context, dsm.AreaID, dsm.Layout) error {
	v.told++
	return nil
}

// TestVersionLooksForAHeader: a version that is made without deltas is looked at for a header as any publish.
func TestVersionLooksForAHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 1, dsm.Spec{})
		n := c.nodes[0]
		if err := c.opens(n); err != nil {
			t.Fatal(err)
		}
		c.resize(4 * dsm.PageSize)
		c.calm()
		v := &layouts{simNode: n}
		n.node.cfg.View = v
		c.publishes(n, 2*dsm.PageSize, 1)
		head := make([]byte, 128)
		for i := range head {
			head[i] = ' '
		}
		copy(head, "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (4064,), }")
		head[127] = '\n'
		if err := n.area.WriteAt(t.Context(), head, 0); err != nil {
			t.Fatal(err)
		}
		if err := c.does(n, n.area.Publish); err != nil {
			t.Fatal(err)
		}
		if v.told == 0 {
			t.Error("the types of the elements are not found")
		}
	})
}

// TestVersionReachesDrafts: programs with memory of their own, which gets updates as they arrive, have the version that another program of the node publishes.
func TestVersionReachesDrafts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOwnCase(t, 1, dsm.Spec{Apply: dsm.ApplySync})
		n := c.nodes[0]
		n.openReader()
		c.resize(4 * dsm.PageSize)
		c.calm()
		var both [2]*Attachment
		for i := range both {
			if both[i] = n.attaches(i+1, true); both[i] == nil || both[i].draft == nil {
				t.Fatal("it has no memory of its own")
			}
			defer both[i].Track(nil, 0, 4*dsm.PageSize)()
		}
		c.changeRules(func(ino *dsm.Inode) { ino.Spec.Apply = dsm.ApplyArrival })
		c.calm()
		for v := byte(1); v < 3; v++ {
			both[0].draft.mem.Page(0)[0] = v
			if err := c.does(n, n.area.Publish); err != nil {
				t.Fatal(err)
			}
			c.calm()
			if got := both[1].draft.mem.Page(0)[0]; got != v {
				t.Errorf("the other program has %d; want %d", got, v)
			}
		}
	})
}
