package dsm

import (
	"fmt"
	"strings"
)

// Placement says where the homes of an area's extents are. Any other word than those below is the name or the id of a member: all
// extents live there, and with PlaceOne's home if there is no such member now.
type Placement string

const (
	// PlaceAuto has small areas at one home and spreads large ones: the extents below AutoExtents live where the first one does, the
	// others are spread. So nothing moves when an area grows.
	PlaceAuto Placement = ""
	// PlaceSpread spreads all extents over the homes.
	PlaceSpread Placement = "spread"
	// PlaceOne has all extents live where the first one does.
	PlaceOne Placement = "one"

	autoName = "auto"
)

// AutoExtents is how many extents of an area live at one home with PlaceAuto.
const AutoExtents = 16

func (p Placement) String() string {
	if p == PlaceAuto {
		return autoName
	}
	return string(p)
}

// Node returns the member that the placement names, by its name or its id; false if it names none.
func (p Placement) Node() (string, bool) {
	return string(p), p != PlaceAuto && p != PlaceSpread && p != PlaceOne
}

const maxPlacement = 255

// Valid reports whether the placement can be one.
func (p Placement) Valid() bool { return len(p) <= maxPlacement && p != autoName }

// ParsePlacement reads a placement. It does not know which members there are.
func ParsePlacement(s string) (Placement, error) {
	switch {
	case s == autoName:
		return PlaceAuto, nil
	case s == "" || len(s) > maxPlacement || strings.ContainsAny(s, " \t\r\n"):
		return "", fmt.Errorf("unknown placement %q: want one of auto spread one, or the name or id of a member", s)
	}
	return Placement(s), nil
}

// Together reports whether an extent lives where the first extent does, by the spec, wherever that is. The extents of areas on demand are always spread:
// what memory they take at each home is reckoned by its slots.
func (s Spec) Together(e ExtentIndex) bool {
	switch {
	case s.Mode == ModeVersioned:
		return true
	case s.Residency == ResidencyDemand || s.Placement == PlaceSpread:
		return false
	case s.Placement == PlaceAuto:
		return e < AutoExtents
	}
	return true
}

// OneHome reports whether all extents of an area of so many bytes live together.
func (s Spec) OneHome(size int64) bool { return s.Together(ExtentIndex(max(Extents(size)-1, 0))) }

// SlotOf returns the slot that an extent of an area has if the area has none of its own.
func (s Spec) SlotOf(a AreaID, e ExtentIndex) Slot {
	if s.Together(e) {
		e = 0
	}
	c := ClassOf(s.Copies())
	slot := c.SlotOf(a, e)
	if !s.Detours.None() {
		slot = s.Detours.around(c, e, slot)
	}
	return slot
}

// Recur says how slots recur: from the extent first on, those that are n apart have the same one.
func (s Spec) Recur() (first ExtentIndex, n int) {
	switch {
	case s.OneHome(MaxAreaSize):
		return 0, 1
	case s.Together(0):
		first = AutoExtents
	}
	return max(first, s.Detours.last()), ClassOf(s.Copies()).Slots
}

// CoveringExtents returns how many of the first extents of an area have all its slots.
func (s Spec) CoveringExtents(size int64) int {
	n := Extents(size)
	if s.OneHome(size) {
		return min(n, 1)
	}
	first, slots := s.Recur()
	return min(n, int(first)+slots)
}
