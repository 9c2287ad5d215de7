package membership

import (
	"cmp"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// remember is how long a peer that died or left stays in the table, so that people can see it.
const remember = 5 * time.Minute

// table is what this node believes about each peer, and the changes that OnChange has not been told
// of yet. Its methods may be called under any lock: they take only the table's own and call nothing
// outside.
type table struct {
	self dsm.NodeID
	wake chan struct{} // has a token while there are changes
	mu   struct {
		lockrank.Mutex
		peers   map[dsm.NodeID]*entry
		changes []Peer
		closed  bool
	}
}

type entry struct {
	Peer
	leaving bool    // it said goodbye, so its death is expected
	gossip  udpAddr // where its datagrams go
}

// udpAddr is the numeric address of a peer, for datagrams. The table has it because memberlist's list of its members
// shares what it still changes.
type udpAddr string

func (a udpAddr) Network() string { return "udp" }
func (a udpAddr) String() string  { return string(a) }

func newTable(self dsm.NodeID) *table {
	t := &table{self: self, wake: make(chan struct{}, 1)}
	t.mu.Init("membership.table")
	t.mu.peers = make(map[dsm.NodeID]*entry)
	return t
}

// alive records that the peer has joined or changed its metadata. If another peer has the same
// address, that process is most likely gone: it becomes suspect.
func (t *table) alive(p Peer, gossip udpAddr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.ID == t.self {
		return
	}
	now := time.Now()
	for id, e := range t.mu.peers {
		switch {
		case e.State >= Dead && now.Sub(e.Since) > remember:
			delete(t.mu.peers, id)
		case id != p.ID && e.Addr == p.Addr && e.State == Alive:
			t.setLocked(e, Suspect, now)
		}
	}
	e := t.mu.peers[p.ID]
	if e == nil {
		e = &entry{Peer: p}
		e.State = Dead // so that alive is a change
		t.mu.peers[p.ID] = e
	}
	e.Name, e.Addr, e.leaving, e.gossip = p.Name, p.Addr, false, gossip
	t.setLocked(e, Alive, now)
}

// answered records that the peer answered a probe.
func (t *table) answered(id dsm.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.mu.peers[id]; e != nil && e.State == Suspect {
		t.setLocked(e, Alive, time.Now())
	}
}

// suspect records that the peer answered no probe.
func (t *table) suspect(id dsm.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.mu.peers[id]; e != nil && e.State == Alive {
		t.setLocked(e, Suspect, time.Now())
	}
}

// leaving records the peer's goodbye. It may come after the news that the peer is gone, because
// memberlist handles the youngest waiting datagram first.
func (t *table) leaving(id dsm.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.mu.peers[id]; e != nil {
		e.leaving = true
		t.setLocked(e, Left, time.Now())
	}
}

// gone records that memberlist gave the peer up.
func (t *table) gone(id dsm.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.mu.peers[id]; e != nil && !e.leaving {
		t.setLocked(e, Dead, time.Now())
	}
}

// setLocked changes the state of an entry, and records the change.
func (t *table) setLocked(e *entry, s State, now time.Time) {
	if e.State == s || t.mu.closed {
		return
	}
	e.State, e.Since = s, now
	t.mu.changes = append(t.mu.changes, e.Peer)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// take returns the changes since the last call, in order.
func (t *table) take() []Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.changes
	t.mu.changes = nil
	return c
}

// close discards all further changes.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.closed = true
}

// reachable returns where the peers are that are neither dead nor gone.
func (t *table) reachable() map[dsm.NodeID]udpAddr {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[dsm.NodeID]udpAddr, len(t.mu.peers))
	for id, e := range t.mu.peers {
		if e.State < Dead {
			out[id] = e.gossip
		}
	}
	return out
}

// list returns the peers, ordered by id.
func (t *table) list() []Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Peer, 0, len(t.mu.peers))
	for _, e := range t.mu.peers {
		if e.State < Dead || time.Since(e.Since) <= remember {
			out = append(out, e.Peer)
		}
	}
	slices.SortFunc(out, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
