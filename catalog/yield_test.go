package catalog

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/wire"
	"github.com/dsmfs/dsmfs/locks"
)

// TestYieldedLocks: the command that opens or locks a file takes its locks from a node that has yielded them in this term.
func TestYieldedLocks(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	f := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile, Claim: true}).Ino
	m.yield = locks.Yield{Term: 1, Used: true}
	m.must(nodeB, claimOp{Ino: f})
	m.told()
	m.must(nodeB, claimOp{Ino: f, Write: true})
	m.told(locks.Surrendered, locks.Delegated)
	m.must(nodeA, askLockOp{f, request(nodeA, locks.Write, locks.Try, 1)})
	m.told(locks.Answered, locks.Recalled)
	m.must(nodeB, surrenderLocksOp{Ino: f, Term: 2})
	m.told(locks.Surrendered, locks.Delegated)
	m.yield = locks.Yield{Term: 3}
	m.must(nodeB, askLockOp{f, request(nodeB, locks.Write, locks.Try, 1)})
	m.told(locks.Surrendered, locks.Delegated)
}

// TestRequestIsAppendedBeforeItsCancellation: while a request for a lock waits for a node to yield, nobody cancels it.
func TestRequestIsAppendedBeforeItsCancellation(t *testing.T) {
	if 2*yieldTime > unwatched {
		t.Errorf("a command waits %v for an answer, and may be given up after %v", yieldTime, unwatched)
	}
}

// TestLeaderAsksForLocks: whichever node leads, has the locks or wants them, one command is enough if the one that has them
// yields. If it does not, or says nothing, the command goes on.
func TestLeaderAsksForLocks(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	leader := leaderOf(t, nodes)
	for i, has := range nodes {
		wants := nodes[(i+1)%3]
		for _, x := range []struct {
			name  string
			yield yields
			want  locks.Standing
		}{
			{"yields", func(_ dsm.Ino, term uint64) (locks.Yield, bool) { return locks.Yield{Term: term, Used: true}, true }, locks.Standing{Delegated: true}},
			{"refuses", func(dsm.Ino, uint64) (locks.Yield, bool) { return locks.Yield{}, false }, locks.Standing{Others: true}},
			{"is silent", nil, locks.Standing{Others: true}},
		} {
			if x.name == "is silent" && has.leads() != 0 {
				continue // it asks itself
			}
			leader.yieldTime.Store(int64(patience))
			if x.name == "is silent" {
				leader.yieldTime.Store(int64(yieldTime))
				has.mute.Store(true)
			}
			has.yields.Store(&x.yield)
			f, err := has.CreateTemp(ctx, dsm.RootIno, file)
			ok(t, err)
			ok(t, leader.ShowLife(ctx)) // it applies the command later than the node that makes it
			_, err = wants.Claim(ctx, f.Ino, true)
			ok(t, err)
			if st := wants.LockStanding(f.Ino); st.Delegated != x.want.Delegated || st.Others != x.want.Others {
				t.Errorf("node %d %s: after an open of another the locks stand %+v", i, x.name, st)
			}
			has.yields.Store(nil)
			has.mute.Store(false)
			ok(t, has.Unclaim(ctx, f.Ino))
			ok(t, wants.Unclaim(ctx, f.Ino))
		}
		leader.yieldTime.Store(int64(patience))
		yes := yields(func(_ dsm.Ino, term uint64) (locks.Yield, bool) { return locks.Yield{Term: term}, true })
		has.yields.Store(&yes)
		f, err := has.CreateTemp(ctx, dsm.RootIno, file)
		ok(t, err)
		ok(t, leader.ShowLife(ctx))
		ok(t, wants.AskLock(ctx, f.Ino, request(wants.self.ID, locks.Write, locks.Try, 1)))
		if st := wants.LockStanding(f.Ino); !st.Delegated || st.Others {
			t.Errorf("after a request of another than node %d the locks stand %+v", i, st)
		}
	}
}

// TestCommandIsTakenWhereItWasRead: the leader reads on while the node that has the locks is asked, and who hears the answer
// appends the command.
func TestCommandIsTakenWhereItWasRead(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	leader := leaderOf(t, nodes)
	leader.yieldTime.Store(int64(patience))
	yes := yields(func(_ dsm.Ino, term uint64) (locks.Yield, bool) { return locks.Yield{Term: term}, true })
	for i, has := range nodes {
		wants := nodes[(i+1)%3]
		has.yields.Store(&yes)
		if has != leader { // only a connection that is there is used
			_, err := leader.caller.Call(ctx, nodeAddr(has.self.ID, has.self.Addr), &wire.Probe{})
			ok(t, err)
		}
		f, err := has.CreateTemp(ctx, dsm.RootIno, file)
		ok(t, err)
		ok(t, leader.ShowLife(ctx))
		req, low, _, done := wants.calls.begin(false, hold.Request{})
		data, err := command{Node: wants.self.ID, Inc: wants.self.Inc, Req: req, Low: low}.encode(askLockOp{f.Ino, request(wants.self.ID, locks.Write, locks.Try, 1)})
		ok(t, err)
		if _, handled := leader.OnNow(&wire.Propose{Command: data}); !handled {
			t.Fatalf("a command that wants the locks of node %d is left to a goroutine", i)
		}
		select {
		case <-done:
		case <-ctx.Done():
			t.Fatalf("a command that wants the locks of node %d is not appended", i)
		}
		wants.calls.finish(req, true)
		if st := wants.LockStanding(f.Ino); !st.Delegated || st.Others {
			t.Errorf("after a request of another than node %d the locks stand %+v", i, st)
		}
	}
}
