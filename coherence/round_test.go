package coherence

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestRoundIsWhole: nobody sees anything of a round before its end, and who has finished it has the sum of the parts of those that belong
// to it, and nothing of a later one; with broken sessions and slots that move at any moment, and with a member that is missing.
func TestRoundIsWhole(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		if *simSeed != 0 {
			seed = *simSeed
		}
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testWholeRounds(t, seed) })
		})
	}
}

// wholeRounds is a cluster whose nodes store and publish in rounds only.
type wholeRounds struct {
	*sim
	total []int32         // of each element after the last round that has ended
	parts map[int][]int32 // what each node has stored since
	given map[int][]int32 // what it has handed over
}

const wholeElems = 16

func (w *wholeRounds) at(k int) (dsm.PageIndex, int) {
	return hot[k%len(hot)], 4 * (k / len(hot))
}

func testWholeRounds(t *testing.T, seed uint64) {
	w := &wholeRounds{sim: newSimOf(t, seed, simNodes, sumOf(dsm.DTypeI32, dsm.ApplySync), time.Hour, 0), total: make([]int32, wholeElems)}
	for _, n := range w.nodes {
		if w.rng.IntN(2) == 0 {
			n.node.links.window = dsm.PageSize
		}
		n.find()
		n.openReader()
		w.calm()
		n.openWriter()
		w.calm()
	}
	for number := range uint64(6) {
		id := dsm.RoundID{Group: 99, Generation: 1, Number: number + 1}
		w.parts, w.given = make(map[int][]int32), make(map[int][]int32)
		var list []dsm.NodeID
		for _, n := range w.nodes {
			w.store(n)
			n.kernel.harvest(1)
			if n.i != 3 || number%2 == 0 {
				list = append(list, n.id)
			}
		}
		for _, n := range w.nodes {
			k, b := w.give(n)
			n.ask("contribute", func(ctx context.Context) error {
				if p, at := w.at(k); len(b) > 0 {
					if err := accumulate(ctx, n.area, id, int64(p)*dsm.PageSize+int64(at), b); err != nil {
						return err
					}
				}
				return n.area.Contribute(ctx, id)
			}, nil)
		}
		w.faults(func(n *simNode) { w.check(n, "before the end", w.total, w.parts[n.i]) })
		w.calm()
		ended := slices.Clone(w.total)
		for i, part := range w.parts {
			if slices.Contains(list, w.nodes[i].id) {
				add(ended, part)
				add(ended, w.given[i])
			}
		}
		for w.moveSlots(); w.rng.IntN(3) > 0; { // some nodes know of it before they end the round
			if n := w.nodes[w.rng.IntN(len(w.nodes))]; n.behindCatalog() {
				n.apply()
			}
			w.rest()
		}
		for i := range list {
			n := w.nodes[i]
			n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, id, list, len(list), true) }, func(error) {
				if len(list) == simNodes { // else what the missing one has stored may have been published by now
					w.check(n, "after it", ended, nil)
				}
			})
		}
		w.faults(func(*simNode) {})
		w.calm()
		w.total = ended
		if len(list) < simNodes { // what it has stored is published apart
			w.nodes[3].area.AbandonRound(id)
			w.calm()
			add(w.total, w.parts[3])
			for _, n := range w.nodes {
				n.sync(n.writer)
				w.calm()
			}
		}
	}
	for _, n := range w.nodes {
		w.check(n, "at the end", w.total, nil)
		n.leaveAll()
	}
	w.calm()
}

func add(to, from []int32) {
	for k, v := range from {
		to[k] += v
	}
}

// store adds to some elements, twice for some, in what the node has in its page cache.
func (w *wholeRounds) store(n *simNode) {
	part := make([]int32, wholeElems)
	for range 20 {
		k, d := w.rng.IntN(wholeElems), int32(w.rng.IntN(2000)-1000)
		p, at := w.at(k)
		b, _ := n.stores(p)
		for b == nil {
			w.calm()
			b, _ = n.stores(p)
		}
		binary.LittleEndian.PutUint32(b[at:], binary.LittleEndian.Uint32(b[at:])+uint32(d))
		part[k] += d
	}
	w.parts[n.i] = part
}

// give returns what a node hands over: a number that is added to an element, or nothing.
func (w *wholeRounds) give(n *simNode) (k int, b []byte) {
	if w.rng.IntN(2) == 0 {
		return 0, nil
	}
	k = w.rng.IntN(wholeElems)
	w.given[n.i] = make([]int32, wholeElems)
	w.given[n.i][k] = int32(w.rng.IntN(2000) - 1000)
	return k, binary.LittleEndian.AppendUint32(nil, uint32(w.given[n.i][k]))
}

// faults lets things happen in any order, and sessions break, and slots move. One node hears of nearly nothing meanwhile.
func (w *wholeRounds) faults(check func(n *simNode)) {
	slow := w.rng.IntN(len(w.nodes))
	for range 200 {
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		if n.i == slow && w.rng.IntN(8) > 0 {
			continue
		}
		switch x := w.rng.IntN(20); {
		case x < 10:
			for range 4 {
				w.deliverTo(n)
			}
		case x < 11:
			w.breakSession()
		case x < 12:
			w.tellASender()
		case x < 13:
			w.moveSlots()
		case x < 15 && n.behindCatalog():
			n.apply()
		case x < 16:
			n.kernel.takeNotice()
		case x < 18:
			n.kernel.carryOut()
		default:
			n.kernel.reportDone()
		}
		w.rest()
		for _, n := range w.nodes {
			check(n)
		}
		w.sim.check()
	}
	for k := range w.deaf {
		w.tellSender(k)
	}
}

// deliverTo delivers the oldest message of one of the links to a node.
func (w *wholeRounds) deliverTo(n *simNode) {
	first := w.rng.IntN(len(w.nodes))
	for i := range w.nodes {
		k := link{(first + i) % len(w.nodes), n.i}
		w.mu.Lock()
		some := len(w.net[k]) > 0
		w.mu.Unlock()
		if some {
			w.deliverOn(k)
			return
		}
	}
}

// check compares what the node has in memory with the total of the rounds that have ended, and what it has stored since.
func (w *wholeRounds) check(n *simNode, when string, total, own []int32) {
	for k, want := range total {
		if own != nil {
			want += own[k]
		}
		p, at := w.at(k)
		if got := int32(binary.LittleEndian.Uint32(n.area.mu.mem.Working(p)[at:])); n.here(p) && got != want {
			w.t.Fatalf("node %d, element %d, %s of a round: %d, want %d", n.i, k, when, got, want)
		}
	}
}

// TestRoundOfADeadMember: a member that has contributed dies. If the round ends without it, nothing of it is in the result; if the group
// counts it in, all of it is, and nobody waits for it.
func TestRoundOfADeadMember(t *testing.T) {
	for _, in := range []bool{false, true} {
		t.Run(fmt.Sprintf("in=%v", in), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHomed(t, 3, sums(2, dsm.ApplyArrival))
				id := dsm.RoundID{Group: 99, Generation: 1, Number: 1}
				for i, n := range s.nodes {
					n.open(true)
					put(t, n, int32(1)<<i)
					n.ask("contribute", func(ctx context.Context) error { return n.area.Contribute(ctx, id) }, nil)
				}
				s.calm()
				s.kill(s.nodes[2])
				s.bury(s.nodes[2])
				s.calm()
				list, sum := []dsm.NodeID{1, 2}, int32(3)
				if in {
					list, sum = append(list, 3), 7
				}
				for _, n := range s.nodes[:2] {
					n.ask("finish", func(ctx context.Context) error { return n.area.FinishRound(ctx, id, list, len(list), true) }, nil)
				}
				s.calm()
				for _, n := range s.nodes[:2] {
					want(t, n, sum)
				}
			})
		})
	}
}

// TestRoundsOfTwoGroups: a node takes part in one round of an area at a time.
func TestRoundsOfTwoGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 2, sums(1, dsm.ApplyArrival))
		n := s.nodes[1]
		n.open(true)
		put(t, n, 5)
		contribute := func(id dsm.RoundID) (err error) {
			n.ask("contribute", func(ctx context.Context) error {
				err = n.area.Contribute(ctx, id)
				return nil
			}, nil)
			s.calm()
			return err
		}
		if err := contribute(dsm.RoundID{Group: 98, Generation: 1, Number: 1}); err != nil {
			t.Fatal(err)
		}
		if err := contribute(dsm.RoundID{Group: 99, Generation: 1, Number: 1}); !errs.Is(err, errs.Busy) {
			t.Errorf("a round of another group: %v, want that the area is busy", err)
		}
		if err := contribute(dsm.RoundID{Group: 98, Generation: 1, Number: 2}); err != nil {
			t.Errorf("the next round of a group, the last of which nobody has finished: %v", err)
		}
		s.nodes[0].open(true)
		s.rested()
		want(t, s.nodes[0], 5)
	})
}

// TestPublishRefusedBeforeContributing: what was being published when a node contributed, and is refused for new rules, is in memory after the round.
func TestPublishRefusedBeforeContributing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		n, m := s.nodes[1], s.nodes[2]
		s.openAll()
		s.calm()
		put(t, n, 5)
		publish(n)
		s.changeRules(func(*dsm.Inode) {})
		s.catchUp()
		for _, o := range []*simNode{n, m} {
			o.joinRound()
			s.rest()
			s.deliverAll(link{o.i, 0})
		}
		m.endRound([]dsm.NodeID{2, 3}, func(error) { want(t, m, 5) })
		for range 3 { // n hears of the refusal later
			s.rest()
			s.deliverAll(link{2, 0})
			s.deliverAll(link{0, 2})
			m.kernel.finishNotices()
		}
		s.calm()
	})
}
