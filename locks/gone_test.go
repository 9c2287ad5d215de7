package locks

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// free fails unless a program of the node gets the lock, which others may be about to release.
func (m *member) free(ino dsm.Ino, l Lock) {
	m.bench.Helper()
	end(m.bench, m.wait(context.Background(), ino, l), errs.Other)
}

// TestReleaseThatFails: nobody leads when a program closes the file. Its lock is released when somebody does.
func TestReleaseThatFails(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	b.refused(1, lock(b.owner(1), Write, 0, 9), errs.WouldBlock) // so that the book has it
	a.unled.Store(1)
	if err := a.Release(context.Background(), 1, a.owner(1)); err == nil {
		t.Error("the release, which found no leader, has not failed")
	}
	b.free(1, lock(b.owner(1), Write, 0, 9))
}

// TestResetOfWhoHasNone: a node of which a program waits for a lock, or was refused one, loads a snapshot. It has lost none.
func TestResetOfWhoHasNone(t *testing.T) {
	for _, waits := range []bool{false, true} {
		c := newBench(t, 2)
		a, b := c.members[0], c.members[1]
		b.must(1, lock(b.owner(1), Write, 0, 9))
		var done <-chan error
		if waits {
			done = a.wait(context.Background(), 1, lock(a.owner(1), Write, 0, 9))
			c.queued(1, 1)
		} else {
			a.refused(1, lock(a.owner(1), Write, 0, 9), errs.WouldBlock)
		}
		c.halt(a)
		b.must(2, lock(b.owner(1), Write, 0, 9))
		c.resume(a)
		b.must(1, lock(b.owner(1), Unlock, 0, End))
		if waits {
			end(t, done, errs.Other)
		} else {
			a.free(1, lock(a.owner(1), Write, 0, 9))
		}
	}
}

// TestResetAsksForWhoGivesUp: the request of a program is asked once more after a snapshot, and the program gives up meanwhile. Nothing is left of it.
func TestResetAsksForWhoGivesUp(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	b.must(1, lock(b.owner(1), Write, 0, 9))
	a.must(1, lock(a.owner(1), Write, 100, 109)) // so that the book has something of a
	ctx, cancel := context.WithCancel(context.Background())
	done := a.wait(ctx, 1, lock(a.owner(1), Write, 0, 9))
	c.queued(1, 1)
	slow, asked := make(chan struct{}), make(chan struct{}, 10)
	c.halt(a)
	b.must(2, lock(b.owner(1), Write, 0, 9))
	c.word = func(_ dsm.Ino, y Yield) Yield {
		asked <- struct{}{}
		<-slow
		return y
	}
	c.resume(a)
	<-asked
	cancel()
	end(t, done, errs.Interrupted) // though its request is being asked
	close(slow)
	b.must(1, lock(b.owner(1), Unlock, 0, End))
	b.free(1, lock(b.owner(2), Write, 0, 9))
}

// TestDroppedWhileAnotherWaits: a node has lost a lock, as a snapshot says, while another of its programs waits for one. That one is told, and nothing is left of its request.
func TestDroppedWhileAnotherWaits(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	b.must(1, lock(b.owner(1), Write, 0, 9))
	a.must(1, lock(a.owner(2), Write, 100, 109))
	done := a.wait(context.Background(), 1, lock(a.owner(1), Write, 0, 9))
	c.queued(1, 1)
	c.halt(a)
	c.mu.Lock()
	c.book.set.tables[1].place(lock(a.owner(2), Unlock, 0, End))
	c.mu.Unlock()
	b.must(2, lock(b.owner(1), Write, 0, 9))
	c.resume(a)
	end(t, done, errs.Unavailable)
	b.must(1, lock(b.owner(1), Unlock, 0, End))
	b.free(1, lock(b.owner(2), Write, 0, 9))
}

// TestDroppedUntilReleased: a file whose locks were dropped is one until all owners have released what they believe to have, of which each is told then that it had lost it. Files that nobody had
// locked just then are none.
func TestDroppedUntilReleased(t *testing.T) {
	c := newBench(t, 2)
	a := c.members[0]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	a.must(1, lock(a.owner(2), Read, 20, 29))
	a.must(2, lock(a.owner(1), Write, 0, 9))
	a.must(2, lock(a.owner(1), Unlock, 0, End))
	a.Evicted()
	for _, owner := range []uint64{1, 2} {
		if !a.Dropped(1) || a.Dropped(2) || a.Dropped(3) {
			t.Errorf("before owner %d has released its locks: %v, %v, %v", owner, a.Dropped(1), a.Dropped(2), a.Dropped(3))
		}
		a.must(1, lock(a.owner(owner), Unlock, 0, 9)) // it may have other locks
		if !a.Dropped(1) {
			t.Errorf("owner %d has released a part", owner)
		}
		a.refused(1, lock(a.owner(owner), Unlock, 0, End), errs.Unavailable)
		a.must(1, lock(a.owner(owner), Unlock, 0, End))
	}
	if a.Dropped(1) {
		t.Error("it is dropped when all have released their locks")
	}
}

// TestLockAfterDroppedIsClosed: a program that was told that its locks are gone closes the file, opens it again and locks it, while what it had is still being released. That is no error.
func TestLockAfterDroppedIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, 1)
		a := c.members[0]
		a.must(1, lock(a.owner(1), Write, 0, 9))
		a.must(1, lock(a.owner(2), Write, 20, 29))
		a.Evicted()
		a.refused(1, lock(a.owner(3), Write, 0, 9), errs.Unavailable)
		close := func(owner uint64, want errs.Kind) {
			t.Helper()
			released := a.Releasing(1)
			a.refused(1, lock(a.owner(owner), Write, 0, 9), errs.Unavailable) // for this owner the file is not closed
			done := a.wait(context.Background(), 1, lock(a.owner(3), Write, 0, 9))
			synctest.Wait()
			if err := a.Release(context.Background(), 1, a.owner(owner)); err != nil {
				t.Error(err)
			}
			released()
			end(t, done, want)
		}
		close(1, errs.Unavailable) // the other program has not closed it
		close(2, errs.Other)
	})
}
