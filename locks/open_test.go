package locks

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// open is what the catalog does when a program of the node opens the file for writing.
func (m *member) open(ino dsm.Ino, alone bool) (acquired func()) {
	m.bench.Helper()
	y := m.yieldFor(ino)
	err := m.command(context.Background(), func(b *Book) ([]Event, error) { return b.Open(ino, m.id, alone, y), nil })
	if err != nil {
		m.bench.Fatal(err)
	}
	m.commands.Add(-1) // of locks there is none
	return m.Opening(ino)
}

// wantCosts compares what the locks of a node cost until now.
func (m *member) wantCosts(commands, acquires int64) {
	m.bench.Helper()
	if c, a := m.commands.Load(), m.acquires.Load(); c != commands || a != acquires {
		m.bench.Errorf("%d commands and %d acquires, want %d and %d", c, a, commands, acquires)
	}
}

// TestLocksComeWithOpen: a node that has a file open alone locks it without a message. The open has acquired.
func TestLocksComeWithOpen(t *testing.T) {
	c := newBench(t, 2)
	a := c.members[0]
	a.open(1, true)()
	a.must(1, lock(a.owner(1), Write, 0, 9))
	a.must(1, lock(a.owner(1), Unlock, 0, End))
	a.wantCosts(0, 0)
	a.open(2, true) // which failed before it had acquired
	a.must(2, lock(a.owner(1), Write, 0, 9))
	a.wantCosts(0, 1)
}

// TestPlainLockAcquiresNothing: who locks without acquiring does not do it for the next.
func TestPlainLockAcquiresNothing(t *testing.T) {
	c := newBench(t, 2)
	a := c.members[0]
	plain := lock(a.owner(1), Write, 0, 9)
	if err := a.Set(context.Background(), 1, plain, false, nil); err != nil {
		t.Fatal(err)
	}
	a.wantCosts(1, 0)
	a.must(1, lock(a.owner(2), Write, 10, 19))
	a.wantCosts(1, 1)
}

// TestSharedFileIsSurrendered: when a second node opens the file nobody has to be asked first, as if it never had been delegated;
// unless it is being locked already. The leader gets no word of the node that has it.
func TestSharedFileIsSurrendered(t *testing.T) {
	c := newBench(t, 2)
	c.word = forgetful
	a, b := c.members[0], c.members[1]
	acquired := a.open(1, true)
	b.open(1, false)
	c.until(func() bool { return !c.book.Standing(1, a.id).Delegated && b.applied == len(c.log) })
	b.must(1, lock(b.owner(1), Write, 0, 9))
	b.must(1, lock(b.owner(1), Unlock, 0, End))
	b.wantCosts(1, 1)
	// What came with the open is over, also where the file is delegated again.
	a.must(1, lock(a.owner(1), Write, 0, 9))
	a.wantCosts(2, 1)
	a.must(1, lock(a.owner(1), Unlock, 0, End))
	b.must(1, lock(b.owner(1), Write, 0, 9))
	b.must(1, lock(b.owner(1), Unlock, 0, End))
	if err := a.command(context.Background(), func(k *Book) ([]Event, error) { return k.Close(1, b.id), nil }); err != nil {
		t.Fatal(err)
	}
	a.open(1, true)
	acquired()
	before := a.acquires.Load()
	a.must(1, lock(a.owner(1), Write, 0, 9))
	if n := a.acquires.Load(); n != before+1 {
		t.Errorf("acquired %d times by a lock of the new delegation, want once", n-before)
	}
	b.open(1, false)
	c.standing(1, a, Standing{Delegated: true})
	b.refused(1, lock(b.owner(1), Read, 5, 5), errs.WouldBlock)
}

// TestOpenWhileOthersLock: who opens a file that others lock gets nothing.
func TestOpenWhileOthersLock(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	b.must(1, lock(b.owner(1), Write, 10, 19)) // so both are in the book
	b.open(1, true)
	c.standing(1, b, Standing{HasLocks: true, Others: true})
	b.refused(1, lock(b.owner(1), Write, 5, 5), errs.WouldBlock)
}

// TestResetTellsOfOpen: a node that missed that a file came with an open, and perhaps that it was recalled, learns it.
func TestResetTellsOfOpen(t *testing.T) {
	c := newBench(t, 2)
	a, b := c.members[0], c.members[1]
	c.halt(a)
	c.mu.Lock()
	c.log = append(c.log, c.book.Open(1, a.id, true, Yield{}), c.book.Open(2, a.id, true, Yield{}))
	c.mu.Unlock()
	done := b.wait(context.Background(), 1, lock(b.owner(1), Write, 0, 9))
	c.queued(1, 1)
	c.resume(a)
	end(t, done, errs.Other)
	a.must(2, lock(a.owner(1), Write, 0, 9))
	a.refused(1, lock(a.owner(1), Write, 0, 9), errs.WouldBlock)
	if n := a.commands.Load(); n != 2 {
		t.Errorf("%d commands, want a surrender and a request", n)
	}
}

// TestLateSurrender: a surrender that is applied when the file has been closed and opened again takes no lock that was granted since.
func TestLateSurrender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, 2)
		a, b := c.members[0], c.members[1]
		a.delayed = make(chan struct{})
		a.open(1, true)
		b.open(1, false)
		synctest.Wait()
		if err := a.command(t.Context(), func(k *Book) ([]Event, error) { return k.Close(1, a.id), nil }); err != nil {
			t.Fatal(err)
		}
		a.open(1, true)
		done := a.wait(t.Context(), 1, lock(a.owner(1), Write, 0, 9))
		synctest.Wait()
		close(a.delayed)
		synctest.Wait()
		end(t, done, errs.Other)
		b.refused(1, lock(b.owner(1), Write, 5, 5), errs.WouldBlock)
	})
}

// TestRequestBehindASurrender: a request that reaches the book before the surrender, but after this node has listed what it
// surrenders, is asked again afterwards. Decided by the local table it would be a lock of which the book does not know.
func TestRequestBehindASurrender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, 2)
		a, b := c.members[0], c.members[1]
		a.delayed = make(chan struct{})
		c.halt(a)
		c.mu.Lock()
		c.log = append(c.log, c.book.Open(1, a.id, true, Yield{}), c.book.Open(1, b.id, false, Yield{}))
		c.mu.Unlock()
		done := a.wait(t.Context(), 1, lock(a.owner(1), Write, 0, 9))
		ctx, giveUp := context.WithCancel(t.Context())
		never := a.wait(ctx, 1, lock(a.owner(2), Write, 20, 29))
		synctest.Wait()
		c.goOn(a, false)
		synctest.Wait()
		giveUp()
		synctest.Wait()
		close(a.delayed)
		synctest.Wait()
		end(t, done, errs.Other)
		b.refused(1, lock(b.owner(1), Write, 5, 5), errs.WouldBlock)
		if err := <-never; err == nil { // it may be granted at the last moment
			a.must(1, lock(a.owner(2), Unlock, 0, End))
		}
		b.must(1, lock(b.owner(1), Write, 20, 29))
	})
}
