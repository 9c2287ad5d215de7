package catalog

import (
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

func TestBootstrapOnce(t *testing.T) {
	m := newMachine(t)
	if v := m.view; v.Cluster != 1 || v.Epoch != 1 || len(v.Members) != 1 || slotsOf(v, nodeA) != dsm.Slots {
		t.Errorf("view %+v", v.Members)
	}
	m.fails(errs.Exist, bootstrapOp{Cluster: 2, Member: member(nodeA)})
	fresh := &machine{TB: t, state: newState(), reqs: make(map[dsm.NodeID]uint64)}
	fresh.fails(errs.Invalid, bootstrapOp{Member: member(nodeA)})
	fresh.fails(errs.Invalid, bootstrapOp{Cluster: 1, Member: dsm.Member{ID: nodeA}})
}

func TestJoinRules(t *testing.T) {
	m := newMachine(t)
	m.must(nodeA, addMemberOp{member(nodeB)})
	epoch := m.view.Epoch
	m.must(nodeA, addMemberOp{member(nodeB)}) // the answer did not arrive
	if m.view.Epoch != epoch || len(m.view.Members) != 2 {
		t.Errorf("added twice: %+v", m.view.Members)
	}
	x := member(nodeC)
	x.Addr = member(nodeB).Addr
	m.fails(errs.Exist, addMemberOp{x}, x.Addr, "nb")
	x = member(nodeC)
	x.Name = "nb"
	m.fails(errs.Exist, addMemberOp{x}, "nb", "--name")
	x.Name = ""
	m.fails(errs.Invalid, addMemberOp{x})
	x = member(nodeC)
	x.Voter, x.Leaving = true, true
	m.must(nodeA, addMemberOp{x})
	if got, _ := m.view.Member(nodeC); got.Voter || got.Leaving {
		t.Errorf("a new member: %+v", got)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	m := newMachine(t)
	o := createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile}
	if _, err := m.do(nodeB, o); !errs.Is(err, errs.Evicted) {
		t.Fatalf("a stranger's command: %v", err)
	}
	m.must(nodeA, addMemberOp{member(nodeB)})
	m.must(nodeB, o)
	late := command{Node: nodeB, Req: m.reqs[nodeB], Low: 1, Now: m.now}
	ready(m)
	m.must(nodeB, leavingOp{nodeB})
	ready(m)
	m.must(nodeA, removeMemberOp{nodeB})
	m.must(nodeA, unlinkOp{dsm.RootIno, "f"})
	if _, err := m.send(late, o); !errs.Is(err, errs.Evicted) {
		t.Errorf("a command of one who left: %v", err)
	}
	if m.sessions[nodeB] != nil {
		t.Error("the session of one who left is kept")
	}
}

// ready reports all slots that are being handed over, and all backups that are being filled.
func ready(m *machine) {
	m.Helper()
	for range 10 {
		by := make(map[dsm.NodeID][]dsm.Slot)
		filling := fillings(m.view)
		for i, h := range m.view.Rows() {
			if h.Source != 0 {
				by[h.Primary] = append(by[h.Primary], i)
			}
		}
		if len(by)+len(filling) == 0 {
			return
		}
		for _, r := range filling {
			m.must(r.from, r.backupsOp)
		}
		for _, n := range sortedKeys(by) {
			m.must(n, slotsReadyOp{by[n], m.view.Epoch})
		}
	}
	m.Fatal("the slots do not come to rest")
}

// fillings returns what homes report when they have filled all backups that they can, and have heard of those in sync with former homes.
func fillings(v *dsm.View) (reports []report) {
	for _, x := range present(v) {
		for _, y := range present(v) {
			var slots, former []dsm.Slot
			for i, h := range v.Rows() {
				switch at := h.BackupOf(y.ID); {
				case at < 0 || h.Primary != x.ID || h.Source != 0:
				case h.Backups[at].Former:
					former = append(former, i)
				case !h.Backups[at].InSync:
					slots = append(slots, i)
				}
			}
			if len(former) > 0 {
				reports = append(reports, report{x.ID, backupsOp{y.ID, former, false, v.Epoch}})
			}
			if len(slots) > 0 {
				reports = append(reports, report{x.ID, backupsOp{y.ID, slots, true, v.Epoch}})
			}
		}
	}
	return reports
}

// report is a report on a backup by its home.
type report struct {
	from dsm.NodeID
	backupsOp
}

func TestLeave(t *testing.T) {
	m := newMachine(t)
	m.must(nodeA, addMemberOp{member(nodeB)})
	ready(m)
	f := m.file("f")
	m.must(nodeB, claimOp{Ino: f.Ino})
	m.must(nodeA, unlinkOp{dsm.RootIno, "f"})

	m.fails(errs.NotExist, leavingOp{nodeC})
	m.fails(errs.Busy, removeMemberOp{nodeB}, "480 slots")
	m.must(nodeB, leavingOp{nodeB})
	m.must(nodeB, leavingOp{nodeB})
	m.fails(errs.Busy, removeMemberOp{nodeB}) // it is the source of its slots
	if b, _ := m.view.Member(nodeB); !b.Leaving || slotsOf(m.view, nodeB) != 256 {
		t.Errorf("leaving: %+v with %d slots", b, slotsOf(m.view, nodeB))
	}
	ready(m)
	m.must(nodeA, removeMemberOp{nodeB})
	if got := m.last.effects.removed; len(got) != 1 || got[0] != f.Ino {
		t.Errorf("the claim of one who left keeps the file: removed %v", got)
	}
	m.must(nodeA, removeMemberOp{nodeB})
	epoch := m.view.Epoch
	m.must(nodeA, leavingOp{nodeA}) // the last one keeps its slots
	if slotsOf(m.view, nodeA) != dsm.Slots || m.view.Epoch != epoch+1 {
		t.Errorf("the last: %d slots in epoch %d", slotsOf(m.view, nodeA), m.view.Epoch)
	}
}

// TestWhoMayStay: a member that refuses connections has ended, but for one that may be followed, and has refused them for less than a lease. One that leaves stays for a lease.
func TestWhoMayStay(t *testing.T) {
	const lease = 2 * time.Second
	plain, held, leaves := dsm.Member{ID: 1}, dsm.Member{ID: 2, Held: true}, dsm.Member{ID: 3, Held: true, Leaving: true}
	away, began := make(absences), time.Unix(1000, 0)
	for i, c := range []struct {
		m     dsm.Member
		ended bool
		after time.Duration
		want  bool
	}{
		{plain, false, 0, true}, {plain, true, 0, false}, {leaves, true, 0, false},
		{held, true, 0, true}, {held, true, lease - 1, true}, {held, true, lease, false},
		{held, false, lease, true}, {held, true, lease + 1, true}, {held, true, 2 * lease, true}, {held, true, 2*lease + 1, false},
	} {
		if got := away.mayStay(c.m, c.ended, false, began.Add(c.after), lease); got != c.want {
			t.Errorf("%d: %+v: %t", i, c, got)
		}
	}
	for i, c := range []struct {
		ended, leaves bool
		after         time.Duration
		want          bool
	}{
		{false, true, 0, true}, {false, true, lease - 1, true}, {false, true, lease, false}, {false, false, lease, true}, {false, true, lease + 1, true}, {true, false, lease + 2, false},
	} {
		if got := away.mayStay(dsm.Member{ID: 9}, c.ended, c.leaves, began.Add(c.after), lease); got != c.want {
			t.Errorf("one that leaves, %d: %+v: %t", i, c, got)
		}
	}
}

func TestSlotsReadyIgnoresStaleReports(t *testing.T) {
	m := newMachine(t)
	m.must(nodeA, addMemberOp{member(nodeB)})
	var moved []dsm.Slot
	for i, h := range m.view.Slots {
		if h.Source != 0 {
			moved = append(moved, dsm.Slot(i))
		}
	}
	if len(moved) != 256 || m.view.Slots[moved[0]].Epoch != m.view.Epoch {
		t.Fatalf("%d slots moved: %+v", len(moved), m.view.Slots[moved[0]])
	}
	view := m.view
	m.must(nodeA, slotsReadyOp{moved, view.Epoch})     // not the primary
	m.must(nodeB, slotsReadyOp{moved, view.Epoch - 1}) // of an earlier move
	m.must(nodeB, slotsReadyOp{[]dsm.Slot{600}, view.Epoch})
	if m.view != view {
		t.Error("a stale report changed the view")
	}
	m.must(nodeB, slotsReadyOp{moved[:10], view.Epoch})
	if m.view == view || slotsOf(m.view, nodeA) != dsm.Slots-10 || m.view.Slots[moved[0]].Epoch != view.Epoch {
		t.Errorf("%d slots with A after ten are handed over", slotsOf(m.view, nodeA))
	}
	m.must(nodeB, slotsReadyOp{moved, view.Epoch + 1}) // a later epoch is fine
	m.must(nodeB, slotsReadyOp{moved, view.Epoch + 9})
	ready(m)
}

// TestHandoverToTheDead: what was on its way to a member that has died comes back to its source, or stays with the dead, as the source
// says. Of a source that leaves the others take it.
func TestHandoverToTheDead(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		m := newSized(t, 2<<30, 2<<30)
		f := m.file("f")
		size := int64(dsm.Slots * dsm.ExtentSize)
		m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: &size}})
		m.must(nodeA, addMemberOp{sized(nodeC, 2<<30)})
		var back, lost []dsm.Slot
		for i, h := range m.view.Slots {
			switch {
			case h.Source != nodeA:
			case len(lost) < 10 && dsm.CopiesOf(dsm.Slot(i)) == 1:
				lost = append(lost, dsm.Slot(i))
			default:
				back = append(back, dsm.Slot(i))
			}
		}
		if leaves {
			m.must(nodeA, leavingOp{nodeA})
		}
		view := m.view
		m.must(nodeA, handoverFailedOp{back, lost, view.Epoch}) // it has not died
		m.must(nodeB, goneOp{Node: nodeC})
		gone := m.view
		m.must(nodeB, handoverFailedOp{back, lost, m.view.Epoch})                     // not the source
		m.must(nodeA, handoverFailedOp{back, lost, view.Slots[back[0]].Epoch - 1})    // of an earlier move
		m.must(nodeA, handoverFailedOp{[]dsm.Slot{600}, []dsm.Slot{700}, gone.Epoch}) // no slots
		if m.view != gone {
			t.Error("a stale report changed the view")
		}
		m.must(nodeA, handoverFailedOp{back, lost, m.view.Epoch})
		for _, i := range back {
			h, want := m.view.Slots[i], dsm.SlotHome{Primary: nodeA, Epoch: m.view.Epoch, Backups: m.view.Slots[i].Backups}
			if leaves && (h.Settled() || h.Source != 0) { // else its home has to hear first of who was in sync
				want = dsm.SlotHome{Primary: nodeB, Source: nodeA, Epoch: m.view.Epoch}
			}
			if dsm.CopiesOf(i) > 1 { // it has what the new home had as a backup, since now; else without a break
				want.Had = m.view.Epoch
			}
			if h != want && (leaves || h.Primary != nodeB) { // B may lack some
				t.Fatalf("leaves %v: %+v, want %+v", leaves, h, want)
			}
		}
		for _, i := range lost {
			if h := m.view.Slots[i]; h.Primary != nodeC || h.Source != 0 {
				t.Fatalf("%+v, want it to stay with the dead", h)
			}
		}
	}
}

func TestVotersInView(t *testing.T) {
	m := newMachine(t)
	m.must(nodeA, addMemberOp{member(nodeB)})
	e := m.configure(m.index+1, func(m dsm.Member) bool { return m.ID == nodeB })
	a, _ := m.view.Member(nodeA)
	b, _ := m.view.Member(nodeB)
	if a.Voter || !b.Voter || e.view != m.view || m.applied != m.index+1 {
		t.Errorf("members %+v", m.view.Members)
	}
	if e := m.configure(m.index+2, func(m dsm.Member) bool { return m.ID == nodeB }); e.view != nil {
		t.Error("the same voters are a new view")
	}
}
