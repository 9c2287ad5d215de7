package groups

import (
	"cmp"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// local is a node's side of a group: the programs of the node that take part, and what the node
// knows. It lives until the coordinator has heard that the last program has left. Node.mu guards all of it, whichever of its methods is called.
type local struct {
	group       dsm.AreaID
	coordinator dsm.NodeID
	reign       dsm.Epoch // of the coordinator's call; 0: it has not called yet
	seq, heard  uint64    // the last report, and the last that was heard
	acked       uint64    // the last report that need not be waited for
	few         int       // as in Config
	owing       bool      // there is something to report when the last one has been heard

	generation, done, list, slowest uint64
	size                            int
	members                         []wire.GroupMember
	met                             []dsm.NodeID // as in wire.GroupState, of barrier done; never changed
	counters                        map[string]wire.GroupCounter
	counted                         uint64 // as in wire.GroupReport
	came                            []wire.GroupMember
	silent                          []dsm.NodeID // the coordinator waits for them
	seats                           map[uint64]*Member
	sorted                          []*Member // seats by number; nil: to be made
	adding                          int       // bytes of additions without an answer
	waiters                         []*waiter
}

func newLocal(group dsm.AreaID) *local {
	return &local{group: group, counters: make(map[string]wire.GroupCounter), seats: make(map[uint64]*Member)}
}

// report returns all that the node has to say; known: to a coordinator that has called.
func (l *local) report(seq uint64, epoch dsm.Epoch, known bool) *wire.GroupReport {
	l.seq, l.owing = seq, false // a report has all that there is to say
	if len(l.seats) <= l.few {
		l.acked = seq // it is not answered
	}
	r := &wire.GroupReport{
		Group: l.group, Epoch: epoch, Reign: l.reign, Seq: seq,
		Generation: l.generation, Done: l.done, List: l.list, Slowest: l.slowest, Counted: l.counted,
	}
	r.Seats = make([]wire.GroupSeat, 0, len(l.seats))
	for _, m := range l.inOrder() {
		s := m.seat
		s.Adds = slices.Clone(s.Adds)
		r.Seats = append(r.Seats, s)
	}
	if known {
		k := &wire.GroupKnown{Size: l.size, Members: slices.Clone(l.members), Met: l.met}
		for _, name := range slices.Sorted(maps.Keys(l.counters)) {
			c := l.counters[name]
			c.Recent = slices.Clone(c.Recent)
			k.Counters = append(k.Counters, c)
		}
		r.Known = k
	}
	return r
}

// inOrder returns the programs by number. The list is never changed.
func (l *local) inOrder() []*Member {
	if l.sorted != nil {
		return l.sorted
	}
	list := make([]*Member, 0, len(l.seats))
	for _, m := range l.seats {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *Member) int { return cmp.Compare(a.seat.ID, b.seat.ID) })
	l.sorted = list
	return list
}

// moved notes who coordinates now, and reports whether that has changed, or may have in between: a
// coordinator that was replaced knows nothing any more.
func (l *local) moved(to dsm.NodeID, skipped bool) bool {
	if l.coordinator == to && !skipped {
		return false
	}
	l.coordinator, l.reign = to, 0
	return true
}

// stateLocked takes over what the coordinator tells: of everything the newer. Several members of a node
// may be served by one state.
func (l *local) stateLocked(s *wire.GroupState) {
	l.heard, l.acked = max(l.heard, s.Heard), max(l.acked, s.Heard)
	l.lives(s.Generation)
	if s.Generation == l.generation {
		if s.Members != nil && s.List > l.list {
			l.size, l.list, l.members = s.Size, s.List, s.Members
		}
		if s.Met != nil && s.Done > l.done {
			l.done, l.met = s.Done, s.Met
		}
		l.slowest = max(l.slowest, s.Slowest)
		l.counted = max(l.counted, s.Counted)
	}
	l.came, l.silent = s.Came, s.Silent
	for rank := range l.members {
		x := &l.members[rank]
		if m := l.seats[x.ID]; m != nil && m.seat.Generation == 0 && !x.Gone {
			m.seatedLocked(l, rank)
		}
	}
	for _, c := range s.Counters {
		l.countLocked(c)
	}
	for _, r := range s.Refused {
		if m := l.seats[r.Seat]; m != nil && r.Try != 0 {
			m.disagreesLocked(r)
		} else if m != nil {
			m.endLocked(errs.E(r.Kind, "group", "%s", r.Text))
		}
	}
}

// lives begins another life of the group if it is a newer one.
func (l *local) lives(generation uint64) {
	if generation > l.generation {
		l.generation, l.done, l.list, l.slowest = generation, 0, 0, 0
		l.size, l.members, l.met, l.counted = 0, nil, nil, 0
		clear(l.counters)
	}
}

// countLocked takes over the value of a counter, and the answers in it.
func (l *local) countLocked(c wire.GroupCounter) {
	if have, ok := l.counters[c.Name]; !ok || have.Count < c.Count {
		l.counters[c.Name] = c
	}
	for _, r := range c.Recent {
		if m := l.seats[r.Seat]; m != nil {
			m.answeredLocked(r)
		}
	}
}

// result returns who took part in the last barrier.
func (l *local) result() Result {
	r := Result{Number: l.done, Members: make([]Seat, 0, len(l.met))}
	for rank, node := range l.met {
		if node == 0 {
			r.Missing = append(r.Missing, rank)
		} else {
			r.Members = append(r.Members, Seat{Rank: rank, Node: node})
		}
	}
	return r
}
