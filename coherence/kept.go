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
		err := a.await(ctx, "finish", func() bool { return r.brought.has(op) || !a.defersLocked() })
		if errs.Is(err, errs.Timeout) && ctx.Err() == context.DeadlineExceeded {
			return errKept(id)
		}
		if err != nil {
			return err
		}
		var again *acquiring
		a.step(func() {
			if r.brought.has(op) {
				op.changes = r.brought.since(op, r.changes)
			} else {
				again = a.startAcquireLocked(false)
			}
		})
		if err := a.finishAcquire(ctx, again, nil); err != nil || again == nil {
			return err
		}
		op.partly, op.kept, op.changes = again.partly, again.kept, again.changes
	}
	return nil
}

func errKept(id dsm.RoundID) error {
	return errs.E(errs.Timeout, "finish", "the result of round %v enters memory when the program of this node that has the file open for writing "+
		"syncs, or closes it (apply=sync)", id)
}

// awaitDraft is awaitKept for a program that does not store by this attachment, if its process has a draft: it returns when others of the process
// have synced, or none of them may store any more. The result of the round is in the working copy since there were so many of replica.changes.
func (t *Attachment) awaitDraft(ctx context.Context, id dsm.RoundID, changes uint64) error {
	a, d := t.area, t.draft
	if d == nil || t.write {
		return nil
	}
	err := a.await(ctx, "finish", func() bool { return d.changes >= changes || len(d.staleExtents) == 0 || d.writers == 0 })
	if errs.Is(err, errs.Timeout) && ctx.Err() == context.DeadlineExceeded {
		return errKept(id)
	}
	return err
}

// broughts is what acquires of programs that store have brought into memory: all that these have asked for when they ended.
type broughts struct {
	newest   uint64                     // the newest of the acquires
	finished map[dsm.AreaID]dsm.RoundID // by group, the last round that one has ended
	last     [16]brought                // the oldest first, if there are as many
}

// brought is such an acquire, and how many of replica.changes there were when it ended.
type brought struct {
	round   uint64
	finish  dsm.RoundID // the round that it has ended, if any
	changes uint64
}

// broughtLocked follows the end of an acquire by a program that stores.
func (a *Area) broughtLocked(op *acquiring) {
	r := &a.mu.replica
	if r.brought == nil {
		r.brought = &broughts{finished: make(map[dsm.AreaID]dsm.RoundID)}
	}
	b, is := r.brought, brought{round: op.round, changes: r.changes}
	b.newest = max(b.newest, op.round)
	if op.finish != nil {
		is.finish = op.finish.Round
		b.finished[is.finish.Group] = is.finish
	}
	copy(b.last[:], b.last[1:])
	b.last[len(b.last)-1] = is
	a.mu.wake = true
}

// has reports whether what op has ended was brought.
func (b *broughts) has(op *acquiring) bool {
	return b != nil && (b.newest > op.kept || b.finished[op.finish.Round.Group] == op.finish.Round)
}

// since returns how many of replica.changes there were when that was so first, or the most that it can have been: changes.
func (b *broughts) since(op *acquiring, changes uint64) uint64 {
	for _, x := range b.last {
		if x.round > op.kept || x.finish == op.finish.Round {
			return x.changes
		}
	}
	return changes
}
