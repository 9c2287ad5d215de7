package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// notReached takes the backups of a home that are at another member out of sync, and cuts the link, in either order. It returns their slots.
func (m *rowsModel) notReached(home, backup dsm.NodeID, lagsFirst bool) (slots []dsm.Slot) {
	m.Helper()
	for slot, h := range m.view.Rows() {
		if h.Primary == home && h.BackupOf(backup) >= 0 {
			slots = append(slots, slot)
		}
	}
	lags := backupsOp{backup, slots, false, m.view.Epoch}
	links := apartOp{[]dsm.Link{dsm.LinkOf(home, backup)}}
	for i, o := range []op{lags, links, lags} {
		if lagsFirst || i > 0 {
			if err := m.by(home, o); err != nil {
				m.Fatal(err)
			}
		}
	}
	return slots
}

// spread returns a model of members with files of two and of three copies in all slots, and one of two that lives at A.
func spread(t *testing.T, budgets ...int64) *rowsModel {
	m := newRowsModel(t, rand.New(rand.NewPCG(1, 2)), budgets...)
	for i, x := range []struct{ replicas, placement string }{{"2", "spread"}, {"3", "spread"}, {"2", "na"}} {
		f := m.file(fmt.Sprint(i))
		m.must(nodeA, setSpecOp{f.Ino, "replicas", x.replicas})
		f = m.must(nodeA, setSpecOp{f.Ino, "placement", x.placement})
		size := int64(dsm.ClassOf(f.Spec.Copies()).Slots) * dsm.ExtentSize
		if x.placement == "na" {
			size = dsm.PageSize
		}
		m.must(nodeA, resize(f, size))
	}
	m.seen = m.view
	m.rest()
	return m
}

// TestAnotherBackup: a home and its backup do not reach each other. Another member becomes the backup, so that nothing is lost when one of the two dies.
// When they reach each other again the shares are as before, and no copy was dropped for that before there was another one.
func TestAnotherBackup(t *testing.T) {
	for _, lagsFirst := range []bool{true, false} {
		for _, dies := range []dsm.NodeID{0, nodeA, nodeB} {
			t.Run(fmt.Sprintf("lags first %v, %v dies", lagsFirst, dies), func(t *testing.T) {
				m := spread(t, 16<<30, 16<<30, 16<<30, 16<<30)
				m.publish()
				handovers := m.view.Slots
				slots := append(m.notReached(nodeA, nodeB, lagsFirst), m.notReached(nodeB, nodeA, lagsFirst)...)
				own := m.view.Placed(m.at(dsm.RootIno + 3).Area())
				t.Logf("%d slots, own %+v", len(slots), *m.view.Row(own))
				for _, slot := range slots {
					h := m.view.Row(slot)
					if h.BackupOf(nodeA) >= 0 || h.BackupOf(nodeB) >= 0 || h.Backups[0].Node == 0 {
						t.Fatalf("slot %d: %+v", slot, h)
					}
				}
				for slot, was := range handovers {
					if !slices.Contains(slots, dsm.Slot(slot)) && m.view.Slots[slot] != was {
						t.Errorf("slot %d: %+v, was %+v", slot, m.view.Slots[slot], was)
					}
				}
				m.rest()
				m.publish()
				if dies != 0 {
					single := 0 // that there is only one copy of
					for slot, h := range m.view.Rows() {
						if h.Primary == dies && m.newest[slot] > 0 && m.copiesOf(m.view, slot) == 1 {
							single++
						}
					}
					m.die(dies, nodeC)
					if m.lost > single || len(m.view.Apart) > 0 {
						t.Errorf("%d slots are lost with %s; links %v", m.lost, dies, m.view.Apart)
					}
					m.rest()
					return
				}
				for _, by := range slots { // again and again the same news
					if h := m.view.Row(by); !slices.Equal(m.view.Apart, []dsm.Link{{A: nodeA, B: nodeB}}) || h.BackupOf(nodeA) >= 0 || h.BackupOf(nodeB) >= 0 {
						t.Fatalf("slot %d: %+v; links %v", by, h, m.view.Apart)
					}
				}
				m.mend()
				for range 30 {
					for slot, h := range m.view.Rows() {
						least := min(m.copiesOf(m.view, slot)-1, 1) // where there are three copies one may be dropped for another
						if got := slices.Collect(h.InSync()); len(got) < least {
							t.Fatalf("slot %d: %+v", slot, h)
						}
					}
					m.filled(func() bool { return true })
					m.deliver(func() bool { return true })
				}
				m.rest()
				if n := uneven(m.view); n > 1 {
					t.Errorf("a member misses its share by %d slots", n)
				}
			})
		}
	}
}

// TestSlotsThatDoNotMoveKeepTheirBackups: a slot that is being handed over, and one whose home has just taken over, keep a backup that their home does not reach until that
// is over.
func TestSlotsThatDoNotMoveKeepTheirBackups(t *testing.T) {
	for _, former := range []bool{false, true} {
		m := spread(t, 16<<30, 16<<30, 16<<30, 16<<30)
		slot := dsm.ClassOf(2).First
		source, backup, home := nodeA, nodeB, nodeC
		v := m.view.Clone()
		v.Epoch++
		v.Apart = []dsm.Link{dsm.LinkOf(source, backup), dsm.LinkOf(home, backup)}
		was := dsm.SlotHome{Primary: home, Source: source, Epoch: v.Epoch, Backups: [dsm.MostBackups]dsm.Backup{{Node: backup, InSync: former, Since: v.Epoch}}}
		if former {
			was.Source, was.Backups[0].Former = 0, true
		}
		v.Slots[slot] = was
		m.view = v
		m.reviewed(func(*dsm.View) {})
		if got := m.view.Slots[slot]; got != was {
			t.Errorf("%+v, was %+v", got, was)
		}
		m.effects = effects{}
		if former {
			m.must(home, backupsOp{backup, []dsm.Slot{slot}, false, m.view.Epoch})
		} else {
			m.must(home, slotsReadyOp{[]dsm.Slot{slot}, m.view.Epoch})
		}
		if got := m.view.Slots[slot]; got.BackupOf(backup) >= 0 || got.Backups[0].Node == 0 {
			t.Errorf("when it is over: %+v", got)
		}
	}
}

// TestNoOtherBackup: where there is no third member that can be the backup, because it is one already or has no memory, the one that is not reached stays, and is
// filled when it is reached.
func TestNoOtherBackup(t *testing.T) {
	for _, x := range []struct {
		name    string
		budgets []int64
		another bool
	}{
		{"two members", []int64{16 << 30, 16 << 30}, false},
		{"memory", []int64{16 << 30, 16 << 30, 16 << 30}, true},
		{"no memory", make([]int64, 3), false}, // but for what is theirs
	} {
		t.Run(x.name, func(t *testing.T) {
			for i, b := range x.budgets {
				if b == 0 {
					m := spread(t, 16<<30, 16<<30, 16<<30)
					x.budgets[i] = m.reserved.tightest(m.view, roomPages).need()
				}
			}
			m := spread(t, x.budgets...)
			for _, slot := range m.notReached(nodeA, nodeB, true) {
				h := m.view.Row(slot)
				if m.copiesOf(m.view, slot) == 3 && h.BackupOf(nodeB) < 0 {
					t.Errorf("slot %d: %+v", slot, h)
				}
				if m.copiesOf(m.view, slot) == 2 && (h.BackupOf(nodeC) >= 0) != x.another {
					t.Fatalf("slot %d: %+v", slot, h)
				}
			}
			m.mend()
			m.rest()
		})
	}
}
