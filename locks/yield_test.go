package locks

import (
	"context"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// lockOnce locks the file and gives the lock up.
func (m *member) lockOnce(ino dsm.Ino) {
	m.bench.Helper()
	m.must(ino, lock(m.owner(1), Write, 0, 9))
	m.must(ino, lock(m.owner(1), Unlock, 0, End))
}

// TestOpenTakesIdleLocks: who opens a file that another node has open, and has locked, locks it without a command.
func TestOpenTakesIdleLocks(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.open(1, true)()
	b.open(1, false)()
	b.lockOnce(1)
	a.open(1, false)()
	a.lockOnce(1)
	b.open(1, false)()
	b.lockOnce(1)
	a.wantCosts(0, 0)
	b.wantCosts(0, 0)
}

// TestLockTakesIdleLocks: the first lock of a file that another node has locked is one command, and asks nothing of that node's programs.
func TestLockTakesIdleLocks(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.lockOnce(1)
	b.lockOnce(1)
	a.lockOnce(1)
	a.wantCosts(2, 2)
	b.wantCosts(1, 1)
}

// TestUnusedLocksPassOnce: locks that nobody uses do not go on from one to the next of many nodes that open a file.
func TestUnusedLocksPassOnce(t *testing.T) {
	c := newBench(t, 4)
	for i, m := range c.members {
		m.open(1, i == 0)
		want := m.id
		if i >= 2 {
			want = 0
		}
		c.mu.Lock()
		if d := c.book.delegated[1]; d.node != want {
			t.Errorf("after open %d node %s has the locks, want %s", i, d.node, want)
		}
		c.mu.Unlock()
	}
	if n := c.members[1].commands.Load(); n != 0 {
		t.Errorf("%d commands of the node that was passed the locks", n)
	}
}

// TestYieldIsKept: a node that has yielded keeps its word until the book has renewed the delegation, and the word does not count after that.
func TestYieldIsKept(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.open(1, true)()
	late := b.yieldFor(1)
	if again := b.yieldFor(1); late.Term == 0 || again != late {
		t.Fatalf("yielded %+v and then %+v", late, again)
	}
	a.must(1, lock(a.owner(1), Write, 0, 9))
	a.wantCosts(1, 1)
	a.must(1, lock(a.owner(2), Write, 10, 19))
	a.wantCosts(1, 1)
	err := b.command(context.Background(), func(k *Book) ([]Event, error) { return k.Open(1, b.id, false, late), nil })
	if err != nil {
		t.Fatal(err)
	}
	c.standing(1, a, Standing{Delegated: true})
	b.refused(1, lock(b.owner(1), Write, 5, 5), errs.WouldBlock)
}

// TestNoYield: a node yields nothing that its programs lock or wait for, that it surrenders, or that it has not heard of.
func TestNoYield(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.open(1, true)
	a.must(1, lock(a.owner(1), Write, 0, 9))
	if y := b.yieldFor(1); y.Term != 0 {
		t.Errorf("%+v of a file with a lock", y)
	}
	a.must(1, lock(a.owner(1), Unlock, 0, End))
	if y := b.yieldFor(1); !y.Used {
		t.Errorf("%+v of a file that was locked", y)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.halt(a)
	done := a.wait(ctx, 1, lock(a.owner(1), Write, 0, 9))
	c.until(func() bool { return c.book.delegated[1].term == 2 }) // renewed
	if y := b.yieldFor(1); y.Term != 0 {
		t.Errorf("%+v of a delegation that the node has not heard of", y)
	}
	c.goOn(a, false)
	end(t, done, errs.Other)
	if y := b.yieldFor(2); y.Term != 0 {
		t.Errorf("%+v of a file that nobody has", y)
	}
}

// yielded returns two nodes: the first has yielded a file, which the second has opened, and hears no news until it is reset.
func yielded(t *testing.T) (c *bench, a, b *member) {
	c = newBench(t, 2)
	a, b = c.members[0], c.members[1]
	a.open(1, true)
	a.lockOnce(1)
	c.halt(a)
	b.open(1, false)
	return c, a, b
}

// TestResetTellsOfYield: a node that missed what became of a file that it had yielded asks for a lock like any other.
func TestResetTellsOfYield(t *testing.T) {
	c, a, b := yielded(t)
	b.must(1, lock(b.owner(1), Write, 0, 9))
	c.resume(a)
	a.refused(1, lock(a.owner(1), Write, 5, 5), errs.WouldBlock)
}

// TestResetTellsOfRecallAfterYield: a node that missed that it has the locks again, which it had yielded, and that they are
// recalled again, surrenders them.
func TestResetTellsOfRecallAfterYield(t *testing.T) {
	c, a, b := yielded(t)
	b.lockOnce(1)
	y := a.yieldFor(1)
	err := b.command(t.Context(), func(k *Book) ([]Event, error) { return k.Open(1, a.id, false, y), nil })
	if err != nil {
		t.Fatal(err)
	}
	c.standing(1, a, Standing{Delegated: true})
	done := b.wait(t.Context(), 1, lock(b.owner(1), Write, 0, 9))
	c.until(func() bool { return c.book.Standing(1, a.id).Recalled })
	c.resume(a)
	end(t, done, errs.Other)
}
