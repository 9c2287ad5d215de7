package catalog

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestBothEndsKilled: a slot is on its way when the daemons of both ends are killed. That of the new home, which had nothing of it yet, is followed first. The source has all of it, whoever is first.
func TestBothEndsKilled(t *testing.T) {
	for _, first := range []string{"source", "new home"} {
		t.Run(first, func(t *testing.T) {
			m := newSized(t, 1<<30, 1<<30)
			v, _, at := m.pageAt(dsm.SlotHome{Primary: nodeB, Source: nodeA})
			had := dsm.Ledger{v.NameOf(at): {Since: v.Epoch - 1}}
			source := func() {
				if _, err := m.do(nodeA, backOp{Node: nodeA, Served: had}); err != nil {
					t.Errorf("the source, which has all of it, cannot come back: %v; the row is %+v", err, *m.view.Row(at))
				}
			}
			target := func() {
				if _, err := m.do(nodeB, backOp{Node: nodeB}); err != nil {
					t.Errorf("the new home cannot come back: %v", err)
				}
			}
			if first == "source" {
				source()
				target()
			} else {
				target()
				source()
			}
			if got := m.view.Row(at); got.Holder() != nodeA {
				t.Errorf("%+v", *got)
			}
		})
	}
}

// TestKilledAgainAndEvicted: the daemon that follows is killed before it has resumed, and before another one is there the cluster has taken the node for dead. It joins again, and has all that the first daemon had.
func TestKilledAgainAndEvicted(t *testing.T) {
	for _, again := range []bool{false, true} {
		m := newSized(t, 1<<30, 1<<30)
		b := sized(nodeB, 1<<30)
		b.Held = true
		req := uint64(1000)
		does := func(o op) error {
			req++
			_, err := m.send(command{Node: nodeB, Inc: b.Inc, Req: req, Low: 1, Now: m.now}, o)
			return err
		}
		v, _, at := m.pageAt(dsm.SlotHome{Primary: nodeB})
		served := dsm.Ledger{v.NameOf(at): {Since: v.Epoch}}
		if again {
			if err := does(backOp{Node: nodeB, Served: served}); err != nil {
				t.Fatal(err)
			}
		}
		m.must(nodeA, goneOp{Node: nodeB})
		if got := m.view.Row(at); got.Primary != nodeB {
			t.Fatalf("%+v", *got)
		}
		b.Inc = 1
		m.must(nodeA, addMemberOp{b})
		if err := does(backOp{Node: nodeB, Inc: 1, Served: served}); err != nil {
			t.Errorf("killed again %v: it cannot go on, and nobody has changed anything since: %v; the row is %+v", again, err, *m.view.Row(at))
		}
	}
}

// TestPlacedWhileTheDaemonIsDown: files get slots of their own while a node's daemon is killed, and another has not followed yet: those of a directory that is placed there, or one that is placed there, or elsewhere, by its attribute.
// The node has lost nothing, and goes on.
func TestPlacedWhileTheDaemonIsDown(t *testing.T) {
	for _, what := range []string{"nothing", "made there", "placed there", "placed elsewhere"} {
		t.Run(what, func(t *testing.T) {
			m := newSized(t, 1<<30, 1<<30)
			f := m.pageOn(nodeB)
			served := m.servedBy(nodeB)
			// The daemon is killed.
			switch what {
			case "made there":
				g := placedFile(m, "g", 0, "nb")
				m.must(nodeA, resize(g, dsm.PageSize))
			case "placed there":
				m.must(nodeA, placeAt(f, "nb"))
			case "placed elsewhere":
				m.must(nodeA, placeAt(f, "na"))
			}
			if _, err := m.do(nodeB, backOp{Node: nodeB, Served: served}); err != nil {
				t.Errorf("it cannot go on: %v", err)
			}
		})
	}
}

// TestSentToOneThatIsEvicted: a node has sent all of a slot to another one, which may have served it and is evicted for a while: it will join again with all of it. A source that lives gives the slot up, and goes on. So does one
// whose daemon is killed meanwhile: it has lost nothing.
func TestSentToOneThatIsEvicted(t *testing.T) {
	for _, killed := range []bool{false, true} {
		m := newSized(t, 1<<30, 1<<30)
		v, _, at := m.pageAt(dsm.SlotHome{Primary: nodeB, Source: nodeA})
		m.must(nodeA, goneOp{Node: nodeB})
		var err error
		if killed {
			_, err = m.do(nodeA, backOp{Node: nodeA, Served: dsm.Ledger{v.NameOf(at): {Since: v.Epoch - 1, Offered: v.Epoch}}})
		} else {
			_, err = m.do(nodeA, handoverFailedOp{Lost: []dsm.Slot{at}, Epoch: m.view.Epoch})
		}
		if err != nil {
			t.Errorf("killed %v: the source cannot go on: %v", killed, err)
		}
		b := sized(nodeB, 1<<30)
		b.Inc = 1
		m.must(nodeA, addMemberOp{b})
		if _, err := m.send(command{Node: nodeB, Inc: 1, Req: 1000, Low: 1, Now: m.now}, backOp{Node: nodeB, Inc: 1, Served: dsm.Ledger{v.NameOf(at): {Since: v.Epoch}}}); err != nil {
			t.Errorf("killed %v: the new home, which had all: %v", killed, err)
		}
		if got := m.view.Row(at); got.Primary != nodeB {
			t.Errorf("killed %v: %+v", killed, *got)
		}
	}
}

// TestPlacedByTheCommandItself: a file is to be placed somewhere as soon as the slot that it shares has come to rest. It does so when the daemon of a node is back, which has it: in the same view. The node has all of the new slot by
// the ledger of the one that the file has shared.
func TestPlacedByTheCommandItself(t *testing.T) {
	for _, where := range []string{"na", "nb"} {
		m := newSized(t, 1<<30, 1<<30)
		f := m.pageOn(nodeB) // which is there when all is in balance
		v, at := m.withRow(f, dsm.SlotHome{Primary: nodeA, Source: nodeB})
		m.must(nodeA, placeAt(f, where)) // the slot is on its way, so this waits
		if m.view.Placed(f.Area()) != 0 {
			t.Fatal("placed at once")
		}
		ledger := dsm.Ledger{v.NameOf(at): {Since: v.Epoch - 1}}
		m.must(nodeB, backOp{Node: nodeB, Served: ledger})
		now := m.view.SlotOf(f.Area(), m.inodes[f.Ino].Spec, 0)
		if row := m.view.Row(now); now == at || row.Holder() != nodeB || row.Primary != pinned(m.view, dsm.Placement(where)) {
			t.Fatalf("placed at %s: slot %d, %+v", where, now, *row)
		}
		if has := ledger.Has(m.view, nodeB, now, at); has != (dsm.LeftOver{Served: true, Kept: true}) {
			t.Errorf("placed at %s: the next daemon has %+v", where, has)
		}
	}
}
