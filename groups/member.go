package groups

import (
	"context"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// Member is a program that has a rank in a group. Its methods may be called from any goroutine; of
// a barrier and of a tick one call at a time.
type Member struct {
	n     *Node
	group *local
	seat  wire.GroupSeat
	rank  int
	first uint64            // the first barrier that it takes part in
	next  uint64            // numbers its additions
	sums  map[uint64]*int64 // of the additions that somebody waits for; nil: no answer yet
	ended error             // why it is no member any more

	refused uint64 // the last of its arrivals that was refused, as GroupSeat.Tries counts them
	refusal error

	stakes map[dsm.AreaID]Area // in which it has something that waits for the end of a round
	staked uint64              // the number of that round
}

// Result is what a barrier says when it ends.
type Result struct {
	Number  uint64
	Members []Seat // who took part, by rank
	Missing []int  // the ranks that did not
}

// Seat is a rank and where it is.
type Seat struct {
	Rank int
	Node dsm.NodeID
}

// Clock is the answer to a tick.
type Clock struct {
	Ticks  uint64 // of the member
	Ahead  uint64 // of the slowest, when the tick came
	Waited time.Duration
}

// Bounds of what programs may ask for.
const (
	MaxSize     = 256
	maxName     = 255
	maxCounters = 1024
	maxAdds     = 64 // of a member, without an answer
	// maxAdding bounds the bytes of a node's additions to a group without an answer: each report has all of them, and there may be one for each
	// that the coordinator has not read.
	maxAdding = 16 << 10
)

// Rank is the place of the member in the group, from 0.
func (m *Member) Rank() int { return m.rank }

// First is the number of the first barrier that waits for the member.
func (m *Member) First() uint64 { return m.first }

// Round returns the name of a round of the group.
func (m *Member) Round(number uint64) dsm.RoundID {
	return dsm.RoundID{Group: m.group.group, Generation: m.seat.Generation, Number: number}
}

// seatedLocked gives the member its rank.
func (m *Member) seatedLocked(l *local, rank int) {
	x := &l.members[rank]
	m.seat.Generation, m.rank, m.first = l.generation, rank, x.From
	m.seat.Arrived, m.seat.Ticks = x.From-1, x.Tick
}

// endLocked ends the membership: every call returns the error.
func (m *Member) endLocked(err error) {
	m.ended = err
	m.withdrawLocked()
	for _, a := range m.seat.Adds {
		m.group.adding -= addBytes(a.Counter)
	}
	delete(m.group.seats, m.seat.ID)
	m.group.sorted = nil
	m.group.heard = 0 // the coordinator does not know yet
}

// addBytes is what an addition takes in a report, at most.
func addBytes(counter string) int { return len(counter) + 32 }

// answeredLocked takes over the answer to an addition.
func (m *Member) answeredLocked(r wire.GroupSum) {
	i := slices.IndexFunc(m.seat.Adds, func(a wire.GroupAdd) bool { return a.Number == r.Number })
	if i < 0 {
		return
	}
	m.group.adding -= addBytes(m.seat.Adds[i].Counter)
	m.seat.Adds = slices.Delete(m.seat.Adds, i, i+1)
	if _, waited := m.sums[r.Number]; waited {
		m.sums[r.Number] = &r.Value
	}
	m.seat.Settled = m.next
	for _, a := range m.seat.Adds {
		m.seat.Settled = min(m.seat.Settled, a.Number-1)
	}
}

// applyLocked asks for a rank, and hasRankLocked tells whether there is one. Both are for Node.begin.
func (m *Member) applyLocked() (bool, error)   { return true, nil }
func (m *Member) hasRankLocked() (bool, error) { return m.seat.Generation != 0, nil }

// Barrier arrives at a barrier, and returns when all members that live have. The number is one more
// than that of the last result. A call that ended early may be made again: the member has arrived,
// and the result is kept until it arrives at the next one.
func (m *Member) Barrier(ctx context.Context, number uint64) (Result, error) {
	var r Result
	first, ready := m.arrival(number, false, &r)
	return r, m.meet(ctx, number, first, ready)
}

func (m *Member) meet(ctx context.Context, number uint64, first, ready func() (bool, error)) error {
	err := m.n.call(ctx, m, first, ready)
	if errs.Is(err, errs.Timeout) {
		err = errs.E(errs.Timeout, "barrier", "the members have not all arrived at number %d in time", number)
	}
	return err
}

// Arrive is Barrier without a wait: done is called when the barrier is over, perhaps before Arrive
// returns, by a goroutine that must not be delayed. With an error nothing has begun.
func (m *Member) Arrive(number uint64, done func(Result, error)) error {
	r := new(Result)
	first, ready := m.arrival(number, false, r)
	_, err := m.n.begin(m, first, ready, func(err error) { done(*r, err) })
	return err
}

// ArriveNow is Arrive for a goroutine that must not be delayed. It returns false, and has done nothing, if another one is at work.
func (m *Member) ArriveNow(number uint64, done func(Result, error)) (taken bool, err error) {
	if !m.n.mu.TryLock() {
		return false, nil
	}
	r := new(Result)
	first, ready := m.arrival(number, false, r)
	_, err = m.n.beginLocked(m, first, ready, func(err error) { done(*r, err) }, true)
	return true, err
}

// arrival returns the two functions for Node.begin.
func (m *Member) arrival(number uint64, round bool, r *Result) (first, ready func() (bool, error)) {
	var try uint64
	return func() (bool, error) {
			news, err := m.mayArriveLocked(number, round)
			if news {
				m.seat.Arrived, m.seat.Round = number, round
				m.seat.Tries++
			}
			try = m.seat.Tries
			return news, err
		}, func() (bool, error) {
			switch {
			case m.refused >= try:
				return true, m.refusal
			case m.group.done < number:
				return false, nil
			}
			*r = m.group.result()
			return true, nil
		}
}

// mayArriveLocked checks that a barrier, or a round, is the member's next one, or the one at which it has arrived already: then news is false.
func (m *Member) mayArriveLocked(number uint64, round bool) (news bool, err error) {
	switch {
	case number != m.seat.Arrived && number != m.seat.Arrived+1, number < m.first:
		return false, errs.E(errs.Invalid, "barrier", "number %d: the member has arrived at %d", number, m.seat.Arrived)
	case len(m.stakes) > 0 && (!round || number != m.staked):
		return false, errs.E(errs.Invalid, "barrier", "what the member has accumulated or stored waits for the end of round %d", m.staked)
	case number == m.seat.Arrived && round != m.seat.Round:
		return false, errs.E(errs.Invalid, "barrier", "the member has begun number %d as a %s: end that first", number, collective(m.seat.Round))
	case number == m.seat.Arrived:
		return false, nil
	case m.group.done < m.seat.Arrived:
		return false, errs.E(errs.Invalid, "barrier", "number %d: barrier %d is not over", number, m.seat.Arrived)
	}
	return true, nil
}

// Add adds to a counter of the group, and returns the value after that. If it returns early the
// addition counts all the same.
func (m *Member) Add(ctx context.Context, counter string, delta int64) (value int64, err error) {
	var number uint64
	first, ready := m.addition(counter, delta, &number, &value)
	err = m.n.call(ctx, m, first, ready)
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	delete(m.sums, number)
	return value, err
}

// addition returns the two functions for Node.begin, which set number and value.
func (m *Member) addition(counter string, delta int64, number *uint64, value *int64) (first, ready func() (bool, error)) {
	return func() (bool, error) {
			_, known := m.group.counters[counter]
			switch {
			case counter == "" || len(counter) > maxName:
				return false, errs.E(errs.Invalid, "add", "the name of a counter has 1 to %d bytes", maxName)
			case !known && len(m.group.counters) >= maxCounters:
				return false, errs.E(errs.NoSpace, "add", "more than %d counters", maxCounters)
			case len(m.seat.Adds) >= maxAdds:
				return false, errs.E(errs.WouldBlock, "add", "more than %d additions without an answer", maxAdds)
			case m.group.adding+addBytes(counter) > maxAdding:
				return false, errs.E(errs.WouldBlock, "add", "the programs of this node have %d bytes of additions without an answer", m.group.adding)
			}
			m.group.adding += addBytes(counter)
			m.next++
			*number = m.next
			m.sums[m.next] = nil
			m.seat.Adds = append(m.seat.Adds, wire.GroupAdd{Number: m.next, Counter: counter, Delta: delta})
			return true, nil
		}, func() (bool, error) {
			if m.sums[*number] == nil {
				return false, nil
			}
			*value = *m.sums[*number]
			return true, nil
		}
}

// Tick sets the clock of the member, and returns when no member that lives is more than slack
// behind. A clock does not go backwards.
func (m *Member) Tick(ctx context.Context, ticks, slack uint64) (Clock, error) {
	begun := time.Now()
	c := Clock{Ticks: ticks}
	first, ready := m.tick(slack, &c)
	err := m.n.call(ctx, m, first, ready)
	c.Waited = time.Since(begun)
	m.n.clocks.note(c)
	if errs.Is(err, errs.Timeout) {
		err = errs.E(errs.Timeout, "tick", "a member is still more than %d ticks behind", slack)
	}
	return c, err
}

// tick returns the two functions for Node.begin.
func (m *Member) tick(slack uint64, c *Clock) (first, ready func() (bool, error)) {
	need := c.Ticks - min(slack, c.Ticks)
	return func() (bool, error) {
		c.Ahead = c.Ticks - min(m.group.slowest, c.Ticks)
		news := c.Ticks > m.seat.Ticks
		m.seat.Ticks = max(m.seat.Ticks, c.Ticks)
		if m.group.slowest < need && m.seat.Need != need {
			m.seat.Need, news = need, true
		}
		return news, nil
	}, func() (bool, error) { return m.group.slowest >= need, nil }
}

// Ticks is the clock of the member.
func (m *Member) Ticks() uint64 {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	return m.seat.Ticks
}

// Leave ends the membership. It may be called again.
func (m *Member) Leave() {
	m.n.step(func() {
		if m.ended == nil {
			m.endLocked(errs.E(errs.Closed, "group", "left"))
			m.n.reportLocked(m.group)
		}
	})
}
