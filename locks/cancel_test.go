package locks

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// inBook is a bench in which the book decides on file 1: node B has bytes 100 to 199 of it.
func inBook(t *testing.T) (c *bench, a, b *member) {
	c = newBench(t, 2)
	a, b = c.members[0], c.members[1]
	a.must(1, lock(a.owner(1), Write, 0, 9))
	b.must(1, lock(b.owner(1), Write, 100, 199))
	c.standing(1, a, Standing{HasLocks: true, Others: true})
	return c, a, b
}

// TestCutOffNodeAnswersOnce: a call ends when it has lasted as long as it may, with an error that says so. That is no interruption.
func TestCutOffNodeAnswersOnce(t *testing.T) {
	for _, x := range []struct {
		name string
		call func(ctx context.Context, a *member) error
	}{
		{"lock", func(ctx context.Context, a *member) error {
			return a.Set(ctx, 1, lock(a.owner(2), Write, 20, 20), false, nil)
		}},
		{"lock in the way", func(ctx context.Context, a *member) error {
			return a.Set(ctx, 1, lock(a.owner(2), Write, 100, 100), false, nil)
		}},
		{"unlock", func(ctx context.Context, a *member) error {
			return a.Set(ctx, 1, lock(a.owner(1), Unlock, 0, 9), false, nil)
		}},
		{"test", func(ctx context.Context, a *member) error {
			_, _, err := a.Test(ctx, 1, lock(a.owner(2), Write, 100, 100))
			return err
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, a, b := inBook(t)
				c.halt(a)
				for range 2 { // also if what the first has left is still under way
					ctx, cancel := context.WithTimeout(t.Context(), patience/2)
					began := time.Now()
					err := x.call(ctx, a)
					cancel()
					if took := time.Since(began); errs.KindOf(err) != errs.Timeout || took != patience/2 {
						t.Errorf("%v after %v", err, took)
					}
				}
				c.goOn(a, false)
				a.waiting(0)
				end(t, b.wait(t.Context(), 1, lock(b.owner(2), Write, 20, 20)), errs.Other)
				b.must(1, lock(b.owner(1), Unlock, 0, End))
				b.must(1, lock(b.owner(2), Write, 100, 100))
			})
		})
	}
}

func TestInterruptedWaitLeavesNothing(t *testing.T) {
	for _, where := range []string{"local", "book", "recall"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newBench(t, 2)
				a, b := c.members[0], c.members[1]
				a.must(1, lock(a.owner(1), Write, 0, 9))
				m := a
				if where != "local" {
					m = b
				}
				if where == "book" {
					b.must(1, lock(b.owner(7), Write, 100, 100))
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := m.wait(ctx, 1, lock(m.owner(2), Write, 0, 9))
				m.waiting(1)
				if where != "local" {
					c.until(func() bool { return !c.book.Standing(1, a.id).Delegated })
					c.queued(1, 1)
				}
				cancel()
				end(t, done, errs.Interrupted)
				a.must(1, lock(a.owner(1), Unlock, 0, End))
				a.must(1, lock(a.owner(3), Write, 0, 9))
				if _, n := m.Figures(); n != 0 {
					t.Errorf("%d requests wait", n)
				}
			})
		})
	}
}

// TestSignalEndsAWaitAtOnce, whatever is stuck. What is left of the request is given up later, before the owner gets another lock.
func TestSignalEndsAWaitAtOnce(t *testing.T) {
	for _, x := range []struct {
		name  string
		stick func(t *testing.T, c *bench, a *member) (unstick func())
	}{
		{"the node hears nothing", func(_ *testing.T, c *bench, a *member) func() {
			a.must(1, lock(a.owner(3), Write, 0, 9))
			b := c.members[1]
			b.must(1, lock(b.owner(1), Write, 20, 20))
			c.halt(a)
			return func() { c.goOn(a, false) }
		}},
		{"a surrender is under way", func(t *testing.T, c *bench, a *member) func() {
			a.must(1, lock(a.owner(3), Write, 0, 9))
			a.delayed = make(chan struct{})
			return func() { close(a.delayed) }
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newBench(t, 2)
				a, b := c.members[0], c.members[1]
				unstick := x.stick(t, c, a)
				ctx, cancel := context.WithCancel(t.Context())
				done := a.wait(ctx, 1, lock(a.owner(2), Write, 0, 9))
				a.waiting(1)
				other := b.wait(t.Context(), 1, lock(b.owner(2), Write, 5, 5))
				synctest.Wait()
				began := time.Now()
				cancel()
				end(t, done, errs.Interrupted)
				if took := time.Since(began); took > cancelLimit {
					t.Errorf("it took %v", took)
				}
				again := a.wait(t.Context(), 1, lock(a.owner(2), Read, 300, 300))
				synctest.Wait()
				unstick()
				end(t, again, errs.Other)
				a.must(1, lock(a.owner(3), Unlock, 0, End))
				end(t, other, errs.Other)
				b.refused(1, lock(b.owner(2), Write, 300, 300), errs.WouldBlock)
				a.waiting(0)
			})
		})
	}
}

// TestLateGrantOfAnAbandonedRequest: it takes nothing from the owner that the owner has got since.
func TestLateGrantOfAnAbandonedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, b := inBook(t)
		c.halt(a)
		ctx, cancel := context.WithTimeout(t.Context(), patience/2)
		defer cancel()
		if err := a.Set(ctx, 1, lock(a.owner(2), Write, 20, 20), false, nil); errs.KindOf(err) != errs.Timeout {
			t.Fatal(err)
		}
		again := a.wait(t.Context(), 1, lock(a.owner(2), Write, 20, 20))
		synctest.Wait()
		c.goOn(a, false)
		end(t, again, errs.Other)
		synctest.Wait()
		b.refused(1, lock(b.owner(2), Write, 20, 20), errs.WouldBlock)
	})
}
