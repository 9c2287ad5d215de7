package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestSums: two areas with the same bytes have the same sums, whichever of the pages take memory. To ask takes none.
func TestSums(t *testing.T) {
	const size = 8 * dsm.PageSize
	one, other := newTestArea(t, size), newTestArea(t, size)
	for _, a := range []*Area{one, other} {
		if err := a.BeginReplica(); err != nil {
			t.Fatal(err)
		}
	}
	other.BecomeHome(0)
	for p := range dsm.PageIndex(3) {
		one.SetBase(p, fill(byte(p)))
		copy(other.Home(p), fill(byte(p)))
	}
	took, err := one.ResidentBytes()
	if err != nil {
		t.Fatal(err)
	}
	a, b := NewSums(5), NewSums(6)
	for p := range dsm.PageIndex(8) {
		if a.Base(one, p) != a.Home(other, p) {
			t.Errorf("page %d has other sums", p)
		}
		if a.Base(one, p) == b.Base(one, p) {
			t.Errorf("page %d has one sum with two seeds", p)
		}
		if q := (p + 1) % 3; p < 3 && a.Base(one, p) == a.Base(one, q) {
			t.Errorf("pages %d and %d have one sum", p, q)
		}
	}
	other.BeforeHomeWrite(1, false)
	copy(other.Home(1), fill(9))
	if a.Base(other, 1) != a.Base(one, 1) || a.Home(other, 1) == a.Base(one, 1) {
		t.Error("a page with a twin: the base is the twin")
	}
	if now, err := one.ResidentBytes(); err != nil || now != took {
		t.Errorf("%d bytes are resident, before %d (%v)", now, took, err)
	}
}
