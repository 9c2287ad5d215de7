package coherence

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// awaitKept returns when the result of a round is in memory also if programs of this node that store have kept some of it out (apply=sync): when one of
// them has synced, or has ended the round itself, or when none is left. A program that has closed the file stores no more when the kernel has said so,
// which it does some time after close(2). op is the acquire that has ended the round. errs.Timeout if ctx ends first.
func (a *Area) awaitKept(ctx context.Context, op *acquiring) error {
	id := op.finish.Round
	for op.partly {
		r := &a.mu.replica
		broughtLocked := func() bool { return r.brought > op.kept || r.finished[id.Group] == id }
		err := a.await(ctx, "finish", func() bool { return broughtLocked() || !a.defersLocked() })
		if errs.Is(err, errs.Timeout) && ctx.Err() == context.DeadlineExceeded {
			return errKept(id)
		}
		if err != nil {
			return err
		}
		var again *acquiring
		a.step(func() {
			if !broughtLocked() {
				again = a.startAcquireLocked(false)
			}
		})
		if err := a.finishAcquire(ctx, again, nil); err != nil || again == nil {
			return err
		}
		op = again
	}
	return nil
}

func errKept(id dsm.RoundID) error {
	return errs.E(errs.Timeout, "finish", "the result of round %v enters memory when the program of this node that has the file open for writing "+
		"syncs, or closes it (apply=sync)", id)
}

// awaitDraft is awaitKept for a program that does not store by this attachment, if its process has a draft: it returns when others of the process
// have synced, or none of them may store any more. The result of the round, which is in the working copy, has a version up to v.
func (t *Attachment) awaitDraft(ctx context.Context, id dsm.RoundID, v dsm.Version) error {
	a, d := t.area, t.draft
	if d == nil || t.write {
		return nil
	}
	before := uint64(0)
	a.note(func() { before = d.refreshes })
	err := a.await(ctx, "finish", func() bool { return d.refreshed > before || d.whole >= v || d.writers == 0 })
	if errs.Is(err, errs.Timeout) && ctx.Err() == context.DeadlineExceeded {
		return errKept(id)
	}
	return err
}

// broughtLocked follows the end of an acquire by a program that stores: all that it has asked for is in memory.
func (a *Area) broughtLocked(op *acquiring) {
	r := &a.mu.replica
	r.brought = max(r.brought, op.round)
	if op.finish != nil {
		if r.finished == nil {
			r.finished = make(map[dsm.AreaID]dsm.RoundID)
		}
		r.finished[op.finish.Round.Group] = op.finish.Round
	}
	a.mu.wake = true
}
