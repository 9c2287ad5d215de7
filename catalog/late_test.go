package catalog

import (
	"context"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// delayed is the Caller of a node whose commands of one kind come to the leader much later, if at all.
type delayed struct {
	Caller
	kind opKind

	mu   sync.Mutex
	late []*wire.Propose
	seen chan struct{} // a command was delayed
}

func (d *delayed) Tell(ctx context.Context, addr string, req any) (<-chan error, func()) {
	p, is := req.(*wire.Propose)
	cmd := command{}
	if is {
		cmd, _ = decodeEnvelope(p.Command)
	}
	if cmd.Kind != d.kind {
		return d.Caller.Tell(ctx, addr, req)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.late = append(d.late, p)
	if len(d.late) == 1 {
		close(d.seen)
	}
	return make(chan error), func() {}
}

// TestWhatIsGivenUpIsNotLate: a command that a node has given up does not happen after a later one that it must not follow. The request of a lock would be
// granted that has been cancelled, and a file would be held that was closed, or not held that is open.
func TestWhatIsGivenUpIsNotLate(t *testing.T) {
	for _, x := range []struct {
		name  string
		kind  opKind
		late  func(ctx context.Context, n *node, ino dsm.Ino) error
		after func(n *node, ino dsm.Ino) error
		held  bool // by the node, in the end
	}{
		{"a lock", kindAskLock, func(ctx context.Context, n *node, ino dsm.Ino) error {
			l := locks.Lock{Owner: locks.Owner{Node: n.self.ID, ID: 1}, Type: locks.Write, First: 20, Last: 29}
			return n.AskLock(ctx, ino, locks.Request{Lock: l, Ticket: 5})
		}, func(n *node, ino dsm.Ino) error { return n.CancelLock(patient(t), ino, 5) }, true},
		{"a hold", kindClaim, func(ctx context.Context, n *node, ino dsm.Ino) error {
			_, err := n.Claim(ctx, ino, false)
			return err
		}, func(n *node, ino dsm.Ino) error { return n.Unclaim(patient(t), ino) }, false},
		{"the end of a hold", kindUnclaim, func(ctx context.Context, n *node, ino dsm.Ino) error { return n.Unclaim(ctx, ino) },
			func(n *node, ino dsm.Ino) error {
				_, err := n.Claim(patient(t), ino, false)
				return err
			}, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			lead := start(t, "b")
			ok(t, lead.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
			n, _ := startNewHeld(t)
			ok(t, n.Join(patient(t), lead.self.Addr))
			settle(t, []*node{lead, n})
			made, err := lead.Create(patient(t), dsm.RootIno, "f", file, true)
			ok(t, err)
			_, err = n.Claim(patient(t), made.Ino, false)
			ok(t, err)
			// The locks are with the book.
			l := locks.Lock{Owner: locks.Owner{Node: lead.self.ID, ID: 1}, Type: locks.Write, Last: 9}
			ok(t, n.AskLock(patient(t), made.Ino, request(n.self.ID, locks.Write, locks.Try, 1)))
			ok(t, lead.SurrenderLocks(patient(t), made.Ino, lead.LockStanding(made.Ino).Term, []locks.Lock{l}, nil))

			via := &delayed{Caller: n.net, kind: x.kind, seen: make(chan struct{})}
			n.via.use(via)
			ctx, cancel := context.WithCancel(patient(t))
			failed := make(chan error, 1)
			go func() { failed <- x.late(ctx, n, made.Ino) }()
			<-via.seen
			cancel()
			if err := <-failed; err == nil {
				t.Fatal("it was not given up")
			}
			n.via.use(n.net)
			ok(t, x.after(n, made.Ino))
			for _, p := range via.late {
				if _, err := lead.OnCall(patient(t), n.self.ID, p); err != nil {
					t.Fatal(err)
				}
			}
			ok(t, lead.Unclaim(patient(t), 12345)) // all is applied now
			lead.mu.RLock()
			defer lead.mu.RUnlock()
			if got := lead.mu.state.book.Has(made.Ino, n.self.ID); len(got) > 0 {
				t.Errorf("locks of nobody: %+v", got)
			}
			if _, held := lead.mu.state.inodes[made.Ino].claims[n.self.ID]; held != x.held {
				t.Errorf("the node holds the file: %v, want %v", held, x.held)
			}
		})
	}
}
