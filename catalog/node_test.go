package catalog

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestEveryNodeSeesAll makes every kind of call on one node and looks on the
// others.
func TestEveryNodeSeesAll(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	for i, n := range nodes {
		other := nodes[(i+1)%3]
		dir, err := n.Create(ctx, dsm.RootIno, fmt.Sprint("d", i), dsm.Inode{Kind: dsm.KindDir, Perm: 0o755}, false)
		ok(t, err)
		made, err := n.Create(ctx, dir.Ino, "f", file, true)
		ok(t, err)
		got, err := other.Lookup(ctx, dir.Ino, "f")
		ok(t, err)
		if got != made {
			t.Errorf("looked up %+v, created %+v", got, made)
		}
		grown, err := other.SetAttr(ctx, made.Ino, dsm.SetAttr{Size: ptr(int64(100))})
		ok(t, err)
		typed, err := other.SetSpec(ctx, made.Ino, "merge", "sum")
		ok(t, err)
		if got, ok := other.Area(made.Area()); !ok || got != typed {
			t.Errorf("area %+v after %+v", got, typed)
		}
		ok(t, n.WaitApplied(ctx, grown.Rev, n.Current().Epoch))
		if got, ok := n.Area(made.Area()); !ok || got.Size != 100 {
			t.Errorf("area %+v after revision %d", got, grown.Rev)
		}
		ok(t, n.SetXattr(ctx, made.Ino, "user.a", []byte("1"), dsm.XattrSet))
		value, err := other.GetXattr(ctx, made.Ino, "user.a")
		ok(t, err)
		names, err := other.ListXattr(ctx, made.Ino)
		ok(t, err)
		if string(value) != "1" || len(names) != 1 || names[0] != "user.a" {
			t.Errorf("xattrs %q = %q", names, value)
		}
		ok(t, other.RemoveXattr(ctx, made.Ino, "user.a"))
		if _, err := n.GetXattr(ctx, made.Ino, "user.a"); !errs.Is(err, errs.NoAttr) {
			t.Error(err)
		}
		ok(t, n.SetLayout(ctx, made.Area(), dsm.Layout{DType: dsm.DTypeF32, DataOffset: 80}))
		ok(t, other.Rename(ctx, dir.Ino, "f", dsm.RootIno, fmt.Sprint("g", i), dsm.RenameNoReplace, 0))
		if list, err := n.ReadDir(ctx, dir.Ino); err != nil || len(list) != 0 {
			t.Errorf("list %v, %v", list, err)
		}
		reserved, budget, inodes, err := other.Usage(ctx)
		ok(t, err)
		const most = (2 << 30) * 3 / 7 // each of three nodes keeps two copies of all, and a third of it as a backup
		if reserved <= 2*dsm.PageSize || reserved > 4*dsm.PageSize || budget != most || inodes != uint64(3) {
			t.Errorf("usage %d of %d, %d inodes", reserved, budget, inodes)
		}
		ok(t, other.Unlink(ctx, dsm.RootIno, fmt.Sprint("g", i)))
		ok(t, other.Rmdir(ctx, dsm.RootIno, fmt.Sprint("d", i), 0))
		if _, err := other.Claim(ctx, made.Ino, false); err != nil {
			t.Errorf("claim of what is claimed elsewhere: %v", err)
		}
		ok(t, n.Unclaim(ctx, made.Ino))
		ok(t, other.Unclaim(ctx, made.Ino))
		if _, err := n.Getattr(ctx, made.Ino); !errs.Is(err, errs.NotExist) {
			t.Error(err)
		}
		if err := n.Unlink(ctx, dsm.RootIno, "none"); !errs.Is(err, errs.NotExist) || !strings.HasPrefix(err.Error(), `unlink: "none"`) {
			t.Errorf("the error says %q", err)
		}
		n.observer.mu.Lock()
		if r := n.observer.removed; len(r) == 0 || r[len(r)-1] != made.Ino {
			t.Errorf("node %d was told that %v are gone, not %d", i, r, made.Ino)
		}
		n.observer.mu.Unlock()
	}
	same(t, nodes)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stubborn is a Caller whose proposals arrive twice, and then often seem to have failed.
type stubborn struct {
	Caller
	calls atomic.Int64
}

func (s *stubborn) Tell(ctx context.Context, addr string, req any) (<-chan error, func()) {
	_, forget := s.Caller.Tell(ctx, addr, req)
	forget()
	failed, forget := s.Caller.Tell(ctx, addr, req)
	if s.calls.Add(1)%2 != 0 {
		return failed, forget
	}
	forget()
	broken := make(chan error, 1)
	broken <- errs.E(errs.Unavailable, "call", "the connection broke")
	return broken, func() {}
}

func TestCommandsThatArriveTwiceHappenOnce(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	ctx := patient(t)
	for _, n := range nodes {
		if n == lead {
			continue
		}
		n.via.use(&stubborn{Caller: n.net})
		for i := range 50 {
			name := fmt.Sprint(n.self.Name, i)
			_, err := n.Create(ctx, dsm.RootIno, name, file, false)
			ok(t, err)
			ok(t, n.Rename(ctx, dsm.RootIno, name, dsm.RootIno, name+"x", dsm.RenameReplace, 0))
			ok(t, n.Unlink(ctx, dsm.RootIno, name+"x"))
		}
	}
	same(t, nodes)
}

// TestLogIsBounded makes changes until the log has been compacted some times: it does not have all of them, and a node that
// comes later gets a snapshot.
func TestLogIsBounded(t *testing.T) {
	n := cluster(t, 1)[0]
	ctx := patient(t)
	const writers = 20
	var tasks sync.WaitGroup
	var longest, changes atomic.Int64
	var begins atomic.Uint64 // the log's first entry
	for w := range writers {
		tasks.Go(func() {
			in, err := n.Create(ctx, dsm.RootIno, fmt.Sprint(w), file, false)
			if err != nil {
				t.Error(err)
				return
			}
			for i := 0; begins.Load() < 3*snapshotEvery; i++ {
				if _, err := n.SetAttr(ctx, in.Ino, dsm.SetAttr{Size: ptr(int64(i))}); err != nil {
					t.Error(err)
					return
				}
				first, _ := n.logs.FirstIndex()
				last, _ := n.logs.LastIndex()
				changes.Add(1)
				longest.Store(max(longest.Load(), int64(last-first)))
				begins.Store(first)
			}
		})
	}
	tasks.Wait()
	t.Logf("the log of %d changes had at most %d entries", changes.Load(), longest.Load())
	if longest.Load() >= changes.Load() {
		t.Error("it was never compacted")
	}
	ok(t, n.raft.Snapshot().Error())
	first, _ := n.logs.FirstIndex()
	last, _ := n.logs.LastIndex()
	if last-first > trailingLogs {
		t.Errorf("after a snapshot the log has %d entries", last-first)
	}
	late := start(t, "late")
	ok(t, late.Join(ctx, n.self.Addr))
	settle(t, []*node{n, late})
	late.observer.mu.Lock()
	resets := late.observer.resets
	late.observer.mu.Unlock()
	if resets == 0 {
		t.Error("the late node was not told that its state was replaced")
	}
	same(t, []*node{n, late})
}

func TestWithoutMajority(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	for _, n := range nodes {
		if n != lead {
			n.stop()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := lead.Create(ctx, dsm.RootIno, "f", file, false); !errs.Is(err, errs.Timeout) {
		t.Errorf("create without a majority: %v", err)
	}
	if _, err := lead.Getattr(ctx, dsm.RootIno); !errs.Is(err, errs.Timeout) {
		t.Errorf("getattr without a majority: %v", err)
	}
	go lead.stop()
	if _, err := lead.Getattr(patient(t), dsm.RootIno); !errs.Is(err, errs.Closed) {
		t.Errorf("getattr while closing: %v", err)
	}
	if _, err := lead.Create(patient(t), dsm.RootIno, "f", file, false); !errs.Is(err, errs.Closed) {
		t.Errorf("create after closing: %v", err)
	}
}
