package coherence

import (
	"context"
	"os"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages"
)

// Programs that attach to an area of a node that is held go on to store when the daemon is killed. The next one has both copies: the memfd that they have mapped, and the base. What
// differs is what they have stored. Programs that read a versioned area have the base mapped. Nobody changes it between the two daemons; the header page that they have says that the first one has ended, so they do not take for whole what the next one puts
// in place. Where a page was just being merged, the merge goes on where it was (pages.Area.MergeShared). So it is with drafts, which
// are there as they were, too (pages.Area.Refresh). So it is with what a WRITE of the kernel brings (pages.Cached.Wrote).

// heldFile returns the file that the copy which a program is to map moves into, or that a new draft of the program gets, before the program has it. It returns nil if nothing is held, or none is needed. All pages
// are here.
func (a *Area) heldFile(ctx context.Context, program int, write bool) (*pages.HeldFile, error) {
	store := a.node.cfg.Store
	if store == nil {
		return nil, nil
	}
	var err error
	wants, which := false, pages.WorkingCopy
	a.note(func() {
		if err = a.heldRefusalLocked(program, write); err != nil || a.mu.mem == nil {
			return
		}
		which, wants = a.needsFileLocked(program, write)
	})
	if err == nil { // what programs see must stay, also if they only read
		err = a.awaitAllHere(ctx)
	}
	if err != nil || !wants {
		return nil, err
	}
	file, err := store.NewFile(a.id, which)
	if err == nil {
		err = a.moveAhead(ctx, program, write, which, file)
	}
	if err != nil {
		a.giveUp(file)
		return nil, err
	}
	return file, nil
}

// errNeedsFile is what Attach finds if no file was needed when it began, and one is now: the draft of the program has ended with its last attachment, or the settings of the file have changed.
var errNeedsFile error = errs.E(errs.Busy, "attach", "the file changes all the time on this node: try again")

// needsFileLocked returns which copy a program maps, or gets a draft of, and whether it needs a file for that.
func (a *Area) needsFileLocked(program int, write bool) (which pages.Copy, needs bool) {
	which = a.mapsLocked(write)
	switch {
	case which == pages.WorkingCopy && a.hasDraftLocked(program) != nil:
		return which, false
	case a.wantsDraftLocked(program, write):
		return which, a.mu.mem.Outlives()
	}
	return which, a.mu.mem.WantsFile(which)
}

// mapsLocked returns which copy a program maps that has no draft.
func (a *Area) mapsLocked(write bool) pages.Copy {
	if a.versionedLocked() && !write {
		return pages.BaseCopy
	}
	return pages.WorkingCopy
}

// moveAhead copies a large copy to the file that it is about to move into.
func (a *Area) moveAhead(ctx context.Context, program int, write bool, which pages.Copy, file *pages.HeldFile) (err error) {
	steps := 0
	for more := true; more && err == nil; steps++ {
		more = false // also ends if the area is gone
		another := false
		a.step(func() {
			if a.wantsDraftLocked(program, write) || a.mu.mem == nil {
				return
			}
			if more, another, err = a.mu.mem.MoveAhead(which, file, draftBatch); steps > 2*int(a.mu.ino.Size/dsm.PageSize/draftBatch)+1 {
				more = false // programs store faster than it is copied: what is left is copied at once
			}
		})
		if another {
			err = a.await(ctx, "attach", func() bool { return a.mu.mem == nil || !a.mu.mem.Moves(which) })
			more = true
		}
	}
	return err
}

// giveUp gives up a file that was not needed.
func (a *Area) giveUp(file *pages.HeldFile) {
	if file == nil {
		return
	}
	a.step(func() {
		if a.mu.mem != nil {
			a.mu.mem.StayPut(file)
		}
		a.mu.wake = true // others may be waiting
	})
	if err := file.Close(); err != nil {
		a.node.cfg.Log.Warn("memory that no program has got is not given back", "area", a.id, "err", err)
	}
}

// hasDraftLocked returns the draft of a program, nil if it has none.
func (a *Area) hasDraftLocked(program int) *draft {
	for _, d := range a.mu.drafts {
		if d.program == program {
			return d
		}
	}
	return nil
}

// heldRefusalLocked returns why a program cannot attach because no daemon that follows could go on with it; nil if nothing is held. If the program may attach all the same no daemon
// follows from now on.
func (a *Area) heldRefusalLocked(program int, write bool) error {
	cfg := &a.node.cfg
	if cfg.Store == nil || a.mu.mem == nil {
		return nil
	}
	why := ""
	draft := a.wantsDraftLocked(program, write) || a.hasDraftLocked(program) != nil
	switch {
	case program == dsm.ByMount && cfg.MayEnd:
		return nil // exclusiveLocked may refuse it yet
	case program == dsm.ByMount:
		why = "a file with access=direct"
	case a.mu.replica.demand || a.mu.ino.Spec.Residency == dsm.ResidencyDemand:
		why = "a file with pages on demand"
	case draft && a.sharedLocked(), write && !draft && len(a.mu.drafts) > 0:
		why = "a file for writing whose user.dsm.apply has changed while others have attached it"
	default:
		return nil
	}
	if !cfg.MayEnd {
		return errs.E(errs.Unsupported, "attach", "programs cannot attach %s on a mount with --hold: they have it through the mount", why)
	}
	a.endsWithDaemonLocked("a program has attached " + why)
	return nil
}

// endsWithDaemonLocked says that no other daemon can follow this one, and that none needs what the area has.
func (a *Area) endsWithDaemonLocked(why string) {
	cfg := &a.node.cfg
	if cfg.Store == nil || !cfg.MayEnd || a.mu.mem == nil {
		return
	}
	cfg.Unheld(why)
	a.mu.mem.EndsWithDaemon()
}

// bothTaken reports whether both copies are those of an earlier daemon: programs may have one mapped, or drafts, or the area is versioned or on demand.
func (a *Area) bothTaken() bool {
	is := false
	a.note(func() {
		is = a.mu.mem != nil && a.mu.replica.subscribed && (a.mu.mem.Filed(pages.WorkingCopy) || len(a.mu.drafts) > 0 || a.versionedLocked() || a.mu.replica.demand)
	})
	return is
}

// draftsLeftLocked takes over the drafts that an earlier daemon has left. What their programs have stored meanwhile is found by comparing when they are attached again.
func (a *Area) draftsLeftLocked() {
	for _, mem := range a.mu.mem.LeftDrafts() {
		d := &draft{program: mem.Program(), mem: mem, filled: true, behind: true}
		d.resizedLocked(a)
		mem.Differs(a.mu.mem, func(p dsm.PageIndex) {
			e, i := p.Extent()
			if int(e) >= len(d.stale) {
				return
			}
			if d.stale[e].Empty() {
				d.staleExtents = append(d.staleExtents, e)
			}
			d.stale[e].Add(i)
		})
		a.mu.drafts = append(a.mu.drafts, d)
		a.mu.replica.changes++ // the draft has none of this daemon's
	}
}

// dropLeftDraftsLocked drops the drafts that no program has: it was not told of them, or has detached.
func (a *Area) dropLeftDraftsLocked() {
	for _, d := range slices.Clone(a.mu.drafts) {
		if d.attachments == 0 {
			a.dropDraftLocked(d)
		}
	}
}

// Reattach is Attach for a program that had attached the area when the daemon was killed, and has mapped the memory with this inode number. It waits for nothing: see Ready. The caller has just
// opened the area again. errs.StaleGen if the memory is gone.
func (a *Area) Reattach(program int, write bool, memory uint64) (*Attachment, *os.File, error) {
	t := &Attachment{area: a, write: write}
	err := error(&errs.Error{Op: "attach", Area: a.id, Kind: errs.NotExist})
	a.step(func() {
		r := &a.mu.replica
		t.draft = a.hasDraftLocked(program)
		if t.draft != nil && !t.draft.mem.Is(memory) {
			t.draft = nil
		}
		if !write && a.mu.mem.Is(pages.BaseCopy, memory) { // the area may have another mode since
			t.which, t.draft = pages.BaseCopy, nil
		}
		if !r.subscribed || r.demand || t.draft == nil && !a.mu.mem.Is(t.which, memory) {
			err = errs.E(errs.StaleGen, "attach", "the memory that the program has mapped is not that of this node any more")
			return
		}
		err = nil
		a.enterLocked(t)
	})
	if err != nil {
		return nil, nil, err
	}
	f, err := t.Memory()
	if err != nil {
		t.Detach()
		return nil, nil, err
	}
	return t, f, nil
}

// Ready returns when a program that has attached again may be told: see Attach.
func (t *Attachment) Ready(ctx context.Context) error {
	if t.draft != nil || !t.write {
		return nil
	}
	a := t.area
	return a.await(ctx, "attach", func() bool { return a.mu.cached.Writable() })
}
