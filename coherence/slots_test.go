package coherence

import (
	"maps"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestInSlots compares the extents in some slots with those that a look at all extents finds.
func TestInSlots(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, place := range []dsm.Placement{dsm.PlaceAuto, dsm.PlaceSpread, dsm.PlaceOne} {
		for _, own := range []dsm.Slot{0, dsm.Slots + 7} {
			for range 200 {
				a := &Area{id: dsm.AreaID(1 + rng.IntN(5))}
				a.mu.ino.Spec = dsm.Spec{Placement: place, Replicas: uint8(rng.IntN(dsm.MostReplicas + 1))}
				a.mu.own = own
				m, below := make(map[dsm.ExtentIndex]struct{}), dsm.ExtentIndex(0)
				most := 1 + rng.IntN([]int{30, 500, 5000}[rng.IntN(3)])
				for range rng.IntN(most + 1) {
					e := dsm.ExtentIndex(rng.IntN(most))
					m[e], below = struct{}{}, max(below, e+1)
				}
				var in slotBits
				for range rng.IntN(1 + []int{3, 100, 1000}[rng.IntN(3)]) {
					in.put(rng.IntN(areaSlots), true)
				}
				if rng.IntN(2) == 0 {
					in.put(slotIndex(a.slotLocked(dsm.ExtentIndex(rng.IntN(most)))), true)
				}
				want := slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(e dsm.ExtentIndex) bool { return !in.has(slotIndex(a.slotLocked(e))) })
				if got := inSlotsLocked(a, m, below, &in); !slices.Equal(got, want) {
					t.Fatalf("placement %v, own slot %d, %d extents below %d: got %v, want %v", place, own, len(m), below, got, want)
				}
			}
		}
	}
}
