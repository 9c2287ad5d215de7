package locks

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// led returns an error if there is no leader.
func (m *member) led(ctx context.Context) error {
	if m.unled.Add(-1) >= 0 {
		return errs.E(errs.Unavailable, "lock", "no leader")
	}
	return ctx.Err()
}

// followed has another daemon follow that of the node, which is killed. Its programs have the locks of the list.
func (m *member) followed(ino dsm.Ino, list ...Lock) {
	c := m.bench
	c.Helper()
	c.mu.Lock()
	for m.applied < len(c.log) {
		c.grown.Wait()
	}
	before := m.Node
	m.Node = NewNode(Config{
		Self: m.id, Cluster: m, Log: slog.New(slog.NewTextHandler(m, &slog.HandlerOptions{Level: slog.LevelWarn})), Patience: patience,
		First: 1 << 40, Resuming: true,
	})
	m.reset = true
	c.mu.Unlock()
	before.Close()
	ctx := context.Background()
	err := m.command(ctx, func(b *Book) ([]Event, error) { return b.Back(m.id), nil })
	if err == nil {
		err = m.Resume(ctx, ino, list)
	}
	if err == nil {
		m.unled.Store(2)
		err = m.Resumed(ctx)
		m.unled.Store(0)
	}
	if err != nil {
		c.Error(err)
	}
}

// TestWordOfAKilledDaemonComesLate: a node has yielded, and its daemon is killed. What the next one grants stays, though the word is still under way.
func TestWordOfAKilledDaemonComesLate(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	a.must(1, lock(a.owner(1), Unlock, 0, 9))
	word := b.yieldFor(1)
	if word == (Yield{}) {
		t.Fatal("the node does not yield")
	}
	a.followed(1)
	a.must(1, lock(a.owner(1), Write, 0, 9))
	c.word = func(dsm.Ino, Yield) Yield { return word }
	b.refused(1, lock(b.owner(1), Write, 0, 9), errs.WouldBlock)
	a.must(1, lock(a.owner(1), Unlock, 0, 9))
	c.word = nil
	b.must(1, lock(b.owner(1), Write, 0, 9))
}

// TestSurrenderOfAKilledDaemonComesLate: it does not end the delegation, of whose locks it does not know.
func TestSurrenderOfAKilledDaemonComesLate(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	term := a.LockStanding(1).Term
	a.followed(1, lock(a.owner(1), Write, 0, 9))
	if err := a.SurrenderLocks(t.Context(), 1, term, nil, nil); err != nil {
		t.Fatal(err)
	}
	b.refused(1, lock(b.owner(1), Write, 0, 9), errs.WouldBlock)
}

// TestLocksOutliveTheDaemon: locks stay, whoever decides on them, also while others wait. What the list does not have is given up.
func TestLocksOutliveTheDaemon(t *testing.T) {
	for _, inBook := range []bool{false, true} {
		c := newBench(t, 2)
		a, b := c.members[0], c.members[1]
		kept, gone := lock(a.owner(1), Write, 0, 9), lock(a.owner(1), Read, 10, 19)
		a.must(1, kept)
		a.must(1, gone)
		if inBook {
			b.refused(1, lock(b.owner(1), Write, 0, 9), errs.WouldBlock)
		}
		done := b.wait(t.Context(), 1, lock(b.owner(1), Write, 5, 5))
		c.queued(1, 1)
		a.followed(1, kept)
		b.must(1, lock(b.owner(2), Write, 10, 19))
		b.refused(1, lock(b.owner(2), Read, 0, 4), errs.WouldBlock)
		a.refused(1, lock(a.owner(2), Read, 0, 4), errs.WouldBlock)
		select {
		case err := <-done:
			t.Errorf("in the book %v: a lock that another has is granted (%v)", inBook, err)
		default:
		}
		a.must(1, lock(a.owner(1), Unlock, 0, End))
		end(t, done, errs.Other)
	}
}

// restless is a Cluster that, at first, fails to answer requests for locks, which happen all the same a bit later.
type restless struct {
	*member
	times atomic.Int64
	late  sync.WaitGroup
}

func (r *restless) AskLock(ctx context.Context, ino dsm.Ino, req Request) error {
	if r.times.Add(-1) < 0 {
		return r.member.AskLock(ctx, ino, req)
	}
	r.late.Go(func() { _ = r.member.AskLock(context.WithoutCancel(ctx), ino, req) })
	return errs.E(errs.Timeout, "lock", "")
}

// TestLocksComeBackWithoutALeader: the leader dies while a daemon takes over locks. They stay, or their programs are told that they are lost; before that no other node gets them.
func TestLocksComeBackWithoutALeader(t *testing.T) {
	const soon = 100 * time.Millisecond
	for _, x := range []struct {
		what    string
		fail    int64 // so many commands
		late    bool  // those happen
		limit   time.Duration
		dropped bool
	}{
		{"one fails", 1, false, patience, false},
		{"one is late", 1, true, patience, false},
		{"three are late", 3, true, patience, false},
		{"nobody leads", 1 << 40, false, soon, true},
	} {
		c := newBench(t, 2)
		a, b := c.members[0], c.members[1]
		one, two := lock(a.owner(1), Write, 0, 9), lock(a.owner(1), Write, 20, 29)
		a.must(1, one)
		a.must(1, two)
		b.refused(1, lock(b.owner(1), Write, 0, 9), errs.WouldBlock) // so that the book decides
		next := &restless{member: a}
		c.mu.Lock()
		for a.applied < len(c.log) {
			c.grown.Wait()
		}
		before := a.Node
		a.Node = NewNode(Config{Self: a.id, Cluster: next, Log: slog.New(slog.DiscardHandler), Patience: soon, First: 1 << 40, Resuming: true})
		a.reset = true
		c.mu.Unlock()
		before.Close()
		if err := a.command(t.Context(), func(b *Book) ([]Event, error) { return b.Back(a.id), nil }); err != nil {
			t.Fatal(err)
		}
		if x.late {
			next.times.Store(x.fail)
		} else {
			a.unled.Store(x.fail)
		}
		ctx, cancel := context.WithTimeout(t.Context(), x.limit)
		err := a.Resume(ctx, 1, []Lock{one, two})
		cancel()
		if lost := a.wasDropped(1); (err != nil) != x.dropped || lost != x.dropped {
			t.Errorf("%s: %v, the program is told: %t", x.what, err, lost)
		}
		a.unled.Store(0)
		if err := a.Resumed(t.Context()); err != nil {
			t.Error(err)
		}
		next.late.Wait()
		for _, l := range []Lock{one, two} {
			l.Owner = b.owner(1)
			if err := b.set(1, l); errs.Is(err, errs.WouldBlock) == x.dropped || x.dropped && err != nil {
				t.Errorf("%s: another node: %v", x.what, err)
			}
		}
		if x.dropped {
			a.refused(1, one, errs.Unavailable)
		}
		if unlock := lock(a.owner(1), Unlock, 0, End); x.dropped {
			a.refused(1, unlock, errs.Unavailable)
			a.refused(1, one, errs.WouldBlock)
		} else {
			a.must(1, unlock)
			b.must(1, lock(b.owner(1), Write, 0, 29))
		}
	}
}

// TestWaitOfAKilledDaemonEnds: its program asks again.
func TestWaitOfAKilledDaemonEnds(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	b.refused(1, lock(b.owner(1), Write, 0, 9), errs.WouldBlock)
	ctx, cancel := context.WithCancel(t.Context())
	waits := b.wait(ctx, 1, lock(b.owner(1), Write, 0, 9))
	c.queued(1, 1)
	b.followed(1)
	c.until(func() bool { return len(c.book.set.tables[1].queue) == 0 })
	cancel()
	<-waits
	a.must(1, lock(a.owner(1), Unlock, 0, End))
	if got := b.GrantedLocks(1); len(got) != 0 {
		t.Errorf("nobody waits, and has %v", got)
	}
}

// TestLockThatIsUndone: a program is told that it did not get a lock, and it takes a while until that is given up. Meanwhile it counts as not granted. When the
// program asks again it keeps what it gets.
func TestLockThatIsUndone(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	b.must(1, lock(b.owner(1), Write, 100, 109)) // so that the book decides
	err := a.Set(t.Context(), 1, lock(a.owner(1), Write, 0, 9), false, func() error {
		a.unled.Store(1) // it is not given up at once
		return errs.E(errs.Timeout, "acquire", "")
	})
	if !errs.Is(err, errs.Timeout) {
		t.Fatal(err)
	}
	if granted := a.Granted(1, a.owner(1)); len(granted) > 0 {
		t.Errorf("the owner has %+v", granted)
	}
	for a.warned.Load() == 0 { // the first try to give it up has failed
		runtime.Gosched()
	}
	a.must(1, lock(a.owner(1), Write, 0, 9))
	if granted := a.Granted(1, a.owner(1)); len(granted) != 1 {
		t.Errorf("the owner has %+v", granted)
	}
	a.tasks.Wait() // until the first one is given up
	b.refused(1, lock(b.owner(1), Write, 0, 9), errs.WouldBlock)
}

func TestWeaker(t *testing.T) {
	o, f := posix(nodeA, 1), Owner{Node: nodeA, ID: 1, Flock: true}
	for _, c := range []struct {
		what    string
		granted []Lock
		ask     Lock
		want    []Lock
	}{
		{"the first lock", nil, lock(o, Write, 0, 9), nil},
		{"more", []Lock{lock(o, Read, 0, 9)}, lock(o, Write, 0, 19), []Lock{lock(o, Read, 0, 9)}},
		{"the same", []Lock{lock(o, Write, 0, 9)}, lock(o, Write, 0, 9), []Lock{lock(o, Write, 0, 9)}},
		{"less", []Lock{lock(o, Write, 0, 9)}, lock(o, Read, 5, 19), []Lock{lock(o, Write, 0, 4), lock(o, Read, 5, 9)}},
		{"a part released", []Lock{lock(o, Write, 0, 9)}, lock(o, Unlock, 3, 5), []Lock{lock(o, Write, 0, 2), lock(o, Write, 6, 9)}},
		{"all released", []Lock{lock(o, Write, 0, 9), lock(o, Read, 20, 29)}, lock(o, Unlock, 0, End), nil},
		{"a flock that becomes exclusive", []Lock{lock(f, Read, 0, End)}, lock(f, Write, 0, End), nil},
		{"a flock that becomes shared", []Lock{lock(f, Write, 0, End)}, lock(f, Read, 0, End), nil},
		{"a flock as it is", []Lock{lock(f, Write, 0, End)}, lock(f, Write, 0, End), []Lock{lock(f, Write, 0, End)}},
	} {
		if got := Weaker(c.granted, c.ask); !slices.Equal(got, c.want) && len(got)+len(c.want) > 0 {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}
