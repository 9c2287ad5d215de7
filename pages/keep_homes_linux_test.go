package pages

import (
	"maps"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestKilledHome: what a node knows as a home is there for the next daemon, and what was dropped is not.
func TestKilledHome(t *testing.T) {
	rnd := pagetest.Rand(t)
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	var none *Keep
	none.Serves(1, 1)
	none.Offers(1, 1)
	none.ServesNot(1)
	none.KeepMerged(1, 1, 1).Set(1, 1)
	none.KeepMerged(1, 1, 1).Drop()
	if len(none.Served()) > 0 || len(none.MergedOf(1)) > 0 {
		t.Error("no keep has something")
	}
	type of struct {
		area dsm.AreaID
		by   mergedBy
	}
	served, merged := make(dsm.Ledger), make(map[of][2]dsm.Seq)
	s := newTestStore(t, m)
	for range 40 {
		for range rnd.IntN(60) {
			x := of{1 + dsm.AreaID(rnd.IntN(4)), mergedBy{dsm.ExtentIndex(rnd.IntN(40)), 1 + dsm.NodeID(rnd.IntN(3))}}
			switch slot := dsm.SlotName(rnd.IntN(200)); rnd.IntN(8) {
			case 0:
				s.ServesNot(slot)
				delete(served, slot)
			case 1, 2:
				since := 1 + dsm.Epoch(rnd.IntN(3))
				if s.Serves(slot, since); served[slot].Since != since {
					served[slot] = dsm.Served{Since: since}
				}
			case 4:
				offered := dsm.Epoch(1 + rnd.IntN(9))
				if s.Offers(slot, offered); served[slot] != (dsm.Served{}) {
					served[slot] = dsm.Served{Since: served[slot].Since, Offered: offered}
				}
			case 3:
				for _, m := range s.MergedOf(x.area) {
					if m.by == x.by {
						m.Drop()
						m.Drop()
					}
				}
				delete(merged, x)
			default:
				merged[x] = [2]dsm.Seq{dsm.Seq(rnd.Uint64()), dsm.Seq(rnd.Uint64())}
				s.KeepMerged(x.area, x.by.extent, x.by.writer).Set(merged[x][0], merged[x][1])
			}
		}
		if rnd.IntN(3) == 0 {
			s = newTestStore(t, m) // the next daemon
		}
		got := make(map[of][2]dsm.Seq)
		for id := range dsm.AreaID(6) {
			for _, m := range s.MergedOf(id) {
				seq, part := m.Get()
				got[of{id, mergedBy{m.Extent(), m.Writer()}}] = [2]dsm.Seq{seq, part}
			}
		}
		if !maps.Equal(got, merged) {
			t.Fatalf("merged %v, want %v", got, merged)
		}
		if got := s.Served(); !maps.Equal(got, served) {
			t.Fatalf("served %v, want %v", got, served)
		}
		if free, all := len(s.homes.mu.free), s.homes.mu.frames.used*(dsm.PageSize/homeSize); free+len(served)+len(merged) != all {
			t.Fatalf("%d places are free, and %d have something, of %d", free, len(served)+len(merged), all)
		}
	}
}
