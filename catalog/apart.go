package catalog

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Two members that both reach the leader, and not each other, would wait for each other as long as the link is cut. So who does not reach
// a member on the data lane says so with its signs of life, and the leader puts out one of the two.
//
//	member a                           leader                            member b
//	   | sign of life (apart from b) ---->|                                  |
//	   |                                  |<------------------ sign of life  |
//	   | sign of life (apart from b) ---->|  both live, and are apart
//	   |                                  | PutOut ------------------------->|  fenced at once
//	   |                                  |<-------------------------- IsOut |
//	   |                                  |  a command marks it as gone
//
// Who does not answer the PutOut gets no answer to its signs of life, so it is fenced when its lease runs out, and evicted as any other.
// A node that was put out joins again by itself, when it and all members reach each other (meets).
//
// Before that, as soon as the leader knows of such a link, a command says so to all (apartOp): whoever is to be the backup of a home that does not reach it would not get
// anything, so another member becomes the backup (assign.go), and what the one that is put out was the home of is not lost with it. The catalog decides that and not
// the home, which hears nothing from a backup that is stopped for a moment either: to fill another one for that would cost more than it gains.
//
// To relay what the two have for each other through a third would keep both, but needs a second way for every message, with an order and an
// end of sessions that are kept over both; and who relays pays for it.

// apartAfter is for how long a member is not reached before that counts. A link that is cut for less than a lease is waited for, like a
// member that is cut off from all. An idle link shows that it works once a second (transport.Silences), and has to be missed twice.
func apartAfter(lease time.Duration) time.Duration { return max(lease, 2*time.Second) }

// unreachedAfter is for how long a member is not reached before that is said. When several links are cut at once, all of them are known when
// the first has been cut for apartAfter, so that it is clear who is apart from most.
func unreachedAfter(lease time.Duration) time.Duration {
	return max(apartAfter(lease)/2, 1250*time.Millisecond)
}

// overdueAfter is after which silence a sign of life is missing.
func overdueAfter(lease time.Duration) time.Duration { return between(lease) * 5 / 4 }

// met is since when this node knows the incarnations of the members. What the transport says of the time before is about earlier ones.
type met struct {
	mu struct {
		lockrank.Mutex
		since map[dsm.NodeID]meeting
	}
}

type meeting struct {
	inc uint64
	at  time.Duration
}

func (m *met) init() { m.mu.Init("catalog.met") }

// longest returns for how long at most each member can have been out of reach.
func (m *met) longest(members []dsm.Member, now time.Duration) map[dsm.NodeID]time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, most := make(map[dsm.NodeID]meeting, len(members)), make(map[dsm.NodeID]time.Duration, len(members))
	for _, x := range members {
		since, ok := m.mu.since[x.ID]
		if !ok || since.inc != x.Inc {
			since = meeting{x.Inc, now}
		}
		next[x.ID], most[x.ID] = since, now-since.at
	}
	m.mu.since = next
	return most
}

// unreached returns the members that this node has not reached for unreachedAfter, and those of them for apartAfter.
func (c *Catalog) unreached(v *dsm.View) (unreached, apart []dsm.NodeID) {
	if c.silences == nil {
		return nil, nil
	}
	members := present(v)
	most, silent := c.met.longest(members, c.signs.clock()), c.silences()
	for _, m := range members {
		if m.ID == c.self.ID {
			continue
		}
		silence := min(silent[m.ID], most[m.ID])
		if silence >= unreachedAfter(v.Lease) {
			unreached = append(unreached, m.ID)
		}
		if silence >= apartAfter(v.Lease) {
			apart = append(apart, m.ID)
		}
	}
	return unreached, apart
}

// count returns how many of the links a member has.
func count(links []dsm.Link, n dsm.NodeID) (many int) {
	for _, l := range links {
		if l.Has(n) {
			many++
		}
	}
	return many
}

// toPutOut returns the member that must leave, of those with a link that has been cut for apartAfter; 0: there is none. It is the member with most cut links,
// because its own connection is the likeliest cause. Of two with equally many one stays by the first of these rules that decides: the leader; the one with more
// extents that nobody else has, so that the others can go on; the one that has not just come back, or a link that comes and goes would put out both in turn;
// the one with a vote.
func toPutOut(cut, long []dsm.Link, v *dsm.View, leader dsm.NodeID, alone map[dsm.NodeID]int) dsm.NodeID {
	members := slices.DeleteFunc(present(v), func(m dsm.Member) bool { return count(long, m.ID) == 0 })
	if len(members) == 0 {
		return 0
	}
	vote := func(m dsm.Member) int {
		if m.Voter {
			return 1
		}
		return 0
	}
	return slices.MinFunc(members, func(a, b dsm.Member) int {
		if c := cmp.Compare(count(cut, b.ID), count(cut, a.ID)); c != 0 {
			return c
		}
		switch leader {
		case a.ID:
			return 1
		case b.ID:
			return -1
		}
		return cmp.Or(cmp.Compare(alone[a.ID], alone[b.ID]), cmp.Compare(b.Inc, a.Inc), cmp.Compare(vote(a), vote(b)), cmp.Compare(b.ID, a.ID))
	}).ID
}

// linksIn returns those of the links that are between members of v which live, each once, in order.
func linksIn(v *dsm.View, links []dsm.Link) (in []dsm.Link) {
	member := func(n dsm.NodeID) bool {
		m, ok := v.Member(n)
		return ok && !m.Gone
	}
	for _, l := range links {
		if l.A < l.B && member(l.A) && member(l.B) {
			in = append(in, l)
		}
	}
	slices.SortFunc(in, dsm.Link.Compare)
	return slices.Compact(in)
}

// The leader says which links between members do not work.
func (o apartOp) apply(s *state, _ step) (dsm.Inode, error) {
	if links := linksIn(s.view, o.Links); !slices.Equal(links, s.view.Apart) {
		s.reviewed(func(v *dsm.View) { v.Apart = links })
	}
	return dsm.Inode{}, nil
}

// alone returns of how many extents with bytes each node has the only copy, and to how many of them another is on its way that it reaches.
func (s *state) alone() (only, coming map[dsm.NodeID]int) {
	only, coming = make(map[dsm.NodeID]int), make(map[dsm.NodeID]int)
	for _, in := range s.inodes {
		if in.Kind != dsm.KindFile {
			continue
		}
		for e := range in.Spec.CoveringExtents(in.Size) {
			h := s.view.Row(s.view.SlotOf(in.Area(), in.Spec, dsm.ExtentIndex(e)))
			copied := false
			for b := range h.InSync() {
				copied = copied || b != h.Holder()
			}
			if copied {
				continue
			}
			only[h.Holder()]++
			if isComing(s.view, *h) {
				coming[h.Holder()]++
			}
		}
	}
	return only, coming
}

// isComing reports whether what is in a slot is on its way to another member.
func isComing(v *dsm.View, h dsm.SlotHome) bool {
	if h.Source != 0 {
		return !h.Failed(v) && v.Reaches(h.Source, h.Primary)
	}
	return slices.ContainsFunc(h.Backups[:], func(b dsm.Backup) bool { return b.Node != 0 && v.Reaches(h.Primary, b.Node) })
}

// arbiter decides for a leader about members that are apart. It is for the goroutine that watches the members.
type arbiter struct {
	out    map[dsm.NodeID]outing // the members that were put out
	moved  time.Duration         // when the leadership was last to be handed over; 0: never
	waits  time.Duration         // since when a member is not put out yet, because it has what nobody else has; 0: none is
	warned bool
	tells  atomic.Bool // a command says which links are cut
}

// mostWaits is for how many leases at most a member that is to be put out is not yet, while others get copies of what only it has. A home reports a slot when
// the backup has all of it, and often all slots at once, so it is not to be seen whether that goes on. Those who need the other one of the two wait meanwhile.
const mostWaits = 2

// spares reports whether it is not yet time to put a member out.
func (r *arbiter) spares(coming int, now, lease time.Duration) bool {
	if coming > 0 && r.waits == 0 {
		r.waits = now
	}
	return coming > 0 && now-r.waits < mostWaits*lease
}

// outing is an incarnation that was put out, and when.
type outing struct {
	inc uint64
	at  time.Duration
}

// remembered is for how long a member that was put out, and has not come back, counts as one of those who were there.
const remembered = 10 * time.Minute

// leavesMajority reports whether more than half of those who were there stay when one more is put out: if so many are apart it is not the
// links.
func (r *arbiter) leavesMajority(members []dsm.Member, now time.Duration) bool {
	all, stay := len(members), len(members)-1
	for id, o := range r.out {
		i := slices.IndexFunc(members, func(m dsm.Member) bool { return m.ID == id })
		switch {
		case i < 0 && now-o.at > remembered || i >= 0 && members[i].Inc > o.inc:
			delete(r.out, id)
		case i < 0:
			all++
		default:
			stay--
		}
	}
	return 2*stay > all
}

// again reports whether it is time to hand the leadership over once more, and notes it.
func (r *arbiter) again(now, lease time.Duration) bool {
	if r.moved != 0 && now-r.moved < lease {
		return false
	}
	r.moved = now
	return true
}

// arbitrate puts one member out if some are apart; if that is this node, which leads in the term, another is made to lead.
func (c *Catalog) arbitrate(ctx context.Context, v *dsm.View, term uint64, r *arbiter) {
	c.signs.hear(c.self.ID, c.self.Inc, term)
	unreached, apart := c.unreached(v)
	fresh := overdueAfter(v.Lease)
	c.signs.blame(c.self.ID, c.self.Inc, unreached, apart)
	c.tellLinks(ctx, v, fresh, r)
	cut, long := c.signs.cut(fresh)
	if len(long) == 0 {
		r.warned, r.waits = false, 0
		return
	}
	if slices.ContainsFunc(long, func(l dsm.Link) bool { return v.Reaches(l.A, l.B) }) {
		return // the log says so first, and so who becomes a backup
	}
	c.mu.RLock()
	alone, coming := c.mu.state.alone()
	c.mu.RUnlock()
	id, now := toPutOut(cut, long, v, c.self.ID, alone), c.signs.clock()
	m, ok := v.Member(id)
	switch {
	case !ok:
	case id == c.self.ID:
		if r.again(now, v.Lease) {
			c.handOver(leastApart(c.servers(), cut, id), "this node and several others do not reach each other")
		}
	case !r.leavesMajority(present(v), now):
		if !r.warned {
			r.warned = true
			c.log.Warn("members do not reach each other, and to put one more out would leave no majority", "links", len(long), "name", m.Name)
		}
	case r.spares(coming[id], now, v.Lease):
		if r.waits == now {
			c.log.Warn("members do not reach each other: one is put out when others have copies of what only it has", "name", m.Name, "extents", coming[id])
		}
	case c.signs.shun(m.ID, m.Inc):
		r.out[m.ID], r.waits = outing{m.Inc, now}, 0
		c.putOut(ctx, v, m, cut, term)
	}
}

// tellLinks has the log say which links are cut, if that has changed.
func (c *Catalog) tellLinks(ctx context.Context, v *dsm.View, fresh time.Duration, r *arbiter) {
	links := linksIn(v, c.signs.links(v.Apart, fresh))
	if slices.Equal(links, v.Apart) || !r.tells.CompareAndSwap(false, true) {
		return
	}
	var pairs []string
	for _, l := range links {
		a, _ := v.Member(l.A)
		b, _ := v.Member(l.B)
		pairs = append(pairs, a.Name+" "+b.Name)
	}
	if len(pairs) == 0 {
		c.log.Info("all members reach each other again")
	} else {
		c.log.Warn("members do not reach each other: backups go where their homes reach them", "pairs", pairs)
	}
	c.tasks.Go(func() {
		defer r.tells.Store(false)
		if _, err := c.propose(ctx, apartOp{links}); err != nil {
			c.log.Debug("tell which links between members are cut", "err", err)
		}
	})
}

// leastApart returns the voter that has the fewest of the links that are cut, if these are fewer than those of n.
func leastApart(servers []server, cut []dsm.Link, n dsm.NodeID) (to server) {
	least := count(cut, n)
	for _, s := range servers {
		if s.voter && s.id != n && count(cut, s.id) < least {
			to, least = s, count(cut, s.id)
		}
	}
	return to
}

// handOver makes another node lead, if there is one.
func (c *Catalog) handOver(to server, why string) {
	if to.id == 0 {
		return
	}
	c.log.Warn("handing the leadership over", "to", to.id, "why", why)
	c.raft.LeadershipTransferToServer(to.raftID(), to.raftAddress())
}

// putOut tells a member, which is answered no more, that it is out, and has it marked as gone.
func (c *Catalog) putOut(ctx context.Context, v *dsm.View, m dsm.Member, cut []dsm.Link, term uint64) {
	var from []string
	for _, x := range present(v) {
		if x.ID != m.ID && slices.ContainsFunc(cut, func(l dsm.Link) bool { return l.Has(m.ID) && l.Has(x.ID) }) {
			from = append(from, x.Name)
		}
	}
	c.log.Warn("members do not reach each other: one is put out", "node", m.ID, "name", m.Name, "addr", m.Addr, "apart_from", from)
	c.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, v.Lease)
		defer cancel()
		if _, err := c.caller.Call(ctx, nodeAddr(m.ID, m.Addr), &wire.PutOut{Inc: m.Inc, ApartFrom: from}); err != nil {
			c.log.Info("a member that is put out does not answer: its lease runs out", "node", m.ID, "err", err)
			return
		}
		if !c.signs.doom(m.ID, m.Inc, 0, term) {
			return
		}
		if _, err := c.propose(ctx, goneOp{m.ID, m.Inc, term}); err != nil {
			c.log.Warn("evict a member", "node", m.ID, "name", m.Name, "err", err)
		}
	})
}

// servePutOut fences this node.
func (c *Catalog) servePutOut(r *wire.PutOut) (any, error) {
	if r.Inc != c.self.Inc {
		return nil, errs.E(errs.Invalid, "put out", "this is another incarnation")
	}
	c.log.Warn("this node and others do not reach each other, and it is put out", "others", r.ApartFrom)
	c.evict()
	return &wire.IsOut{}, nil
}

// yieldToReach hands the leadership over if members that are silent are reached by another voter: they live, and it is this node that is apart
// from them. Otherwise it would evict them, and might leave a minority. One that is silent is no reason: either it or this node goes.
func (c *Catalog) yieldToReach(ctx context.Context, v *dsm.View, silent []dsm.Member, term uint64) {
	cut, _ := c.signs.cut(overdueAfter(v.Lease))
	var voters []server
	for _, s := range c.servers() {
		if s.voter && s.id != c.self.ID && !slices.ContainsFunc(silent, s.is) {
			voters = append(voters, s)
		}
	}
	gains := make([]int, len(voters))
	var mu sync.Mutex
	var asked sync.WaitGroup
	for i, s := range voters {
		gains[i] = -count(cut, s.id)
		for _, m := range silent {
			asked.Go(func() {
				if reached, err := c.askReach(ctx, s.id, s.addr, m, v.Lease/leaseParts*2); err == nil && reached {
					mu.Lock()
					defer mu.Unlock()
					gains[i]++
				}
			})
		}
	}
	asked.Wait()
	to, most := server{}, leastSilent-1
	for i, s := range voters {
		if gains[i] > most {
			to, most = s, gains[i]
		}
	}
	if c.leads() == term {
		c.handOver(to, "it reaches members that do not reach this node")
	}
}

// leastSilent is how many members must be silent before others are asked whether they reach them.
const leastSilent = 2

// silentAfter is after which silence they are asked: early enough to hand over before a lease runs out.
func silentAfter(lease time.Duration) time.Duration { return lease / leaseParts * 5 / 2 }

// lookAround has others asked about members that are silent, now and then.
func (c *Catalog) lookAround(ctx context.Context, v *dsm.View, silent []dsm.Member, term uint64, r *arbiter) {
	if len(silent) < leastSilent || !r.again(c.signs.clock(), v.Lease) {
		return
	}
	c.tasks.Go(func() { c.yieldToReach(ctx, v, silent, term) })
}

// askReach asks a node whether it reaches another.
func (c *Catalog) askReach(ctx context.Context, id dsm.NodeID, addr string, m dsm.Member, within time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, within+attempt)
	defer cancel()
	reply, err := c.caller.Call(ctx, nodeAddr(id, addr), &wire.Reach{Node: m.ID, Addr: m.Addr, Within: within})
	if err != nil {
		return false, err
	}
	r, ok := reply.(*wire.Reached)
	return ok && r.OK, nil
}

// serveReach looks whether this node reaches another.
func (c *Catalog) serveReach(ctx context.Context, r *wire.Reach) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, min(r.Within, rpcTimeout))
	defer cancel()
	_, err := c.probe(ctx, r.Node, r.Addr)
	return &wire.Reached{OK: err == nil}, nil
}

// meets returns an error if a member that lives, and m, which wants to join, do not reach each other: it would be put out soon.
func (c *Catalog) meets(ctx context.Context, m dsm.Member) error {
	v := c.Current()
	var mu sync.Mutex
	var apart []string
	var asked sync.WaitGroup
	for _, x := range present(v) {
		if x.ID == m.ID || x.ID == c.self.ID || x.Addr == m.Addr || x.Name == m.Name || c.signs.silence(x.ID, x.Inc) >= overdueAfter(v.Lease) {
			continue
		}
		asked.Go(func() {
			there, err := c.askReach(ctx, x.ID, x.Addr, m, rpcTimeout)
			if err != nil {
				return // it is no concern of m that this node does not reach it
			}
			if there {
				there, err = c.askReach(ctx, m.ID, m.Addr, x, rpcTimeout)
			}
			if there && err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			apart = append(apart, x.Name)
		})
	}
	asked.Wait()
	if len(apart) == 0 {
		return nil
	}
	slices.Sort(apart)
	return errs.E(errs.Invalid, "join", "the node at %s and these members do not reach each other: %v; every node must reach every other", m.Addr, apart)
}
