package locks

import (
	"context"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// A daemon that follows one that was killed (--hold) has the locks of the node's programs from a list that outlives the daemon (package fs). It gives
// them to its Node by Resume, and calls Resumed. No lock is given twice by that:
//
//   - The list never says more than the table or the book that decides. A lock is entered when it has been granted, before the program hears of it. What
//     a request takes away from a lock is taken off the list before it is asked for (Weaker). So whatever others may have been given, the list does not
//     have it, and all that a program was told that it has, the list has.
//   - The command by which the node is back (Book.Back) gives each of its delegations a new term. A word to yield of the daemon before, and a
//     surrender, are in the log before that, or mean nothing. In the first case the list agrees with them: a node yields when it has no lock, and
//     surrenders all that it has granted.
//   - The catalog takes no other command of the daemon before after that one either. So no lock or unlock of it comes late.
//   - Until Resumed the node gives up nothing, and no program asks it for anything.
//
// What the book has and the list does not was granted and not answered, or is just being released: the program's request comes again. It is
// released in Resumed.

// Weaker returns what an owner who has the locks granted still has for certain while it asks for l.
func Weaker(granted []Lock, l Lock) []Lock {
	t := table{granted: slices.Clone(granted)}
	for _, h := range granted {
		switch {
		case h.Last < l.First || h.First > l.Last || h.Type <= l.Type && !(l.Owner.Flock && h.Type != l.Type):
			continue
		case l.Owner.Flock: // the old one is released first
			h.Type = Unlock
		default:
			h.Type = l.Type
		}
		h.First, h.Last = max(h.First, l.First), min(h.Last, l.Last)
		t.place(h)
	}
	return t.granted
}

// Back says that another daemon of the node follows one that was killed. The node's requests that wait end: its programs ask again.
// Its locks stay, and its delegations, with new terms.
func (b *Book) Back(node dsm.NodeID) (events []Event) {
	for _, ino := range b.files() {
		if d, ok := b.delegated[ino]; ok && d.node == node {
			b.last++
			d.term = b.last
			b.delegated[ino] = d
			events = append(events, Event{What: Delegated, Ino: ino, Node: node, Term: d.term})
		}
		t := b.set.tables[ino]
		if t == nil {
			continue
		}
		for _, r := range slices.Clone(t.queue) {
			if r.Lock.Owner.Node == node {
				events = append(events, b.Cancel(ino, node, r.Ticket)...)
			}
		}
	}
	return events
}

// Has returns the locks of a node that the book has of a file.
func (b *Book) Has(ino dsm.Ino, node dsm.NodeID) (granted []Lock) {
	if t := b.set.tables[ino]; t != nil {
		for _, l := range t.granted {
			if l.Owner.Node == node {
				granted = append(granted, l)
			}
		}
	}
	return granted
}

// FilesWithLocks returns the files of which the book has locks of a node.
func (b *Book) FilesWithLocks(node dsm.NodeID) []dsm.Ino {
	return slices.DeleteFunc(b.set.files(), func(ino dsm.Ino) bool { return len(b.Has(ino, node)) == 0 })
}

// Resume gives an owner the locks of a file that it had before the daemon of this node was killed. Whatever conflicts with one of them is not
// on the list by right: two requests of one owner came at the same time. Of two owners here the later one keeps its lock. If it fails the locks of the file
// are lost, and its programs get to know.
func (n *Node) Resume(ctx context.Context, ino dsm.Ino, granted []Lock) error {
	for _, l := range granted {
		err := n.resume(ctx, ino, l)
		for err != nil && unled(ctx, err) && !n.wasDropped(ino) {
			if err := n.settled(ctx, ino); err != nil {
				break
			}
			err = n.resume(ctx, ino, l)
		}
		if err != nil {
			n.Lost(ino, l.Owner)
			return err
		}
		n.mu.Lock()
		if n.mu.resuming {
			n.mu.resumed[l.Owner] = append(n.mu.resumed[l.Owner], resumed{ino, l})
		}
		n.mu.Unlock()
	}
	return nil
}

// resume gives an owner a lock again, if there is a leader.
func (n *Node) resume(ctx context.Context, ino dsm.Ino, l Lock) error {
	for {
		err := n.Set(ctx, ino, l, false, nil)
		if !errs.Is(err, errs.WouldBlock) {
			return err
		}
		in, blocked, err := n.Test(ctx, ino, l)
		if err == nil && blocked && in.Owner.Node != n.cfg.Self {
			return errs.E(errs.Busy, "lock", "node %s has one that conflicts", in.Owner.Node)
		}
		if err == nil && blocked {
			err = n.Set(ctx, ino, Lock{Owner: in.Owner, First: in.First, Last: in.Last}, false, nil)
		}
		if err != nil {
			return err
		}
	}
}

// unled reports whether a command may have failed because there was no leader.
func unled(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (errs.Is(err, errs.Timeout) || errs.Is(err, errs.Unavailable))
}

// settled waits a moment, and until nothing can come any more of requests that were given up: of a command that failed nobody knows whether it is done.
func (n *Node) settled(ctx context.Context, ino dsm.Ino) error {
	for {
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return ctx.Err()
		}
		n.mu.Lock()
		left := false
		for _, w := range n.mu.asked {
			left = left || w.ino == ino && w.abandoned
		}
		n.mu.Unlock()
		if !left {
			return nil
		}
	}
}

// resumed is a lock that Resume has given to its owner.
type resumed struct {
	ino dsm.Ino
	Lock
}

// Lost says, before Resumed, that an owner had locks of the file which the cluster has given up. All others here lose theirs as well: they could not
// give them up.
func (n *Node) Lost(ino dsm.Ino, o Owner) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.fileLocked(ino)
	f.owners[o] = true
	f.dropped = true
	delete(n.mu.local.tables, ino)
	for o, all := range n.mu.resumed {
		n.mu.resumed[o] = slices.DeleteFunc(all, func(r resumed) bool { return r.ino == ino })
	}
}

// keepsLocked reports whether a lock that was granted, though its request has failed, is not to be given up at once: Resume asks for it again.
func (n *Node) keepsLocked(ino dsm.Ino) bool {
	f := n.mu.files[ino]
	return n.mu.resuming && (f == nil || !f.dropped)
}

// Resumed says that programs have the locks again that they had. If it fails, what they do not have any more stays locked.
func (n *Node) Resumed(ctx context.Context) error {
	err := n.releaseSurplus(ctx)
	for err != nil && unled(ctx, err) {
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
		}
		err = n.releaseSurplus(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.resuming, n.mu.resumed = false, nil
	for _, ino := range n.cfg.Cluster.DelegatedLocks() {
		st := n.cfg.Cluster.LockStanding(ino)
		if f := n.mu.files[ino]; f != nil && f.delegated && f.term == st.Term && st.Recalled {
			n.surrenderLocked(ino)
		}
	}
	return err
}

// askPause is how long Resume and Resumed wait before they ask again.
const askPause = 50 * time.Millisecond

// releaseSurplus gives up what the book has of the node's locks, and no program has.
func (n *Node) releaseSurplus(ctx context.Context) error {
	for _, ino := range n.cfg.Cluster.LockedFiles() {
		for _, h := range n.cfg.Cluster.GrantedLocks(ino) {
			for _, l := range n.surplus(ino, h) {
				l.Type = Unlock
				if _, _, err := n.ask(ctx, ino, Request{Lock: l}, true, func() {}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// surplus returns what the book has of a lock, and Resume has not given to its owner.
func (n *Node) surplus(ino dsm.Ino, h Lock) []Lock {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := table{granted: []Lock{h}}
	for _, l := range n.mu.resumed[h.Owner] {
		if l.ino == ino {
			l.Type = Unlock
			t.place(l.Lock)
		}
	}
	return t.granted
}
