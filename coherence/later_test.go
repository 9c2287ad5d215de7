package coherence

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestPublishAfterAPart: where the last store wins, what a node publishes while a part of it waits is not undone by the part, which has an
// earlier store to the same bytes. It does not matter how the round ends, nor whether there is another home by then.
func TestPublishAfterAPart(t *testing.T) {
	type ending struct {
		name string
		end  func(n *simNode)
	}
	endings := []ending{
		{"given up", func(n *simNode) { n.area.AbandonRound(firstRound) }},
		{"finished", func(n *simNode) { n.endRound([]dsm.NodeID{n.id}, nil) }},
		{"left out", func(n *simNode) { n.endRound([]dsm.NodeID{3}, nil) }},
	}
	for _, c := range []struct {
		name     string
		node     int // that contributes; the first one is the home
		to       int // the home in the end
		answered bool
	}{
		{"at the home", 0, 0, true},
		{"at the home, which moves", 0, 2, true},
		{"at the home, which moves at once", 0, 2, false},
		{"elsewhere", 1, 0, true},
		{"elsewhere, and the home moves", 1, 2, true},
		{"elsewhere, and the home moves at once", 1, 2, false},
		{"elsewhere, and the home moves there at once", 1, 1, false},
	} {
		for _, apply := range []dsm.Apply{dsm.ApplyArrival, dsm.ApplySync} {
			for _, e := range endings {
				t.Run(fmt.Sprintf("%s, %v, %s", c.name, apply, e.name), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { publishAfterAPart(t, apply, c.node, c.to, c.answered, e.end) })
				})
			}
		}
	}
}

func publishAfterAPart(t *testing.T, apply dsm.Apply, node, to int, answered bool, end func(n *simNode)) {
	const first, later = 0x0101, 0x0102
	s := newHomed(t, 3, dsm.Inode{Size: dsm.ExtentSize, Spec: dsm.Spec{Apply: apply}})
	n := s.nodes[node]
	s.openAll()
	s.calm()
	put(t, n, first)
	n.joinRound()
	s.calm()
	put(t, n, later)
	publish(n)
	if answered {
		s.calm()
	} else { // the old home has it, and no answer comes in time
		s.rest()
		s.deliverAll(link{node, 0})
	}
	s.move(s.nodes[to], 1)
	s.calm()
	want(t, n, later)
	end(n)
	agree(t, s, later)
}

// agree checks that all nodes come to have the same.
func agree(t *testing.T, s *sim, v int32) {
	t.Helper()
	s.calm()
	s.rested()
	for _, n := range s.nodes {
		want(t, n, v)
	}
}

// storeByLaterRules has a program store 2 when its node has a part of a round and the rules have changed, and asks for it to be published.
func storeByLaterRules(t *testing.T, s *sim, n *simNode) {
	t.Helper()
	s.changeRules(func(ino *dsm.Inode) { ino.Spec.Merge = dsm.MergeLast })
	s.catchUp()
	put(t, n, 2)
	publish(n)
	s.rest()
}

// TestPartOfEarlierRules: a part that the home has refused, as it was made by earlier rules, is not added to what the home has since.
func TestPartOfEarlierRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		n := s.nodes[1]
		s.openAll()
		s.calm()
		put(t, n, 1)
		n.joinRound()
		s.calm()
		storeByLaterRules(t, s, n)
		s.deliverAll(link{1, 0})
		s.move(s.nodes[2], 1)
		s.calm()
		n.area.AbandonRound(firstRound)
		agree(t, s, 2)
	})
}

// TestPartOfEarlierRulesWaits: a part that was made by earlier rules waits for credit to be sent to another home, and a smaller publish by the rules
// of now does not. The home's ack does not say whether it has the part, so the publish must not go first.
func TestPartOfEarlierRulesWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHomed(t, 3, sums(1, dsm.ApplyArrival))
		n, to := s.nodes[1], s.nodes[2]
		s.openAll()
		s.calm()
		ones := bytes.Repeat([]byte{1, 0, 0, 0}, dsm.PageSize/4)
		if err := n.area.WriteAt(context.Background(), ones, 0); err != nil {
			t.Fatal(err)
		}
		n.joinRound()
		s.calm()
		storeByLaterRules(t, s, n)
		links := &n.node.links
		links.window = 2 * dsm.PageSize
		links.more(to.id, n.area, dsm.PageSize+1000)
		s.move(to, 1)
		s.calm()
		links.give(to.id, n.area, 1)
		s.calm()
		links.give(to.id, n.area, dsm.PageSize+999)
		s.calm()
		n.area.AbandonRound(firstRound)
		agree(t, s, 2)
	})
}
