package coherence

import (
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestDraftsBeyondTheBudget: a program that stores is refused where its draft does not fit beside the area and the drafts of others,
// and nothing is left of it. One whose process has a draft is let in, and one that comes when a draft is gone.
func TestDraftsBeyondTheBudget(t *testing.T) {
	s := newSimOf(t, 1, 1, sums(1, dsm.ApplySync), time.Hour, 5*dsm.ExtentSize+dsm.FileCost)
	n := s.nodes[0]
	n.open(false)
	attach := func(program int) (*Attachment, error) {
		at, f, err := n.area.Attach(t.Context(), program, true)
		if err != nil {
			return nil, err
		}
		return at, f.Close()
	}
	want := func(drafts int) {
		t.Helper()
		n.area.step(func() {
			r := &n.area.mu.replica
			if k := len(n.area.mu.drafts); k != drafts || r.mapped < k || n.node.room.fixed.Load() != int64(2+2*k)*dsm.ExtentSize {
				t.Errorf("%d drafts, want %d; %d programs, %d bytes charged", k, drafts, r.mapped, n.node.room.fixed.Load())
			}
		})
	}
	first, err := attach(1)
	if err != nil || !first.Own() {
		t.Fatalf("the first program has no draft: %v", err)
	}
	if _, err := attach(2); !errs.Is(err, errs.NoSpace) {
		t.Errorf("a draft beyond the budget: %v", err)
	}
	want(1)
	again, err := attach(1)
	if err != nil || !again.Own() {
		t.Fatalf("a second attachment of a process: %v", err)
	}
	first.Detach()
	want(1)
	again.Detach()
	want(0)
	second, err := attach(2)
	if err != nil || !second.Own() {
		t.Fatalf("there is room again: %v", err)
	}
	want(1)
	second.Detach()
}

// TestDraftsAndWhatIsPromised: a draft takes no room that the catalog has promised to files which are not in memory here. Nor does a file that becomes
// longer while there are drafts.
func TestDraftsAndWhatIsPromised(t *testing.T) {
	const file = 2 * dsm.ExtentSize // a full file of an extent
	s := newSimOf(t, 1, 1, sums(1, dsm.ApplySync), time.Hour, 4*file+dsm.FileCost)
	n := s.nodes[0]
	n.open(false)
	n.promised = 4 * file
	if err := n.area.CheckGrowth(9 * dsm.ExtentSize); err != nil {
		t.Errorf("the catalog looks after growth where there are no drafts: %v", err)
	}
	if at, f, err := n.area.Attach(t.Context(), 1, true); !errs.Is(err, errs.NoSpace) {
		t.Errorf("a draft that takes what is promised: %v", err)
		_ = f.Close()
		at.Detach()
	}
	n.promised = 2 * file // another one, which nobody has opened here
	at, f, err := n.area.Attach(t.Context(), 1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Detach()
	defer func() { _ = f.Close() }()
	for size, fits := range map[int64]bool{dsm.ExtentSize / 2: true, dsm.ExtentSize: true, dsm.ExtentSize + dsm.ExtentSize/4: true, dsm.ExtentSize + dsm.ExtentSize*3/4: false} {
		if err := n.area.CheckGrowth(size); (err == nil) != fits || err != nil && !errs.Is(err, errs.NoSpace) {
			t.Errorf("growth to %d bytes: %v", size, err)
		}
	}
}

// TestAcquireByAProgramThatHasDetached: requests of one program are served at the same time, so its DETACH may end the draft while
// its acquire is under way. What the acquire brought is for nobody then.
func TestAcquireByAProgramThatHasDetached(t *testing.T) {
	s := newSimOf(t, 1, 1, sums(1, dsm.ApplySync), time.Hour, 0)
	n := s.nodes[0]
	n.open(true)
	at, f, err := n.area.Attach(t.Context(), 1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	put(t, n, 5) // the draft lacks it
	at.Detach()
	if err := at.Acquire(t.Context()); err != nil {
		t.Errorf("acquire: %v", err)
	}
	if g, err := at.Memory(); err == nil {
		_ = g.Close() // nothing was written to it
		t.Error("the memory of a program that has detached can be opened")
	}
}
