package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/head"
)

// heads are the lines of header pages that say which version some memory has: a copy of the area, or a draft.
type heads []*head.Line

// Watch has the area tell a line, from now on, which version is in the memory that the program maps. Unwatch ends that.
func (t *Attachment) Watch(l *head.Line) {
	a := t.area
	a.mu.Lock()
	if t.draft != nil && !a.mu.removed {
		t.draft.heads = append(t.draft.heads, l)
	} else {
		a.mu.heads = append(a.mu.heads, l)
	}
	a.mu.Unlock()
	a.step(func() {})
}

// Unwatch ends Watch for the line. Nothing is entered there any more when it returns. Who waits there may still be woken.
func (t *Attachment) Unwatch(l *head.Line) {
	is := func(o *head.Line) bool { return o == l }
	t.area.mu.Lock()
	defer t.area.mu.Unlock()
	t.area.mu.heads = slices.DeleteFunc(t.area.mu.heads, is)
	if t.draft != nil {
		t.draft.heads = slices.DeleteFunc(t.draft.heads, is)
	}
}

// tellHeadsLocked enters in the lines which version is in memory, and adds the programs that may wait for this to wake. The
// bytes have been put in place before. Afterwards the caller wakes them, without the lock, and before it sends anything.
func (a *Area) tellHeadsLocked(wake []head.Waiters) []head.Waiters {
	if len(a.mu.heads) == 0 && len(a.mu.drafts) == 0 {
		return wake
	}
	r := &a.mu.replica
	v := head.Values{Newest: uint64(a.mu.newest), Here: uint64(r.version), Whole: uint64(r.whole), Asked: r.fresh}
	switch {
	case a.mu.removed:
		v.State = head.Removed
	case a.followsLocked():
		v.State = head.Follows
	}
	if a.versionedLocked() { // all of a version comes at once
		v.Here, v.Whole = uint64(a.mu.whole.told), uint64(a.mu.whole.told)
	}
	wake = a.mu.heads.tell(v, wake)
	shown := a.shownLocked()
	for _, l := range a.mu.heads {
		if shown {
			l.Changed()
		} else {
			l.Changing() // it may have come meanwhile
		}
	}
	for _, d := range a.mu.drafts {
		v.Whole, v.Asked, v.State = uint64(d.whole), d.fresh, v.State&head.Removed|head.Own
		wake = d.heads.tell(v, wake)
	}
	return wake
}

// shownLocked reports whether the published bytes in place are a version that programs may see. The bytes at the home are those of its newest version also while a backup that could take over lacks it: then a program that has attached them to read could see that
// version, and later the one before.
func (a *Area) shownLocked() bool {
	w := &a.mu.whole
	return !w.taking && !w.torn && a.readableLocked() == len(w.kept)-1
}

func (h heads) tell(v head.Values, wake []head.Waiters) []head.Waiters {
	for _, l := range h {
		if l.Set(v) {
			wake = append(wake, l.Waiters())
		}
	}
	return wake
}
