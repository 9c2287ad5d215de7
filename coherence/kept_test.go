package coherence

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// newKept is a cluster of two of whose nodes both have contributed to a round, the home a 5. On the other one, n, a program that stores keeps updates out of
// memory.
func newKept(t *testing.T) (s *sim, home, n *simNode, list []dsm.NodeID) {
	s = newHomed(t, 2, sums(1, dsm.ApplySync))
	home, n = s.nodes[0], s.nodes[1]
	home.open(true)
	n.open(true)
	s.calm()
	put(t, home, 5)
	for _, n := range s.nodes {
		n.joinRound()
	}
	s.calm()
	return s, home, n, []dsm.NodeID{1, 2}
}

// TestResultKeptOut: a program that only reads ends a round while another of its node has the file open for writing, which keeps updates out of memory.
// It has the result when that one has closed, synced, or ended the round too; and an error when its time is over.
func TestResultKeptOut(t *testing.T) {
	for name, bring := range map[string]func(n *simNode, list []dsm.NodeID){
		"closed": func(n *simNode, _ []dsm.NodeID) { n.area.Released() },
		"synced": func(n *simNode, _ []dsm.NodeID) { n.sync(n.writer) },
		"ended":  func(n *simNode, list []dsm.NodeID) { n.endRound(list, nil) },
		"late":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, home, n, list := newKept(t)
				finish := func(ctx context.Context, n *simNode) error {
					return n.area.FinishRound(ctx, firstRound, list, len(list), false)
				}
				home.endRound(list, nil)
				var over bool
				var got error
				n.ask("finish", func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, time.Hour)
					defer cancel()
					got = finish(ctx, n)
					return nil
				}, func(error) { over = true })
				s.calm("finish")
				want(t, n, 0)
				if over {
					t.Fatalf("it has ended without the result: %v", got)
				}
				if bring == nil {
					s.pass(2 * time.Hour)
					if !over || !errs.Is(got, errs.Timeout) {
						t.Errorf("over %v: %v", over, got)
					}
					n.ask("finish", func(ctx context.Context) error { return finish(ctx, n) }, nil) // what is kept out has not come meanwhile
					n.area.Released()
				} else {
					bring(n, list)
				}
				s.calm()
				want(t, n, 5)
				if bring != nil && got != nil {
					t.Error(got)
				}
			})
		})
	}
}

// TestResultKeptOutWhenASyncIsGivenUp: likewise, but the sync of the program that stores is given up before the kernel has been told. Its page cache has the result after the next one.
func TestResultKeptOutWhenASyncIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, n, list := newKept(t)
		n.kernel.fault(0)
		home.endRound(list, nil)
		over := false
		seen := func() uint32 { return binary.LittleEndian.Uint32(n.kernel.fault(0).data[:]) }
		n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, firstRound, list, len(list), false) }, func(error) {
			if over = true; seen() != 5 {
				t.Errorf("the round has ended, and a program that maps the file sees %d", seen())
			}
		})
		s.calm("finish")
		q := n.ask("sync", func(ctx context.Context) error { return n.area.Sync(ctx, true) }, nil)
		s.drain()
		want(t, n, 5)
		q.giveUp()
		s.rest()
		n.kernel.takeNotice() // there is none now
		n.area.step(func() { n.area.mu.wake = true })
		s.rest()
		if over {
			t.Error("the round has ended without its result")
		}
		n.sync(n.writer)
		s.calm()
		if !over {
			t.Error("the round does not end")
		}
	})
}

// TestStoredByOneWhoIsNotInTheRound: a program that stores does not name the file in its round, and one that only reads, on the same node, does. What the
// first has stored is in the round, once. The second gets no result before the first syncs: each call ends with its time, and says why; then it has the result.
func TestStoredByOneWhoIsNotInTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplySync))
		home, n := s.nodes[0], s.nodes[1]
		home.open(true)
		n.open(true)
		s.calm()
		put(t, home, 5)
		put(t, n, 3)
		for _, n := range s.nodes {
			n.joinRound() // on n by the program that only reads
		}
		s.calm()
		list := []dsm.NodeID{1, 2}
		home.endRound(list, nil)
		finish := func(want errs.Kind) {
			t.Helper()
			var got error
			n.ask("finish", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				got = n.area.FinishRound(ctx, firstRound, list, 1, false)
				return nil
			}, nil)
			s.calm("finish")
			s.pass(2 * time.Hour)
			if errs.KindOf(got) != want || got != nil && !strings.Contains(got.Error(), "the program of this node that has the file open for writing") {
				t.Errorf("the round ends with %v", got)
			}
		}
		for range 2 {
			finish(errs.Timeout)
			want(t, home, 8)
			want(t, n, 3)
		}
		n.sync(n.writer)
		s.calm()
		finish(errs.KindOf(nil))
		for range 2 {
			want(t, home, 8)
			want(t, n, 8)
			publish(n)
			s.calm()
		}
	})
}

// TestResultKeptOutAndReset: a session with a home breaks while the kernel is told of the round, which the home has ended and this node keeps out. The call
// still waits: the home has nothing more to say, and what was kept out is not forgotten.
func TestResultKeptOutAndReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, home, n, list := newKept(t)
		home.endRound(list, nil)
		var op *acquiring
		n.area.step(func() { op = n.area.startFinishLocked(firstRound, list, len(list), false) })
		s.calm()
		n.reset(home)
		over := false
		n.ask("finish", func(ctx context.Context) error { return n.area.awaitKept(ctx, op) }, func(error) { over = true })
		s.calm("finish")
		if over {
			t.Error("it has ended without the result")
		}
		n.area.Released()
		s.calm()
		want(t, n, 5)
	})
}

// TestResultThatAnEarlierSyncHasBrought: the program that keeps the result out syncs while it comes, before the home has answered who ends the round. That
// one waits for no further sync.
func TestResultThatAnEarlierSyncHasBrought(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, n, list := newKept(t)
		n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, firstRound, list, len(list), false) }, nil)
		s.rest()
		s.deliverAll(link{1, 0})
		for {
			if _, answers := s.queue(link{0, 1})[0].msg.(*wire.Acquired); answers {
				break
			}
			s.deliverOn(link{0, 1})
		}
		want(t, n, 0)
		n.sync(n.writer)
		for len(s.requests) > 0 && (s.deliver() || n.kernel.work()) {
			s.rest()
		}
		want(t, n, 5)
		if s.waits() {
			t.Error("it waits although it has the result")
		}
	})
}

// TestResultKeptOutAfterASync: the program that keeps the result out syncs before the round has ended, as one node's part has not come. That sync has not brought the result: the
// next one does.
func TestResultKeptOutAfterASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplySync))
		home, n, slow := s.nodes[0], s.nodes[1], s.nodes[2]
		s.openAll()
		s.calm()
		put(t, slow, 5)
		home.joinRound()
		n.joinRound()
		s.calm()
		slow.joinRound()
		s.rest()
		finish := n.ask("finish", func(ctx context.Context) error {
			return n.area.FinishRound(ctx, firstRound, []dsm.NodeID{1, 2, 3}, 3, false)
		}, nil)
		s.rest()
		n.sync(n.writer)
		for s.rest(); len(s.queue(link{1, 0}))+len(s.queue(link{0, 1})) > 0 || n.kernel.work(); s.rest() {
			s.deliverAll(link{1, 0})
			s.deliverAll(link{0, 1})
		}
		if s.waits("finish", "contribute") || finish.over.Load() {
			t.Fatal("the sync is not over, or the round is")
		}
		s.calm("finish")
		want(t, n, 0)
		if finish.over.Load() {
			t.Error("the round has ended without its result")
		}
		n.sync(n.writer)
		s.calm()
		want(t, n, 5)
	})
}

// TestResultKeptOutAndNotFinite: the same of a program that has accumulated what is not finite. It hears first that the result is not in memory, and of the
// other when that is over.
func TestResultKeptOutAndNotFinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, finiteOnly(dsm.MergeSum, dsm.ApplySync))
		home, n := s.nodes[0], s.nodes[1]
		home.open(true)
		n.open(true)
		s.calm()
		home.store(t, 0, 5)
		n.ask("accumulate", func(ctx context.Context) error {
			return accumulate(ctx, n.area, firstRound, 40, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN()))))
		}, nil)
		s.calm()
		for _, n := range s.nodes {
			n.joinRound()
		}
		s.calm()
		home.endRound([]dsm.NodeID{1, 2}, nil)
		for _, want := range []errs.Kind{errs.Timeout, errs.NotFinite} {
			var got error
			n.ask("finish", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				got = n.area.FinishRound(ctx, firstRound, []dsm.NodeID{1, 2}, 2, false)
				return nil
			}, nil)
			s.calm("finish")
			s.pass(2 * time.Hour)
			if !errs.Is(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if want == errs.Timeout {
				n.area.Released()
				s.calm()
			}
		}
		if got := n.float(0); got != 5 {
			t.Errorf("the result is %v", got)
		}
	})
}
