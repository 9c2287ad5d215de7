package dsm

import (
	"errors"
	"strconv"
	"testing"
)

// TestClassesShareOutTheSlots says that each slot is of one class, and that the extents of an area get to every slot of theirs.
func TestClassesShareOutTheSlots(t *testing.T) {
	next := 0
	for _, c := range Classes {
		if int(c.First) != next || ClassOf(c.Copies) != c {
			t.Errorf("%+v begins at %d, want %d", c, c.First, next)
		}
		next += c.Slots
		for s := range c.Slots {
			if got := CopiesOf(c.First + Slot(s)); got != c.Copies {
				t.Errorf("slot %d is for %d copies, want %d", int(c.First)+s, got, c.Copies)
			}
		}
		spec := Spec{Replicas: uint8(c.Copies), Placement: PlaceSpread}
		for area := range AreaID(100) {
			visited := make(map[Slot]bool)
			for e := range c.Slots {
				visited[spec.SlotOf(area, ExtentIndex(e))] = true
			}
			if len(visited) != c.Slots {
				t.Fatalf("%d extents of area %d with %d copies are in %d slots", c.Slots, area, c.Copies, len(visited))
			}
			for s := range visited {
				if CopiesOf(s) != c.Copies {
					t.Fatalf("area %d with %d copies is in slot %d, which is for %d", area, c.Copies, s, CopiesOf(s))
				}
			}
		}
	}
	if next != Slots {
		t.Errorf("%d slots in classes", next)
	}
}

// TestCoveringExtentsHaveAllSlots compares them with all extents.
func TestCoveringExtentsHaveAllSlots(t *testing.T) {
	for copies := range uint8(MostReplicas + 1) {
		for _, place := range []Placement{PlaceAuto, PlaceSpread, PlaceOne} {
			spec := Spec{Replicas: copies, Placement: place}
			for _, extents := range []int{0, 1, 16, 17, 63, 64, 65, 80, 81, 384, 385, 400, 401, 1000, 1001, 2000} {
				if extents > 1000 { // it grows while a member is gone
					spec.Detours = viewWithout(2).Detours(7, spec, 300*ExtentSize, int64(extents)*ExtentSize)
				}
				all, covered := make(map[Slot]bool), make(map[Slot]bool)
				n := spec.CoveringExtents(int64(extents) * ExtentSize)
				for e := range extents {
					s := spec.SlotOf(7, ExtentIndex(e))
					all[s] = true
					if e < n {
						covered[s] = true
					}
				}
				if len(all) != len(covered) {
					t.Errorf("%d copies, placement %s, %d extents: the first %d have %d slots of %d", copies, place, extents, n, len(covered), len(all))
				}
			}
		}
	}
}

func TestReplicas(t *testing.T) {
	for value, copies := range map[string]int{"1": 1, "2": 2, "3": 3, "0": 0, "4": 0, "-1": 0, "two": 0, "": 0} {
		spec, err := DefaultSpec().With("replicas", value)
		if err == nil != (copies > 0) || err == nil && (spec.Copies() != copies || !spec.Valid()) {
			t.Errorf("replicas=%s: %d, %v", value, spec.Copies(), err)
		}
		if copies == 0 || copies == DefaultReplicas {
			continue
		}
		if err := DefaultSpec().CheckChange(spec, 1); !errors.Is(err, ErrFixed) {
			t.Errorf("replicas=%s of a file with bytes: %v", value, err)
		}
		if err := DefaultSpec().CheckChange(spec, 0); err != nil {
			t.Errorf("replicas=%s of an empty file: %v", value, err)
		}
	}
	if spec, err := DefaultSpec().With("replicas", strconv.Itoa(DefaultReplicas)); err != nil || spec != DefaultSpec() {
		t.Errorf("what is the default anyway: %+v, %v", spec, err)
	}
	if (Spec{Replicas: MostReplicas + 1}).Valid() {
		t.Error("four replicas are valid")
	}
}
