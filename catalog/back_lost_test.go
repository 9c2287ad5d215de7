package catalog

import (
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestEmptySlotArrives: a slot is on its way to a node when its source dies, and the node's daemon is killed. The last file that had bytes in it is removed, so the slot arrives with nothing. Then another file gets
// bytes there. The node's daemon had nothing of the slot to lose, and another one can follow.
func TestEmptySlotArrives(t *testing.T) {
	{
		m := newSized(t, 1<<30, 1<<30, 1<<30)
		const nodeC = nodeB + 1
		size := int64(dsm.PageSize)
		f := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile})
		f = m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: &size}})
		v := m.view.Clone()
		v.Epoch += 10
		at := v.SlotOf(f.Area(), f.Spec, 0)
		for i := range v.Slots { // the others are of no concern
			v.Slots[i] = dsm.SlotHome{Primary: nodeA, Epoch: 1}
		}
		*v.Row(at) = dsm.SlotHome{Primary: nodeB, Source: nodeC, Epoch: v.Epoch, Had: v.Epoch - 1}
		m.view = v
		m.must(nodeA, goneOp{Node: nodeC})
		if row := m.view.Row(at); row.Source != nodeC || row.Primary != nodeB {
			t.Fatalf("%+v", *row)
		}
		// The daemon of nodeB is killed.
		m.must(nodeA, unlinkOp{Dir: dsm.RootIno, Name: "f"})
		m.must(nodeA, settleOp{})
		g := f
		for i := 0; g.Ino == f.Ino || g.Spec.SlotOf(g.Area(), 0) != at; i++ {
			g = m.must(nodeA, createOp{Dir: dsm.RootIno, Name: string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676)), Kind: dsm.KindFile})
		}
		m.must(nodeA, setAttrOp{g.Ino, dsm.SetAttr{Size: &size}})
		if _, err := m.do(nodeB, backOp{Node: nodeB, Served: nil}); err != nil {
			t.Errorf("it had nothing to lose, and cannot come back: %v; the row is %+v", err, *m.view.Row(at))
		}
	}
}

// TestSourceIsEvicted: a slot is on its way to a node when its source is evicted for a while: it will join again with all of it. The node, which has nothing of the slot yet, lives, and waits. Its daemon is killed: it has lost nothing,
// so another one can follow, whoever is first.
func TestSourceIsEvicted(t *testing.T) {
	for _, first := range []string{"source", "new home"} {
		t.Run(first, func(t *testing.T) {
			const nodeC = nodeB + 1
			m := newSized(t, 1<<30, 1<<30, 1<<30)
			size := int64(dsm.PageSize)
			f := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile})
			f = m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: &size}})
			v := m.view.Clone()
			v.Epoch += 10
			at := v.SlotOf(f.Area(), f.Spec, 0)
			for i := range v.Slots { // the others are of no concern
				v.Slots[i] = dsm.SlotHome{Primary: nodeA, Epoch: 1}
			}
			*v.Row(at) = dsm.SlotHome{Primary: nodeB, Source: nodeC, Epoch: v.Epoch, Had: v.Epoch - 1}
			m.view = v
			m.must(nodeA, goneOp{Node: nodeC})
			source := func() {
				c := sized(nodeC, 1<<30)
				c.Inc = 1
				m.must(nodeA, addMemberOp{c})
				o := backOp{Node: nodeC, Inc: 1, Served: []servedSlot{{Slot: v.NameOf(at), Since: v.Epoch - 1}}}
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
			size := int64(dsm.PageSize)
			var f dsm.Inode
			for i := 0; ; i++ { // one that is at the node
				f = m.must(nodeA, createOp{Dir: dsm.RootIno, Name: fmt.Sprint("f", i), Kind: dsm.KindFile})
				if m.view.Row(m.view.SlotOf(f.Area(), f.Spec, 0)).Primary == nodeB {
					break
				}
			}
			m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: &size}})
			served := make(dsm.Ledger)
			for slot, h := range m.view.Rows() {
				if h.Primary == nodeB {
					served[m.view.NameOf(slot)] = dsm.Served{Since: h.Had}
				}
			}
			// The daemon is killed.
			size = 4 << 30
			if what == "on demand" {
				g := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "g", Kind: dsm.KindFile})
				m.must(nodeA, setSpecOp{g.Ino, "residency", "demand"})
				m.must(nodeA, setAttrOp{g.Ino, dsm.SetAttr{Size: &size}})
			}
			if _, err := m.do(nodeB, backOp{Node: nodeB, Served: listed(served)}); err != nil {
				t.Errorf("it cannot go on: %v", err)
			}
		})
	}
}
