package dsm

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// viewWithout returns a view of three members, to which the slots go in turn, without some of them.
func viewWithout(gone ...NodeID) *View {
	v := &View{Epoch: 1}
	for id := range NodeID(3) {
		v.Members = append(v.Members, Member{ID: id + 1, Gone: slices.Contains(gone, id+1)})
	}
	for i := range v.Slots {
		v.Slots[i] = SlotHome{Primary: NodeID(i%3 + 1), Epoch: 1}
	}
	return v
}

// TestFilesGrowAroundTheDead: extents that a file gets while members are gone have homes that live, evenly; those that it had stay where they are.
func TestFilesGrowAroundTheDead(t *testing.T) {
	for _, place := range []Placement{PlaceAuto, PlaceSpread, PlaceOne} {
		for copies := range uint8(MostReplicas + 1) {
			for area := range AreaID(20) {
				spec := Spec{Replicas: copies, Placement: place}
				size, where := int64(0), make(map[ExtentIndex]Slot)
				for step, views := 0, []*View{viewWithout(1), viewWithout(1, 2), viewWithout(), viewWithout(3), viewWithout(3)}; step < 40; step++ {
					v := views[rand.IntN(len(views))]
					was := size
					if size = int64(rand.IntN(1000)) * ExtentSize / int64(rand.IntN(100)+1); size < was {
						for e := ExtentIndex(Extents(size)); e < ExtentIndex(Extents(was)); e++ {
							delete(where, e)
						}
						continue
					}
					spec.Detours = v.Detours(area, spec, was, size)
					if !spec.Valid() {
						t.Fatalf("%+v is not valid", spec)
					}
					full := spec.Detours.entries() == maxDetours
					for e := range ExtentIndex(Extents(size)) {
						slot := spec.SlotOf(area, e)
						before, had := where[e]
						home := v.Row(slot)
						switch {
						case CopiesOf(slot) != spec.Copies():
							t.Fatalf("extent %d of %+v is in slot %d", e, spec, slot)
						case had && before != slot:
							t.Fatalf("%+v: extent %d was in slot %d, and is in %d", spec, e, before, slot)
						case !had && home.Homeless(v) && !full && !(e > 0 && spec.Together(e)):
							t.Fatalf("%+v: extent %d is new, and in slot %d of member %d, which is gone", spec, e, slot, home.Primary)
						}
						where[e] = slot
					}
				}
			}
		}
	}
	spec := Spec{Placement: PlaceSpread}
	v, n := viewWithout(2), Classes[0].Slots
	spec.Detours = v.Detours(7, spec, 0, int64(n)*ExtentSize)
	homes := make(map[NodeID]int)
	for e := range ExtentIndex(n) {
		homes[v.Row(spec.SlotOf(7, e)).Primary]++
	}
	if len(homes) != 2 || homes[1] < n*2/5 || homes[3] < n*2/5 {
		t.Errorf("extents by home: %v", homes)
	}
}

// TestNoDetourWithoutNeed: a file whose extents all have homes has no detours, nor has one for which there is nowhere to go.
func TestNoDetourWithoutNeed(t *testing.T) {
	v := viewWithout(1)
	dead := 0
	for area := range AreaID(300) {
		d := v.Detours(area, Spec{}, 0, ExtentSize)
		if homeless := v.Row(SlotOf(area, 0)).Homeless(v); homeless == d.None() {
			t.Errorf("area %d: %v, its slot has lost its home: %v", area, d, homeless)
		} else if homeless {
			dead++
			if d := viewWithout().Detours(area, Spec{Detours: d}, 0, ExtentSize); !d.None() {
				t.Errorf("a file that begins anew when all live has detours %v", d)
			}
			if now := v.Detours(area, Spec{Detours: d}, 1, ExtentSize); now != d {
				t.Errorf("a file that has no more extents than before had detours %v, and has %v", d, now)
			}
		}
	}
	if dead == 0 || dead == 300 {
		t.Errorf("%d of 300 areas have lost their home", dead)
	}
	if d := viewWithout(1, 2, 3).Detours(1, Spec{}, 0, ExtentSize); !d.None() {
		t.Errorf("detours around all: %v", d)
	}
}

// TestDetoursOfOthers: what comes from another node is looked at.
func TestDetoursOfOthers(t *testing.T) {
	var one, all, third slotWords
	one.add(5)
	for s := range Slot(Slots) {
		all.add(s)
	}
	for s := range Slot(64) {
		third.add(Classes[2].First + s)
	}
	var none, many Detours
	for e := range ExtentIndex(maxDetours) {
		many = many.with(e, one)
	}
	for what, x := range map[string]struct {
		d    Detours
		want bool
	}{
		"none":               {none, true},
		"one":                {none.with(0, one), true},
		"two":                {none.with(0, one).with(1, one), true},
		"the most":           {many, true},
		"too many":           {many.with(100, one), false},
		"in no order":        {none.with(1, one).with(0, one), false},
		"twice":              {none.with(1, one).with(1, one), false},
		"around all":         {none.with(0, all), false},
		"around all of some": {none.with(0, third), false},
		"half of one":        {detoursOf(none.with(0, one).text()[:30]), false},
	} {
		if got := x.d.Valid(); got != x.want {
			t.Errorf("%s: %v", what, got)
		}
		if s := (Spec{Detours: x.d}); s.Valid() != x.want {
			t.Errorf("a spec with %s: %v", what, s.Valid())
		}
	}
}
