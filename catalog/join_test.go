package catalog

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// refused checks that err has the kind and says all of words.
func refused(t *testing.T, err error, k errs.Kind, words ...string) {
	t.Helper()
	if !errs.Is(err, k) {
		t.Errorf("%v, want %v", err, k)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestJoinRefused(t *testing.T) {
	nodes := cluster(t, 2)
	ctx := patient(t)
	in, err := nodes[1].Create(ctx, dsm.RootIno, "f", file, false)
	ok(t, err)
	_, err = nodes[1].SetAttr(ctx, in.Ino, dsm.SetAttr{Size: ptr(int64(1 << 20))})
	ok(t, err)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	dead := l.Addr().String()
	l.Close()
	for i, n := range nodes { // through the leader and through another
		x := start(t, fmt.Sprint("x", i))
		refused(t, x.Join(ctx, dead), errs.Unavailable, dead, "mounted", "TCP")
		refused(t, x.Join(ctx, x.self.Addr), errs.Invalid, x.self.Addr, "own address")

		x.self.Name = nodes[0].self.Name
		refused(t, x.Join(ctx, n.self.Addr), errs.Exist, nodes[0].self.Name, "--name")
		x.self.Name = "x"
		x.self.Budget = 1000
		refused(t, x.Join(ctx, n.self.Addr), errs.NoSpace, fmt.Sprint("--memory at least ", 2*1048576+dsm.FileCost), "offers 1000")
		x.self.Budget = 1 << 30
		right := x.self.Addr
		x.self.Addr = dead
		refused(t, x.Join(ctx, n.self.Addr), errs.Invalid, dead, "cannot reach")
		x.self.Addr = nodes[1-i].self.Addr
		refused(t, x.Join(ctx, n.self.Addr), errs.Exist, x.self.Addr)
		x.self.Addr = right
		_, err = x.caller.Call(ctx, n.self.Addr, &wire.Join{Protocol: 99, Member: x.self})
		refused(t, err, errs.Invalid, "99", "upgrade")

		_, err := x.caller.Call(ctx, n.self.Addr, &wire.Inquire{})
		refused(t, err, errs.Unsupported)
	}
	if v := nodes[0].Current(); len(v.Members) != 2 {
		t.Errorf("members %+v", v.Members)
	}
}

// TestJoinWithoutCluster asks a node that is in no cluster itself.
func TestJoinWithoutCluster(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	refused(t, a.Join(ctx, b.self.Addr), errs.Unavailable, b.self.Addr)
}

// TestJoinTogether has many nodes join at once, through different members.
func TestJoinTogether(t *testing.T) {
	nodes := cluster(t, 2)
	ctx := patient(t)
	var tasks sync.WaitGroup
	for i := range 4 {
		n := start(t, fmt.Sprint("x", i))
		addr := nodes[i%2].self.Addr
		nodes = append(nodes, n)
		tasks.Go(func() {
			if err := n.Join(ctx, addr); err != nil {
				t.Error(err)
			}
		})
	}
	tasks.Wait()
	settle(t, nodes)
	for _, n := range nodes {
		if s := slotsOf(n.Current(), n.self.ID); s < dsm.Slots/6-1 || s > dsm.Slots/6+1 {
			t.Errorf("%s has %d slots", n.self.Name, s)
		}
	}
	same(t, nodes)
}

// TestLeaveOneByOne takes a cluster of five apart, the leader first each time,
// while another node works.
func TestLeaveOneByOne(t *testing.T) {
	nodes := cluster(t, 5)
	ctx := patient(t)
	for len(nodes) > 1 {
		lead := leaderOf(t, nodes)
		var stay []*node
		for _, n := range nodes {
			if n != lead {
				stay = append(stay, n)
			}
		}
		done := make(chan struct{})
		var worker sync.WaitGroup
		worker.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprint(len(nodes), "-", i)
				if _, err := stay[0].Create(ctx, dsm.RootIno, name, file, false); err != nil {
					t.Errorf("while %s leaves: %v", lead.self.Name, err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
		err := lead.Leave(ctx)
		lead.stop()
		close(done)
		worker.Wait()
		ok(t, err)
		nodes = stay
		settle(t, nodes)
		same(t, nodes)
	}
	ok(t, nodes[0].Leave(ctx)) // the last one just goes
}

// TestLeaveTogether stops a whole cluster in good order.
func TestLeaveTogether(t *testing.T) {
	for _, count := range []int{2, 3} {
		nodes := cluster(t, count)
		ctx := patient(t)
		var tasks sync.WaitGroup
		for _, n := range nodes {
			tasks.Go(func() {
				if err := n.Leave(ctx); err != nil {
					t.Errorf("%s of %d: %v", n.self.Name, count, err)
				}
				n.stop()
			})
		}
		tasks.Wait()
	}
}

// TestLeaveDeserted: who is left over when the others have crashed, with the only vote, has nobody to wait for.
func TestLeaveDeserted(t *testing.T) {
	nodes := cluster(t, 2)
	lead := leaderOf(t, nodes)
	lead.stop()
	for _, n := range nodes {
		if n != lead {
			ok(t, n.Leave(patient(t)))
		}
	}
}

// TestLeaveTogetherWithoutMajority: those that are left over when a majority of the voters has died leave, if all of them do.
func TestLeaveTogetherWithoutMajority(t *testing.T) {
	nodes := cluster(t, 4)
	dead := 0
	for _, n := range nodes {
		if n.leads() != 0 {
			n.stop()
			dead++
		}
	}
	var left []*node
	for _, n := range nodes {
		m, _ := n.Current().Member(n.self.ID)
		switch {
		case n.life.Err() != nil:
		case m.Voter && dead < 2:
			n.stop()
			dead++
		default:
			left = append(left, n)
		}
	}
	failed := make(chan error, len(left))
	for _, n := range left {
		go func() { failed <- n.Leave(patient(t)) }()
	}
	for range left {
		ok(t, <-failed)
	}
}

// TestLastLeaderAnswers: the last one of a cluster has other nodes know that they have left before it goes itself.
func TestLastLeaderAnswers(t *testing.T) {
	for range 10 {
		nodes := cluster(t, 2)
		ctx := patient(t)
		lead := leaderOf(t, nodes)
		other := nodes[0]
		if other == lead {
			other = nodes[1]
		}
		_, err := lead.propose(ctx, leavingOp{other.self.ID})
		ok(t, err)
		ok(t, lead.news.until(ctx, lead.life, func() bool { return slotsOf(lead.Current(), other.self.ID) == 0 }))
		answered := make(chan error, 1)
		go func() {
			_, err := other.caller.Call(ctx, nodeAddr(lead.self.ID, lead.self.Addr), &wire.Leave{Node: other.self.ID})
			answered <- err
		}()
		ok(t, lead.news.until(ctx, lead.life, func() bool { return len(lead.Current().Members) == 1 }))
		ok(t, lead.Leave(ctx))
		if n := lead.leavers.Load(); n != 0 {
			t.Errorf("the leader goes while %d nodes wait for its answer", n)
		}
		ok(t, <-answered)
		for _, n := range nodes {
			n.stop()
		}
	}
}

// TestLeaveWaitsForMemory has a node leave, leader or not, whose part of a demand
// file there is no room for on the other: it waits until the file is removed.
func TestLeaveWaitsForMemory(t *testing.T) {
	for _, leads := range []bool{false, true} {
		nodes := cluster(t, 2)
		ctx := patient(t)
		goes, stays := nodes[0], nodes[1]
		if (leaderOf(t, nodes) == goes) != leads {
			goes, stays = stays, goes
		}
		in, err := stays.Create(ctx, dsm.RootIno, "f", file, false)
		ok(t, err)
		_, err = stays.SetSpec(ctx, in.Ino, "replicas", "1")
		ok(t, err)
		_, err = stays.SetSpec(ctx, in.Ino, "residency", "demand")
		ok(t, err)
		_, err = stays.SetAttr(ctx, in.Ino, dsm.SetAttr{Size: ptr(int64(3 << 30))})
		ok(t, err)

		short, cancel := context.WithCancel(ctx)
		gone := make(chan error, 1)
		go func() { gone <- goes.Leave(short) }()
		goes.warns(ctx, t, "waiting for memory")
		cancel()
		refused(t, <-gone, errs.NoSpace, "256 slots", "node "+stays.self.Name, fmt.Sprint("at least ", int64(3)<<30+dsm.FileCost), "offers 2147483648", "remove files or add a node")

		go func() { gone <- goes.Leave(ctx) }()
		goes.warns(ctx, t, "waiting for memory")
		ok(t, stays.Unlink(ctx, dsm.RootIno, "f"))
		ok(t, <-gone)
		goes.stop()
		settle(t, []*node{stays})
	}
}

// warns waits until the node logs a warning that begins with text.
func (n *node) warns(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	for {
		select {
		case w := <-n.warned:
			if strings.HasPrefix(w, text) {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no warning %q", text)
		}
	}
}

// TestLeaveTogetherWithoutRoom ends a cluster whose file no single node has room for.
func TestLeaveTogetherWithoutRoom(t *testing.T) {
	nodes := cluster(t, 2)
	ctx := patient(t)
	in, err := nodes[0].Create(ctx, dsm.RootIno, "f", file, false)
	ok(t, err)
	_, err = nodes[0].SetSpec(ctx, in.Ino, "replicas", "1")
	ok(t, err)
	_, err = nodes[0].SetSpec(ctx, in.Ino, "residency", "demand")
	ok(t, err)
	_, err = nodes[0].SetAttr(ctx, in.Ino, dsm.SetAttr{Size: ptr(int64(3 << 30))})
	ok(t, err)
	gone := make(chan error, 1)
	go func() {
		err := nodes[0].Leave(ctx)
		nodes[0].stop()
		gone <- err
	}()
	nodes[0].warns(ctx, t, "waiting for memory")
	ok(t, nodes[1].Leave(ctx))
	ok(t, <-gone)
}

// TestDeadVoter goes on without one of three voters, also with new members, and
// without a node that died before it got its vote.
func TestDeadVoter(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	lead := leaderOf(t, nodes)
	var alive []*node
	dead := nodes[0]
	if dead == lead {
		dead = nodes[1]
	}
	for _, n := range nodes {
		if n != dead {
			alive = append(alive, n)
		}
	}
	dead.stop()
	for i, n := range alive {
		_, err := n.Create(ctx, dsm.RootIno, fmt.Sprint(i), file, false)
		ok(t, err)
	}
	late := start(t, "late")
	ok(t, late.Join(ctx, alive[1].self.Addr))
	_, err := late.Create(ctx, dsm.RootIno, "late", file, false)
	ok(t, err)
	same(t, append(alive, late))
}

func TestDeadNodeGetsNoVote(t *testing.T) {
	nodes := cluster(t, 2)
	ctx := patient(t)
	lead, other := nodes[0], nodes[1]
	other.stop()
	late := start(t, "late")
	ok(t, late.Join(ctx, lead.self.Addr))
	for i := range 10 {
		_, err := late.Create(ctx, dsm.RootIno, fmt.Sprint(i), file, false)
		ok(t, err)
	}
	for _, m := range lead.Current().Members {
		if m.Voter != (m.ID == lead.self.ID) {
			t.Errorf("voter: %+v", m)
		}
	}
}

// TestRestartAtTheSameAddress starts a process where a member died: it becomes a member at once,
// gets nothing that was meant for the dead one, and answers for nobody else.
func TestRestartAtTheSameAddress(t *testing.T) {
	for _, x := range []struct {
		name           string
		sameName, data bool
	}{{"same address", false, false}, {"same name and address", true, false}, {"with data at the dead one", true, true}} {
		t.Run(x.name, func(t *testing.T) {
			nodes := cluster(t, 3)
			ctx := patient(t)
			lead := leaderOf(t, nodes)
			dead := follower(t, nodes)
			alive := slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == dead })
			_, err := dead.Create(ctx, dsm.RootIno, "held", file, true)
			ok(t, err)
			if x.data {
				_, err := lead.SetSpec(ctx, dsm.RootIno, "replicas", "1")
				ok(t, err)
				big := file
				big.Size = dsm.Slots * dsm.ExtentSize // bytes in every slot
				_, err = lead.Create(ctx, dsm.RootIno, "big", big, false)
				ok(t, err)
			}
			dead.stop()
			name := "again"
			if x.sameName {
				name = dead.self.Name
			}
			again := startAt(t, name, dead.self.Addr)
			ok(t, again.Join(ctx, lead.self.Addr))
			for i, n := range append(alive, again) {
				for j := range 20 {
					_, err := n.Create(ctx, dsm.RootIno, fmt.Sprint(i, "-", j), file, false)
					ok(t, err)
				}
			}
			same(t, append(alive, again))
			ok(t, lead.Unlink(ctx, dsm.RootIno, "held"))
			old, known := lead.Current().Member(dead.self.ID)
			if known != x.data || known && !old.Gone {
				t.Errorf("the dead member: %v, %+v", known, old)
			}
			lost := slotsOf(lead.Current(), dead.self.ID)
			if x.data != (lost > 0) {
				t.Errorf("%d slots are with the dead member", lost)
			}
			if x.data { // nobody else leaves with less for that
				ok(t, lead.Unlink(ctx, dsm.RootIno, "big"))
				_, err := lead.propose(ctx, settleOp{})
				ok(t, err)
			}
			if v := lead.Current(); slotsOf(v, dead.self.ID) != 0 || len(v.Members) != 3 {
				t.Errorf("in the end %d slots are with the dead, and there are %d members", slotsOf(v, dead.self.ID), len(v.Members))
			}
		})
	}
}

// TestNameOfALivingMember: who answers keeps his name.
func TestNameOfALivingMember(t *testing.T) {
	nodes := cluster(t, 2)
	ctx := patient(t)
	again := start(t, nodes[1].self.Name)
	refused(t, again.Join(ctx, nodes[0].self.Addr), errs.Exist, nodes[1].self.Name, "choose another name")
	nodes[1].stop()
	ok(t, again.Join(ctx, nodes[0].self.Addr))
}

// TestLeaveAfterACrash: a node leaves though another has died, and hands nothing over to that one.
func TestLeaveAfterACrash(t *testing.T) {
	nodes := cluster(t, 4)
	ctx := patient(t)
	dead := follower(t, nodes)
	dead.stop()
	var leaves *node
	for _, n := range nodes {
		if n != dead && n.leads() == 0 {
			leaves = n
		}
	}
	ok(t, leaves.Leave(ctx))
	lead := leaderOf(t, slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == dead || n == leaves }))
	if v := lead.Current(); len(v.Members) != 2 || slotsOf(v, dead.self.ID)+slotsOf(v, leaves.self.ID) != 0 {
		t.Errorf("members %+v", v.Members)
	}
}

// TestLeaveAfterLeaderDied: those that the leader leaves behind when it dies can leave one after the other, also before
// they have elected another.
func TestLeaveAfterLeaderDied(t *testing.T) {
	nodes := cluster(t, 3)
	lead := leaderOf(t, nodes)
	lead.stop()
	for _, n := range nodes {
		if n != lead {
			ok(t, n.Leave(patient(t)))
			n.stop()
		}
	}
}
