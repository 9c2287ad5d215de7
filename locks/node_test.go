package locks

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// patience bounds everything in a test that waits. Nothing is asserted of how long things take.
const patience = 20 * time.Second

// bench is a cluster whose catalog is a book and a list of events. Each node applies the list by a goroutine of its own.
type bench struct {
	testing.TB
	mu      sync.Mutex
	grown   sync.Cond
	book    *Book
	log     [][]Event // of each command
	members []*member
	ended   bool
	// word is what the leader appends of what a node has yielded; nil: just that.
	word func(ino dsm.Ino, y Yield) Yield
}

// member is a node of the bench.
type member struct {
	*Node
	bench    *bench
	id       dsm.NodeID
	applied  int
	reset    bool // it is given the state at once, not the events
	halted   bool // it applies nothing
	dead     bool // the leader does not answer it
	commands atomic.Int64
	acquires atomic.Int64
	fail     atomic.Bool // the area cannot be acquired
	warned   atomic.Int64
	unled    atomic.Int64  // so many commands find no leader
	delayed  chan struct{} // surrenders wait until it is closed
}

// Write is for the log of the node, of which only warnings get here.
func (m *member) Write(line []byte) (int, error) {
	m.warned.Add(1)
	return len(line), nil
}

func newBench(t testing.TB, nodes int) *bench {
	c := &bench{TB: t, book: NewBook()}
	c.grown.L = &c.mu
	var tasks sync.WaitGroup
	for i := range nodes {
		m := &member{bench: c, id: nodeA + dsm.NodeID(i)}
		m.Node = NewNode(Config{Self: m.id, Cluster: m, Log: slog.New(slog.NewTextHandler(m, &slog.HandlerOptions{Level: slog.LevelWarn})), Patience: patience})
		c.members = append(c.members, m)
		tasks.Go(m.apply)
	}
	t.Cleanup(func() {
		c.mu.Lock()
		c.ended = true
		c.grown.Broadcast()
		c.mu.Unlock()
		tasks.Wait()
		for _, m := range c.members {
			m.Close()
		}
	})
	return c
}

// apply tells the node of the events.
func (m *member) apply() {
	c := m.bench
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for !c.ended && (m.halted || m.applied == len(c.log)) {
			c.grown.Wait()
		}
		if c.ended {
			return
		}
		if m.reset {
			m.reset, m.applied = false, len(c.log)
			c.mu.Unlock()
			m.LocksReset()
		} else {
			events := c.log[m.applied]
			c.mu.Unlock()
			m.LocksChanged(events)
			c.mu.Lock()
			m.applied++
			c.mu.Unlock()
		}
		c.mu.Lock()
		c.grown.Broadcast()
	}
}

// command does something to the book, and returns when the node has been told.
func (m *member) command(ctx context.Context, what func(b *Book) ([]Event, error)) error {
	c := m.bench
	m.commands.Add(1)
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.grown.Broadcast()
	})()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := m.led(ctx); err != nil {
		return err
	}
	events, err := what(c.book)
	if err == nil {
		err = c.book.Check()
	}
	if err != nil {
		c.Error(err)
		return err
	}
	c.log = append(c.log, events)
	c.grown.Broadcast()
	for at := len(c.log); m.applied < at && ctx.Err() == nil && !c.ended; {
		c.grown.Wait()
	}
	return ctx.Err()
}

// yieldFor does what the leader does before it appends a command of the node that wants locks of the file.
func (m *member) yieldFor(ino dsm.Ino) (y Yield) {
	c := m.bench
	c.mu.Lock()
	keeper, term, ok := c.book.Keeper(ino, m.id)
	c.mu.Unlock()
	if ok {
		y, _ = c.members[keeper-nodeA].Yield(ino, term)
	}
	if c.word != nil {
		y = c.word(ino, y)
	}
	return y
}

// forgetful is a leader that drops what nodes have yielded.
func forgetful(dsm.Ino, Yield) Yield { return Yield{} }

func (m *member) AskLock(ctx context.Context, ino dsm.Ino, r Request) error {
	y := Yield{}
	if r.Lock.Type != Unlock {
		y = m.yieldFor(ino)
	}
	return m.command(ctx, func(b *Book) ([]Event, error) { return b.Ask(ino, m.id, r, y) })
}

func (m *member) SurrenderLocks(ctx context.Context, ino dsm.Ino, term uint64, granted []Lock, waiting []Request) error {
	if m.delayed != nil {
		<-m.delayed
	}
	return m.command(ctx, func(b *Book) ([]Event, error) { return b.Surrender(ino, m.id, term, granted, waiting) })
}

func (m *member) CancelLock(ctx context.Context, ino dsm.Ino, ticket uint64) error {
	return m.command(ctx, func(b *Book) ([]Event, error) { return b.Cancel(ino, m.id, ticket), nil })
}

func (m *member) LockedFiles() []dsm.Ino {
	m.bench.mu.Lock()
	defer m.bench.mu.Unlock()
	return m.bench.book.FilesWithLocks(m.id)
}

func (m *member) GrantedLocks(ino dsm.Ino) []Lock {
	m.bench.mu.Lock()
	defer m.bench.mu.Unlock()
	return m.bench.book.Has(ino, m.id)
}

func (m *member) LockStanding(ino dsm.Ino) Standing {
	m.bench.mu.Lock()
	defer m.bench.mu.Unlock()
	return m.bench.book.Standing(ino, m.id)
}

func (m *member) DelegatedLocks() []dsm.Ino {
	m.bench.mu.Lock()
	defer m.bench.mu.Unlock()
	return m.bench.book.Delegated(m.id)
}

func (m *member) MayGrant() bool {
	m.bench.mu.Lock()
	defer m.bench.mu.Unlock()
	return !m.dead
}

func (m *member) ShowLife(context.Context) error {
	if m.MayGrant() {
		return nil
	}
	return errs.E(errs.Unavailable, "renew", "")
}

// drop does what the leader does to a dead node.
func (c *bench) drop(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, c.book.Drop(m.id))
	if err := c.book.Check(); err != nil {
		c.Error(err)
	}
	c.grown.Broadcast()
}

// until waits for something that commands change.
func (c *bench) until(cond func() bool) {
	c.Helper()
	deadline := time.AfterFunc(patience, func() { panic("nothing happens") })
	defer deadline.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !cond() {
		c.grown.Wait()
	}
}

func (m *member) owner(id uint64) Owner { return posix(m.id, id) }

func (m *member) acquire() error {
	m.acquires.Add(1)
	m.bench.mu.Lock()
	m.bench.grown.Broadcast()
	m.bench.mu.Unlock()
	if m.fail.Load() {
		return errs.E(errs.Timeout, "acquire", "")
	}
	return nil
}

func (m *member) set(ino dsm.Ino, l Lock) error {
	return m.Set(context.Background(), ino, l, false, m.acquire)
}

// wait asks for a lock in the background.
func (m *member) wait(ctx context.Context, ino dsm.Ino, l Lock) <-chan error {
	done := make(chan error, 1)
	go func() { done <- m.Set(ctx, ino, l, true, m.acquire) }()
	return done
}

func (m *member) must(ino dsm.Ino, l Lock) {
	m.bench.Helper()
	if err := m.set(ino, l); err != nil {
		m.bench.Fatalf("%+v: %v", l, err)
	}
}

func (m *member) refused(ino dsm.Ino, l Lock, want errs.Kind) {
	m.bench.Helper()
	if err := m.set(ino, l); errs.KindOf(err) != want {
		m.bench.Fatalf("%+v: %v, want %v", l, err, want)
	}
}

func end(t testing.TB, done <-chan error, want errs.Kind) {
	t.Helper()
	select {
	case err := <-done:
		if err == nil && want != errs.Other || err != nil && errs.KindOf(err) != want {
			t.Fatalf("the wait ended with %v, want %v", err, want)
		}
	case <-time.After(patience):
		t.Fatal("the wait does not end")
	}
}

// queued waits until so many wait in the book for the file.
func (c *bench) queued(ino dsm.Ino, n int) {
	c.Helper()
	c.until(func() bool { t := c.book.set.tables[ino]; return t != nil && len(t.queue) == n })
}

// waiting waits until so many requests of the node are not answered.
func (m *member) waiting(want int) {
	for {
		if _, n := m.Figures(); n == want {
			return
		}
		runtime.Gosched()
	}
}

func (c *bench) standing(ino dsm.Ino, m *member, want Standing) {
	c.Helper()
	st := m.LockStanding(ino)
	st.Term = 0
	if st != want {
		c.Fatalf("%+v, want %+v", st, want)
	}
}

func TestOneNodeNeedsOneCommand(t *testing.T) {
	c := newBench(t, 2)
	a := c.members[0]
	for id := range uint64(3) {
		a.must(1, lock(a.owner(id), Write, id, id))
		a.must(1, lock(a.owner(id), Unlock, 0, End))
	}
	a.must(1, lock(a.owner(1), Write, 0, 9))
	a.refused(1, lock(a.owner(2), Read, 0, 9), errs.WouldBlock)
	done := a.wait(context.Background(), 1, lock(a.owner(2), Read, 0, 9))
	a.must(1, lock(a.owner(1), Unlock, 0, 9))
	end(t, done, errs.Other)
	if n, acquires := a.commands.Load(), a.acquires.Load(); n != 1 || acquires != 1 {
		t.Errorf("%d commands, %d acquires", n, acquires)
	}
	c.standing(1, a, Standing{Delegated: true})
}

func TestRecallTakesLocksAndWaitsAlong(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	waits := a.wait(context.Background(), 1, lock(a.owner(2), Write, 0, 9))
	a.waiting(1)
	b.refused(1, lock(b.owner(1), Read, 5, 5), errs.WouldBlock)
	b.must(1, lock(b.owner(1), Read, 10, 10))
	c.standing(1, a, Standing{HasLocks: true, Others: true})
	waitsToo := b.wait(context.Background(), 1, lock(b.owner(2), Write, 0, 9))
	c.queued(1, 2)
	a.must(1, lock(a.owner(1), Unlock, 0, End))
	end(t, waits, errs.Other) // it was first
	a.must(1, lock(a.owner(2), Unlock, 0, End))
	end(t, waitsToo, errs.Other)
	b.must(1, lock(b.owner(2), Unlock, 0, End))
	b.must(1, lock(b.owner(1), Unlock, 0, End))
	a.must(1, lock(a.owner(1), Write, 0, 9))
	c.standing(1, a, Standing{Delegated: true}) // nobody had anything
	if in, blocked, err := b.Test(context.Background(), 1, lock(b.owner(1), Read, 0, 0)); err != nil || !blocked || in.Owner != a.owner(1) {
		t.Errorf("%+v %v %v", in, blocked, err)
	}
}

// TestUnusedDelegationMoves: a file that only another node locks now is its.
func TestUnusedDelegationMoves(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	a.must(1, lock(a.owner(1), Unlock, 0, 9))
	b.must(1, lock(b.owner(1), Write, 0, 9))
	c.standing(1, b, Standing{Delegated: true})
	if n := b.acquires.Load(); n != 1 {
		t.Errorf("acquired %d times", n)
	}
}

// TestCirclesAcrossNodes: whatever is delegated to whom, a circle is found.
func TestCirclesAcrossNodes(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	t.Run("two nodes", func(t *testing.T) {
		a.must(1, lock(a.owner(1), Write, 0, 0))
		b.must(2, lock(b.owner(1), Write, 0, 0))
		one, two := a.wait(context.Background(), 2, lock(a.owner(1), Write, 0, 0)), b.wait(context.Background(), 1, lock(b.owner(1), Write, 0, 0))
		var loser, winner <-chan error
		var m *member
		var file dsm.Ino
		select {
		case err := <-one:
			loser, winner, m, file = give(err), two, a, 1
		case err := <-two:
			loser, winner, m, file = give(err), one, b, 2
		case <-time.After(patience):
			t.Fatal("nobody finds the circle")
		}
		end(t, loser, errs.Deadlock)
		m.must(file, lock(m.owner(1), Unlock, 0, End))
		end(t, winner, errs.Other)
	})
	t.Run("a local wait and one in the book", func(t *testing.T) {
		// Of node A 2 waits for 3, in a file delegated to A, and 3 waits for 2 in one that is not.
		b.must(4, lock(b.owner(2), Write, 50, 50))
		a.must(4, lock(a.owner(2), Write, 0, 0))
		a.must(3, lock(a.owner(3), Write, 0, 0))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		one, two := a.wait(ctx, 3, lock(a.owner(2), Write, 0, 0)), a.wait(ctx, 4, lock(a.owner(3), Write, 0, 0))
		select {
		case err := <-one:
			end(t, give(err), errs.Deadlock)
			cancel()
			end(t, two, errs.Interrupted)
		case err := <-two:
			end(t, give(err), errs.Deadlock)
			cancel()
			end(t, one, errs.Interrupted)
		case <-time.After(patience):
			t.Fatal("nobody finds the circle")
		}
	})
}

func give(err error) <-chan error {
	c := make(chan error, 1)
	c <- err
	return c
}

func TestFailedAcquireLeavesNoLock(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.fail.Store(true)
	a.refused(1, lock(a.owner(1), Write, 0, 9), errs.Timeout)
	if err := b.Set(context.Background(), 1, lock(b.owner(1), Write, 0, 9), true, b.acquire); err != nil {
		t.Fatal(err)
	}
}

func TestDeadNode(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	c.mu.Lock()
	a.dead, a.halted = true, true
	c.mu.Unlock()
	done := b.wait(context.Background(), 1, lock(b.owner(1), Write, 0, 9))
	c.queued(1, 1)
	a.refused(1, lock(a.owner(2), Write, 20, 20), errs.Unavailable) // it grants nothing, although the file is delegated to it
	c.drop(a)
	end(t, done, errs.Other)
	c.mu.Lock()
	a.dead, a.halted = false, false
	c.grown.Broadcast()
	c.mu.Unlock()
	c.until(func() bool { return a.applied == len(c.log) })
	a.refused(1, lock(a.owner(1), Read, 20, 20), errs.Unavailable) // its owners believe to have locks
	a.refused(1, lock(a.owner(1), Unlock, 0, End), errs.Unavailable)
	a.must(1, lock(a.owner(2), Unlock, 0, End)) // it was refused the only lock that it asked for
	a.must(1, lock(a.owner(2), Read, 20, 20))
	a.refused(1, lock(a.owner(2), Read, 5, 5), errs.WouldBlock)
	if n := a.warned.Load(); n != 1 {
		t.Errorf("%d warnings of lost locks, want one", n)
	}
}

// TestLeaverWarnsOfNothing: the locks of a node that leaves are dropped as well, though nobody has any.
func TestLeaverWarnsOfNothing(t *testing.T) {
	c := newBench(t, 1)
	a := c.members[0]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	a.must(1, lock(a.owner(1), Unlock, 0, End))
	c.drop(a)
	c.until(func() bool { return a.applied == len(c.log) })
	if n := a.warned.Load(); n != 0 {
		t.Errorf("%d warnings of locks that nobody had", n)
	}
}

func TestResetMakesUpForEvents(t *testing.T) {
	for _, x := range []struct {
		name string
		do   func(t *testing.T, c *bench, a, b *member)
	}{
		{"recalled", func(t *testing.T, c *bench, a, b *member) {
			a.must(1, lock(a.owner(1), Write, 0, 9))
			c.halt(a)
			done := b.wait(context.Background(), 1, lock(b.owner(1), Write, 20, 20))
			c.queued(1, 1)
			c.resume(a)
			end(t, done, errs.Other)
			b.refused(1, lock(b.owner(1), Write, 0, 0), errs.WouldBlock)
		}},
		{"granted", func(t *testing.T, c *bench, a, b *member) {
			b.must(1, lock(b.owner(1), Write, 0, 9))
			done := a.wait(context.Background(), 1, lock(a.owner(1), Write, 0, 9))
			c.queued(1, 1)
			c.halt(a)
			b.must(1, lock(b.owner(1), Unlock, 0, End))
			c.resume(a)
			end(t, done, errs.Other)
			b.refused(1, lock(b.owner(1), Write, 0, 0), errs.WouldBlock)
		}},
		{"delegated", func(t *testing.T, c *bench, a, b *member) {
			c.halt(a)
			done := a.wait(context.Background(), 1, lock(a.owner(1), Write, 0, 9))
			c.until(func() bool { return c.book.Standing(1, a.id).Delegated })
			c.resume(a)
			end(t, done, errs.Other)
			b.refused(1, lock(b.owner(1), Write, 0, 0), errs.WouldBlock)
		}},
		{"dropped", func(t *testing.T, c *bench, a, b *member) {
			a.must(1, lock(a.owner(1), Write, 0, 9))
			c.halt(a)
			c.drop(a)
			c.resume(a)
			a.refused(1, lock(a.owner(1), Write, 0, 9), errs.Unavailable)
			b.must(1, lock(b.owner(1), Write, 0, 9))
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newBench(t, 2)
			c.TB = t
			x.do(t, c, c.members[0], c.members[1])
		})
	}
}

// halt keeps a node from applying anything.
func (c *bench) halt(m *member) {
	c.until(func() bool { return m.applied == len(c.log) })
	c.mu.Lock()
	defer c.mu.Unlock()
	m.halted = true
}

// resume lets it go on from the state as it is now.
func (c *bench) resume(m *member) { c.goOn(m, true) }

// goOn lets it go on: from the state as it is now, or with the events that it has not applied yet.
func (c *bench) goOn(m *member, reset bool) {
	c.mu.Lock()
	m.halted, m.reset = false, reset
	c.grown.Broadcast()
	c.mu.Unlock()
	c.until(func() bool { return m.applied == len(c.log) })
}

// TestFirstLockAcquiresWhileItAsks: the area is acquired before the cluster has answered, and not again after.
func TestFirstLockAcquiresWhileItAsks(t *testing.T) {
	c := newBench(t, 2)
	a := c.members[0]
	c.halt(a)
	done := a.wait(context.Background(), 1, lock(a.owner(1), Write, 0, 9))
	c.until(func() bool { return a.acquires.Load() == 1 })
	c.goOn(a, false)
	end(t, done, errs.Other)
	if n := a.acquires.Load(); n != 1 {
		t.Errorf("acquired %d times", n)
	}
}

// TestLockOfAnotherWhileOneAsks: what another node published under a lock that this node had not heard of when it asked is acquired.
func TestLockOfAnotherWhileOneAsks(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	c.halt(a)
	b.must(1, lock(b.owner(1), Write, 0, 9))
	b.must(1, lock(b.owner(1), Unlock, 0, End))
	if err := b.command(context.Background(), func(k *Book) ([]Event, error) { return k.Close(1, b.id), nil }); err != nil {
		t.Fatal(err)
	}
	done := a.wait(context.Background(), 1, lock(a.owner(1), Write, 0, 9))
	c.until(func() bool { return a.acquires.Load() == 1 })
	c.goOn(a, false)
	end(t, done, errs.Other)
	if n := a.acquires.Load(); n != 2 {
		t.Errorf("acquired %d times, want another time after the grant", n)
	}
}
