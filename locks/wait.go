package locks

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Set gives the lock l to its owner, in place of the locks that the owner had on these bytes.
// Without wait, a conflict is errs.WouldBlock. With wait, errs.Deadlock says that the owner would
// wait for itself. errs.Interrupted says that ctx was cancelled first, and errs.Timeout that its deadline came first: then nothing
// is left of the request, or what is left is given up soon, and the owner gets no lock of the file before.
//
// If other nodes may have had locks of the file in the meantime, Set calls acquire before it
// returns, unless it is nil. When that fails, Set returns its error, and nothing is locked on these
// bytes. The caller must publish what was stored under a lock before it releases the lock.
//
// If it seems that nobody has locks of the file, acquire is called while the cluster is asked. That
// counts if this node hears of no lock of another node until the lock is granted: who has released
// one before had published before that, so acquire has brought it. Otherwise acquire is called again.
func (n *Node) Set(ctx context.Context, ino dsm.Ino, l Lock, wait bool, acquire func() error) error {
	r := Request{Lock: l}
	if wait {
		r.How = Wait
	}
	var early chan error
	asking := func() {
		if acquire != nil && l.Type != Unlock && !n.cfg.Cluster.LockStanding(ino).Others {
			early = make(chan error, 1)
			go func() { early <- acquire() }()
		}
	}
	w, a, err := n.ask(ctx, ino, r, false, asking)
	brought := false
	if early != nil {
		e := <-early // also if it is not needed: the caller may close the area when Set has returned
		brought = e == nil && w != nil && !w.others
	}
	if err != nil || l.Type == Unlock {
		return err
	}
	if err := errorOf(a); err != nil {
		return err
	}
	if w.stale && acquire != nil {
		if !brought {
			err = acquire()
		}
		if err == nil {
			n.acquired(ino, w.term)
		}
	}
	if err == nil && !n.cfg.Cluster.MayGrant() {
		err = n.cfg.Cluster.ShowLife(ctx) // the leader may have dropped this node since the request was granted
	}
	if err == nil && n.wasDropped(ino) {
		err = errDropped
	}
	if err != nil {
		n.mu.Lock()
		if !n.keepsLocked(ino) {
			n.undoLocked(ino, l)
		}
		n.mu.Unlock()
	}
	return err
}

// Test returns a lock that l conflicts with. PID is 0 if it is another node's.
func (n *Node) Test(ctx context.Context, ino dsm.Ino, l Lock) (in Lock, blocked bool, err error) {
	_, a, err := n.ask(ctx, ino, Request{Lock: l, How: Test}, false, func() {})
	if in = a.Conflict; in.Owner.Node != n.cfg.Self {
		in.PID = 0
	}
	return in, a.Verdict == Refused, err
}

// Release releases all locks of an owner that is gone, also those that the cluster has dropped. The caller must have published what was stored under
// them. If it fails that is done later, again and again.
func (n *Node) Release(ctx context.Context, ino dsm.Ino, o Owner) error {
	l := Lock{Owner: o, Last: End}
	err := n.Set(ctx, ino, l, false, nil)
	if errors.Is(err, errDropped) {
		return nil
	}
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		if f := n.mu.files[ino]; f != nil && !f.dropped && f.owners[o] {
			n.undoLocked(ino, l)
		}
	}
	return err
}

var errDropped = errs.E(errs.Unavailable, "lock", "the cluster took this node for dead and dropped its locks; close the file and open it again")

func errorOf(a Answer) error {
	switch a.Verdict {
	case Granted:
		return nil
	case Refused:
		return errs.E(errs.WouldBlock, "lock", "")
	case Deadlock:
		return errs.E(errs.Deadlock, "lock", "")
	case Cancelled:
		return errs.E(errs.Interrupted, "lock", "")
	}
	return errDropped
}

func (n *Node) wasDropped(ino dsm.Ino) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.mu.files[ino]
	return f != nil && f.dropped
}

// acquired records that the area was acquired during the delegation number term.
func (n *Node) acquired(ino dsm.Ino, term uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f := n.mu.files[ino]; f != nil && f.term == term {
		f.stale = false
	}
}

// ask returns the answer to a request: from the local table if the file is delegated to this node,
// otherwise from the book: then asking is called first. undo says that the request releases a lock
// that no program knows of.
func (n *Node) ask(ctx context.Context, ino dsm.Ino, r Request, undo bool, asking func()) (*waiting, Answer, error) {
	for {
		n.mu.Lock()
		f := n.fileLocked(ino)
		_, owner := f.owners[r.Lock.Owner]
		var ready func() error // returns when it is worth trying again
		switch {
		case r.Lock.Type == Unlock && !owner && !undo:
			n.tidyLocked(ino)
			n.mu.Unlock()
			return nil, r.answer(Granted), nil
		case f.dropped && !undo && (owner || f.releases == 0):
			a, err := n.refuseLocked(f, ino, r)
			n.mu.Unlock()
			return nil, a, err
		case f.surrendering, r.Lock.Type != Unlock && (f.releases > 0 || f.undoes(r.Lock.Owner) || f.abandons(r.Lock.Owner)), r.Lock.Type == Unlock && f.again[r.Lock.Owner] > 0:
			changed := f.hear()
			ready = func() error { return n.until(ctx, changed) }
		case f.delegated && r.Lock.Type != Unlock && !n.cfg.Cluster.MayGrant():
			ready = func() error { return n.showLife(ctx) }
		}
		if ready != nil {
			n.mu.Unlock()
			if err := ready(); err != nil {
				return nil, Answer{}, err
			}
			continue
		}
		w := n.enterLocked(ino, f, r)
		local := w.local
		n.mu.Unlock()
		if !local {
			asking()
			cmd, cancel := context.WithTimeout(ctx, n.cfg.Patience)
			err := n.cfg.Cluster.AskLock(cmd, ino, w.req)
			cancel()
			if err != nil && ctx.Err() == nil {
				a, err := n.giveUp(w, err)
				return w, a, err
			}
		}
		select {
		case a := <-w.done:
			return w, a, nil
		default: // checked only here, because ctx.Done may be costly
		}
		select {
		case a := <-w.done:
			return w, a, nil
		case <-ctx.Done():
		case <-n.life.Done():
		}
		a, err := n.cancel(ctx, w)
		return w, a, err
	}
}

// refuseLocked answers a request for a file whose locks were dropped: everything fails until all
// owners have released what they believe to have. The release of all fails, too: what was stored under the lock may be given up, and others may have had the lock meanwhile. That of a part does
// not: SQLite would go on as if it had the whole lock, without asking for it again.
func (n *Node) refuseLocked(f *file, ino dsm.Ino, r Request) (Answer, error) {
	if r.Lock.Type != Unlock {
		return Answer{}, errDropped
	}
	if r.Lock.First != 0 || r.Lock.Last != End {
		return r.answer(Granted), nil
	}
	believed := f.owners[r.Lock.Owner]
	delete(f.owners, r.Lock.Owner)
	n.markLocked(ino, f, f.believes())
	n.tidyLocked(ino)
	if believed {
		return Answer{}, errDropped
	}
	return r.answer(Granted), nil
}

// leaderPatience is how long a program waits for the leader when this node may not grant locks.
const leaderPatience = 3 * time.Second

func (n *Node) showLife(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	if err := n.cfg.Cluster.ShowLife(ctx); err != nil {
		return errs.E(errs.Unavailable, "lock", "no answer from the leader: %w", err)
	}
	return nil
}

func (n *Node) until(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
	case <-n.life.Done():
	}
	return ended(ctx)
}

// ended returns why a program waits no more, for which ctx has ended or the node is closed.
func ended(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
		return errs.E(errs.Timeout, "lock", "no answer in time: %w", err)
	}
	return errs.E(errs.Interrupted, "lock", "")
}

// enterLocked records a request as waiting, and decides it if the file is delegated.
func (n *Node) enterLocked(ino dsm.Ino, f *file, r Request) *waiting {
	n.mu.last++
	r.Ticket = n.mu.last
	if f.delegated && f.yielded {
		r.Renew = f.term
	}
	w := &waiting{ino: ino, req: r, local: f.delegated && !f.yielded, done: make(chan Answer, 1), stale: true}
	n.mu.asked[r.Ticket] = w
	if r.How != Test && r.Lock.Type != Unlock {
		if _, known := f.owners[r.Lock.Owner]; !known {
			f.owners[r.Lock.Owner] = false
		}
	}
	if w.local {
		n.askLocalLocked(w)
	} else if r.How == Wait {
		n.surrenderWaitsLocked()
	}
	return w
}

// askLocalLocked asks the local table. If another program of this node waits in the book, the two
// might wait for each other. Only the book can see such a circle, so this wait is entered there as
// well.
func (n *Node) askLocalLocked(w *waiting) {
	n.fileLocked(w.ino).used = true
	n.answerLocked(w.ino, n.mu.local.ask(w.ino, w.req))
	if n.mu.asked[w.req.Ticket] == nil {
		return
	}
	for _, o := range n.mu.asked {
		if !o.local && o.req.How == Wait {
			n.surrenderLocked(w.ino)
			return
		}
	}
}

// answerLocked delivers answers to the requests that wait for them.
func (n *Node) answerLocked(ino dsm.Ino, answers []Answer) {
	for _, a := range answers {
		if a.Node != n.cfg.Self {
			continue
		}
		w := n.mu.asked[a.Ticket]
		if w == nil {
			continue
		}
		if a.Verdict == Queued {
			w.entered = true
			continue
		}
		delete(n.mu.asked, a.Ticket)
		n.recordLocked(ino, w, a)
		w.done <- a
	}
}

// recordLocked records what the answer means for the file.
func (n *Node) recordLocked(ino dsm.Ino, w *waiting, a Answer) {
	f, l := n.fileLocked(ino), w.req.Lock
	if w.local {
		w.stale = f.stale
	}
	w.term = f.term
	switch {
	case a.Verdict != Granted || w.req.How == Test:
	case l.Type != Unlock:
		f.owners[l.Owner] = true
		if w.abandoned && !n.keepsLocked(ino) {
			n.undoLocked(ino, l)
		}
	case l.First == 0 && l.Last == End:
		delete(f.owners, l.Owner)
	}
	n.tidyLocked(ino)
}

// undoLocked releases a lock that was granted although no program will get it. Until that is done the owner does not have it, and gets no other of the file, which might be
// released in its place.
func (n *Node) undoLocked(ino dsm.Ino, l Lock) {
	f := n.fileLocked(ino)
	l.Type = Unlock
	f.undoing = append(f.undoing, &l)
	n.runLocked(func() {
		n.insist("give up a lock", func(ctx context.Context) error {
			_, _, err := n.ask(ctx, ino, Request{Lock: l}, true, func() {})
			return err
		})
		n.mu.Lock()
		defer n.mu.Unlock()
		f.undoing = slices.DeleteFunc(f.undoing, func(x *Lock) bool { return x == &l })
		f.ring()
		n.tidyLocked(ino)
	})
}

// believes reports whether a program has been told that it has a lock.
func (f *file) believes() bool {
	for _, granted := range f.owners {
		if granted {
			return true
		}
	}
	return false
}

// undoes reports whether a lock of the owner is being undone.
func (f *file) undoes(o Owner) bool {
	return slices.ContainsFunc(f.undoing, func(l *Lock) bool { return l.Owner == o })
}

// giveUp ends a request that may not have reached the cluster. why is the reason.
func (n *Node) giveUp(w *waiting, why error) (Answer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.asked[w.req.Ticket] == nil {
		return <-w.done, nil // answered at the last moment
	}
	n.abandonLocked(w)
	return Answer{}, why
}

// abandonLocked makes sure that nothing is left of a request that nobody waits for any more. Until then its owner gets no lock of the file: the request
// might still be granted, and would be released in place of that.
func (n *Node) abandonLocked(w *waiting) {
	w.abandoned = true
	if n.withdrawLocked(w) {
		return
	}
	f := n.fileLocked(w.ino)
	if w.req.How != Test {
		f.abandoned = append(f.abandoned, w)
	}
	n.runLocked(func() {
		if n.cancellable(w) {
			n.insist("cancel a request for a lock", func(ctx context.Context) error {
				return n.cfg.Cluster.CancelLock(ctx, w.ino, w.req.Ticket)
			})
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.mu.asked, w.req.Ticket) // if it is there, the book does not have it
		f.abandoned = slices.DeleteFunc(f.abandoned, func(x *waiting) bool { return x == w })
		f.ring()
		n.tidyLocked(w.ino)
	})
}

// abandons reports whether a request of the owner is abandoned.
func (f *file) abandons(o Owner) bool {
	return slices.ContainsFunc(f.abandoned, func(w *waiting) bool { return w.req.Lock.Owner == o })
}

// withdrawLocked cancels a request that the local table decides on. If that is just being surrendered, or the book decides, it returns false.
func (n *Node) withdrawLocked(w *waiting) bool {
	if !w.local || n.fileLocked(w.ino).surrendering {
		return false
	}
	n.mu.local.cancel(w.ino, n.cfg.Self, w.req.Ticket)
	n.answerLocked(w.ino, []Answer{{Node: n.cfg.Self, Ticket: w.req.Ticket, Verdict: Cancelled}})
	return true
}

// cancellable returns true when the book can cancel an abandoned request; false if it is over before, or the node is closed.
func (n *Node) cancellable(w *waiting) bool {
	for {
		n.mu.Lock()
		if n.mu.asked[w.req.Ticket] != w || n.withdrawLocked(w) {
			n.mu.Unlock()
			return false
		}
		if !w.local && !w.unasked() {
			n.mu.Unlock()
			return true
		}
		changed := n.fileLocked(w.ino).hear()
		n.mu.Unlock()
		if n.until(n.life, changed) != nil {
			return false
		}
	}
}

// cancelLimit is how long a program that was interrupted waits until nothing is left of its request.
const cancelLimit = 50 * time.Millisecond

// cancel ends a request because its program stopped waiting: ctx has ended. It may have been granted at the last
// moment. What is left after cancelLimit, or when the program has waited as long as it may, is given up later.
func (n *Node) cancel(ctx context.Context, w *waiting) (Answer, error) {
	why, limit := ended(ctx), cancelLimit
	if errs.Is(why, errs.Timeout) {
		limit = 0
	}
	within, done := context.WithTimeout(n.life, limit)
	defer done()
	for {
		n.mu.Lock()
		switch {
		case n.mu.asked[w.req.Ticket] == nil:
			n.mu.Unlock()
			return <-w.done, nil
		case n.withdrawLocked(w):
			n.mu.Unlock()
			return Answer{}, why
		case within.Err() != nil:
			n.abandonLocked(w)
			n.mu.Unlock()
			return Answer{}, why
		case w.local || w.unasked():
			changed := n.fileLocked(w.ino).hear()
			n.mu.Unlock()
			_ = n.until(within, changed) // then the request is abandoned
			continue
		}
		n.mu.Unlock()
		err := n.cfg.Cluster.CancelLock(within, w.ino, w.req.Ticket)
		n.mu.Lock()
		switch {
		case n.mu.asked[w.req.Ticket] == nil, err == nil && (w.local || w.unasked()): // it was answered, or delegated, meanwhile
			n.mu.Unlock()
			continue
		case err == nil:
			delete(n.mu.asked, w.req.Ticket) // the book does not have it: its command did not take effect
		default:
			n.abandonLocked(w)
		}
		n.mu.Unlock()
		return Answer{}, why
	}
}
