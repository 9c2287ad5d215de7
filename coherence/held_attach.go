package coherence

import (
	"context"
	"os"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages"
)

// Programs that attach to an area of a node that is held go on to store when the daemon is killed. The next one has both copies: the memfd that they have mapped, and the base. What
// differs is what they have stored. Where a page was just being merged, the merge is done once more (pages.Area.MergesShared). So the rule has to be one by which that changes nothing.

// heldFile returns the file that the working copy is to move into before a program has it. It returns nil if nothing is held, or the copy is in one. All pages are here.
func (a *Area) heldFile(ctx context.Context, program int) (*pages.HeldFile, error) {
	store := a.node.cfg.Store
	if store == nil {
		return nil, nil
	}
	if program == dsm.ByMount {
		return nil, errs.E(errs.Unsupported, "attach", "no file of a mount with --hold is direct")
	}
	var err error
	wants := false
	a.note(func() {
		if err = a.heldRefusalLocked(false); err == nil && a.mu.mem != nil {
			wants = a.mu.mem.WantsFile()
		}
	})
	if err == nil { // what programs see must stay, also if they only read
		err = a.holds(ctx)
	}
	if err != nil || !wants {
		return nil, err
	}
	return store.NewFile(a.id)
}

// giveUp gives up a file that was not needed.
func (a *Area) giveUp(file *pages.HeldFile) {
	if err := file.Close(); err != nil {
		a.node.cfg.Log.Warn("memory that no program has got is not given back", "area", a.id, "err", err)
	}
}

// heldRefusalLocked returns why a program cannot attach because no daemon that follows could go on with it; nil if nothing is held.
func (a *Area) heldRefusalLocked(write bool) error {
	why := ""
	switch {
	case a.node.cfg.Store == nil:
		return nil
	case a.versionedLocked():
		why = "a versioned file"
	case a.mu.replica.demand || a.mu.ino.Spec.Residency == dsm.ResidencyDemand:
		why = "a file with pages on demand"
	case write && a.mu.ino.Spec.AppliesInSync():
		why = "a file with apply=sync for writing"
	case write && a.mu.ino.Spec.Merge.Adds():
		why = "a file with merge=sum or mean for writing"
	default:
		return nil
	}
	return errs.E(errs.Unsupported, "attach", "programs cannot attach %s on a mount with --hold: they have it through the mount", why)
}

// attachable reports whether programs may have the working copy mapped, since an earlier daemon.
func (a *Area) attachable() bool {
	is := false
	a.note(func() { is = a.mu.mem != nil && a.mu.replica.subscribed && a.mu.mem.Filed() })
	return is
}

// Reattach is Attach for a program that had attached the area when the daemon was killed, and has its memory mapped. It waits for nothing. The caller has just opened the area
// again. errs.StaleGen if the memory is gone.
func (a *Area) Reattach(write bool) (*Attachment, *os.File, error) {
	t := &Attachment{area: a, write: write}
	err := error(&errs.Error{Op: "attach", Area: a.id, Kind: errs.NotExist})
	a.step(func() {
		if r := &a.mu.replica; !r.subscribed || r.demand || a.versionedLocked() || !a.mu.mem.Filed() {
			err = errs.E(errs.StaleGen, "attach", "the memory that the program has is not that of the node any more")
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
