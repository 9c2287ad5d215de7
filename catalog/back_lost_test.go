package catalog

import (
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// sourceIsGone has a file of a page, f, in a slot that is on its way from nodeC to nodeB when nodeC is evicted. v is the view before that.
func sourceIsGone(t *testing.T) (m *machine, v *dsm.View, f dsm.Inode, at dsm.Slot) {
	t.Helper()
	m = newSized(t, 1<<30, 1<<30, 1<<30)
	v, f, at = m.pageAt(dsm.SlotHome{Primary: nodeB, Source: nodeC})
	for slot, h := range v.Rows() { // the others are of no concern
		if slot != at {
			*h = dsm.SlotHome{Primary: nodeA, Epoch: 1}
		}
	}
	m.must(nodeA, goneOp{Node: nodeC})
	return m, v, f, at
}

// TestEmptySlotArrives: a slot is on its way to a node when its source dies, and the node's daemon is killed. The last file that had bytes in it is removed, so the slot arrives with nothing. Then another file gets
// bytes there. The node's daemon had nothing of the slot to lose, and another one can follow.
func TestEmptySlotArrives(t *testing.T) {
	m, _, f, at := sourceIsGone(t)
	if row := m.view.Row(at); row.Source != nodeC || row.Primary != nodeB {
		t.Fatalf("%+v", *row)
	}
	// The daemon of nodeB is killed.
	m.must(nodeA, unlinkOp{Dir: dsm.RootIno, Name: "f"})
	m.must(nodeA, settleOp{})
	g := f
	for i := 0; g.Ino == f.Ino || g.Spec.SlotOf(g.Area(), 0) != at; i++ {
		g = m.file(fmt.Sprint("g", i))
	}
	m.must(nodeA, resize(g, dsm.PageSize))
	if _, err := m.do(nodeB, backOp{Node: nodeB, Served: nil}); err != nil {
		t.Errorf("it had nothing to lose, and cannot come back: %v; the row is %+v", err, *m.view.Row(at))
	}
}

// TestSourceIsEvicted: a slot is on its way to a node when its source is evicted for a while: it will join again with all of it. The node, which has nothing of the slot yet, lives, and waits. Its daemon is killed: it has lost nothing,
// so another one can follow, whoever is first.
func TestSourceIsEvicted(t *testing.T) {
	for _, first := range []string{"source", "new home"} {
		t.Run(first, func(t *testing.T) {
			m, v, _, at := sourceIsGone(t)
			source := func() {
				c := sized(nodeC, 1<<30)
				c.Inc = 1
				m.must(nodeA, addMemberOp{c})
				o := backOp{Node: nodeC, Inc: 1, Served: dsm.Ledger{v.NameOf(at): {Since: v.Epoch - 1}}}
				if _, err := m.send(command{Node: nodeC, Inc: 1, Req: 1000, Low: 1, Now: m.now}, o); err != nil {
					t.Errorf("the source, which has all: %v", err)
				}
			}
			target := func() {
				if _, err := m.do(nodeB, backOp{Node: nodeB}); err != nil {
					t.Errorf("the new home, which had nothing to lose: %v; the row is %+v", err, *m.view.Row(at))
				}
			}
			if first == "source" {
				source()
				target()
			} else {
				target()
				source()
			}
			if row := m.view.Row(at); row.Holder() != nodeC {
				t.Errorf("%+v", *row)
			}
		})
	}
}

// TestDemandFileMadeMeanwhile: while a node's daemon is down another node makes a file on demand, of which a part is to be at the node. Nothing of it was ever stored there, so the node has lost nothing, and goes on.
func TestDemandFileMadeMeanwhile(t *testing.T) {
	for _, what := range []string{"nothing", "on demand"} {
		t.Run(what, func(t *testing.T) {
			m := newSized(t, 1<<40, 1<<40)
			m.pageOn(nodeB)
			served := m.servedBy(nodeB)
			// The daemon is killed.
			if what == "on demand" {
				g := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "g", Kind: dsm.KindFile})
				m.must(nodeA, setSpecOp{g.Ino, "residency", "demand"})
				m.must(nodeA, resize(g, 4<<30))
			}
			if _, err := m.do(nodeB, backOp{Node: nodeB, Served: served}); err != nil {
				t.Errorf("it cannot go on: %v", err)
			}
		})
	}
}
