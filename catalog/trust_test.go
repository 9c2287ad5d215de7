package catalog

import (
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/trust"
)

// keyed is a member of a cluster that encrypts.
func keyed(id dsm.NodeID) dsm.Member {
	m := member(id)
	m.Key[0] = byte(id)
	return m
}

// newTrusting returns a state with A and B in a cluster that encrypts.
func newTrusting(t testing.TB) *machine {
	t.Helper()
	m := &machine{TB: t, state: newState(), reqs: make(map[dsm.NodeID]uint64), now: 1e18}
	first, err := trust.New(time.Unix(0, m.now))
	if err != nil {
		t.Fatal(err)
	}
	m.must(nodeA, bootstrapOp{Cluster: 1, Member: keyed(nodeA), RootPerm: 0o755, Trust: first})
	m.must(nodeA, addMemberOp{keyed(nodeB)})
	ready(m)
	return m
}

func TestKeysOfMembers(t *testing.T) {
	m := newTrusting(t)
	m.fails(errs.Invalid, addMemberOp{member(nodeC)}, "the cluster encrypts")
	m.must(nodeA, addMemberOp{keyed(nodeC)})
	if got, _ := m.view.Member(nodeC); got.Key != keyed(nodeC).Key {
		t.Errorf("the catalog has the key %x", got.Key)
	}
	plain := newMachine(t)
	plain.fails(errs.Invalid, addMemberOp{keyed(nodeB)}, "--insecure")
	plain.fails(errs.Invalid, trustOp{dsm.Trust{Serial: 1}}, "--insecure")
	plain.must(nodeA, addMemberOp{member(nodeB)})
	plain.must(nodeA, goneOp{Node: nodeB})
	if plain.view.Trust != nil {
		t.Error("a cluster that does not encrypt has keys")
	}
}

// The id of a node that has left does not come back, and that of one that was given up only with its key, also where the node is
// forgotten.
func TestReplayedIncarnation(t *testing.T) {
	m := newTrusting(t)
	m.must(nodeA, addMemberOp{keyed(nodeC)})
	ready(m)
	m.must(nodeA, goneOp{Node: nodeC})
	if _, ok := m.view.Member(nodeC); ok {
		t.Fatal("a member without data is not forgotten")
	}
	other := keyed(nodeC)
	other.Key[1]++
	m.fails(errs.Access, addMemberOp{other}, "was a member before")
	m.must(nodeB, leavingOp{nodeB})
	ready(m)
	m.must(nodeA, removeMemberOp{nodeB})
	m.fails(errs.Access, addMemberOp{keyed(nodeB)}, "was a member before")
	if left := m.view.Trust.Left; len(left) != 2 || left[0].ID != nodeC || !left[0].Gone || left[1].ID != nodeB || left[1].Gone {
		t.Errorf("left: %+v", left)
	}
	b := mustEncode(m, m.image())
	again, err := restore(b)
	if err != nil || string(mustEncode(m, again.image())) != string(b) {
		t.Errorf("a snapshot loses the keys: %v", err)
	}
	// When their certificates are over they need not be remembered.
	m.now += int64(3 * trust.Life)
	m.must(nodeA, addMemberOp{keyed(0xd)})
	ready(m)
	m.must(nodeA, goneOp{Node: 0xd})
	if left := m.view.Trust.Left; len(left) != 1 || left[0].ID != 0xd {
		t.Errorf("left after three days: %+v", left)
	}
}

func TestChangeOfKeys(t *testing.T) {
	m := newTrusting(t)
	m.must(nodeA, addMemberOp{keyed(nodeC)})
	ready(m)
	m.must(nodeA, goneOp{Node: nodeC})
	turned := *trust.Turn(m.view.Trust, time.Unix(0, m.now))
	m.fails(errs.Busy, trustOp{turned}) // the number of the one before
	turned.Serial, turned.Left = m.view.Trust.Serial+1, nil
	epoch := m.view.Epoch
	m.must(nodeA, trustOp{turned})
	if m.view.Epoch != epoch+1 || string(m.view.Trust.Gossip[0]) != string(turned.Gossip[0]) || len(m.view.Trust.Left) != 1 {
		t.Errorf("epoch %d, left %v", m.view.Epoch, m.view.Trust.Left)
	}
	m.fails(errs.Busy, trustOp{turned}) // somebody was first
	other, err := trust.New(time.Unix(0, m.now))
	if err != nil {
		t.Fatal(err)
	}
	other.Serial = turned.Serial + 1
	m.must(nodeA, trustOp{*other})
	if len(m.view.Trust.Left) != 0 {
		t.Error("certificates of the authority before are still remembered")
	}
	m.fails(errs.Busy, trustOp{dsm.Trust{Serial: other.Serial + 1}})
}
