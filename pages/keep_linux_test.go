package pages

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// heldArea is an area of the test with the bytes that it should have.
type heldArea struct {
	*Area
	want []byte
	open bool
}

func newTestStore(t *testing.T, m *hold.Memory) *Keep {
	t.Helper()
	s, err := NewKeep(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHeldAreaOnDemand: an area may be on demand in turn. What the next daemon has is what is here then.
func TestHeldAreaOnDemand(t *testing.T) {
	const size = 600 * dsm.PageSize
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := newTestStore(t, m).NewHeldArea(5, 0)
	must(err)
	must(a.BeginReplica())
	a.WorkingIsNewest()
	NewCached(a).SetWriters(true)
	for range 2 {
		must(a.SetDemand(true))
		must(a.Resize(size))
		if a.HasNewest() {
			t.Error("the next daemon takes over an area on demand")
		}
		if _, err := a.fill(3, fill(7)); err != nil || a.Working(3)[0] != 7 || !a.Hole(4) {
			t.Errorf("filled: %v", err)
		}
		must(a.Resize(0))
		must(a.SetDemand(false))
		must(a.Resize(size))
		if a.Working(3)[0] != 0 {
			t.Error("what the area had on demand is there")
		}
		a.WorkingIsNewest()
		copy(a.Working(3), fill(9))
		if next, _, _ := nextDaemon(t, m, size, size); next.Working(3)[0] != 9 {
			t.Error("what was stored is lost")
		}
		must(a.Resize(0))
	}
	must(a.SetDemand(true))
	a.WorkingIsNewest()
	must(a.Resize(size))
	if _, _, err := a.Install(mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0), 3, fill(7), true); err != nil {
		t.Error(err)
	}
	next := onDemandAgain(t, m, size, size, nil)
	if next.Working(3)[0] != 7 || next.Base(3)[0] != 7 || !next.Hole(4) || next.Here(0) != dsm.Range(3, 4) || !next.NeedsBase(3) || next.NeedsBase(4) {
		t.Errorf("page 3 has %d, its base %d; here: %v", next.Working(3)[0], next.Base(3)[0], next.Here(0))
	}
	left := newTestStore(t, m).Areas()
	must(left[0].Drop())
	if left = newTestStore(t, m).Areas(); len(left) != 0 {
		t.Errorf("left of an area that was dropped: %+v", left)
	}
}

// TestStoreOutlivesTheDaemon makes, changes and removes areas of all sizes, and looks at them as the next daemon does, again and again.
func TestStoreOutlivesTheDaemon(t *testing.T) {
	rnd := pagetest.Rand(t)
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	s := newTestStore(t, m)
	areas := make(map[dsm.AreaID]*heldArea)
	next := dsm.AreaID(1)
	size := func() int64 { return rnd.Int64N([]int64{1, 5000, 70000, 3 << 20}[rnd.IntN(4)]) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for round := range 40 {
		for range 30 {
			if len(areas) < 20 && rnd.IntN(3) == 0 {
				n := size()
				a, err := s.NewHeldArea(next, n)
				must(err)
				areas[next] = &heldArea{Area: a, want: make([]byte, n)}
				next++
			}
			for id, a := range areas {
				switch rnd.IntN(8) {
				case 0:
					must(a.Close())
					delete(areas, id)
				case 1:
					n := size()
					must(a.Resize(n))
					a.want = append(a.want[:min(n, int64(len(a.want)))], make([]byte, max(n-int64(len(a.want)), 0))...)
				case 2:
					if a.open { // the base gets all of it
						for p := range dsm.PageIndex(wholePages(a.Size()) / dsm.PageSize) {
							if !allZero(a.working.look(p, 1)) || !allZero(a.Base(p)) {
								a.SetBase(p, a.Working(p))
							}
						}
						must(a.EndReplica())
					} else {
						must(a.BeginReplica())
						for p := range dsm.PageIndex(wholePages(a.Size()) / dsm.PageSize) {
							if !allZero(a.Base(p)) {
								copy(a.Working(p), a.Base(p))
							}
						}
						a.WorkingIsNewest()
					}
					a.open = !a.open
				default:
					if n := int64(len(a.want)); a.open && n > 0 {
						off := rnd.Int64N(n)
						p := dsm.PageIndex(off / dsm.PageSize)
						end := min(int64(p+1)*dsm.PageSize, n)
						for i := off; i < end; i++ {
							a.want[i] = byte(rnd.Uint32())
						}
						copy(a.Working(p)[off%dsm.PageSize:], a.want[off:end])
						if rnd.IntN(4) == 0 {
							from := int64(p) * dsm.PageSize
							must(a.working.zero(from, min(from+dsm.PageSize, a.working.len)))
							clear(a.want[from:end])
						}
					}
				}
				break // of any area
			}
		}
		fd, err := unix.Dup(m.FD())
		must(err)
		m, err = hold.Adopt(fd)
		must(err)
		s = newTestStore(t, m)
		left := s.Areas()
		if len(left) != len(areas) {
			t.Fatalf("round %d: %d areas are left of %d", round, len(left), len(areas))
		}
		for _, l := range left {
			a := areas[l.ID]
			if a == nil {
				t.Fatalf("round %d: area %d was removed", round, l.ID)
			}
			n, least := int64(len(a.want)), int64(len(a.want))
			switch rnd.IntN(6) {
			case 0:
				must(l.Drop())
				delete(areas, l.ID)
				continue
			case 1: // the catalog is ahead of it
				n, least = size(), rnd.Int64N(n+1)
				least = min(least, n)
				a.want = append(a.want[:least], make([]byte, n-least)...)
			}
			a.Area, err = l.Take(n, least)
			must(err)
			a.open = false
			got := make([]byte, wholePages(n))
			for p := range dsm.PageIndex(wholePages(n) / dsm.PageSize) {
				copy(got[int64(p)*dsm.PageSize:], a.Base(p))
			}
			if !bytes.Equal(got[:n], a.want) || !allZero(got[n:]) {
				t.Fatalf("round %d: area %d of %d bytes is not what it was", round, l.ID, n)
			}
		}
	}
	for _, a := range areas {
		must(a.Close())
	}
	if got, most := allocated(t, m), int64(4<<20); got > most {
		t.Errorf("%d bytes are taken with no area left, more than %d", got, most)
	}
}

// allocated returns how much memory a held file takes.
func allocated(t *testing.T, m *hold.Memory) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(m.FD(), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
