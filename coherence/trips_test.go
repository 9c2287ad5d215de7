package coherence

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// trips runs a call of n, and returns how often it waited for the other nodes: in each turn all that is under way to them arrives, and then all
// that they answer.
func (s *sim) trips(n *simNode, call func(ctx context.Context) error) (turns int) {
	f := &failing{call: call}
	f.start()
	defer func() {
		f.cancel()
		synctest.Wait()
	}()
	for n.kernel.finishNotices(); !f.over; turns++ {
		if turns == 10 {
			s.explain()
			s.t.Fatal("the call does not end")
		}
		for _, o := range s.nodes {
			s.deliverAll(link{n.i, o.i})
		}
		for _, o := range s.nodes {
			s.deliverAll(link{o.i, n.i})
		}
		n.kernel.finishNotices()
		synctest.Wait()
	}
	if f.err != nil {
		s.t.Fatal(f.err)
	}
	return turns
}

// TestOpenTakesOneRoundTrip: who opens, or attaches, an area that lives at another node waits for one answer of it, however much there is to bring.
func TestOpenTakesOneRoundTrip(t *testing.T) {
	for name, apply := range map[string]dsm.Apply{"arrival": dsm.ApplyArrival, "sync": dsm.ApplySync} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 3, sums(2, apply))
				home, reader, writer := s.nodes[0], s.nodes[1], s.nodes[2]
				home.open(true)
				storeAll(t, home, 2)
				publish(home)
				s.drain()
				for _, n := range []*simNode{reader, writer} {
					n.find()
				}
				if got := s.trips(reader, func(ctx context.Context) error { _, err := reader.node.Open(ctx, simArea, false); return err }); got != 1 {
					t.Errorf("open takes %d round trips", got)
				}
				if get(reader) != get(home) {
					t.Errorf("after it the program reads %d, want %d", get(reader), get(home))
				}
				var at *Attachment
				if got := s.trips(writer, func(ctx context.Context) error {
					if _, err := writer.node.Open(ctx, simArea, false); err != nil {
						return err
					}
					x, f, err := writer.area.Attach(ctx, 1, true)
					if err == nil {
						err = f.Close()
					}
					at = x
					return err
				}); got != 1 {
					t.Errorf("attach takes %d round trips", got)
				}
				if get(writer) != get(home) {
					t.Errorf("after it the program reads %d, want %d", get(writer), get(home))
				}
				at.Detach()
			})
		})
	}
}

// TestSyncTakesOneRoundTrip: a sync publishes to one home, and asks the others at the same time whether they have anything. After it the program has what was published before.
func TestSyncTakesOneRoundTrip(t *testing.T) {
	for name, apply := range map[string]dsm.Apply{"arrival": dsm.ApplyArrival, "sync": dsm.ApplySync} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, 1, 3, sums(40, apply)) // of more than 16 MiB, so not at one home
				first, second, n := s.nodes[0], s.nodes[1], s.nodes[2]
				s.changeView(func(v *dsm.View) {
					for i := range v.Slots {
						v.Slots[i].Primary = second.id
					}
					s.rowOf(v, 0).Primary = first.id
				})
				s.catchUp()
				s.openAll()
				s.drain()
				put(t, second, 5)
				publish(second)
				s.drain()
				put(t, n, get(n)+3)
				if got := s.trips(n, func(ctx context.Context) error { return n.area.Sync(ctx, true) }); got != 1 {
					t.Errorf("a sync takes %d round trips", got)
				}
				if get(n) != 8 {
					t.Errorf("after it the program has %d, want 8", get(n))
				}
			})
		})
	}
}
