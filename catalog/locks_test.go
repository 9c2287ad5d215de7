package catalog

import (
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/locks"
)

func request(n dsm.NodeID, t locks.Type, how locks.How, ticket uint64) locks.Request {
	return locks.Request{Lock: locks.Lock{Owner: locks.Owner{Node: n, ID: 1}, Type: t, Last: 9}, How: how, Ticket: ticket}
}

// told are the events of the last command.
func (m *machine) told(want ...locks.What) {
	m.Helper()
	var got []locks.What
	for _, e := range m.last.effects.locks {
		got = append(got, e.What)
	}
	if !slices.Equal(got, want) {
		m.Fatalf("events %v, want %v", got, want)
	}
}

func TestLockCommands(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	f := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile, Claim: true}).Ino
	m.must(nodeB, claimOp{Ino: f})
	m.must(nodeA, askLockOp{f, request(nodeA, locks.Write, locks.Try, 1)})
	m.told(locks.Delegated)
	m.must(nodeB, askLockOp{f, request(nodeB, locks.Write, locks.Wait, 1)})
	m.told(locks.Answered, locks.Recalled)

	b, err := m.image().encode()
	if err != nil {
		t.Fatal(err)
	}
	restored, err := restore(b)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := restored.image().encode(); err != nil || string(again) != string(b) {
		t.Errorf("a snapshot of a snapshot differs: %v", err)
	}

	m.must(nodeA, surrenderLocksOp{Ino: f, Term: 1, Granted: []locks.Lock{request(nodeA, locks.Write, locks.Try, 1).Lock}})
	m.told(locks.Surrendered)
	m.must(nodeA, unclaimOp{[]dsm.Ino{f}})
	m.told(locks.Ended, locks.Answered) // B has it now
	m.must(nodeA, claimOp{Ino: f})
	m.must(nodeA, askLockOp{f, request(nodeA, locks.Write, locks.Wait, 2)})
	m.told(locks.Answered)

	for _, x := range []struct {
		op   op
		want errs.Kind
	}{
		{askLockOp{dsm.RootIno, request(nodeB, locks.Read, locks.Try, 3)}, errs.Unsupported},
		{askLockOp{99, request(nodeB, locks.Read, locks.Try, 3)}, errs.NotExist},
		{askLockOp{f, request(nodeA, locks.Read, locks.Try, 3)}, errs.Invalid}, // of another node
		{surrenderLocksOp{Ino: f, Granted: []locks.Lock{request(nodeA, locks.Read, locks.Try, 1).Lock}}, errs.Invalid},
	} {
		if _, err := m.do(nodeB, x.op); !errs.Is(err, x.want) {
			t.Errorf("%+v: %v, want kind %v", x.op, err, x.want)
		}
	}

	m.must(nodeA, goneOp{Node: nodeB})
	m.told(locks.Dropped, locks.Answered)
	m.must(nodeA, unlinkOp{dsm.RootIno, "f"})
	m.must(nodeA, unclaimOp{[]dsm.Ino{f}})
	if p := m.book.Pages(); len(p) > 0 {
		t.Errorf("locks of a file that is no more: %+v", p)
	}
}

// TestLocksComeWithClaims: the locks of a file come with the claim of who opens it for writing, if no other node claims it.
func TestLocksComeWithClaims(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	f := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile, Claim: true}).Ino
	m.told(locks.Delegated)
	m.must(nodeB, claimOp{Ino: f})
	m.told()
	m.must(nodeB, claimOp{Ino: f, Write: true})
	m.told(locks.Shared)
	m.must(nodeA, unclaimOp{[]dsm.Ino{f}})
	m.told(locks.Ended)
	m.must(nodeB, unclaimOp{[]dsm.Ino{f}})
	m.must(nodeA, claimOp{Ino: f})
	m.told()
	m.must(nodeA, unclaimOp{[]dsm.Ino{f}})
	m.must(nodeB, claimOp{Ino: f, Write: true})
	m.told(locks.Delegated)
	m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "d", Kind: dsm.KindDir})
	m.told()
}

// TestLocksOfSilentNode: the locks of a node that crashed end, and of none that is well.
func TestLocksOfSilentNode(t *testing.T) {
	nodes := cluster(t, 3)
	ctx := patient(t)
	leader := leaderOf(t, nodes)
	nodes = slices.DeleteFunc(nodes, func(n *node) bool { return n == leader })
	well, dead := nodes[0], nodes[1]
	f, err := leader.Create(ctx, dsm.RootIno, "f", file, false)
	ok(t, err)
	g, err := leader.Create(ctx, dsm.RootIno, "g", file, false)
	ok(t, err)
	ok(t, well.AskLock(ctx, f.Ino, request(well.self.ID, locks.Write, locks.Try, 1)))
	ok(t, dead.AskLock(ctx, g.Ino, request(dead.self.ID, locks.Write, locks.Try, 1)))
	dead.stop()
	leader.sees(t, "a crashed node", isOut(dead.self.ID))
	if leader.standingOf(g.Ino, dead.self.ID).Delegated {
		t.Error("the locks of a dead node stay")
	}
	ok(t, well.ShowLife(ctx))
	if !well.LockStanding(f.Ino).Delegated || !well.MayGrant() {
		t.Error("the locks of a node that is well were dropped")
	}
}

// standingOf is LockStanding of another node.
func (c *Catalog) standingOf(ino dsm.Ino, n dsm.NodeID) locks.Standing {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.state.book.Standing(ino, n)
}
