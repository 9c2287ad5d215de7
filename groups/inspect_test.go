package groups

import (
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// deafSender is the way of a node to others of which one takes nothing in.
type deafSender struct {
	*wired
	deaf dsm.NodeID
}

func (s deafSender) Send(to dsm.NodeID, m any, payload [][]byte, more bool) {
	if to != s.deaf {
		s.wired.Send(to, m, payload, more)
	}
}

// TestSilent: who waits for a group learns which nodes delay it, on the coordinator and elsewhere.
func TestSilent(t *testing.T) {
	c := newCluster(t, 4)
	for _, w := range c.nodes {
		w.cfg.Sender = deafSender{w, 3}
	}
	_, err := c.nodes[1].Join(ended(t), 9, 2)
	wants(t, err, errs.Timeout, "do not answer: c")
	m := c.nodes[0].newMember(9, 2)
	if _, err := c.nodes[0].begin(m, m.applyLocked, m.hasRankLocked, func(error) {}); err != nil {
		t.Fatal(err)
	}
	if l := c.nodes[0].List(); len(l) != 1 || !strings.HasSuffix(l[0], "waiting=1 on=a silent=c") {
		t.Error(l)
	}
	c.gone(3)
	if l := c.nodes[0].List(); len(l) != 1 || !strings.HasSuffix(l[0], "waiting=1 on=a") {
		t.Error(l)
	}
	_, err = c.nodes[1].Join(ended(t), 9, 3)
	wants(t, err, errs.Invalid, "size 2, not 3")
}

// TestManyCame: who waits is told of some of the others only, and does not take these for all.
func TestManyCame(t *testing.T) {
	c := newCluster(t, 2)
	for i := range 100 {
		n := c.nodes[i%2]
		m := n.newMember(9, 200)
		if _, err := n.begin(m, m.applyLocked, m.hasRankLocked, func(error) {}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.nodes[1].Join(ended(t), 9, 200)
	wants(t, err, errs.Timeout, "not all 200 came in time, but 64 or more")
}
