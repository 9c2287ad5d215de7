package catalog

import (
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// A command whose caller does not wait any more may still be applied, much later. Most of them do no harm then. But
// one that makes a file which this node claims leaves a claim of which nobody knows: the file's memory would stay reserved
// after it was removed, for as long as this node lives. So this node has the cluster decide: a command of its own
// takes the numbers of such commands. One that was not applied before then never is, for its number has been used.
// The files of the others are told to Config.Orphaned.

// abandonOp takes the numbers of commands of the same node that nobody waits for. They must not be
// below its Low.
type abandonOp struct{ Reqs []uint64 }

func (o abandonOp) apply(s *state, st step) (dsm.Inode, error) {
	ses := s.sessions[st.node]
	for _, req := range o.Reqs {
		if _, ok := ses.results[req]; !ok && req >= ses.low {
			ses.results[req] = resultOf(dsm.Inode{}, fail(errs.Timeout, "nobody waits for it any more"))
		}
	}
	return dsm.Inode{}, nil
}

// leavesClaim reports whether a claim is left if o is applied and nobody hears of it.
func leavesClaim(o op) bool {
	c, ok := o.(createOp)
	return ok && (c.Claim || c.Temp)
}

// maxAbandoned bounds how many numbers one command takes.
const maxAbandoned = 1024

// abandon says that nobody waits for the command any more, and that it must be decided what becomes
// of it. Until then the cluster keeps its result.
func (cs *calls) abandon(req uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.unseenLocked(req, false)
	cs.mu.abandoned = append(cs.mu.abandoned, req)
	select {
	case cs.orphans <- struct{}{}:
	default:
	}
}

// takeAbandoned returns commands to be decided.
func (cs *calls) takeAbandoned() []uint64 {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	n := min(len(cs.mu.abandoned), maxAbandoned)
	reqs := cs.mu.abandoned[:n:n]
	cs.mu.abandoned = cs.mu.abandoned[n:]
	return reqs
}

// decideAbandoned decides about abandoned commands until the catalog is closed.
func (c *Catalog) decideAbandoned() {
	for {
		select {
		case <-c.calls.orphans:
		case <-c.life.Done():
			return
		}
		for reqs := c.calls.takeAbandoned(); len(reqs) > 0; reqs = c.calls.takeAbandoned() {
			if _, err := c.commit(c.life, abandonOp{reqs}); err != nil && c.life.Err() == nil {
				c.log.Warn("cannot find out what became of new files that nobody waits for", "commands", len(reqs), "err", err)
			}
			orphans := c.made(reqs)
			for _, req := range reqs {
				c.calls.finish(req, true)
			}
			for _, ino := range orphans {
				c.orphaned(ino)
			}
		}
	}
}

// ordered reports whether such a command happens before later ones of its node that are ordered, or not at all: see endLate.
func (k opKind) ordered() bool {
	switch k {
	case kindClaim, kindUnclaim, kindAskLock, kindCancelLock:
		return true
	}
	return false
}

// giveUp says that nobody waits for a command any more, and that it must not happen after a later one: see endLate.
func (cs *calls) giveUp(req uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.mu.late = append(cs.mu.late, req)
}

// lateOnes returns commands that were given up, and may still happen.
func (cs *calls) lateOnes() []uint64 {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return slices.Clone(cs.mu.late[:min(len(cs.mu.late), maxAbandoned)])
}

// ended says that commands cannot happen any more.
func (cs *calls) ended(reqs []uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.mu.late = slices.DeleteFunc(cs.mu.late, func(req uint64) bool { return slices.Contains(reqs, req) })
}

// endLate returns when no command that this node has given up may happen any more, of those that must not happen after a later one. The hold of a file
// that is open would end, or a lock would be granted whose request has been cancelled. That the numbers of such commands are below a later Low is not
// enough: an older command may be under way still, and a node that is held lets no number pass for long.
func (c *Catalog) endLate(ctx context.Context) error {
	for reqs := c.calls.lateOnes(); len(reqs) > 0; reqs = c.calls.lateOnes() {
		a, err := c.commit(ctx, abandonOp{reqs})
		if err == nil {
			err = a.result.err("")
		}
		if err != nil {
			return err
		}
		c.calls.ended(reqs)
	}
	return nil
}

// made returns the inodes that commands of this node have made, as far as it has applied the log.
func (c *Catalog) made(reqs []uint64) (made []dsm.Ino) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	ses := c.mu.state.sessions[c.self.ID]
	if ses == nil {
		return nil // this node is no member any more, and claims nothing
	}
	for _, req := range reqs {
		if r, ok := ses.results[req]; ok && r.err("") == nil {
			made = append(made, r.Inode.Ino)
		}
	}
	return made
}

// giveUpClaim ends a claim of which nobody knows. It is Config.Orphaned of a node without a filesystem.
func (c *Catalog) giveUpClaim(ino dsm.Ino) {
	ctx, cancel := context.WithTimeout(c.life, attempt)
	defer cancel()
	if err := c.Unclaim(ctx, ino); err != nil {
		c.log.Warn("cannot give up the claim on a new file that nobody waits for", "ino", ino, "err", err)
	}
}
