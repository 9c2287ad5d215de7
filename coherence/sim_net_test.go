package coherence

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// link is one direction between two nodes: the indices of sender and receiver.
type link [2]int

type frame struct {
	msg     any
	payload []byte
	shared  *wire.Shared // nil, or what payload is until the frame is delivered
}

// sessionEnd stands in a link where the receiver learns that the session broke.
// What is sent behind it is of the next session.
type sessionEnd struct{}

func (n *simNode) Send(to dsm.NodeID, m any, payload [][]byte, _ bool) {
	n.sim.put(link{n.i, int(to) - 1}, frame{msg: m, payload: flat(append([][]byte{nil}, payload...))})
}

// Flush has nothing to do: no message waits for another.
func (n *simNode) Flush(dsm.NodeID) {}

// SendShared keeps the payload as long as a slow connection would: until it is delivered.
func (n *simNode) SendShared(to dsm.NodeID, m any, payload *wire.Shared, _ bool) {
	n.sim.put(link{n.i, int(to) - 1}, frame{msg: m, payload: payload.Bytes, shared: payload})
}

func (s *sim) put(k link, f frame) {
	s.netMu.Lock()
	defer s.netMu.Unlock()
	s.net[k] = append(s.net[k], f)
}

// take takes the oldest message of a link.
func (s *sim) take(k link) frame {
	s.netMu.Lock()
	defer s.netMu.Unlock()
	f := s.net[k][0]
	s.net[k] = s.net[k][1:]
	return f
}

// busy returns the links with messages, in order.
func (s *sim) busy() (links []link) {
	s.netMu.Lock()
	defer s.netMu.Unlock()
	for a := range s.nodes {
		for b := range s.nodes {
			if len(s.net[link{a, b}]) > 0 {
				links = append(links, link{a, b})
			}
		}
	}
	return links
}

// deliver delivers the oldest message of a random link.
func (s *sim) deliver() bool {
	links := s.busy()
	if len(links) == 0 {
		return false
	}
	s.deliverOn(links[s.rng.IntN(len(links))])
	return true
}

// deliverAll delivers what is on a link until nothing is.
func (s *sim) deliverAll(k link) {
	for len(s.net[k]) > 0 {
		s.deliverOn(k)
	}
}

// deliverOn delivers the oldest message of a link.
func (s *sim) deliverOn(k link) {
	f := s.take(k)
	from, to := s.nodes[k[0]], s.nodes[k[1]]
	switch m := f.msg.(type) {
	case sessionEnd:
		s.tellSender(k)
		to.reset(from)
	case *wire.HandoverAck:
		to.handedOver(from, m)
	default:
		if err := to.node.Handle(from.id, m, f.payload); err != nil {
			s.t.Fatalf("%T from %d to %d: %v", m, from.i, to.i, err)
		}
	}
	if f.shared != nil {
		f.shared.Release()
	}
}

// drain delivers until nothing is under way.
func (s *sim) drain() {
	for i := 1; s.deliver(); i++ {
		if i%20 == 0 { // a session that broke may have taken a part of a handover with it
			for _, n := range s.nodes {
				n.handOver()
			}
		}
		if i == 200_000 {
			s.explain()
			s.t.Fatalf("no rest after %d messages", i)
		}
	}
}

// until delivers everything until cond holds.
func (s *sim) until(what string, cond func() bool) {
	for !cond() {
		if !s.deliver() {
			s.explain()
			s.t.Fatalf("%s: nothing more to deliver", what)
		}
	}
}

// explain logs the state of a cluster that is stuck.
func (s *sim) explain() {
	for _, n := range s.nodes {
		if n.area != nil {
			r := &n.area.mu.replica
			s.t.Logf("node %d: applied %d of %d, parked %d, pubs %d, hold %v, syncing %d, writers %d", n.i, n.applied, len(s.log),
				len(n.area.mu.parked), r.underWay, r.hold, r.syncing, r.writers)
		}
	}
	for k, q := range s.net {
		for _, f := range q {
			s.t.Logf("from %d to %d: %T %+v", k[0], k[1], f.msg, f.msg)
		}
	}
}

// breakSession loses the tail of what is under way between two nodes, in one
// direction or in both. The receiver hears of it when it has handled what had
// arrived, or before. The sender hears of it at any time before the next session begins, and
// what it sends in between goes by that one.
func (s *sim) breakSession() {
	a, b := s.rng.IntN(len(s.nodes)), s.rng.IntN(len(s.nodes))
	if a == b {
		return
	}
	s.breakLink(link{a, b})
	if s.rng.IntN(2) == 0 {
		s.breakLink(link{b, a})
	}
}

func (s *sim) breakLink(k link) {
	if s.deaf[k] {
		return
	}
	q := s.net[k]
	q = q[:s.rng.IntN(len(q)+1)]
	end := len(q)
	if s.rng.IntN(2) == 0 {
		end = s.rng.IntN(len(q) + 1)
	}
	s.net[k] = slices.Insert(slices.Clip(q), end, frame{msg: sessionEnd{}})
	s.deaf[k] = true
}

// tellSender tells the sender of a broken link, if it was not told yet.
func (s *sim) tellSender(k link) {
	if s.deaf[k] {
		delete(s.deaf, k)
		s.nodes[k[0]].reset(s.nodes[k[1]])
	}
}

// tellASender tells the sender of one of the broken links.
func (s *sim) tellASender() {
	first := s.rng.IntN(len(s.nodes))
	for a := range s.nodes {
		for b := range s.nodes {
			if k := (link{(first + a) % len(s.nodes), b}); s.deaf[k] {
				s.tellSender(k)
				return
			}
		}
	}
}

// reset tells a node that a session with the peer broke.
func (n *simNode) reset(peer *simNode) {
	delete(n.handing, peer.id)
	n.node.SessionReset(peer.id)
}
