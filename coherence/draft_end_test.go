package coherence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// attaches has a process attach the area.
func (n *simNode) attaches(program int, write bool) (a *Attachment) {
	n.ask("attach", func(ctx context.Context) error {
		t, f, err := n.attachAs(ctx, program, write)
		if err != nil {
			return err
		}
		a, n.area = t, t.area
		return f.Close()
	}, nil)
	n.sim.calm()
	return a
}

// newBoth is a cluster of two whose nodes have contributed to a round, the home a 5. On the other one a process has the area attached to store (w), and to read (r).
func newBoth(t *testing.T, kept bool) (s *sim, home, n *simNode, w, r *Attachment, list []dsm.NodeID) {
	s = newHomed(t, 2, sums(1, dsm.ApplySync))
	home, n = s.nodes[0], s.nodes[1]
	home.open(true)
	if kept {
		n.open(true)
	}
	w, r = n.attaches(1, true), n.attaches(1, false)
	put(t, home, 5)
	for _, n := range s.nodes {
		n.joinRound()
	}
	s.calm()
	list = []dsm.NodeID{1, 2}
	home.endRound(list, nil)
	s.calm()
	return s, home, n, w, r, list
}

// ending is the end of a round, which is waited for.
type ending struct {
	over bool
	err  error
}

// ends has a program wait for the end of a round, for an hour.
func (n *simNode) ends(call func(ctx context.Context) error) *ending {
	e := new(ending)
	n.ask("finish", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		e.err = call(ctx)
		return nil
	}, func(error) { e.over = true })
	return e
}

// hasCome checks that it has come.
func (e *ending) hasCome(s *sim) {
	if !e.over {
		s.t.Error("the end of the round waits, though the result is in memory")
	}
	s.pass(2 * time.Hour)
	s.calm()
	if e.err != nil {
		s.t.Error(e.err)
	}
}

// TestResultThatAWriterHasBrought: a process ends a round by what it has attached to read. Another thread of it, which stores, syncs right after the
// homes have answered: what the process maps has the result then, and the end of the round waits for no other sync.
func TestResultThatAWriterHasBrought(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, n, w, r, list := newBoth(t, false)
		var op *acquiring
		n.ask("finish", func(ctx context.Context) error { // the first half of Attachment.FinishRound
			n.area.step(func() { op = n.area.startFinishLocked(firstRound, list, len(list), false) })
			return n.area.finishRound(ctx, op)
		}, nil)
		s.calm()
		n.ask("sync", w.Acquire, nil) // by the other thread
		s.calm()
		if got := r.draft.mem.Memory(0)[0]; got != 5 {
			t.Fatalf("the process sees %d, want 5", got)
		}
		put(t, home, 9) // which is for the next sync
		publish(home)
		s.calm()
		end := n.ends(func(ctx context.Context) error { return r.awaitDraft(ctx, firstRound, op.changes) }) // the second half
		s.calm("finish")
		end.hasCome(s)
		w.Detach()
		r.Detach()
	})
}

// TestResultOfOneHome: likewise, where another home, which has merged nothing, answers with an older version. The process has all up to that one, and not the result, until the other thread syncs.
func TestResultOfOneHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ino := sums(2, dsm.ApplySync)
		ino.Spec.Placement = dsm.PlaceSpread
		s := newHomed(t, 3, ino)
		home, n, other := s.nodes[0], s.nodes[1], s.nodes[2]
		s.changeView(func(v *dsm.View) { s.rowOf(v, 1).Primary = other.id })
		s.catchUp()
		home.open(true)
		w, r := n.attaches(1, true), n.attaches(1, false)
		put(t, home, 2)
		publish(home)
		s.calm()
		n.ask("sync", w.Acquire, nil)
		put(t, home, 5)
		home.joinRound()
		n.joinRound()
		s.calm()
		list := []dsm.NodeID{home.id, n.id}
		end := n.ends(func(ctx context.Context) error { return r.FinishRound(ctx, firstRound, list, len(list)) })
		s.rest()
		s.deliverAll(link{n.i, other.i}) // which answers before it hears of the result
		s.rest()
		s.deliverAll(link{other.i, n.i})
		s.calm("finish")
		if end.over {
			t.Fatal("it has ended without the result")
		}
		n.ask("sync", w.Acquire, nil)
		s.calm("finish")
		if got := r.draft.mem.Memory(0)[0]; got != 5 {
			t.Fatalf("the process sees %d, want 5", got)
		}
		end.hasCome(s)
		w.Detach()
		r.Detach()
	})
}

// TestResultKeptOutOfBoth: likewise, where another program of the node, which has the file open for writing, has kept the result out until that sync.
func TestResultKeptOutOfBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, n, w, r, list := newBoth(t, true)
		end := n.ends(func(ctx context.Context) error { return r.FinishRound(ctx, firstRound, list, len(list)) })
		s.calm("finish")
		if end.over {
			t.Fatalf("it has ended without the result: %v", end.err)
		}
		n.ask("sync", w.Acquire, nil)
		s.calm("finish")
		if got := r.draft.mem.Memory(0)[0]; got != 5 {
			t.Fatalf("the process sees %d, want 5", got)
		}
		end.hasCome(s)
		w.Detach()
		r.Detach()
	})
}

// TestAttachBesideTheEndOfAWriter: the process attaches when what it has stored with has just been closed. The open has acquired, so what others
// published before is in the memory when Attach returns, also if the daemon is just bringing it in.
func TestAttachBesideTheEndOfAWriter(t *testing.T) {
	for _, write := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newHomed(t, 2, sums(1, dsm.ApplySync))
			home, n := s.nodes[0], s.nodes[1]
			home.open(true)
			w := n.attaches(1, true)
			put(t, home, 5)
			publish(home)
			s.calm()
			want(t, n, 5)
			n.area.mu.Lock() // the first half of Released
			w.released = true
			w.draft.storesLocked(-1)
			n.area.mu.Unlock()
			next := n.attaches(1, write)
			if got := next.draft.mem.Memory(0)[0]; got != 5 {
				t.Errorf("to store: %v: the process sees %d, want 5", write, got)
			}
			w.Detach()
			next.Detach()
		})
	}
}

// TestEndOfAProgramBesideAnother: a program ends, and what it has stored is published. What another one has stored in memory of its own is not: it is about to contribute that to a round.
func TestEndOfAProgramBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplySync))
		home, n := s.nodes[0], s.nodes[1]
		home.open(false)
		var both [2]*Attachment
		for i := range both {
			both[i] = n.attaches(i+1, true)
			defer both[i].Track(nil, 0, dsm.ExtentSize)()
		}
		both[0].draft.mem.Memory(0)[0] = 5
		both[1].draft.mem.Memory(0)[4] = 7
		both[1].Released()
		published := false
		n.ask("publish", func(ctx context.Context) (err error) {
			published, err = both[1].PublishReleased(ctx)
			return err
		}, nil)
		s.calm()
		if own, other := byteAt(t, home, 4), byteAt(t, home, 0); !published || own != 7 || other != 0 {
			t.Errorf("published %v: %d of the program that has ended, want 7, and %d of the other one, want 0", published, own, other)
		}
		n.ask("publish", n.area.Publish, nil)
		s.calm()
		if got := byteAt(t, home, 0); got != 5 {
			t.Errorf("%d of the other one, want 5", got)
		}
		for _, at := range both {
			at.Detach()
		}
	})
}
