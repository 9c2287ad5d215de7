package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestBackupsAgainstModel has members join, leave, die and come back while slots and copies are on their way.
func TestBackupsAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(8) {
		t.Run(fmt.Sprint(round), func(t *testing.T) { backupsAtRandom(t, rand.New(rand.NewPCG(seed, round))) })
	}
}

// sizeOf is the size of a file of TestBackupsAgainstModel.
func sizeOf(f dsm.Inode) int64 {
	if f.Spec.Placement == dsm.PlaceAuto {
		return dsm.PageSize
	}
	return int64(dsm.ClassOf(f.Spec.Copies()).Slots) * dsm.ExtentSize
}

func backupsAtRandom(t *testing.T, rng *rand.Rand) {
	budget := func() int64 { return 1 << (33 + rng.IntN(2)) }
	m := newRowsModel(t, rng, budget(), budget())
	var files []dsm.Inode // with bytes in all slots of their classes, and one that lives at one home
	for i, x := range []struct{ replicas, placement string }{{"1", "spread"}, {"2", "spread"}, {"3", "spread"}, {"2", "auto"}} {
		f := m.file(fmt.Sprint(i))
		m.must(nodeA, setSpecOp{f.Ino, "replicas", x.replicas})
		f = m.must(nodeA, setSpecOp{f.Ino, "placement", x.placement})
		files = append(files, m.must(nodeA, resize(f, sizeOf(f))))
	}
	m.rest()
	next := dsm.NodeID(0x100)
	some := func() bool { return rng.IntN(2) == 0 }
	for range 150 {
		m.publish()
		live := present(m.view)
		x, y := live[rng.IntN(len(live))], live[rng.IntN(len(live))]
		switch rng.IntN(17) {
		case 0:
			if len(live) < 6 {
				next++
				if err := m.by(x.ID, addMemberOp{sized(next, budget())}); err != nil {
					t.Fatal(err)
				}
			}
		case 1:
			if len(staying(m.view)) > 1 {
				if err := m.by(x.ID, leavingOp{x.ID}); err != nil {
					t.Fatal(err)
				}
			}
		case 2, 3:
			if x.ID != y.ID && len(live) > 2 && !y.Leaving {
				m.die(x.ID, y.ID)
				if x.Inc++; rng.IntN(2) == 0 && !x.Leaving {
					m.reqs[x.ID] = 0
					if err := m.by(y.ID, addMemberOp{x}); err != nil {
						t.Fatal(err)
					}
				}
			}
		case 4:
			if err := m.by(x.ID, setSpecOp{files[3].Ino, "placement", y.Name}); err != nil && !y.Leaving {
				t.Fatal(err)
			}
		case 14: // what is lost is removed, so the dead can be forgotten
			for _, f := range files {
				for _, o := range []op{resize(f, 0), settleOp{}, resize(f, sizeOf(f))} {
					if err := m.by(x.ID, o); err != nil {
						t.Fatal(err)
					}
				}
			}
		case 5:
			m.rest()
		case 6, 7:
			m.lag()
		case 15:
			m.cut(some)
		case 8, 9:
			m.handOver(some)
		case 10, 11:
			m.filled(some)
		default:
			m.deliver(some)
		}
	}
	m.rest()
	m.mend()
	m.rest()
	if n := uneven(m.view); n > 1 {
		t.Errorf("a member misses its share of the backups of a class by %d slots", n)
	}
}

// TestStaleReports: a report on a backup counts only if it is by the home, and about what the backup is now.
func TestStaleReports(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	const slot = dsm.Slots - 1
	row := func() dsm.SlotHome { return m.view.Slots[slot] }
	home, backup := row().Primary, row().Backups[0].Node
	m.must(home, backupsOp{backup, []dsm.Slot{slot}, false, m.view.Epoch})
	if backup == 0 || row().Backups[0].InSync {
		t.Fatalf("%+v", row())
	}
	since := row().Backups[0].Since
	report := func(from dsm.NodeID, synced bool, e dsm.Epoch, changes bool) {
		t.Helper()
		before := m.view
		m.must(from, backupsOp{backup, []dsm.Slot{slot, 9999}, synced, e})
		if (m.view != before) != changes {
			t.Errorf("a report by %s, of epoch %d: %+v", from, e, row())
		}
	}
	report(backup, true, m.view.Epoch, false)
	report(home, true, since-1, false)
	report(home, true, since, true)
	if !row().Backups[0].InSync || row().Backups[0].Since != since {
		t.Fatalf("%+v", row())
	}
	report(home, true, m.view.Epoch, false) // it says so already
	report(backup, false, m.view.Epoch, false)
	report(home, false, since, true) // by a home that has not heard yet that it is in sync
	if row().Backups[0].InSync || row().Backups[0].Since != m.view.Epoch {
		t.Fatalf("%+v", row())
	}
	report(home, true, m.view.Epoch-1, false) // from before it lagged
	report(home, true, m.view.Epoch, true)
}

// TestReportOnASlotWhoseNewHomeDied: a source has told the new home that it has everything, and that has served and died. What the source has said of a
// backup before comes late: the backup has what nobody else has, or lacks it, so the report counts neither way. With the source's word on the handover
// the backup takes over.
func TestReportOnASlotWhoseNewHomeDied(t *testing.T) {
	for _, synced := range []bool{true, false} {
		m := newSized(t, 1<<30, 1<<30, 1<<30)
		f := m.file("f")
		m.must(nodeA, setSpecOp{f.Ino, "replicas", "2"})
		m.must(nodeA, resize(f, dsm.PageSize))
		f = m.inodes[f.Ino].Inode
		slot := f.Spec.SlotOf(f.Area(), 0)
		source, backup := m.view.Slots[slot].Primary, m.view.Slots[slot].Backups[0].Node
		home := nodeA + nodeB + nodeC - source - backup
		v := m.view.Clone()
		v.Epoch++
		v.Slots[slot] = dsm.SlotHome{Primary: home, Source: source, Epoch: v.Epoch, Backups: [dsm.MostBackups]dsm.Backup{{Node: backup, InSync: !synced}}}
		m.view = v
		m.must(source, goneOp{Node: home})
		before := m.view
		m.must(source, backupsOp{backup, []dsm.Slot{slot}, synced, before.Epoch})
		if m.view != before {
			t.Errorf("in sync %v: %+v", synced, m.view.Slots[slot])
		}
		if synced {
			continue // nobody has it
		}
		m.must(source, handoverFailedOp{Lost: []dsm.Slot{slot}, Epoch: m.view.Epoch})
		if got := m.view.Slots[slot].Primary; got != backup {
			t.Errorf("%s is the home, not the backup that has everything: %+v", got, m.view.Slots[slot])
		}
	}
}

// TestTakeOver: the entry that says that a node is gone makes a backup in sync the home, of the slot that an area has to itself, too; but
// not one that is being filled.
func TestTakeOver(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30, 1<<30)
	f := m.file("f")
	m.must(nodeA, setSpecOp{f.Ino, "replicas", "2"})
	m.must(nodeA, setSpecOp{f.Ino, "placement", "na"})
	m.must(nodeA, resize(f, dsm.PageSize))
	own := m.view.Placed(f.Area())
	backup := m.view.Row(own).Backups[0].Node
	if m.view.Row(own).Primary != nodeA || backup == 0 {
		t.Fatalf("%+v", m.view.Row(own))
	}
	m.must(nodeA, backupsOp{backup, []dsm.Slot{own}, true, m.view.Epoch})
	before := m.view.Epoch
	m.must(nodeB, goneOp{Node: nodeA})
	if h := m.view.Row(own); h.Primary != backup || h.Source != 0 || h.Epoch <= before || h.Backups[0].Node == 0 || h.Backups[0].InSync {
		t.Errorf("%+v after epoch %d", h, before)
	}
	for i, h := range m.view.Rows() {
		if h.Primary == nodeA && i == own || h.BackupOf(nodeA) >= 0 {
			t.Errorf("slot %d: %+v", i, h)
		}
	}
}

// TestTwoDeaths: of three nodes with copies two die, and the catalog hears of one first. It makes the other one, which is dead too, the home; the third takes
// over all the same. Not so when the second was alive, and has said that it goes on without the third.
func TestTwoDeaths(t *testing.T) {
	for _, heard := range []bool{false, true} {
		m := newSized(t, 1<<30, 1<<30, 1<<30, 1<<30)
		f := m.file("f")
		m.must(nodeA, setSpecOp{f.Ino, "replicas", "3"})
		m.must(nodeA, resize(f, dsm.PageSize))
		f = m.inodes[f.Ino].Inode
		slot := f.Spec.SlotOf(f.Area(), 0)
		ready(m)
		first := m.view.Row(slot).Primary
		backups := m.view.Row(slot).Backups
		if !backups[0].InSync || !backups[1].InSync {
			t.Fatalf("%+v", m.view.Row(slot))
		}
		by := func(not ...dsm.NodeID) dsm.NodeID {
			for _, x := range present(m.view) {
				if !slices.Contains(not, x.ID) {
					return x.ID
				}
			}
			return 0
		}
		m.must(by(first), goneOp{Node: first})
		second := m.view.Row(slot).Primary
		at := slices.IndexFunc(m.view.Row(slot).Backups[:], func(b dsm.Backup) bool { return b.Former })
		if second != backups[0].Node || at < 0 || m.view.Row(slot).Settled() {
			t.Fatalf("%+v", m.view.Row(slot))
		}
		third := m.view.Row(slot).Backups[at].Node
		if heard {
			m.must(second, backupsOp{third, []dsm.Slot{slot}, false, m.view.Epoch})
			if h := m.view.Row(slot); !h.Settled() || len(slices.Collect(h.InSync())) > 0 {
				t.Fatalf("%+v", h)
			}
		}
		m.must(by(second), goneOp{Node: second})
		if got := m.view.Row(slot).Primary == third; got == heard {
			t.Errorf("heard %v: %+v", heard, m.view.Row(slot))
		}
	}
}
