package coherence

import (
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// When the catalog marks a home as gone, the bytes that it was the home of are lost: see catalog/gone.go. Calls that need these bytes
// fail at once. Stores to their pages stay dirty, and no publish is sent to the dead home: it would take up room in windows that other
// publishes need. If the area is truncated, such stores are dropped with their pages.

// deadOf returns the members of a view that are gone.
func deadOf(v *dsm.View) (dead []dsm.NodeID) {
	for _, m := range v.Members {
		if m.Gone {
			dead = append(dead, m.ID)
		}
	}
	return dead
}

// deadHomeLocked returns the dead node that had the state of a slot; 0 if the state is alive. While a slot is being handed over, its
// source has the state. If the new home dies, the source takes the slot back or gives it up: see handovers.
func (a *Area) deadHomeLocked(s dsm.Slot) dsm.NodeID {
	row := a.mu.view.Row(s)
	at := row.Primary
	if row.Source != 0 {
		at = row.Source
	}
	if slices.Contains(a.mu.dead, at) {
		return at
	}
	return 0
}

// sourceDiedLocked reports whether a slot was on its way to this node when its source died with what it had. Requests for such a slot are dropped: if
// they waited here, later ones of the same node would wait behind them, also those for slots that live. Who made them hears of the death, too,
// and sends them again when the slot has a home: see revivedLocked. So none is served before a view says that, not even when the slot has arrived after
// all: who was refused a Subscribe would take an Acquired for all that there is.
func (a *Area) sourceDiedLocked(s dsm.Slot) bool {
	row := a.mu.view.Row(s)
	return row.Source != 0 && slices.Contains(a.mu.dead, row.Source) && a.isSelf(row.Primary)
}

// sourceDiedInAreaLocked reports whether that is so of some extent of the area.
func (a *Area) sourceDiedInAreaLocked() bool {
	if len(a.mu.dead) == 0 {
		return false
	}
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if a.sourceDiedLocked(a.slotLocked(e)) {
			return true
		}
	}
	return false
}

// revivedLocked reports whether a slot has a home, and that may have dropped requests for it because the source of the slot was dead at some
// time since the view old.
func (a *Area) revivedLocked(old *dsm.View, s dsm.Slot) bool {
	was := old.Row(s)
	if was.Source == 0 || a.deadHomeLocked(s) != 0 {
		return false
	}
	before, _ := old.Member(was.Source)
	now, ok := a.mu.view.Member(was.Source)
	return before.Gone || !ok || now.Gone || now.Inc != before.Inc
}

// deadInAreaLocked returns the dead home of some extent of the area; 0 if all homes live.
func (a *Area) deadInAreaLocked() dsm.NodeID {
	if len(a.mu.dead) == 0 {
		return 0
	}
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if id := a.deadHomeLocked(a.slotLocked(e)); id != 0 {
			return id
		}
	}
	return 0
}

// deadForLocked looks at the pages of [off, off+n) that are not here. It returns the dead home of one of them; 0 if all their homes live.
func (a *Area) deadForLocked(off, n int64) dsm.NodeID {
	if len(a.mu.dead) == 0 {
		return 0
	}
	n = min(n, a.mu.ino.Size-off)
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+n; e++ {
		id := a.deadHomeLocked(a.slotLocked(e))
		if id != 0 && int(e) < a.mu.replica.n && pagesOf(e, off, int(n)).Minus(a.extentLocked(e).have) != (dsm.PageSet{}) {
			return id
		}
	}
	return 0
}

// deadGoalLocked returns a dead home if the homes of all extents left in the goal are dead. It returns 0 as long as one of them lives.
// In PublishLast (last) a silent home counts as dead.
func (a *Area) deadGoalLocked(g publishGoal, last bool) (dead dsm.NodeID) {
	silent := a.mu.replica.silent
	if last = last && len(silent) > 0; !last && len(a.mu.dead) == 0 {
		return 0
	}
	for x, n := range g {
		if x.acked >= n {
			continue
		}
		dead = a.deadHomeLocked(a.slotLocked(x.index))
		if home := a.rowLocked(x.index).Primary; dead == 0 && last && slices.Contains(silent, home) {
			dead = home
		}
		if dead == 0 {
			return 0
		}
	}
	return dead
}

// silentLocked records the homes that a publish has waited for until its deadline. A home is silent until it sends something.
func (a *Area) silentLocked(g publishGoal) {
	r := &a.mu.replica
	for x, n := range g {
		home := a.rowLocked(x.index).Primary
		if x.acked < n && int(x.index) < r.n && !a.isSelf(home) && !slices.Contains(r.silent, home) {
			r.silent = append(r.silent, home)
		}
	}
}

// heardFromLocked records that a node has sent something, so it is not silent any more.
func (a *Area) heardFromLocked(n dsm.NodeID) {
	r := &a.mu.replica
	if i := slices.Index(r.silent, n); i >= 0 {
		r.silent = slices.Delete(r.silent, i, i+1)
	}
}

// abandonDeadLocked gives back the credit of publications to homes that have died: others need it. The publications stay as they are, because
// they may have been merged: by a home that took over, or by the dead one, which may come back. They are sent again, under their numbers,
// when their slot has another home, or theirs has joined again. So are parts of rounds: one that was only cut off may merge them before it hears of that.
// Extents whose home had died, and that have one now, are queued to be published.
func (a *Area) abandonDeadLocked() {
	for _, e := range a.busyExtentsLocked() {
		x := a.extentLocked(e)
		dead := a.deadHomeLocked(a.slotLocked(e)) != 0
		switch {
		case dead:
			for pub := range x.publications() {
				a.node.links.give(pub.home, a, pub.credit)
				pub.credit = 0
			}
		case x.wanted && x.pub == nil:
			a.wantLocked(e, x)
			a.mu.again = true
		}
	}
}

// errDeadLocked returns the error for a call that needs a node which has died or is silent.
func (a *Area) errDeadLocked(op string, id dsm.NodeID) error {
	if !slices.Contains(a.mu.dead, id) {
		return &errs.Error{Op: op, Area: a.id, Kind: errs.Timeout,
			Err: fmt.Errorf("home %s has not answered since an earlier sync (is the node alive? see /.dsm/members): what was stored is kept, and sent to it", id)}
	}
	name := ""
	if m, ok := a.mu.view.Member(id); ok {
		name = fmt.Sprintf(" (%s at %s)", m.Name, m.Addr)
	}
	return &errs.Error{Op: op, Area: a.id, Kind: errs.Unavailable,
		Err: fmt.Errorf("node %s%s has died, and was the home of some of the bytes: %w; remove the file, or truncate it to 0", id, name, errs.ErrLost)}
}
