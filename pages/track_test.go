package pages

import (
	"errors"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// fakeSource is a program whose stores are scripted.
type fakeSource struct {
	pages []int // stored to since the last Scan
	armed bool
	fail  error
	calls []string
}

func (s *fakeSource) Scan(stored, _ func(off, n int64)) error {
	s.calls = append(s.calls, "scan")
	if s.fail != nil {
		return s.fail
	}
	for _, p := range s.pages {
		stored(int64(p)*dsm.PageSize, dsm.PageSize)
	}
	return nil
}

func (s *fakeSource) Disarm() error {
	s.calls, s.armed = append(s.calls, "disarm"), false
	return nil
}

func (s *fakeSource) Arm() error {
	s.calls, s.armed = append(s.calls, "arm"), true
	return nil
}

// round does one Collect in which so many of the first pages are stored to.
func round(t *testing.T, tr *Tracking, s *fakeSource, pages, of int) (stored, compared int) {
	t.Helper()
	s.pages, s.calls = nil, nil
	for p := range pages {
		s.pages = append(s.pages, p)
	}
	tr.Collect(func(_, n int64) { stored += int(n / dsm.PageSize) }, func(off, n int64) (int, int) {
		if off != 0 || n != int64(of)*dsm.PageSize {
			t.Errorf("compares [%d,+%d), want all", off, n)
		}
		compared++
		return of, pages
	})
	return stored, compared
}

// A mapping is scanned while little of it is stored to, compared while much is, and
// scanned again when that ends.
func TestTrackingAdapts(t *testing.T) {
	const pages = 1000
	s := &fakeSource{armed: true}
	var tr Tracking
	tr.Add(s, 0, pages*dsm.PageSize)
	for i, r := range []struct {
		stores           int
		stored, compared int
		calls            []string
	}{
		{5, 5, 0, []string{"scan"}},
		{900, 900, 0, []string{"scan"}},           // once is no habit
		{5, 5, 0, []string{"scan"}},               // and is forgotten
		{900, 900, 0, []string{"scan"}},           //
		{900, 900, 1, []string{"scan", "disarm"}}, // twice is; what was stored since the scan is compared
		{900, 0, 1, nil},                          // no faults, no scans
		{100, 0, 1, nil},                          // neither dense nor sparse: as before
		{10, 0, 1, []string{"arm"}},               // sparse
		{10, 10, 0, []string{"scan"}},             //
	} {
		stored, compared := round(t, &tr, s, r.stores, pages)
		if stored != r.stored || compared != r.compared || !slices.Equal(s.calls, r.calls) {
			t.Fatalf("round %d: %d pages stored, %d comparisons, calls %v; want %d, %d, %v", i, stored, compared, s.calls, r.stored, r.compared, r.calls)
		}
	}
	if st := tr.Stats(); st.Mappings != 1 || st.Comparing != 0 || st.Scans != 6 || st.Found != 5+900+5+900+900+10 {
		t.Errorf("counts %+v", st)
	}
}

// Some dozens of pages are scanned however dense they are, fewer are always compared; without a source, and with one that
// fails, all is compared each time.
func TestTrackingCompares(t *testing.T) {
	var tr Tracking
	few := &fakeSource{armed: true}
	f := tr.Add(few, 0, fewPages*dsm.PageSize)
	for _, changed := range []int{fewPages, 0} {
		if stored, compared := round(t, &tr, few, changed, fewPages); stored != 0 || compared != 1 || few.armed {
			t.Fatalf("few pages: %d stored, %d comparisons, faults %v", stored, compared, few.armed)
		}
	}
	tr.Remove(f)
	const pages = fewPages + 1
	small := &fakeSource{}
	m := tr.Add(small, 0, pages*dsm.PageSize)
	for range 5 {
		if stored, compared := round(t, &tr, small, pages, pages); stored != pages || compared != 0 {
			t.Fatalf("%d pages stored, %d comparisons", stored, compared)
		}
	}
	small.fail = errors.New("closed")
	for range 3 {
		if stored, compared := round(t, &tr, small, pages, pages); stored != 0 || compared != 1 {
			t.Fatalf("a source that fails: %d pages stored, %d comparisons", stored, compared)
		}
	}
	tr.Remove(m)
	if !tr.Empty() {
		t.Fatal("not empty")
	}
	tr.Add(nil, 0, 10*dsm.PageSize)
	for _, changed := range []int{10, 0} {
		if stored, compared := round(t, &tr, small, changed, 10); stored != 0 || compared != 1 {
			t.Fatalf("no source: %d pages stored, %d comparisons", stored, compared)
		}
	}
	if st := tr.Stats(); st.Comparing != 1 {
		t.Errorf("counts %+v", st)
	}
}
