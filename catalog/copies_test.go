package catalog

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// keepCopies checks that no member that could take over was taken out of a row before there were as many as there are to be, unless it has died. Where a slot
// is handed over there must be as many before and after it arrives. One more than are to be is filled at most, in place of another.
func (m *rowsModel) keepCopies(before *dsm.View) {
	m.Helper()
	copies := func(h *dsm.SlotHome) int {
		count := func(home dsm.NodeID) (n int) {
			for _, x := range m.view.Members {
				if !x.Gone && (x.ID == home || h.BackupOf(x.ID) >= 0 && h.Backups[h.BackupOf(x.ID)].InSync) {
					n++
				}
			}
			return n
		}
		return min(count(h.Holder()), count(h.Primary))
	}
	if !m.reserved.roomForCopies(m.view) {
		return
	}
	for slot, h := range m.view.Rows() {
		was := before.Row(slot)
		if was == nil || slot >= dsm.Slots && before.Own[slot-dsm.Slots].Area != m.view.Own[slot-dsm.Slots].Area || m.bereft(before, *was) {
			continue
		}
		want := min(m.copiesOf(m.view, slot), len(staying(m.view)))
		filling, synced := 0, 0
		for _, b := range h.Backups {
			if b.Node != 0 && !b.InSync {
				filling++
			} else if m.view.Stays(b.Node) {
				synced++
			}
		}
		if want := max(want-1-synced, 1); h.Settled() && !m.view.IsGone(h.Primary) && filling > want {
			m.Fatalf("slot %d: %d are being filled, and %d should be: %+v, was %+v", slot, filling, want, *h, *was)
		}
		if had, got := copies(was), copies(h); got < min(had, want) {
			m.Fatalf("slot %d: %d can take over, where %d could, and %d should: %+v, was %+v", slot, got, had, want, *h, *was)
		}
	}
}

// TestCopiesStayUntilOthersAreFilled: members join and leave, and get and give up copies. A copy goes when another one is in sync: rowsModel.by checks that. Until
// then a slot that is to have three has four.
func TestCopiesStayUntilOthersAreFilled(t *testing.T) {
	m := spread(t, 8<<30, 16<<30, 12<<30, 20<<30)
	full := make(map[dsm.Slot]bool)
	evens := func(o op) {
		t.Helper()
		m.publish()
		if err := m.by(nodeA, o); err != nil {
			t.Fatal(err)
		}
		some := func() bool { return m.rng.IntN(2) == 0 }
		for i := range 20 {
			rows := m.view.Slots
			if m.reviewed(func(*dsm.View) {}); m.view.Slots != rows {
				t.Errorf("round %d: nothing has happened, and others are to have copies", i)
			}
			for slot, h := range m.view.Rows() {
				if h.Settled() && h.Backups[dsm.MostBackups-1].Node != 0 {
					full[slot] = true
				}
			}
			m.filled(some)
			m.deliver(some)
			m.handOver(some)
			m.publish()
		}
		m.rest()
		if n := uneven(m.view); n > 1 {
			t.Errorf("a member misses its share of the backups of a class by %d slots", n)
		}
	}
	const last = nodeA + 9
	evens(addMemberOp{sized(last, 16<<30)})
	evens(addMemberOp{sized(last+1, 32<<30)})
	if len(full) == 0 {
		t.Error("no slot had four copies")
	}
	for slot := range full {
		if dsm.CopiesOf(slot) < dsm.MostReplicas {
			t.Errorf("slot %d is to have %d copies, and had more than one more", slot, dsm.CopiesOf(slot))
		}
	}
	evens(leavingOp{nodeB})
	evens(leavingOp{last + 1})
}
