package coherence

import (
	"bytes"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// TestConflictsAreListedInPages: a long conflict takes several, and short ones share one.
func TestConflictsAreListedInPages(t *testing.T) {
	parted(t, dsm.Inode{}, func(p *parting) {
		long := bytes.Repeat([]byte("long"), conflictPage/3)
		a := p.n.area
		a.step(func() {
			a.mu.absence = &absence{}
			a.keepLocked(0, []byte("a"), []byte("b"))
			a.keepLocked(100, long, long)
			a.keepLocked(int64(len(long))+200, []byte("c"), []byte("d"))
		})
		list := func(from uint64, skip int64) *wire.ConflictsListed {
			return p.n.node.ListConflicts(&wire.ListConflicts{Area: simArea, From: from, Skip: skip})
		}
		first := list(0, 0)
		if len(first.List) != 2 || first.List[0].Rest != 0 || string(first.List[0].Kept) != "a" || string(first.List[0].Taken) != "b" || !first.More {
			t.Fatalf("%d conflicts first, more: %v", len(first.List), first.More)
		}
		part := first.List[1]
		if part.Number != 2 || len(part.Kept) > conflictPage || part.Rest != int64(len(long)-len(part.Kept)) || part.Taken != nil {
			t.Fatalf("%d bytes of conflict %d, and %d follow", len(part.Kept), part.Number, part.Rest)
		}
		second := list(2, int64(len(part.Kept)))
		if len(second.List) != 2 || second.List[0].Rest != 0 || !bytes.Equal(append(bytes.Clone(part.Kept), second.List[0].Kept...), long) || second.List[1].Number != 3 || second.More {
			t.Fatalf("%d conflicts at the end, more: %v", len(second.List), second.More)
		}
		for _, skip := range []int64{-1, int64(len(long)) + 1} {
			if got := list(2, skip); len(got.List) == 0 || len(got.List[0].Kept) > conflictPage {
				t.Errorf("with %d bytes left out: %d conflicts", skip, len(got.List))
			}
		}
		if got := list(4, 0); len(got.List) > 0 || got.More {
			t.Errorf("behind the last: %+v", got)
		}
		if got := p.n.node.ListConflicts(&wire.ListConflicts{Area: simArea + 1}); len(got.List) > 0 {
			t.Errorf("of an area that is not here: %+v", got)
		}
	})
}
