package coherence

import (
	"fmt"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// When the catalog marks a home as gone, what it was the home of is lost: see catalog/gone.go. Calls that need it fail at once. Stores
// to it stay dirty, and nothing is sent there: messages under way would take up the windows of others. If the area is cut off the
// stores go with it.

// deadOf returns the members of a view that are gone.
func deadOf(v *dsm.View) (dead []dsm.NodeID) {
	for _, m := range v.Members {
		if m.Gone {
			dead = append(dead, m.ID)
		}
	}
	return dead
}

// deadHomeLocked returns the node with which the state of a slot died, 0 if none did. A slot on its way to a home that has died is
// taken back by its source, or given up: see handovers.
func (a *Area) deadHomeLocked(s dsm.Slot) dsm.NodeID {
	row := &a.mu.view.Slots[s]
	holder := row.Primary
	if row.Source != 0 {
		holder = row.Source
	}
	if slices.Contains(a.mu.dead, holder) {
		return holder
	}
	return 0
}

// deadInAreaLocked returns the dead home of an extent of the area, 0 if all live. So many that follow each other have every slot.
func (a *Area) deadInAreaLocked() dsm.NodeID {
	if len(a.mu.dead) == 0 {
		return 0
	}
	for e := range dsm.ExtentIndex(min(a.extentsLocked(), dsm.Slots)) {
		if id := a.deadHomeLocked(dsm.SlotOf(a.id, e)); id != 0 {
			return id
		}
	}
	return 0
}

// deadForLocked returns the dead home of a page of [off, off+n) that is not here, 0 if there is none.
func (a *Area) deadForLocked(off, n int64) dsm.NodeID {
	if len(a.mu.dead) == 0 {
		return 0
	}
	n = min(n, a.mu.ino.Size-off)
	for e := dsm.ExtentOf(off); int64(e)*dsm.ExtentSize < off+n; e++ {
		id := a.deadHomeLocked(dsm.SlotOf(a.id, e))
		if id != 0 && int(e) < a.mu.replica.n && pagesOf(e, off, int(n)).Minus(a.extentLocked(e).have) != (dsm.PageSet{}) {
			return id
		}
	}
	return 0
}

// deadGoalLocked returns the dead home of what is left of a goal, 0 as long as some of it can still be reached. At the last publish
// of a program a home that is silent is as good as dead.
func (a *Area) deadGoalLocked(g publishGoal, last bool) (dead dsm.NodeID) {
	silent := a.mu.replica.silent
	if last = last && len(silent) > 0; !last && len(a.mu.dead) == 0 {
		return 0
	}
	for x, n := range g {
		if x.acked >= n {
			continue
		}
		dead = a.deadHomeLocked(dsm.SlotOf(a.id, x.index))
		if home := a.rowLocked(x.index).Primary; dead == 0 && last && slices.Contains(silent, home) {
			dead = home
		}
		if dead == 0 {
			return 0
		}
	}
	return dead
}

// silentLocked takes note that a publish has waited for what is left of its goal until its deadline. What its homes send next ends it.
func (a *Area) silentLocked(g publishGoal) {
	r := &a.mu.replica
	for x, n := range g {
		home := a.rowLocked(x.index).Primary
		if x.acked < n && int(x.index) < r.n && !a.isSelf(home) && !slices.Contains(r.silent, home) {
			r.silent = append(r.silent, home)
		}
	}
}

// heardFromLocked ends that a home is silent.
func (a *Area) heardFromLocked(n dsm.NodeID) {
	r := &a.mu.replica
	if i := slices.Index(r.silent, n); i >= 0 {
		r.silent = slices.Delete(r.silent, i, i+1)
	}
}

// abandonDeadLocked ends publications to homes that have died: their pages are dirty again, and stay so. Extents that could not be
// published, and have a home again, are queued.
func (a *Area) abandonDeadLocked() {
	for _, e := range a.busyExtentsLocked() {
		x := a.extentLocked(e)
		dead := a.deadHomeLocked(dsm.SlotOf(a.id, e)) != 0
		switch {
		case dead && x.pub != nil:
			pub := x.pub
			a.endPublicationLocked(x)
			a.dirtyLocked(e, x, pub.sent.And(x.have).And(a.withinLocked(e)))
			x.wanted = true
			pub.data.Release()
		case !dead && x.wanted && x.pub == nil:
			a.wantLocked(e, x)
			a.mu.again = true
		}
	}
}

// errDeadLocked is the error of a call that needs what died with the node, or that a silent node has.
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
		Err: fmt.Errorf("node %s%s has died, and was the home of some of the bytes: they are lost; remove the file, or truncate it to 0", id, name)}
}
