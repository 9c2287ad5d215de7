package pages

import (
	"maps"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// TestComparedIsKept: each daemon has which extents the one before was comparing, until they are compared or the replica ends.
func TestComparedIsKept(t *testing.T) {
	m, err := hold.Create()
	if err != nil {
		t.Fatal(err)
	}
	const size = 4 * dsm.ExtentSize
	a, err := newTestStore(t, m).NewHeldArea(1, size)
	if err != nil {
		t.Fatal(err)
	}
	var none *Area
	none.WasCompared(0)
	for ends := range 2 {
		if err := a.BeginReplica(); err != nil {
			t.Fatal(err)
		}
		a.WorkingIsNewest()
		a.IsCompared(0, false)
		a.IsCompared(2, true)
		a.IsCompared(3, true)
		a.IsCompared(3, false)
		a.WasCompared(0)
		a.WasCompared(1)
		for range 2 {
			want := map[dsm.ExtentIndex]bool{2: true, 3: false}
			if got := a.Compared(); !maps.Equal(got, want) {
				t.Fatalf("extents %v, want %v", got, want)
			}
			left := newTestStore(t, m).Areas()
			if len(left) != 1 {
				t.Fatalf("areas %v", left)
			}
			if a, _, err = left[0].TakeBoth(merge.Kernel{}, size, size); err != nil {
				t.Fatal(err)
			}
		}
		if ends == 0 {
			a.WasCompared(2)
			a.WasCompared(3)
		}
		if err := a.EndReplica(); err != nil {
			t.Fatal(err)
		}
		if got := a.Compared(); len(got) > 0 || a.frames.used > 0 {
			t.Fatalf("extents %v, %d frames", got, a.frames.used)
		}
	}
}
