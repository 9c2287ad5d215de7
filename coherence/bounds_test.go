package coherence

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// encoding is a node's Sender that loses what does not fit into a frame, as the transport does.
type encoding struct {
	*simNode
	t *testing.T
}

func (n *encoding) Send(to dsm.NodeID, m any, payload [][]byte, more bool) {
	if _, err := wire.Append(nil, m, 0, false, len(flat(payload))); err != nil {
		n.t.Error(err)
		return
	}
	n.simNode.Send(to, m, payload, more)
}

// TestOpenOfAVeryLargeFile: a file of 26,000 extents was written on one node, another one opens it: what they say to each other about it
// fits into frames.
func TestOpenOfAVeryLargeFile(t *testing.T) {
	const extents = 26_000
	s := newHomed(t, 2, dsm.Inode{Size: extents * dsm.ExtentSize})
	home, other := s.nodes[0], s.nodes[1]
	for _, n := range s.nodes {
		n.node.cfg.Sender = &encoding{n, t}
		n.find()
	}
	a := home.area
	a.step(func() {
		if _, err := a.memoryLocked(); err != nil {
			t.Fatal(err)
		}
		for e := range dsm.ExtentIndex(extents) {
			x := a.homeExtentLocked(e)
			x.version = a.drawLocked()
			for _, i := range []int{63, 127, 191, 255} {
				a.mu.home.setVersion(x, i, x.version)
			}
		}
	})
	other.startOpen(false)
	s.deliverAll(link{1, 0})
	for _, f := range s.net[link{0, 1}] {
		if _, ok := f.msg.(*wire.Subscribed); ok {
			if err := other.node.Handle(home.id, f.msg, f.payload); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(other.area.mu.replica.subs); n > 0 {
		t.Errorf("the open waits for %d answers", n)
	}
}

// TestHomeForgetsWhoLeft: a home does not keep what it knows of the publishes of nodes that are no members any more, and merges
// nothing that they send again.
func TestHomeForgetsWhoLeft(t *testing.T) {
	s, home, replica := pair(t, dsm.ApplyArrival)
	put(t, replica, 5)
	publish(replica)
	again := s.net[link{1, 0}][0]
	again.shared.Retain()
	s.drain()
	s.changeView(func(v *dsm.View) { v.Members = v.Members[:1] })
	home.apply()
	if n := len(home.area.mu.home.extents[0].writers); n != 0 {
		t.Errorf("%d publishers are remembered", n)
	}
	s.net[link{1, 0}] = append(s.net[link{1, 0}], again)
	s.deliverAll(link{1, 0})
	want(t, home, 5)
}
