package coherence

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestCutOfPagesWithoutABase: a program cuts the memory of an area on demand of which the node keeps no base copies. Its pages come from
// their home again, whether the page cache holds them or not; they are not zero.
func TestCutOfPagesWithoutABase(t *testing.T) {
	const inCache, inMemory = 3, 4
	s := newHomed(t, 2, onDemand(sums(1, dsm.ApplyArrival)))
	home, replica := s.nodes[0], s.nodes[1]
	home.open(true)
	replica.open(false)
	for _, p := range []int64{inCache, inMemory} {
		if err := home.area.WriteAt(t.Context(), []byte{5, 0, 0, 0}, p*dsm.PageSize); err != nil {
			t.Fatal(err)
		}
	}
	s.rested()
	for replica.kernel.fault(inCache) == nil || !replica.here(inMemory) {
		s.drain()
	}
	a := replica.area
	f, err := a.mu.mem.OpenWorking(true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only cut
	a.step(func() { a.mu.replica.mapped++ })
	for _, end := range []int64{inMemory*dsm.PageSize + 1, 0} {
		if err := f.Truncate(end); err != nil {
			t.Fatal(err)
		}
		a.step(func() {})
		replica.kernel.finishNotices()
		for !replica.here(inCache) || !replica.here(inMemory) {
			s.drain()
		}
		for _, p := range []dsm.PageIndex{inCache, inMemory} {
			if b := a.mu.mem.Working(p)[0]; b != 5 {
				t.Errorf("cut to %d: page %d is %d, want 5", end, p, b)
			}
		}
		if c := replica.kernel.fault(inCache); c == nil || c.data[0] != 5 {
			t.Errorf("cut to %d: the page cache has %v", end, c)
		}
		replica.checked(t)
	}
	if err := home.area.WriteAt(t.Context(), []byte{6, 0, 0, 0}, inCache*dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	s.rested()
	if c := replica.kernel.fault(inCache); c == nil || c.data[0] != 6 {
		t.Error("the page cache does not hear of updates any more")
	}
	a.step(func() { a.mu.replica.mapped-- })
}

// checked has the node's area look at itself.
func (n *simNode) checked(t *testing.T) {
	t.Helper()
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	if bad := n.area.problemLocked(hot); bad != "" {
		t.Error(bad)
	}
}
