package coherence

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages"
)

// meanwhile is a view that is asked for what is promised in the middle of Attach, and does something then.
type meanwhile struct {
	View
	do func()
}

func (m *meanwhile) Promised() int64 {
	if do := m.do; do != nil {
		m.do = nil
		do()
	}
	return m.View.Promised()
}

// TestAttachWhileItChanges: what a program has attached outlives the daemon, also if the file changes while it attaches so that another memory is needed.
func TestAttachWhileItChanges(t *testing.T) {
	const size = 3 * dsm.PageSize
	apply := func(a *Area, way dsm.Apply) {
		a.step(func() {
			ino := a.mu.ino
			ino.Rev++
			ino.Spec.Apply = way
			a.inodeChangedLocked(ino)
		})
	}
	for what, c := range map[string]struct {
		program int                                       // which has attached before
		before  dsm.Apply                                 // as it was when the program did
		then    func(a *Area, was *Attachment) (own bool) // happens while another one attaches, which has a draft then
	}{
		"the draft of the program ends": {77, dsm.ApplySync, func(_ *Area, was *Attachment) bool {
			was.Detach()
			return true
		}},
		"programs get drafts": {76, dsm.ApplyArrival, func(a *Area, was *Attachment) bool {
			was.Detach()
			apply(a, dsm.ApplySync)
			return true
		}},
		"programs get none": {76, dsm.ApplySync, func(a *Area, was *Attachment) bool {
			was.Detach()
			apply(a, dsm.ApplyArrival)
			return false
		}},
	} {
		x := newAloneNode(t, size)
		view := &meanwhile{View: x.view}
		x.view = view
		a, err := x.daemon().Open(t.Context(), 1, false)
		if err != nil {
			t.Fatal(err)
		}
		apply(a, c.before)
		was, f, err := a.Attach(t.Context(), c.program, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		own := false
		view.do = func() { own = c.then(a, was) }
		at, f, err := a.Attach(t.Context(), 77, true)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if view.do != nil || at.Own() != own {
			t.Errorf("%s: it did not happen, or the program has a draft: %v, want %v", what, at.Own(), own)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		a.note(func() {
			if !own && !a.mu.mem.Filed(pages.WorkingCopy) {
				t.Errorf("%s: the memory ends with the daemon", what)
			}
		})
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		next := x.daemon()
		b, err := next.Reopen(t.Context(), 1, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, g, err := b.Reattach(77, true, st.Ino); err != nil {
			t.Errorf("%s: the next daemon: %v", what, err)
		} else if err := g.Close(); err != nil {
			t.Error(err)
		}
		next.Resumed()
	}
}

// TestAttachWhileItChangesEnds: Attach does not begin anew when its context has ended.
func TestAttachWhileItChangesEnds(t *testing.T) {
	x := newAloneNode(t, dsm.PageSize)
	view := &meanwhile{View: summing{x.view.(*slowPair)}}
	x.view = view
	a, err := x.daemon().Open(t.Context(), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	was, f, err := a.Attach(t.Context(), 77, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	view.do = func() {
		was.Detach()
		cancel()
	}
	if _, _, err := a.Attach(ctx, 77, true); !errs.Is(err, errs.Busy) {
		t.Error(err)
	}
}
