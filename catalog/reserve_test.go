package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

const mib = 1 << 20

// newFiles returns newSized with an empty full file and an empty demand file.
// The budgets are what there is for the bytes of the two.
func newFiles(t testing.TB, budgets ...int64) (m *machine, full, demand dsm.Inode) {
	t.Helper()
	m = newSized(t, withFiles(budgets...)...)
	full, demand = m.file("full"), m.file("demand")
	m.must(nodeA, setSpecOp{demand.Ino, "residency", "demand"})
	return m, full, demand
}

// withFiles adds what a member keeps of the two files of newFiles.
func withFiles(budgets ...int64) []int64 {
	all := slices.Clone(budgets)
	for i := range all {
		all[i] += twoFiles
	}
	return all
}

const twoFiles = 2 * dsm.FileCost

func resize(in dsm.Inode, n int64) setAttrOp { return setAttrOp{in.Ino, dsm.SetAttr{Size: &n}} }

// TestReservationIsExact fills clusters with a full file, then a demand file to
// the last byte.
func TestReservationIsExact(t *testing.T) {
	for _, x := range []struct {
		budgets []int64
		full    int64
		most    int64 // of the demand file
	}{
		{[]int64{64 * mib}, 0, 56 * mib},
		{[]int64{64 * mib}, 16 * mib, 28 * mib},
		{[]int64{64 * mib, 64 * mib}, 0, 112 * mib},
		{[]int64{64 * mib, 192 * mib}, 0, 224 * mib},
		{[]int64{64 * mib, 192 * mib}, 16 * mib, 112 * mib}, // the small one has a quarter of the slots
		{[]int64{4 * mib}, 0, 3 * mib},                      // an extent is more than an eighth
		{[]int64{4 * mib}, 3 * mib / 2, 0},
		{[]int64{4 * mib}, 2 * mib, 0},
		{[]int64{mib, 127 * mib}, 0, 0},                                           // half a slot's part, rounded up for who has more
		{[]int64{mib + 1, 2048 * mib}, 0, 1792 * mib},                             // no slot, and room for an extent
		{[]int64{mib + 2*dsm.PageSize, 2048 * mib}, 1, 1792*mib - 2*dsm.PageSize}, // the other loses two pages of all it has
		{[]int64{1<<50 - twoFiles, 1<<50 - twoFiles}, 0, dsm.MaxAreaSize},
	} {
		t.Run(fmt.Sprint(x.budgets, x.full), func(t *testing.T) {
			m, full, demand := newFiles(t, x.budgets...)
			m.must(nodeA, resize(full, x.full))
			m.must(nodeA, resize(demand, x.most))
			if x.most < dsm.MaxAreaSize {
				m.fails(errs.NoSpace, resize(demand, x.most+1), "growing by 1 bytes", "--memory at least", "remove files")
				m.fails(errs.NoSpace, setAttrOp{demand.Ino, dsm.SetAttr{GrowTo: ptr(x.most + 1)}})
			}
			if x.most == 0 {
				return
			}
			if s, err := restore(mustEncode(t, m.image())); err != nil || s.reserved != (reservation{full: (x.full + dsm.PageSize - 1) &^ (dsm.PageSize - 1), demand: bytesPerClass{x.most}, kept: twoFiles}) {
				t.Errorf("restored: %v", err)
			}
			// What is unlinked and claimed is reserved still, by its own residency.
			m.must(nodeA, claimOp{Ino: demand.Ino})
			m.must(nodeA, unlinkOp{dsm.RootIno, "demand"})
			if m.reserved.demand[0] != x.most {
				t.Errorf("unlinked and claimed: %+v", m.reserved)
			}
			m.must(nodeA, unclaimOp{[]dsm.Ino{demand.Ino}})
			if m.reserved.demand[0] != 0 || m.reserved.kept != dsm.FileCost {
				t.Errorf("removed: %+v", m.reserved)
			}
		})
	}
}

// TestGrowthSaysWhoLacks reads the texts of refused growth.
func TestGrowthSaysWhoLacks(t *testing.T) {
	m, full, demand := newFiles(t, 64*mib, 192*mib)
	m.must(nodeA, resize(full, 16*mib))
	m.fails(errs.NoSpace, resize(demand, 120*mib), "node na", fmt.Sprint("at least ", 69505610+twoFiles, " bytes and offers ", 67108864+twoFiles),
		"33554432 for 2 copies of the full files", fmt.Sprint(twoFiles, " for what it keeps"), "31457280 for its part of the demand files", "4493898 for pages on demand", "add a node")
	m.must(nodeA, resize(demand, 112*mib))
	m.fails(errs.NoSpace, resize(full, 16*mib+1), "node na", fmt.Sprint("at least ", 67108864+2*dsm.PageSize+twoFiles))
	m.fails(errs.Busy, setSpecOp{demand.Ino, "residency", "full"}, "truncate it to 0")
	m.must(nodeA, resize(demand, 0))
	m.must(nodeA, setSpecOp{demand.Ino, "residency", "full"})
	m.fails(errs.NoSpace, resize(demand, 17*mib), "node na", "remove files")
	m.must(nodeA, resize(demand, 16*mib))
	if m.reserved != (reservation{full: 32 * mib, kept: twoFiles}) {
		t.Errorf("%+v", m.reserved)
	}
}

// TestWhatIsKeptIsReserved: files, directories, symbolic links and attributes take memory on every node, however small they are. Where there
// is none they are refused when they are made, and what is removed makes room.
func TestWhatIsKeptIsReserved(t *testing.T) {
	const files = 5
	m := newSized(t, files*dsm.FileCost)
	for i := range files {
		m.file(fmt.Sprint(i))
	}
	another := createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile, Perm: 0o644}
	dir := createOp{Dir: dsm.RootIno, Name: "d", Kind: dsm.KindDir, Perm: 0o755}
	link := createOp{Dir: dsm.RootIno, Name: "l", Kind: dsm.KindSymlink, Target: "t"}
	attr := setXattrOp{Ino: dsm.RootIno, Name: "user.x", Value: make([]byte, 1000)}
	m.fails(errs.NoSpace, another, "another file", fmt.Sprint((files+1)*dsm.FileCost, " for what it keeps of each file"), "remove files")
	m.fails(errs.NoSpace, dir, "another directory")
	m.fails(errs.NoSpace, link, "another symbolic link")
	m.fails(errs.NoSpace, attr, "an attribute of 1000 bytes")
	m.must(nodeA, unlinkOp{dsm.RootIno, "0"})
	m.must(nodeA, dir)
	m.must(nodeA, link)
	m.must(nodeA, attr)
	if want := int64((files-1)*dsm.FileCost + 2*inodeCost + 1 + len("user.x") + 1000 + attrCost); m.reserved != (reservation{kept: want}) {
		t.Errorf("%+v, want %d", m.reserved, want)
	}
	m.fails(errs.NoSpace, another)
	attr.Value = attr.Value[:10]
	m.must(nodeA, attr)
	if s, err := restore(mustEncode(t, m.image())); err != nil || s.reserved != m.reserved {
		t.Errorf("restored: %v", err)
	}
	m.must(nodeA, removeXattrOp{dsm.RootIno, "user.x"})
	m.must(nodeA, unlinkOp{dsm.RootIno, "l"})
	m.must(nodeA, rmdirOp{Dir: dsm.RootIno, Name: "d"})
	m.must(nodeA, another)
	m.fails(errs.NoSpace, resize(m.at(m.last.result.Inode.Ino), 1))
}

func TestUsage(t *testing.T) {
	if reserved, budget := newState().usage(); reserved != 0 || budget != 0 {
		t.Errorf("of nobody: %d of %d", reserved, budget)
	}
	m, full, demand := newFiles(t, 64*mib, 192*mib)
	for _, x := range []struct{ full, demand, reserved int64 }{
		{0, 0, 0},
		{10 * mib, 0, 10 * mib},
		{0, 112 * mib, 16 * mib}, // half of 28 MiB homed at the small node and 4 MiB for pages, for a full file takes twice its size
		{10 * mib, 112 * mib, 26 * mib},
		{16 * mib, 112 * mib, 32 * mib},
		{0, 1, mib/2 + dsm.PageSize},
	} {
		m.must(nodeA, resize(full, 0))
		m.must(nodeA, resize(demand, x.demand))
		m.must(nodeA, resize(full, x.full))
		if reserved, budget := m.usage(); reserved-budget != x.reserved-32*mib || budget != 32*mib+twoFiles/2 {
			t.Errorf("%+v: %d of %d", x, reserved, budget)
		}
	}
	m.must(nodeA, resize(full, 0))
	m.must(nodeA, resize(demand, 0))
	m.must(nodeA, setSpecOp{dsm.RootIno, "replicas", "2"})
	for _, place := range []string{"auto", "one"} { // at one home, each of the two members may be the backup of all
		m.must(nodeA, setSpecOp{dsm.RootIno, "placement", place})
		g := m.file("g" + place)
		reserved, budget := m.usage()
		if place == "one" && budget != (64*mib+twoFiles)/3 {
			t.Errorf("budget %d where each may be a backup", budget)
		}
		m.fails(errs.NoSpace, resize(g, budget-reserved+dsm.PageSize+1))
		m.must(nodeA, resize(g, budget-reserved))
		m.must(nodeA, resize(g, 0))
	}
	m.must(nodeA, setSpecOp{dsm.RootIno, "replicas", "1"})
	m.must(nodeA, leavingOp{nodeA})
	if _, budget := m.usage(); budget != 96*mib+twoFiles/2 {
		t.Errorf("budget %d of those that stay", budget)
	}
}

func TestJoinNeedsRoom(t *testing.T) {
	m, full, demand := newFiles(t, 64*mib)
	m.must(nodeA, resize(full, 16*mib))
	m.must(nodeA, resize(demand, 28*mib))
	m.fails(errs.NoSpace, addMemberOp{sized(nodeB, 32*mib)}, "node nb", fmt.Sprint("at least ", 34603008+twoFiles), "offers 33554432", "33554432 for 2 copies of the full files")
	m.fails(errs.Invalid, addMemberOp{sized(nodeB, 1<<50+1)}, "--memory", "the most is")

	// What it needs grows with the slots it gets for it: the text says what suffices.
	x := sized(nodeB, 33*mib+twoFiles)
	err := m.admissible(x)
	var suffices int64
	if _, serr := fmt.Sscanf(err.Error(), fmt.Sprintf("node nb needs --memory at least %%d bytes and offers %d:", 34603008+twoFiles), &suffices); serr != nil {
		t.Fatalf("%v: %v", err, serr)
	}
	m.fails(errs.NoSpace, addMemberOp{x}, "its part of the demand files", "pages on demand")
	m.fails(errs.NoSpace, addMemberOp{sized(nodeB, suffices-1)})
	m.must(nodeA, addMemberOp{sized(nodeB, suffices)})
	ready(m)
	if got, want := countPrimary(m.view, nodeB), quotas(m.view)[nodeB].sum(); got != want || m.reserved.room(m.view) != roomPages {
		t.Errorf("%d slots, want %d", got, want)
	}
}

// TestLeaveWithoutRoom has a member leave whose slots nobody has memory for.
func TestLeaveWithoutRoom(t *testing.T) {
	stuck := func(t *testing.T) (*machine, dsm.Inode) {
		m, _, demand := newFiles(t, 64*mib, 64*mib)
		m.must(nodeA, resize(demand, 100*mib))
		m.must(nodeB, leavingOp{nodeB})
		if n := stranded(m.view)[nodeB]; n != 256 || countPrimary(m.view, nodeB) != 256 {
			t.Fatalf("%d slots rest with the one who leaves", n)
		}
		if err := m.checkLeaving(nodeB); !errs.Is(err, errs.NoSpace) {
			t.Fatal(err)
		}
		if err := m.checkLeaving(nodeA); err != nil {
			t.Fatal(err)
		}
		m.fails(errs.Busy, removeMemberOp{nodeB}, "256 slots")
		m.fails(errs.NoSpace, resize(demand, 100*mib+1))
		m.must(nodeA, resize(demand, 99*mib))
		if len(stranded(m.view)) == 0 {
			t.Fatal("99 MiB on 64")
		}
		return m, demand
	}
	left := func(t *testing.T, m *machine) {
		t.Helper()
		if err := m.checkLeaving(nodeB); err != nil {
			t.Fatal(err)
		}
		ready(m)
		m.must(nodeA, removeMemberOp{nodeB})
	}
	t.Run("shrink", func(t *testing.T) {
		m, demand := stuck(t)
		m.must(nodeA, resize(demand, 64*mib+1))
		m.must(nodeA, resize(demand, 64*mib)) // the homes fit, pages do not
		left(t, m)
	})
	t.Run("unlink", func(t *testing.T) {
		m, demand := stuck(t)
		m.must(nodeA, claimOp{Ino: demand.Ino})
		m.must(nodeA, unlinkOp{dsm.RootIno, "demand"})
		if len(stranded(m.view)) == 0 {
			t.Error("an unlinked file that is claimed takes no memory")
		}
		m.must(nodeA, unclaimOp{[]dsm.Ino{demand.Ino}})
		left(t, m)
	})
	t.Run("join", func(t *testing.T) {
		m, _ := stuck(t)
		m.fails(errs.NoSpace, addMemberOp{sized(nodeC, mib-1+twoFiles)}) // no room for a page
		m.must(nodeA, addMemberOp{sized(nodeC, 8*mib+twoFiles)})         // a little
		if len(stranded(m.view)) == 0 || countPrimary(m.view, nodeC) != 0 {
			t.Fatal("99 MiB on 72")
		}
		m.must(nodeA, addMemberOp{sized(nodeC+1, 64*mib+twoFiles)})
		left(t, m)
	})
	t.Run("all", func(t *testing.T) {
		m, _ := stuck(t)
		view := m.view
		m.must(nodeA, leavingOp{nodeA})
		if m.view.Slots != view.Slots || len(stranded(m.view)) != 0 {
			t.Error("slots move though everybody leaves")
		}
		if err := m.checkLeaving(nodeB); err != nil {
			t.Error(err)
		}
	})
}

// TestLeaveTakesTheRoomForPages has a member leave whose slots fit, at the cost
// of pages on demand: then files may only shrink, until a node joins.
func TestLeaveTakesTheRoomForPages(t *testing.T) {
	m, full, demand := newFiles(t, 64*mib, 64*mib)
	m.must(nodeA, resize(demand, 60*mib))
	m.must(nodeB, leavingOp{nodeB})
	ready(m)
	m.must(nodeA, removeMemberOp{nodeB})
	if r := m.reserved.room(m.view); r != roomCopies {
		t.Fatalf("room %d", r)
	}
	if reserved, budget := m.usage(); reserved <= budget {
		t.Errorf("usage %d of %d", reserved, budget)
	}
	m.fails(errs.NoSpace, resize(full, 1))
	m.must(nodeA, resize(demand, 59*mib))
	m.fails(errs.NoSpace, resize(demand, 60*mib))
	m.must(nodeA, addMemberOp{sized(nodeC, 4*mib+twoFiles)}) // has no room for pages either, but it helps
	if r := m.reserved.room(m.view); r != roomCopies {
		t.Fatalf("room %d", r)
	}
	m.must(nodeA, addMemberOp{sized(nodeC+1, 64*mib+twoFiles)})
	if r := m.reserved.room(m.view); r != roomPages {
		t.Fatalf("room %d", r)
	}
	m.must(nodeA, resize(full, 1))
}

// TestReservationAtRandom makes random changes and compares them with the rule,
// written down anew: nothing but a leave makes the room of a cluster worse.
func TestReservationAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, round))
		m := newSized(t, 32*mib+rng.Int64N(256*mib))
		var files [2][]dsm.Inode // by residency
		for i := range 3 {
			for x := range files {
				in := m.file(fmt.Sprint(i, x))
				m.must(nodeA, setSpecOp{in.Ino, "residency", dsm.Residency(x).String()})
				files[x] = append(files[x], in)
			}
		}
		next := dsm.NodeID(0x100)
		for range 200 {
			before := roomByHand(m)
			leave := false
			var o op
			switch n := rng.IntN(10); {
			case n == 0 && len(m.view.Members) < 12:
				next++
				o = addMemberOp{sized(next, 16*mib+rng.Int64N(256*mib)>>rng.IntN(6))}
			case n <= 2:
				x := m.view.Members[rng.IntN(len(m.view.Members))]
				leave = x.ID != nodeA
				o = noopOp{}
				if leave {
					o = leavingOp{x.ID}
				}
			default:
				x := rng.IntN(2)
				in := m.at(files[x][rng.IntN(3)].Ino)
				most := []int64{32 * mib, sum(m.view)}[x]
				o = resize(in, rng.Int64N(most)>>rng.IntN(6))
			}
			_, err := m.do(nodeA, o)
			after := roomByHand(m)
			if m.reserved.room(m.view) != after {
				t.Fatalf("after %T %+v the room is %d, want %d", o, o, m.reserved.room(m.view), after)
			}
			if after < before && !leave {
				t.Fatalf("%T %+v: room %d after %d", o, o, after, before)
			}
			if s, is := o.(setAttrOp); is && err != nil {
				if in := m.at(s.Ino); !errs.Is(err, errs.NoSpace) || *s.Size <= in.Size {
					t.Fatalf("from %d to %d: %v", in.Size, *s.Size, err)
				}
				grown := *m.state // the same, but for what is reserved
				in := m.at(s.Ino)
				grown.reserved = grown.reserved.minus(takes(in.Spec, in.Size)).plus(takes(in.Spec, *s.Size))
				if r := roomByHand(&machine{TB: t, state: &grown}); r == roomPages {
					t.Fatalf("from %d to %d: refused though it fits: %v", in.Size, *s.Size, err)
				}
			}
			if rng.IntN(3) == 0 {
				ready(m)
				for _, x := range m.view.Members {
					if x.Leaving && rowsOf(m.view, x.ID) == 0 {
						m.must(nodeA, removeMemberOp{x.ID})
					}
				}
			}
			probeUsage(m, m.at(files[dsm.ResidencyFull][0].Ino))
		}
	}
}

// roomByHand is reservation.room by another way of reckoning.
func roomByHand(m *machine) room {
	worst := roomPages
	full, demand, all := 2*m.reserved.full+m.reserved.kept, m.reserved.demand[0], int64(dsm.ClassOf(1).Slots)
	for id, slots := range quotas(m.view) {
		x, _ := m.view.Member(id)
		left := x.Budget - full
		pages := left*all - demand*int64(slots[0]) // in parts of a slot
		switch {
		case pages < 0:
			worst = roomNone
		case demand > 0 && (pages/all*8 < left || pages/all < dsm.ExtentSize):
			worst = min(worst, roomCopies)
		}
	}
	return worst
}

// probeUsage grows the full file by all that there is for it, not by a byte
// more, and takes that back.
func probeUsage(m *machine, in dsm.Inode) {
	m.Helper()
	reserved, budget := m.usage()
	least := slices.MinFunc(m.view.Members, func(a, b dsm.Member) int {
		switch {
		case a.Leaving != b.Leaving && b.Leaving:
			return -1
		case a.Leaving != b.Leaving:
			return 1
		}
		return int(a.Budget - b.Budget)
	})
	if budget != least.Budget/2 || reserved < m.reserved.full {
		m.Fatalf("%d of %d: %+v, the least budget is %d", reserved, budget, m.reserved, least.Budget)
	}
	free := max(budget-reserved, 0)
	end := pagesOf(in.Size) * dsm.PageSize
	if free > 0 {
		m.must(nodeA, resize(in, end+free))
	}
	m.fails(errs.NoSpace, resize(in, end+free+1))
	m.must(nodeA, resize(in, in.Size))
}

// TestCopiesAreReserved: what members keep as backups counts, by their share of the slots, or whole if a file lives at one home. A file that is
// to have more copies than there are members can grow as if there were no more; then a node may join all the same, but there are no new copies
// and nothing grows before there is room.
func TestCopiesAreReserved(t *testing.T) {
	for _, x := range []struct {
		members            int
		replicas, settings string
		most               int64 // of budgets of 60 MiB
	}{
		{1, "2", "spread", 30 * mib},
		{2, "1", "spread", 30 * mib},
		{2, "2", "spread", 24 * mib}, // and half a copy
		{2, "3", "spread", 24 * mib},
		{2, "2", "na", 20 * mib}, // and a copy
		{1, "2", "na", 30 * mib},
		{4, "2", "spread", 60 * mib * 4 / 9},
		{4, "3", "spread", 24 * mib}, // half of 3 times 64 slots, by four
	} {
		budgets := slices.Repeat([]int64{60*mib + dsm.FileCost}, x.members)
		m := newSized(t, budgets...)
		f := m.file("f")
		m.must(nodeA, setSpecOp{f.Ino, "replicas", x.replicas})
		f = m.must(nodeA, setSpecOp{f.Ino, "placement", x.settings})
		m.must(nodeA, resize(f, x.most&^(dsm.PageSize-1)))
		m.fails(errs.NoSpace, resize(f, x.most+2*dsm.PageSize), "--memory at least")
		ready(m)
		short := 0
		for i, h := range m.view.Rows() {
			if slices.Collect(h.InSync()) == nil && m.copiesOf(m.view, i) > 1 {
				short++
			}
		}
		if (short > 0) != (x.members == 1) {
			t.Errorf("%+v: %d slots have no backup", x, short)
		}
	}

	m := newSized(t, 60*mib+dsm.FileCost)
	f := m.file("f")
	f = m.must(nodeA, setSpecOp{f.Ino, "replicas", "2"})
	m.must(nodeA, resize(f, 30*mib))
	m.must(nodeA, addMemberOp{sized(nodeB, 60*mib+dsm.FileCost)})
	ready(m)
	backups := func() int { return rowsOf(m.view, nodeA) - slotsOf(m.view, nodeA) }
	if backups() != 0 || m.reserved.room(m.view) != roomPrimaries {
		t.Errorf("%d backups without room", backups())
	}
	m.fails(errs.NoSpace, resize(f, 30*mib+1), "for copies as a backup")
	m.must(nodeA, resize(f, 24*mib))
	if ready(m); backups() == 0 {
		t.Error("no backups with room")
	}
}

// TestPromised: a full file is promised the memory for its copies on a node that has not opened it.
func TestPromised(t *testing.T) {
	n := cluster(t, 1)[0]
	before := n.Promised()
	if _, err := n.Create(patient(t), dsm.RootIno, "f", dsm.Inode{Kind: dsm.KindFile, Size: 3 * dsm.PageSize}, false); err != nil {
		t.Fatal(err)
	}
	if got, want := n.Promised()-before, int64(fullCopies*3*dsm.PageSize+dsm.FileCost); got != want {
		t.Errorf("%d bytes more are promised, want %d", got, want)
	}
}
