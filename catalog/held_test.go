package catalog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// startNewHeld starts the first daemon of a node.
func startNewHeld(t *testing.T) (*node, *hold.Memory) {
	t.Helper()
	m, err := hold.Create()
	ok(t, err)
	return startHeld(t, "a", "127.0.0.1:0", 7, m), m
}

// succeed starts the daemon that comes after the one that had the memory. It has not resumed.
func succeed(t *testing.T, n *node, m *hold.Memory) (*node, *hold.Memory) {
	t.Helper()
	n.stop()
	fd, err := unix.Dup(m.FD())
	ok(t, err)
	next, err := hold.Adopt(fd)
	ok(t, err)
	return startHeld(t, "a", n.self.Addr, n.self.ID, next), next
}

// follow is succeed, and the daemon resumes.
func follow(t *testing.T, n *node, m *hold.Memory) (*node, *hold.Memory) {
	t.Helper()
	f, next := succeed(t, n, m)
	alone, err := f.Resume(patient(t), nil)
	ok(t, err)
	if others := len(f.Current().Members) - 1; alone != (others == 0) {
		t.Errorf("alone: %t, with %d others", alone, others)
	}
	return f, next
}

// TestHeldCatalogGoesOn has daemons follow each other. The second one takes over after a snapshot.
func TestHeldCatalogGoesOn(t *testing.T) {
	n, m := startNewHeld(t)
	ok(t, n.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	cluster := n.Current().Cluster
	of := func(unique uint64) context.Context { return context.WithValue(patient(t), hold.RequestKey{}, unique) }
	count := 0
	for i, entries := range []int{10, snapshotEvery + trailingLogs, 10} {
		for range entries {
			_, err := n.Create(patient(t), dsm.RootIno, fmt.Sprint("f", count), file, false)
			ok(t, err)
			ok(t, n.Unlink(patient(t), dsm.RootIno, fmt.Sprint("f", count)))
			count++
		}
		name := fmt.Sprint("kept", i)
		made, err := n.Create(of(uint64(100+i)), dsm.RootIno, name, file, true)
		ok(t, err)
		ok(t, n.Rename(of(uint64(200+i)), dsm.RootIno, name, dsm.RootIno, "moved "+name, dsm.RenameReplace, 0))
		var dirs []dsm.Ino
		for _, name := range []string{"removed", "replaced", "replaces"} {
			d, err := n.Create(patient(t), dsm.RootIno, name, dsm.Inode{Kind: dsm.KindDir, Perm: 0o755}, false)
			ok(t, err)
			dirs = append(dirs, d.Ino)
		}
		rmdir, rename := of(uint64(400+i)), of(uint64(500+i))
		if err := n.Rmdir(rmdir, dsm.RootIno, "removed", made.Ino); !errs.Is(err, errs.Replaced) {
			t.Errorf("another directory: %v", err)
		}
		ok(t, n.Rmdir(rmdir, dsm.RootIno, "removed", dirs[0]))
		ok(t, n.Rename(rename, dsm.RootIno, "replaces", dsm.RootIno, "replaced", dsm.RenameReplace, dirs[1]))

		n, m = follow(t, n, m)
		// The next daemon does not know which directories the kernel meant.
		ok(t, n.Rmdir(rmdir, dsm.RootIno, "removed", 0))
		ok(t, n.Rename(rename, dsm.RootIno, "replaces", dsm.RootIno, "replaced", dsm.RenameReplace, 0))
		ok(t, n.Rmdir(patient(t), dsm.RootIno, "replaced", dirs[2]))
		if c := n.Current().Cluster; c != cluster {
			t.Fatalf("cluster %v, was %v", c, cluster)
		}
		if got := n.Claimed(); len(got) != i+1 || got[i] != made.Ino {
			t.Errorf("%v are claimed, want %d of which the last is %v", got, i+1, made.Ino)
		}
		ok(t, n.Rename(of(uint64(200+i)), dsm.RootIno, name, dsm.RootIno, "moved "+name, dsm.RenameReplace, 0))
		if again, err := n.Create(of(uint64(100+i)), dsm.RootIno, name, file, true); err != nil || again.Ino != made.Ino {
			t.Errorf("the same request made %v, %v; before it made %v", again.Ino, err, made.Ino)
		}
		if err := n.Rename(of(uint64(300+i)), dsm.RootIno, name, dsm.RootIno, "x", dsm.RenameReplace, 0); !errs.Is(err, errs.NotExist) {
			t.Errorf("another request: %v", err)
		}
		for k := range i + 1 {
			_, err := n.Lookup(patient(t), dsm.RootIno, fmt.Sprint("moved kept", k))
			ok(t, err)
		}
	}
}

// TestKilledWhenACommandWasNoted: the daemon is killed before it counts the number of a command that it has noted. The next one gives the number to no other command.
func TestKilledWhenACommandWasNoted(t *testing.T) {
	n, m := startNewHeld(t)
	ok(t, n.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	_, err := n.Create(context.WithValue(patient(t), hold.RequestKey{}, uint64(100)), dsm.RootIno, "f", file, false)
	ok(t, err)
	n.stop()
	last := m.Word(hold.LastRequest).Load()
	for of := range m.Noted() { // as if the file had been asked for, but not proposed
		of.Unique = 200
		m.Note(of, last+1)
	}
	n, _ = follow(t, n, m)
	again := context.WithValue(patient(t), hold.RequestKey{}, uint64(200))
	if _, err := n.Create(again, dsm.RootIno, "f", file, false); !errs.Is(err, errs.Exist) {
		t.Errorf("a name that is there is made: %v", err)
	}
}

// TestHeldMemberComesBack: a daemon follows that of a member, which leads or does not, in clusters of two and of three. The node stays a member and keeps its locks, and
// others have what it was the home of.
func TestHeldMemberComesBack(t *testing.T) {
	for _, c := range []struct {
		others int
		first  bool // the node has made the cluster, and leads it
	}{{1, true}, {1, false}, {2, true}, {2, false}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			n, m := startNewHeld(t)
			nodes := []*node{n}
			for i := range c.others {
				nodes = append(nodes, start(t, fmt.Sprint("b", i)))
			}
			if !c.first {
				nodes[0], nodes[1] = nodes[1], nodes[0]
			}
			ok(t, nodes[0].Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
			for _, o := range nodes[1:] {
				ok(t, o.Join(patient(t), nodes[0].self.Addr))
			}
			settle(t, nodes)
			made := lockedFile(t, n)
			before := n.LockStanding(made.Ino)
			inSync(t, nodes)
			for range 3 {
				n, m = follow(t, n, m)
				for i := range nodes {
					if nodes[i].self.ID == n.self.ID {
						nodes[i] = n
					}
				}
				is, member := n.Current().Member(7)
				if !member || is.Gone || is.Since == 0 || is.Inc != 0 {
					t.Fatalf("back as %+v", is)
				}
				after := n.LockStanding(made.Ino)
				if before.Term >= after.Term {
					t.Errorf("locks: term %d after %d", after.Term, before.Term)
				}
				if before.Term = after.Term; after != before {
					t.Errorf("locks: %+v, were %+v", after, before)
				}
				if got := n.Claimed(); len(got) != 1 {
					t.Errorf("%v are claimed", got)
				}
				row := n.Current().Row(n.Current().SlotOf(made.Area(), made.Spec, 0))
				if row.Primary == 7 && row.Epoch < is.Since { // it may have been given the slot again
					t.Errorf("the node, which is back since %d, is still the home: %+v", is.Since, row)
				}
				settle(t, nodes)
				inSync(t, nodes)
				same(t, nodes)
			}
		})
	}
}

// lockedFile makes a file with bytes in it, which the held node has open and locked.
func lockedFile(t *testing.T, n *node) dsm.Inode {
	t.Helper()
	made, err := n.Create(patient(t), dsm.RootIno, "f", file, true)
	ok(t, err)
	_, err = n.SetAttr(patient(t), made.Ino, dsm.SetAttr{Size: ptr(int64(5))})
	ok(t, err)
	l := locks.Lock{Owner: locks.Owner{Node: 7, ID: 3}, Type: locks.Write, Last: locks.End}
	ok(t, n.AskLock(patient(t), made.Ino, locks.Request{Ticket: 1, Lock: l}))
	return made
}

// inSync waits until all slots have a backup in sync that are to have one.
func inSync(t *testing.T, nodes []*node) {
	t.Helper()
	for _, n := range nodes {
		ok(t, n.news.until(patient(t), n.life, func() bool {
			for slot, row := range n.Current().Rows() {
				if b := row.Backups[0]; dsm.CopiesOf(slot) > 1 && (row.Source != 0 || !b.InSync || b.Former) {
					return false
				}
			}
			return true
		}))
	}
}

// forget has the cluster take a node for dead, and returns when the leader sends it nothing any more.
func forget(t *testing.T, leader, dead *node) {
	t.Helper()
	_, err := leader.propose(patient(t), goneOp{Node: dead.self.ID})
	ok(t, err)
	ok(t, leader.news.until(patient(t), leader.life, func() bool { return !leader.replicates(func(s server) bool { return s.id == dead.self.ID }) }))
}

// startHeldPair starts a cluster of two, of which the first may be followed by another daemon.
func startHeldPair(t *testing.T) (n *node, m *hold.Memory, other *node) {
	t.Helper()
	n, m = startNewHeld(t)
	other = start(t, "b")
	ok(t, n.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	ok(t, other.Join(patient(t), n.self.Addr))
	settle(t, []*node{n, other})
	return n, m, other
}

// TestNobodyElseHasIt: a node that alone has bytes of a file does not come back without them.
func TestNobodyElseHasIt(t *testing.T) {
	n, m := startNewHeld(t)
	other := start(t, "b")
	ok(t, other.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	ok(t, n.Join(patient(t), other.self.Addr))
	settle(t, []*node{n, other})
	var here []dsm.Slot
	for slot, row := range n.Current().Rows() {
		if row.Primary == n.self.ID {
			here = append(here, slot)
		}
	}
	ok(t, n.SlotsReady(patient(t), here, n.Current().Epoch))
	for i := range 200 { // some of them live at the node
		in, err := n.Create(patient(t), dsm.RootIno, fmt.Sprint("f", i), file, false, dsm.Setting{Key: "replicas", Value: "1"})
		ok(t, err)
		_, err = n.SetAttr(patient(t), in.Ino, dsm.SetAttr{Size: ptr(int64(5))})
		ok(t, err)
	}
	f, _ := succeed(t, n, m)
	if _, err := f.Resume(patient(t), nil); !errs.Is(err, errs.Busy) {
		t.Errorf("back without what it had: %v", err)
	}
}

// TestEvictedBeforeTheNextDaemon: the cluster has taken a node for dead, and sends it nothing any more, when another daemon follows. It hears of that.
func TestEvictedBeforeTheNextDaemon(t *testing.T) {
	n, m := startNewHeld(t)
	first, nodes := start(t, "b"), []*node(nil)
	ok(t, first.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	for i := range 2 {
		o := start(t, fmt.Sprint("c", i))
		ok(t, o.Join(patient(t), first.self.Addr))
		nodes = append(nodes, o)
	}
	settle(t, append(nodes, first))
	ok(t, n.Join(patient(t), first.self.Addr)) // it does not vote, so it asks nobody for a vote either
	settle(t, append(nodes, first, n))
	n.stop()
	forget(t, first, n)
	<-time.After(2 * followPatience) // raft may be about to send the last entries
	f, _ := succeed(t, n, m)
	ctx, cancel := context.WithTimeout(t.Context(), patience/3)
	defer cancel()
	if _, err := f.Resume(ctx, nil); !errs.Is(err, errs.Evicted) {
		t.Errorf("resumed: %v", err)
	}
}

// TestEvictedBeforeItIsBack: the cluster takes a node for dead once more, which has just joined again and is about to say that it is back.
func TestEvictedBeforeItIsBack(t *testing.T) {
	n, _ := startNewHeld(t)
	other := start(t, "b")
	ok(t, other.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	ok(t, n.Join(patient(t), other.self.Addr))
	settle(t, []*node{other, n})
	forget(t, other, n)
	ctx, cancel := context.WithTimeout(t.Context(), patience/3)
	defer cancel()
	if err := n.Back(ctx, nil); !errs.Is(err, errs.Evicted) {
		t.Errorf("back: %v", err)
	}
}

// TestRequestsOverAnEviction: requests of the kernel come again when the node was evicted, and has joined again. What they had done is not done once more, and what they had made is claimed.
func TestRequestsOverAnEviction(t *testing.T) {
	n, m := startNewHeld(t)
	first, second := start(t, "b"), start(t, "c")
	ok(t, first.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	ok(t, second.Join(patient(t), first.self.Addr))
	settle(t, []*node{first, second})
	ok(t, n.Join(patient(t), first.self.Addr))
	settle(t, []*node{first, second, n})
	appended, err := first.Create(patient(t), dsm.RootIno, "appended", file, false)
	ok(t, err)
	of := func(unique uint64) context.Context { return context.WithValue(patient(t), hold.RequestKey{}, unique) }
	grows := func() dsm.Inode {
		in, err := n.SetAttr(of(1), appended.Ino, dsm.SetAttr{GrowBy: ptr(int64(10))})
		ok(t, err)
		return in
	}
	makes := func(unique uint64, name string) dsm.Inode {
		in, err := n.Create(of(unique), dsm.RootIno, name, file, true)
		ok(t, err)
		return in
	}
	temp := func() dsm.Inode {
		in, err := n.CreateTemp(of(4), dsm.RootIno, file)
		ok(t, err)
		return in
	}
	grows()
	made, removed, unnamed := makes(2, "made"), makes(3, "removed"), temp()
	inSync(t, []*node{first, second, n})
	n.stop()
	forget(t, first, n)
	ok(t, first.Unlink(patient(t), dsm.RootIno, "removed"))
	inSync(t, []*node{first, second})
	ok(t, m.Catalog().Rewrite(nil))
	m.Word(hold.Inc).Store(1)
	n, _ = succeed(t, n, m)
	ok(t, n.Join(patient(t), first.self.Addr))
	ok(t, n.Back(patient(t), nil))
	if in := grows(); in.Size != 10 {
		t.Errorf("an append has two places: the size is %d", in.Size)
	}
	if again := makes(2, "made"); again.Ino != made.Ino {
		t.Errorf("file %v was made, and then %v", made.Ino, again.Ino)
	}
	if again := makes(3, "removed"); again.Ino == removed.Ino {
		t.Error("a file is opened that was removed")
	}
	if again := temp(); again.Ino == unnamed.Ino {
		t.Error("a file without a name is opened that nobody claimed")
	}
	if got := n.Claimed(); len(got) != 3 || got[0] != made.Ino {
		t.Errorf("claimed: %v", got)
	}
}

// refusing is Streams to a node whose port is closed.
type refusing struct {
	Streams
	dials int
}

func (*refusing) Open() {}

func (r *refusing) Dial(string, time.Duration) (net.Conn, error) {
	r.dials++
	return nil, syscall.ECONNREFUSED
}

// TestRefusedConnectionIsTriedAgain if another daemon may follow; otherwise raft knows better when.
func TestRefusedConnectionIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, held := range []bool{false, true} {
			r := new(refusing)
			began := time.Now()
			_, err := newLayer(r, dsm.Member{ID: 1}, func(id dsm.NodeID) bool { return held && id == 2 }).Dial(server{id: 2, addr: "b:1"}.raftAddress(), rpcTimeout)
			if took := time.Since(began); !errors.Is(err, syscall.ECONNREFUSED) || r.dials > 1 != held || took > 0 != held || took > 2*followPatience {
				t.Errorf("held %t: %d times in %v: %v", held, r.dials, took, err)
			}
		}
	})
}

// refusalsSeen is a Caller that counts the connections which are refused.
type refusalsSeen struct {
	Caller
	seen chan struct{}
}

func (r *refusalsSeen) Call(ctx context.Context, addr string, req any) (any, error) {
	reply, err := r.Caller.Call(ctx, addr, req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		select {
		case r.seen <- struct{}{}:
		default:
		}
	}
	return reply, err
}

// awaitGone waits until a node knows that another is no member any more.
func awaitGone(t *testing.T, n, left *node) {
	t.Helper()
	ok(t, n.news.until(patient(t), n.life, func() bool {
		_, member := n.Current().Member(left.self.ID)
		return !member
	}))
}

// TestLeaveWhileADaemonIsAway: a node leaves while the daemon of another one is being replaced. It waits until the next one is back, which keeps what the
// node had.
func TestLeaveWhileADaemonIsAway(t *testing.T) {
	for others := 1; others <= 2; others++ {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			n, m := startNewHeld(t)
			nodes := []*node{n}
			ok(t, n.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
			for i := range others {
				o := start(t, fmt.Sprint("b", i))
				ok(t, o.Join(patient(t), n.self.Addr))
				nodes = append(nodes, o)
			}
			settle(t, nodes)
			made := lockedFile(t, n)
			inSync(t, nodes)
			n.stop()
			leaver := nodes[1]
			via := &refusalsSeen{Caller: leaver.net, seen: make(chan struct{})}
			leaver.via.use(via)
			left := make(chan error, 1)
			go func() { left <- leaver.Leave(patient(t)) }()
			for range 5 {
				<-via.seen
			}
			next, _ := follow(t, n, m)
			ok(t, <-left)
			if is, member := next.Current().Member(7); !member || is.Gone {
				t.Errorf("it is %+v", is)
			}
			awaitGone(t, next, leaver)
			if got := next.LockStanding(made.Ino); got.Term == 0 && len(next.LockedFiles()) == 0 {
				t.Errorf("no lock is left: %+v", got)
			}
		})
	}
}

// said is a Caller of which probes have these answers, one after the other.
type said struct {
	Caller
	left []any // *wire.Probed, or error
}

func (s *said) Call(ctx context.Context, addr string, req any) (any, error) {
	if _, probe := req.(*wire.Probe); !probe || len(s.left) == 0 {
		return s.Caller.Call(ctx, addr, req)
	}
	next := s.left[0]
	s.left = s.left[1:]
	if err, failed := next.(error); failed {
		return nil, err
	}
	return next, nil
}

// TestAwaitFateWhileItIsAway: who waits for the next daemon of a member does so until that says that it is back: also if it begins
// to listen between two looks.
func TestAwaitFateWhileItIsAway(t *testing.T) {
	_, _, other := startHeldPair(t)
	away, refused := &wire.Probed{Away: true}, error(syscall.ECONNREFUSED)
	silent := error(errs.E(errs.Timeout, "probe", ""))
	via := &said{other.net, []any{refused, away, refused, silent, silent, silent, refused, away, away, refused, away, &wire.Probed{}}}
	other.via.use(via)
	other.awaitFate(patient(t), other.Current().Members)
	if len(via.left) > 0 {
		t.Errorf("it has not waited for the last %d answers", len(via.left))
	}
}

// unanswered is a Caller of which probes of an address have no answer, as those of a process that is stopped.
type unanswered struct {
	Caller
	addr string
}

func (u unanswered) Call(ctx context.Context, addr string, req any) (any, error) {
	if _, probe := req.(*wire.Probe); probe && strings.HasSuffix(addr, u.addr) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return u.Caller.Call(ctx, addr, req)
}

// TestLeaveWhileAMemberIsStopped: a node does not wait without end for one with a holder that does not answer.
func TestLeaveWhileAMemberIsStopped(t *testing.T) {
	n, _ := startNewHeld(t)
	nodes := []*node{n, start(t, "b"), start(t, "c")}
	ok(t, n.Bootstrap(patient(t), dsm.Inode{Perm: 0o755}))
	for _, o := range nodes[1:] {
		ok(t, o.Join(patient(t), n.self.Addr))
	}
	settle(t, nodes)
	inSync(t, nodes)
	leaver := nodes[1]
	leaver.via.use(unanswered{leaver.net, n.self.Addr})
	ok(t, leaver.Leave(patient(t)))
	awaitGone(t, n, leaver)
}

// TestEndsWithDaemon: a node says that no daemon follows. All know that it is to be waited for no longer than any other; what it says for another node, or of an earlier incarnation, does not count.
func TestEndsWithDaemon(t *testing.T) {
	n, _, other := startHeldPair(t)
	if !other.isHeld(n.self.ID) {
		t.Fatal("the other node does not know that a daemon may follow")
	}
	for _, o := range []unheldOp{{n.self.ID, n.self.Inc + 1}, {n.self.ID, n.self.Inc}} {
		if _, err := other.propose(patient(t), o); !errs.Is(err, errs.Evicted) {
			t.Errorf("%+v by another node: %v", o, err)
		}
	}
	for range 2 {
		ok(t, n.EndsWithDaemon(patient(t)))
	}
	ok(t, other.news.until(patient(t), other.life, func() bool { return !other.isHeld(n.self.ID) }))
	if m, member := other.Current().Member(n.self.ID); !member || m.Gone {
		t.Errorf("it is a member no longer: %+v", m)
	}
}
