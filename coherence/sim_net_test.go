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

// put queues a frame on a link.
func (s *sim) put(k link, f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[k[0]].dead || s.nodes[k[1]].dead {
		if f.shared != nil {
			f.shared.Release()
		}
		return
	}
	s.net[k] = append(s.net[k], f)
}

// take takes the oldest frame of a link.
func (s *sim) take(k link) frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.net[k][0]
	s.net[k] = s.net[k][1:]
	return f
}

// deliver delivers the oldest message of a random link.
func (s *sim) deliver() bool {
	var links []link
	s.mu.Lock()
	for a := range s.nodes {
		for b := range s.nodes {
			if len(s.net[link{a, b}]) > 0 && !s.delays(link{a, b}) {
				links = append(links, link{a, b})
			}
		}
	}
	s.mu.Unlock()
	if len(links) == 0 {
		return false
	}
	s.deliverOn(links[s.rng.IntN(len(links))])
	return true
}

// deliverOn delivers the oldest message of a link.
func (s *sim) deliverOn(k link) {
	f := s.take(k)
	from, to := s.nodes[k[0]], s.nodes[k[1]]
	switch m := f.msg.(type) {
	case sessionEnd:
		s.tellSender(k)
		to.reset(from)
	default:
		to.ahead(m)
		if err := to.handle(from.id, m, f.payload); err != nil {
			s.t.Fatalf("%T from %d to %d: %v", m, from.i, to.i, err)
		}
	}
	if f.shared != nil {
		f.shared.Release()
	}
	s.rest()
}

// handle handles a message as a session does of which a loop reads every second one.
func (n *simNode) handle(from dsm.NodeID, msg any, payload []byte) error {
	if n.handled++; n.handled%2 == 0 {
		if handled, err := n.node.HandleNow(from, msg, payload); handled {
			return err
		}
	}
	came := wire.NewFrame(msg, payload) // its memory is used again, unless it is retained
	defer came.Release()
	return n.node.HandleFrame(from, came)
}

// explain logs the state of a cluster that is stuck.
func (s *sim) explain() {
	for _, n := range s.nodes {
		if n.area != nil {
			r := &n.area.mu.replica
			s.t.Logf("node %d: applied %d of %d, parked %d, pubs %d, paused %v, syncing %d, writers %d", n.i, n.applied, s.entries(),
				len(n.area.mu.parked), r.underWay, r.onRequest, r.syncing, r.writers)
			s.t.Logf("newest %d, here %d, waits for %v, asked to tell %v", n.area.mu.newest, r.version, r.waits, n.area.mu.home.untils)
			if c := n.area.mu.cached; c != nil {
				s.t.Logf("the kernel was told all: %v, writable: %v, pending: %v; rung %v, notices %d, carried out %d, reads %d", c.Idle(), c.Writable(), c.Pending(),
					n.kernel.bell.Load(), len(n.kernel.out), len(n.kernel.done), len(n.kernel.reading))
			}
			for _, op := range r.acquires {
				s.t.Logf("acquire %d waits for %v", op.round, op.pending)
			}
			if c := r.contribution; c != nil {
				s.t.Logf("contributes to %v: whole %v, gone %v, due %v, parts %d, open %v, asked %v, counted %v", c.id, c.whole, c.gone, c.due, c.parts, c.open, c.asked, c.counted)
			}
			for id, hr := range n.area.mu.home.rounds.open {
				s.t.Logf("round %v: contributed %v, finish %+v, lacks %v, extents with parts %d", id, hr.marked, hr.finish, hr.lackingLocked(n.area), len(hr.parts))
			}
			for id, sub := range n.area.mu.home.subs {
				s.t.Logf("subscriber %v: on request %v, in flight %d, acquires %d, queue %v", id, sub.onRequest, sub.inFlight, len(sub.acquires), sub.queue)
			}
			for e, x := range r.extents {
				s.t.Logf("extent %d: live %v have %x dirty %x behind %x asked %x wanted %v pub %v stash %d", e, x.live, x.have, x.dirty, x.outdated, x.asked, x.wanted, x.pub != nil, len(x.stash))
			}
			if r.demand {
				s.t.Logf("room for %d pages, %d taken, %d of them by the area, %d callers make room", n.node.room.limit(), n.node.room.taken.Load(),
					r.units, n.node.room.waiters.Load())
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.explainRowsLocked()
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
	if s.deaf[k] || s.nodes[k[0]].dead || s.nodes[k[1]].dead {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.net[k]
	q = q[:s.rng.IntN(len(q)+1)]
	end := len(q)
	if s.rng.IntN(2) == 0 {
		end = s.rng.IntN(len(q) + 1)
	}
	s.net[k] = slices.Insert(slices.Clip(q), end, frame{msg: sessionEnd{}})
	s.deaf[k] = true
}

// endSessions loses all that is under way to and from a node, whose daemon is killed. Both ends of its sessions hear of it.
func (s *sim) endSessions(n *simNode) {
	s.lose(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.nodes {
		if i == n.i {
			continue
		}
		s.net[link{i, n.i}], s.net[link{n.i, i}] = []frame{{msg: sessionEnd{}}}, []frame{{msg: sessionEnd{}}}
		s.deaf[link{i, n.i}] = true
	}
}

// lose drops all messages to and from a node.
func (s *sim) lose(n *simNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.net {
		if k[0] == n.i || k[1] == n.i {
			dropped(s.net[k])
			s.net[k] = nil
		}
	}
}

// dropped gives back what lost messages have.
func dropped(frames []frame) {
	for _, f := range frames {
		if f.shared != nil {
			f.shared.Release()
		}
	}
}

// tellSender tells the sender of a broken link, if it was not told yet. A daemon is told when it has resumed.
func (s *sim) tellSender(k link) {
	if s.deaf[k] && !s.nodes[k[0]].down {
		delete(s.deaf, k)
		if s.nodes[k[0]].dead || s.nodes[k[1]].dead {
			return
		}
		s.nodes[k[0]].reset(s.nodes[k[1]])
	}
}

// tellASender tells the sender of one of the broken links.
func (s *sim) tellASender() {
	first := s.rng.IntN(len(s.nodes))
	for a := range s.nodes {
		for b := range s.nodes {
			if k := (link{(first + a) % len(s.nodes), b}); s.deaf[k] && !s.nodes[k[0]].down {
				s.tellSender(k)
				return
			}
		}
	}
}

// reset tells a node that a session with the peer broke.
func (n *simNode) reset(peer *simNode) {
	n.node.SessionReset(peer.id)
}
