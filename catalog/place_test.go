package catalog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// homeOf returns the row of the first extent of a file.
func homeOf(m *machine, in dsm.Inode) dsm.SlotHome {
	in = m.at(in.Ino)
	return *m.view.Row(m.view.SlotOf(in.Area(), in.Spec, 0))
}

// nodesOf counts the nodes that the extents of a file live at.
func nodesOf(m *machine, in dsm.Inode) int {
	in = m.at(in.Ino)
	nodes := make(map[dsm.NodeID]bool)
	for e := range dsm.Extents(in.Size) {
		nodes[m.view.Row(m.view.SlotOf(in.Area(), in.Spec, dsm.ExtentIndex(e))).Primary] = true
	}
	return len(nodes)
}

func placeAt(in dsm.Inode, where string) setSpecOp { return setSpecOp{in.Ino, "placement", where} }

// placedFile makes a file of the size with a placement.
func placedFile(m *machine, name string, size int64, where string) dsm.Inode {
	m.Helper()
	return m.must(nodeA, createOp{Dir: dsm.RootIno, Name: name, Kind: dsm.KindFile, Size: size, Settings: []dsm.Setting{{Key: "placement", Value: where}}})
}

func TestPlacements(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34, 1<<34)
	small, large := int64(16*mib), int64(40*mib)
	for _, c := range []struct {
		where string
		size  int64
		nodes int
	}{{"auto", small, 1}, {"auto", large, 3}, {"spread", small, 3}, {"one", large, 1}, {"nb", large, 1}, {nodeC.String(), small, 1}} {
		in := placedFile(m, fmt.Sprint(c), c.size, c.where)
		if n := nodesOf(m, in); n != c.nodes {
			t.Errorf("%s: %d bytes at %d homes, want %d", c.where, c.size, n, c.nodes)
		}
		if row := homeOf(m, in); c.where == "nb" && row.Primary != nodeB || c.where == nodeC.String() && row.Primary != nodeC || row.Source != 0 {
			t.Errorf("%s: home %+v", c.where, row)
		}
	}
	if n := len(m.view.Own); n != 2 {
		t.Errorf("%d slots of single areas", n)
	}
}

// TestPlaceMoves has a file that lives at one home go to a node by its name, and one that is spread stay.
func TestPlaceMoves(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34, 1<<34)
	for _, where := range []string{"auto", "one"} {
		in := placedFile(m, where, 8*mib, where)
		was := homeOf(m, in).Primary
		to := nodeA
		if was == to {
			to = nodeB
		}
		m.must(nodeA, placeAt(in, member(to).Name))
		if row := homeOf(m, in); row.Primary != to || row.Source != was || row.Epoch != m.view.Epoch {
			t.Fatalf("%s: %+v, want it on its way from %v to %v", where, row, was, to)
		}
		m.must(nodeA, placeAt(in, "nc")) // when it has arrived
		if row := homeOf(m, in); row.Primary != to {
			t.Fatalf("%s: %+v turns round on its way", where, row)
		}
		ready(m)
		if row := homeOf(m, in); row.Primary != nodeC || row.Source != 0 {
			t.Fatalf("%s: %+v, want it at %v", where, row, nodeC)
		}
		m.must(nodeA, placeAt(in, where))
		if row := homeOf(m, in); row.Primary != nodeC || row.Source != 0 {
			t.Errorf("%s again: %+v, want it to stay", where, row)
		}
	}
	spread := placedFile(m, "spread", 8*mib, "spread")
	for _, where := range []string{"one", "auto", "nb"} {
		m.fails(errs.Busy, placeAt(spread, where), "placement", "is spread", "truncate it to 0")
	}
	large := placedFile(m, "large", 40*mib, "auto")
	m.fails(errs.Busy, placeAt(large, "nb"), "is auto")
	m.must(nodeA, resize(large, 0))
	m.must(nodeA, placeAt(large, "nb"))
	m.must(nodeA, resize(large, 40*mib))
	if row := homeOf(m, large); row.Primary != nodeB || row.Source != 0 || nodesOf(m, large) != 1 {
		t.Errorf("an empty file is handed over: %+v", row)
	}
}

func TestBadPlacements(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34)
	in := m.file("f")
	m.fails(errs.Invalid, placeAt(in, "nobody"), "nobody", "na nb")
	m.fails(errs.Invalid, placeAt(in, ""), "want one of auto spread one")
	m.fails(errs.Invalid, createOp{Dir: dsm.RootIno, Name: "g", Kind: dsm.KindFile, Settings: []dsm.Setting{{Key: "placement", Value: "nobody"}}}, "na nb")
	m.must(nodeA, setSpecOp{in.Ino, "residency", "demand"})
	m.fails(errs.Invalid, placeAt(in, "nb"), "residency full", "reserved")
	m.fails(errs.Invalid, placeAt(in, "one"), "residency full", "reserved")
	m.must(nodeA, setSpecOp{in.Ino, "residency", "full"})
	m.must(nodeA, placeAt(in, "nb"))
	m.fails(errs.Invalid, setSpecOp{in.Ino, "residency", "demand"}, "residency full", "reserved")
	m.must(nodeB, leavingOp{nodeB})
	m.fails(errs.Invalid, placeAt(m.file("h"), "nb"), "no member that stays")
}

// TestPlaceFollowsTheNode: when the node leaves its files go to the home of their shared slot, and come back with a node of its name.
func TestPlaceFollowsTheNode(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34, 1<<34)
	dir := m.mkdir(dsm.RootIno, "d")
	m.must(nodeA, setSpecOp{dir, "placement", "nc"})
	make1 := func(name string) dsm.Inode {
		return m.must(nodeA, createOp{Dir: dir, Name: name, Kind: dsm.KindFile, Size: mib})
	}
	in := make1("f")
	if row := homeOf(m, in); row != (dsm.SlotHome{Primary: nodeC, Epoch: m.view.Epoch}) {
		t.Fatalf("inherited: %+v", row)
	}
	m.must(nodeC, leavingOp{nodeC})
	shared := m.view.Row(dsm.ClassOf(1).SlotOf(in.Area(), 0)).Primary
	if row := homeOf(m, in); row.Primary != shared || row.Source != nodeC {
		t.Errorf("%+v, want it on its way to %v", row, shared)
	}
	m.fails(errs.Busy, removeMemberOp{nodeC}, "slots")
	ready(m)
	m.must(nodeA, removeMemberOp{nodeC})
	later := make1("g")
	if m.view.Placed(later.Area()) != 0 {
		t.Error("a slot for a node that is not there")
	}
	again := member(nodeC + 1)
	again.Name = "nc"
	m.must(nodeA, addMemberOp{again})
	ready(m)
	for _, x := range []dsm.Inode{in, later} {
		if row := homeOf(m, x); row.Primary != again.ID || row.Source != 0 {
			t.Errorf("%+v, want it at the node with the name", row)
		}
	}
}

// TestPlaceWaits: while the shared slot of a file is on its way, neither end has all of the file, so the file gets no slot of its own.
func TestPlaceWaits(t *testing.T) {
	m := newSized(t, 1<<34)
	in := placedFile(m, "f", mib, "auto")
	m.must(nodeA, addMemberOp{member(nodeB)})
	m.must(nodeA, addMemberOp{member(nodeC)})
	for homeOf(m, in).Source == 0 {
		m.must(nodeA, unlinkOp{dsm.RootIno, "f"})
		in = placedFile(m, "f", mib, "auto")
	}
	m.must(nodeA, placeAt(in, "nc"))
	if m.view.Placed(in.Area()) != 0 {
		t.Fatalf("%+v while its shared slot moves", homeOf(m, in))
	}
	if s, err := restore(mustEncode(t, m.image())); err != nil || len(s.unplaced) != 1 {
		t.Errorf("restored: %v", err)
	}
	ready(m)
	if row := homeOf(m, in); row.Primary != nodeC || row.Source != 0 {
		t.Errorf("%+v, want it at the node", row)
	}
}

// TestPlaceOfTheDead: what lives at a node that dies is lost until the file is truncated.
func TestPlaceOfTheDead(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34, 1<<34)
	in := placedFile(m, "f", mib, "nc")
	m.must(nodeA, goneOp{Node: nodeC})
	if row := homeOf(m, in); row.Primary != nodeC {
		t.Errorf("%+v: its bytes are lost, and who says so?", row)
	}
	m.must(nodeA, resize(in, 0))
	m.must(nodeA, settleOp{})
	if row := homeOf(m, in); row.Primary == nodeC {
		t.Errorf("%+v, want another home", row)
	}
}

// TestPlacesAreBounded: the slots of removed files are taken again, and there are no more than the most.
func TestPlacesAreBounded(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34)
	for i := range 100 {
		placedFile(m, fmt.Sprint(i), 0, "nb")
		if i >= 8 {
			m.must(nodeA, unlinkOp{dsm.RootIno, fmt.Sprint(i - 8)})
		}
	}
	if n := len(m.view.Own); n > 10 {
		t.Errorf("%d slots for 8 files", n)
	}
	v, used := m.view.Clone(), 0
	for _, o := range v.Own {
		if o.Area != 0 {
			used++
		}
	}
	for i := range dsm.MaxOwnSlots {
		if placed := v.Place(dsm.AreaID(1<<40+i), v.Slots[0]); placed != (i < dsm.MaxOwnSlots-used) {
			t.Fatalf("slot %d: %v", i, placed)
		}
	}
}

// TestMoveToAWriter: the home of a file may ask for a move, of a file that lives at one home and that nobody has placed.
func TestMoveToAWriter(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34, 1<<34)
	in := placedFile(m, "f", mib, "auto")
	home, others := homeOf(m, in).Primary, []dsm.NodeID{nodeA, nodeB, nodeC}
	others = slices.DeleteFunc(others, func(n dsm.NodeID) bool { return n == home })
	move := func(in dsm.Inode, to dsm.NodeID) moveOp { return moveOp{in.Ino, to, 4, m.view.Epoch} }
	refused := func(n dsm.NodeID, o moveOp, k errs.Kind) {
		t.Helper()
		view := m.view
		if _, err := m.do(n, o); !errs.Is(err, k) || m.view != view {
			t.Errorf("%+v: %v, want %v", o, err, k)
		}
	}
	refused(others[0], move(in, others[0]), errs.Busy) // not the home
	refused(home, move(in, home), errs.Unavailable)
	refused(home, move(in, 99), errs.Unavailable)
	refused(home, move(dsm.Inode{Ino: 99}, others[0]), errs.NotExist)
	refused(home, moveOp{in.Ino, others[0], 65, m.view.Epoch}, errs.Invalid)
	for _, x := range []dsm.Inode{placedFile(m, "spread", mib*2, "spread"), placedFile(m, "large", 40*mib, "auto"), placedFile(m, "na", mib, "na")} {
		refused(homeOf(m, x).Primary, move(x, nodeB), errs.Invalid)
	}
	m.must(home, move(in, others[0]))
	own := m.view.OwnOf(in.Area())
	if own.Primary != others[0] || own.Source != home || own.Moves != 1 || own.Patience != 4 {
		t.Errorf("%+v", own)
	}
	refused(others[0], move(in, others[1]), errs.Busy) // it is on its way
	late := move(in, others[1])
	late.Epoch = own.Epoch - 1
	ready(m)
	refused(others[0], late, errs.Busy)
	m.must(others[0], move(in, others[1]))
	if s, err := restore(mustEncode(t, m.image())); err != nil || s.view.OwnOf(in.Area()).Moves != 2 {
		t.Errorf("restored: %v", err)
	}
	ready(m)
	m.must(nodeA, placeAt(in, others[0].String()))
	if own := m.view.OwnOf(in.Area()); own.Moves != 3 || own.Source != others[1] {
		t.Errorf("%+v", own)
	}
}

// TestOwners: a versioned area has one owner, who alone can give it away.
func TestOwners(t *testing.T) {
	m := newSized(t, 1<<34, 1<<34, 1<<34)
	in := placedFile(m, "v", 0, "auto")
	refused := func(n dsm.NodeID, o op, k errs.Kind) {
		t.Helper()
		view := m.view
		if _, err := m.do(n, o); !errs.Is(err, k) || m.view != view {
			t.Errorf("%+v: %v, want %v", o, err, k)
		}
	}
	own := func(n dsm.NodeID) ownOp { return ownOp{in.Ino, n} }
	refused(nodeA, own(nodeA), errs.Invalid) // not versioned
	m.must(nodeA, setSpecOp{in.Ino, "mode", "versioned"})
	refused(nodeA, own(nodeB), errs.Access)
	m.must(nodeB, own(nodeB))
	if row := homeOf(m, in); row.Primary != nodeB || row.Source != 0 {
		t.Fatalf("%+v, want all of it at once", row)
	}
	view := m.view
	if m.must(nodeB, own(nodeB)); m.view != view {
		t.Error("a new view, for nothing")
	}
	m.must(nodeB, setAttrOp{in.Ino, dsm.SetAttr{Size: new(int64(mib))}})
	refused(nodeA, own(nodeA), errs.Access)
	refused(nodeA, setAttrOp{in.Ino, dsm.SetAttr{Size: new(int64(2 * mib))}}, errs.Access)
	refused(nodeA, setAttrOp{in.Ino, dsm.SetAttr{GrowTo: new(int64(2 * mib))}}, errs.Access)
	m.must(nodeA, setAttrOp{in.Ino, dsm.SetAttr{GrowTo: new(int64(mib))}}) // it is that large
	m.must(nodeB, setAttrOp{in.Ino, dsm.SetAttr{Size: new(int64(mib / 2))}})
	refused(nodeB, own(99), errs.Unavailable)
	refused(nodeB, moveOp{in.Ino, nodeA, 4, m.view.Epoch}, errs.Invalid)
	m.must(nodeB, own(nodeA))
	if row := homeOf(m, in); row.Primary != nodeA || row.Source != nodeB {
		t.Fatalf("%+v, want it on its way", row)
	}
	refused(nodeA, own(nodeC), errs.Busy)
	refused(nodeB, own(nodeC), errs.Access)
	ready(m)
	m.must(nodeA, own(nodeC))
	m.must(nodeA, goneOp{Node: nodeC})
	refused(nodeA, own(nodeA), errs.Access) // its bytes are lost
	m.must(nodeA, setAttrOp{in.Ino, dsm.SetAttr{Size: new(int64)}})
	m.must(nodeA, own(nodeA))
	if row := homeOf(m, in); row.Primary != nodeA || row.Source != 0 {
		t.Errorf("%+v, want it here", row)
	}
}
