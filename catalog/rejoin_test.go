package catalog

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestIncarnations: a node that was gone joins again with a larger incarnation, and no other. Nothing of an earlier one is applied.
func TestIncarnations(t *testing.T) {
	again := func(inc uint64) dsm.Member {
		m := member(nodeB)
		m.Inc = inc
		return m
	}
	for _, forgotten := range []bool{false, true} {
		m := newSized(t, 1<<30, 1<<30)
		if !forgotten {
			m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "f", Kind: dsm.KindFile, Size: 100 << 20, Claim: true})
		}
		late := command{Node: nodeB, Req: m.reqs[nodeB] + 1, Now: m.now}
		m.fails(errs.Exist, addMemberOp{again(7)}) // its former incarnation is there
		m.must(nodeA, goneOp{Node: nodeB})
		m.must(nodeA, settleOp{})
		if _, there := m.view.Member(nodeB); there == forgotten || !m.view.Knows(nodeB) {
			t.Fatalf("forgotten %v: members %+v, former %+v", forgotten, m.view.Members, m.view.Former)
		}
		m.fails(errs.Evicted, addMemberOp{again(0)})
		m.must(nodeA, addMemberOp{again(7)})
		if b, ok := m.view.Member(nodeB); !ok || b.Gone || b.Inc != 7 || len(m.view.Members) != 2 || len(m.view.Former) != 0 {
			t.Fatalf("members %+v, former %+v", m.view.Members, m.view.Former)
		}
		if _, err := m.send(late, createOp{Dir: dsm.RootIno, Name: "late", Kind: dsm.KindDir}); !errs.Is(err, errs.Evicted) {
			t.Errorf("a command of an earlier incarnation: %v", err)
		}
		if _, err := m.send(command{Node: nodeB, Inc: 7, Req: 1, Low: 1, Now: m.now}, createOp{Dir: dsm.RootIno, Name: "d", Kind: dsm.KindDir}); err != nil {
			t.Error(err)
		}
		m.must(nodeA, goneOp{Node: nodeB}) // decided before it came back
		if b, _ := m.view.Member(nodeB); b.Gone {
			t.Error("what was decided of one incarnation ends another")
		}
		restored, err := restore(mustEncode(t, m.image()))
		if err != nil {
			t.Fatal(err)
		}
		if again := mustEncode(t, restored.image()); string(again) != string(mustEncode(t, m.image())) {
			t.Error("a snapshot of a snapshot differs")
		}
	}
}

// TestFormerMembersAreBounded: only the last nodes that were gone may come back.
func TestFormerMembersAreBounded(t *testing.T) {
	m := newMachine(t)
	for i := range dsm.NodeID(2 * dsm.MostFormer) {
		m.must(nodeA, addMemberOp{member(nodeB + i)})
		ready(m)
		m.must(nodeA, goneOp{Node: nodeB + i})
	}
	if n := len(m.view.Former); n != dsm.MostFormer || !m.view.Knows(nodeB+2*dsm.MostFormer-1) || m.view.Knows(nodeB) {
		t.Errorf("%d former members: %+v", n, m.view.Former)
	}
}

// TestDecidedInAnEarlierTerm: what one leader has decided does not end a member under the next, who may have answered it.
func TestDecidedInAnEarlierTerm(t *testing.T) {
	m := newSized(t, 1<<30, 1<<30)
	m.term = 5
	m.fails(errs.Unavailable, goneOp{Node: nodeB, Term: 4})
	m.must(nodeA, goneOp{Node: nodeB, Term: 5})
	if b, ok := m.view.Member(nodeB); ok && !b.Gone {
		t.Error("a member is not gone")
	}
}
