package catalog

import (
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// someDead has files of a page, of which there are no copies, at three nodes. Then nodeC is evicted. It returns what is lost with it, with the slots.
func someDead(t *testing.T) (m *machine, lost map[dsm.Ino]dsm.Slot) {
	t.Helper()
	m = newSized(t, 1<<40, 1<<40, 1<<40)
	lost = make(map[dsm.Ino]dsm.Slot)
	for i := range 30 {
		f := m.must(nodeA, resize(m.file(fmt.Sprint("old", i)), dsm.PageSize))
		if homeOf(m, f).Primary == nodeC {
			lost[f.Ino] = m.view.SlotOf(f.Area(), f.Spec, 0)
		}
	}
	if len(lost) < 2 {
		t.Fatal("too few files are lost")
	}
	m.must(nodeA, goneOp{Node: nodeC})
	return m, lost
}

// alive checks that all extents of a file have homes that live.
func (m *machine) alive(what string, f dsm.Inode) {
	m.Helper()
	f = m.at(f.Ino)
	for e := range f.Spec.CoveringExtents(f.Size) {
		if slot := m.view.SlotOf(f.Area(), f.Spec, dsm.ExtentIndex(e)); m.view.Row(slot).Homeless(m.view) {
			m.Errorf("%s: extent %d is in slot %d, of a node that has died", what, e, slot)
		}
	}
}

// TestNewBytesAfterADeath: nothing that is stored after a death goes to the dead, and the slots of the dead go to others when what was lost is gone, whatever has been made meanwhile.
func TestNewBytesAfterADeath(t *testing.T) {
	m, lost := someDead(t)
	var made []dsm.Inode
	for i := range 60 {
		size := int64(1+i%3*20) * dsm.ExtentSize
		f := m.must(nodeA, resize(m.file(fmt.Sprint("new", i)), size))
		m.alive("a new file", f)
		f = m.must(nodeB, resize(f, 2*size))
		m.alive("a new file that grows", f)
		made = append(made, f)
	}
	for i := range 30 {
		f, err := m.child(m.inodes[dsm.RootIno], fmt.Sprint("old", i))
		if err != nil {
			t.Fatal(err)
		}
		if slot, isLost := lost[f.Ino]; isLost {
			if got := m.view.SlotOf(f.Area(), f.Spec, 0); got != slot || m.view.Row(got).Primary != nodeC {
				t.Errorf("a file that is lost was in slot %d, and is in %d", slot, got)
			}
			continue
		}
		m.alive("an old file that grows", m.must(nodeA, resize(f.Inode, 30*dsm.ExtentSize)))
	}
	again, err := restore(mustEncode(t, m.image()))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := mustEncode(t, m.image()), mustEncode(t, again.image()); string(a) != string(b) {
		t.Error("a snapshot is not what was saved")
	}
	first := true
	for _, ino := range sortedKeys(lost) {
		if m.must(nodeA, settleOp{}); !m.view.IsGone(nodeC) {
			t.Fatal("the dead node is forgotten, and something is lost with it")
		}
		f := m.must(nodeA, resize(m.at(ino), 0))
		if first {
			m.alive("a file that was truncated", m.must(nodeB, resize(f, dsm.PageSize)))
			first = false
		}
	}
	where := make(map[dsm.Ino]dsm.Slot)
	for _, f := range made {
		where[f.Ino] = m.view.SlotOf(f.Area(), m.at(f.Ino).Spec, 0)
	}
	m.must(nodeA, settleOp{})
	if _, member := m.view.Member(nodeC); member {
		t.Error("nothing is lost any more, and the dead node is not forgotten")
	}
	for _, f := range made {
		if got := m.view.SlotOf(f.Area(), m.at(f.Ino).Spec, 0); got != where[f.Ino] {
			t.Errorf("file %d was in slot %d, and is in %d", f.Ino, where[f.Ino], got)
		}
		m.alive("a file made meanwhile", f)
		m.must(nodeA, resize(f, 0))
		if f = m.must(nodeA, resize(f, dsm.PageSize)); !f.Spec.Detours.None() {
			t.Errorf("a file that begins anew when all live has detours %v", f.Spec.Detours)
		}
	}
}

// TestEvictedHomeComesBack: it is the home of all that it was the home of, and of nothing that was made meanwhile.
func TestEvictedHomeComesBack(t *testing.T) {
	m, lost := someDead(t)
	f := m.must(nodeA, resize(m.file("new"), 100*dsm.ExtentSize))
	first := sortedKeys(lost)[0]
	m.must(nodeA, resize(m.at(first), 0))
	m.must(nodeA, resize(m.at(first), dsm.PageSize))
	c := sized(nodeC, 1<<40)
	c.Inc = 1
	m.must(nodeA, addMemberOp{c})
	for ino := range lost {
		if home := homeOf(m, m.at(ino)).Primary; home == nodeC != (ino != first) {
			t.Errorf("file %d, of which the first was truncated meanwhile (%d), is at %v", ino, first, home)
		}
	}
	f = m.at(f.Ino)
	for e := range f.Spec.CoveringExtents(f.Size) {
		if slot := m.view.SlotOf(f.Area(), f.Spec, dsm.ExtentIndex(e)); m.view.Row(slot).Holder() == nodeC {
			t.Errorf("extent %d of a file that was made meanwhile is in slot %d, of the node that was away", e, slot)
		}
	}
}

// TestOwnSlotOfTheDead: a file that lived at a node that has died lives with who makes it grow again from nothing.
func TestOwnSlotOfTheDead(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30, 1<<30)
	f := m.file("f")
	m.must(nodeA, setSpecOp{f.Ino, "placement", nodeC.String()})
	f = m.must(nodeA, resize(f, dsm.PageSize))
	if row := homeOf(m, f); row.Primary != nodeC {
		t.Fatalf("%+v", row)
	}
	m.must(nodeA, goneOp{Node: nodeC})
	if m.must(nodeA, resize(f, 2*dsm.PageSize)); homeOf(m, f).Primary != nodeC {
		t.Error("a file that has lost its bytes lives elsewhere")
	}
	m.must(nodeA, resize(f, 0))
	f = m.must(nodeB, resize(f, dsm.PageSize))
	if row := homeOf(m, f); row.Primary != nodeB || row.Source != 0 || row.Had != 0 {
		t.Errorf("%+v", row)
	}
	m.must(nodeA, settleOp{})
	if _, member := m.view.Member(nodeC); member {
		t.Error("nothing is lost any more, and the dead node is not forgotten")
	}
}
