package locks

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// LocksChanged handles events, in the order of the catalog's log. It does not wait.
func (n *Node) LocksChanged(events []Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range events {
		if e.Node != n.cfg.Self {
			n.othersLocked(e.Ino)
			continue
		}
		switch e.What {
		case Answered:
			n.answerLocked(e.Ino, []Answer{e.Answer})
		case Delegated:
			n.delegatedLocked(e.Ino, e.Term, e.Ticket)
		case Recalled:
			if f := n.mu.files[e.Ino]; f == nil || !f.delegated {
				n.delegatedLocked(e.Ino, e.Term, 0)
			}
			n.surrenderLocked(e.Ino)
		case Surrendered:
			n.surrenderedLocked(e.Ino)
		case Ended:
			n.endedLocked(e.Ino)
		case Dropped:
			n.droppedLocked()
		case Shared:
			n.sharedLocked(e.Ino)
		}
	}
}

// othersLocked records that another node has, had or wants locks of the file, 0 if it may be any file.
func (n *Node) othersLocked(ino dsm.Ino) {
	for _, w := range n.mu.asked {
		if ino == 0 || w.ino == ino {
			w.others = true
		}
	}
}

// delegatedLocked begins a delegation, or is the book's word that this node has it still. The request of
// the ticket is decided at once, so that it comes before a recall. But if this node is surrendering
// the file, the request comes too late to be part of what it surrenders: then it is asked again afterwards.
func (n *Node) delegatedLocked(ino dsm.Ino, term, ticket uint64) {
	f := n.fileLocked(ino)
	if !f.delegated {
		f.delegated, f.stale, f.used = true, true, false
	}
	if f.term != term {
		f.term, f.yielded = term, false
	}
	w := n.mu.asked[ticket]
	if w == nil {
		return
	}
	switch {
	case w.abandoned && !w.unasked():
		delete(n.mu.asked, ticket)
	case f.surrendering:
		w.owed = true
	default:
		w.local = true
		n.askLocalLocked(w)
	}
}

// askAgainLocked asks the book for what came too late for the local table.
func (n *Node) askAgainLocked(ino dsm.Ino) {
	for _, w := range n.mu.asked {
		if w.ino != ino || !w.owed {
			continue
		}
		w.owed = false
		n.repeatLocked(w)
	}
}

// repeatLocked asks the book for a request once more. Until that is over it is not cancelled, and its owner releases nothing: the command might come after
// that, and lock for nobody.
func (n *Node) repeatLocked(w *waiting) {
	o, f := w.req.Lock.Owner, n.fileLocked(w.ino)
	if f.again == nil {
		f.again = make(map[Owner]int)
	}
	w.asking++
	f.again[o]++
	n.runLocked(func() {
		n.insist("ask again", func(ctx context.Context) error {
			if n.answered(w) {
				return nil
			}
			return n.cfg.Cluster.AskLock(ctx, w.ino, w.req)
		})
		n.mu.Lock()
		defer n.mu.Unlock()
		w.asking--
		if f.again[o]--; f.again[o] == 0 {
			delete(f.again, o)
		}
		f.ring()
		n.tidyLocked(w.ino)
	})
}

func (n *Node) answered(w *waiting) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.asked[w.req.Ticket] != w
}

// sharedLocked surrenders a file that another node has opened, unless programs of this node lock it:
// it was delegated because nobody else had it open. A lock of the other node would have to wait for
// the recall.
func (n *Node) sharedLocked(ino dsm.Ino) {
	if f := n.mu.files[ino]; f != nil && f.delegated && !f.used && n.idleLocked(ino) {
		n.surrenderLocked(ino)
	}
}

// surrenderedLocked: from now on the book decides. The requests that wait, wait there.
func (n *Node) surrenderedLocked(ino dsm.Ino) {
	f := n.fileLocked(ino)
	f.over()
	delete(n.mu.local.tables, ino)
	for _, w := range n.mu.asked {
		if w.ino == ino && w.local {
			w.local, w.entered, w.stale = false, true, true
		}
	}
	n.askAgainLocked(ino)
	f.ring()
	n.tidyLocked(ino)
}

func (n *Node) endedLocked(ino dsm.Ino) {
	f := n.fileLocked(ino)
	f.over()
	n.markLocked(ino, f, false)
	delete(n.mu.local.tables, ino)
	clear(f.owners)
	n.askAgainLocked(ino)
	f.ring()
	n.tidyLocked(ino)
}

// Evicted says that the cluster has evicted this node, before it acts as a member again: the locks of its programs are gone.
func (n *Node) Evicted() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.droppedLocked()
}

// Dropped returns an error if locks of the file were dropped, and programs that have not closed it believe to have them. What they store is not to be
// published: others may have had the locks since. It takes no lock.
func (n *Node) Dropped(ino dsm.Ino) error {
	if n.drops.Load() == 0 {
		return nil // nearly always
	}
	if _, dropped := n.dropped.Load(ino); dropped {
		return errDropped
	}
	return nil
}

// markLocked records whether the locks of the file were dropped and programs do not know.
func (n *Node) markLocked(ino dsm.Ino, f *file, dropped bool) {
	switch {
	case f.dropped == dropped:
		return
	case dropped:
		n.dropped.Store(ino, struct{}{})
		n.drops.Add(1)
	default:
		n.dropped.Delete(ino)
		n.drops.Add(-1)
	}
	f.dropped = dropped
}

// droppedLocked records that all locks are gone. It also runs on a node that leaves, which has none.
func (n *Node) droppedLocked() {
	files := 0
	for ino := range n.mu.files {
		if n.dropLocked(ino, false) {
			files++
		}
	}
	if files > 0 {
		n.cfg.Log.Warn("the cluster took this node for dead: locks of its programs are lost", "files", files)
	}
}

// dropLocked records that all locks of the file are gone, and reports whether programs think that they have any. waits says that the book still has the
// requests of this node that wait there: they are cancelled.
func (n *Node) dropLocked(ino dsm.Ino, waits bool) (believed bool) {
	f := n.mu.files[ino]
	f.over()
	n.markLocked(ino, f, f.believes())
	delete(n.mu.local.tables, ino)
	for ticket, w := range n.mu.asked {
		if w.ino == ino && (w.local || w.entered || w.owed) {
			w.owed = false
			n.answerLocked(ino, []Answer{{Node: n.cfg.Self, Ticket: ticket, Verdict: NodeDropped}})
			if waits && !w.local {
				left := &waiting{ino: ino, req: w.req, done: make(chan Answer, 1)}
				n.mu.asked[ticket] = left
				n.abandonLocked(left)
			}
		}
	}
	f.ring()
	n.tidyLocked(ino)
	return f.dropped
}

// LocksReset says that events may have been missed, because this node had to load a snapshot of the
// catalog's state instead of following its log.
func (n *Node) LocksReset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.othersLocked(0)
	for _, ino := range n.cfg.Cluster.DelegatedLocks() {
		n.fileLocked(ino)
	}
	for ino, f := range n.mu.files {
		st := n.cfg.Cluster.LockStanding(ino)
		t := n.mu.local.tables[ino]
		ended := f.delegated && (!st.Delegated || st.Term != f.term)
		switch {
		case ended && f.yielded, ended && f.surrendering && (st.HasLocks || t == nil || len(t.granted) == 0):
			n.surrenderedLocked(ino)
		case ended, !st.Delegated && !st.HasLocks && f.believes():
			n.dropLocked(ino, true)
		}
		if st.Delegated && !f.delegated {
			n.delegatedLocked(ino, st.Term, 0)
			f = n.mu.files[ino] // the other may have been forgotten
		}
		if st.Delegated && st.Recalled && f.delegated {
			n.surrenderLocked(ino)
		}
	}
	for _, w := range n.mu.asked {
		if !w.local && !w.abandoned && !w.unasked() {
			n.repeatLocked(w)
		}
	}
}
