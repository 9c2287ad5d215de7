package catalog

import (
	"context"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestAbandon: the number of a command that was not applied is used up, and what one that was has made is kept until it is decided.
func TestAbandon(t *testing.T) {
	m := newMachine(t)
	create := func(name string) createOp {
		return createOp{Dir: dsm.RootIno, Name: name, Kind: dsm.KindFile, Claim: true}
	}
	before, never := command{Node: nodeA, Req: 100, Low: 100}, command{Node: nodeA, Req: 101, Low: 100}
	made, err := m.send(before, create("before"))
	ok(t, err)
	_, err = m.send(command{Node: nodeA, Req: 102, Low: 100}, abandonOp{[]uint64{100, 101}})
	ok(t, err)
	if _, err := m.send(never, create("never")); !errs.Is(err, errs.Timeout) {
		t.Errorf("a command that was abandoned: %v", err)
	}
	if in, err := m.send(before, create("before")); err != nil || in.Ino != made.Ino {
		t.Errorf("a command that was applied before it was abandoned: %+v, %v", in, err)
	}
	_, err = m.send(command{Node: nodeA, Req: 103, Low: 103}, abandonOp{[]uint64{1}}) // out of order
	ok(t, err)
	if n := len(m.sessions[nodeA].results); n != 1 {
		t.Errorf("%d results are kept", n)
	}
}

// slowPost is a Caller that keeps proposals back.
type slowPost struct {
	Caller
	mu   sync.Mutex
	kept []func()
	told chan struct{}
}

func (s *slowPost) Tell(_ context.Context, addr string, req any) (<-chan error, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, func() {
		_, forget := s.Caller.Tell(context.Background(), addr, req)
		forget()
	})
	select {
	case s.told <- struct{}{}:
	default:
	}
	return make(chan error), func() {}
}

// TestNewFileOfNobody: a file that was made when nobody waited for it any more is not claimed, whether its command arrives before or
// after its number was taken.
func TestNewFileOfNobody(t *testing.T) {
	nodes := cluster(t, 3)
	leader := leaderOf(t, nodes)
	for _, late := range []bool{false, true} {
		for _, n := range nodes {
			if n == leader {
				continue
			}
			post := &slowPost{Caller: n.net, told: make(chan struct{}, 1)}
			n.via.use(post)
			ctx, cancel := context.WithCancel(patient(t))
			go func() {
				<-post.told
				cancel()
			}()
			if _, err := n.CreateTemp(ctx, dsm.RootIno, dsm.Inode{Perm: 0o600, Size: 4096}); err == nil {
				t.Fatal("made though nobody was asked")
			}
			deliver := func() {
				post.mu.Lock()
				defer post.mu.Unlock()
				for _, f := range post.kept {
					f()
				}
				post.kept = nil
			}
			if !late {
				deliver()
			}
			n.via.use(n.net)
			ctx = patient(t)
			n.decided(ctx, t)
			if late {
				deliver()
			}
			ok(t, n.Mkdir(ctx, "then"))
			ok(t, n.Rmdir(ctx, dsm.RootIno, "then", 0))
			n.nothingClaimed(ctx, t)
		}
	}
}

func (n *node) Mkdir(ctx context.Context, name string) error {
	_, err := n.Create(ctx, dsm.RootIno, name, dsm.Inode{Kind: dsm.KindDir, Perm: 0o755}, false)
	return err
}

// decided waits until nothing of this node is abandoned.
func (n *node) decided(ctx context.Context, t *testing.T) {
	t.Helper()
	err := n.until(ctx, func() bool {
		n.calls.mu.Lock()
		defer n.calls.mu.Unlock()
		return len(n.calls.mu.waiting) == 0
	})
	ok(t, err)
}

// nothingClaimed waits until the node claims nothing.
func (n *node) nothingClaimed(ctx context.Context, t *testing.T) {
	t.Helper()
	var claimed []dsm.Ino
	err := n.until(ctx, func() bool {
		n.mu.RLock()
		defer n.mu.RUnlock()
		claimed = nil
		for ino, in := range n.mu.state.inodes {
			if _, claims := in.claims[n.self.ID]; claims {
				claimed = append(claimed, ino)
			}
		}
		return len(claimed) == 0
	})
	if err != nil {
		t.Errorf("node claims %v", claimed)
	}
}

// until returns when cond, which commands of this node or others change.
func (n *node) until(ctx context.Context, cond func() bool) error {
	for !cond() {
		if err := n.ShowLife(ctx); err != nil {
			return err
		}
	}
	return nil
}
