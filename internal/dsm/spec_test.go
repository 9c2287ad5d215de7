package dsm

import "testing"

// TestForfeits: only what would be merged element by element with what others store under the same locks is given up with them.
func TestForfeits(t *testing.T) {
	for _, x := range []struct {
		change func(s *Spec)
		want   bool
	}{
		{func(*Spec) {}, true},
		{func(s *Spec) { s.Locks = LocksPlain }, false},
		{func(s *Spec) { s.Merge = MergeSum }, false},
		{func(s *Spec) { s.Mode = ModeVersioned }, false},
	} {
		var s Spec
		x.change(&s)
		if got := s.Forfeits(); got != x.want {
			t.Errorf("%+v: %v", s, got)
		}
	}
}
