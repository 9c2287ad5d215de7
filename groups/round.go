package groups

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Area is an area as its rounds need it: see coherence.Area.
type Area interface {
	Contribute(ctx context.Context, id dsm.RoundID) error
	FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int) error
	AbandonRound(id dsm.RoundID)
}

// stake is an area's round in which members of this node have something.
type stake struct {
	area dsm.AreaID
	id   dsm.RoundID
}

// Meet is Barrier, at which the members put together what they have stored in areas, and what they have accumulated. Like Barrier it
// may be called again after it has ended early: the member contributes once. limit bounds the time for each of the two steps in the
// data plane. The members of a node share the node's contribution; it is taken back when none of them is in the round any more. A member contributes
// when the others of its node have the end of the round before. With an error the Result is zero, or that of a round which is over all the same.
func (m *Member) Meet(ctx context.Context, number uint64, areas map[dsm.AreaID]Area, limit time.Duration) (Result, error) {
	id := m.Round(number)
	areas, arrived, err := m.enter(number, areas)
	if err == nil && !arrived {
		err = m.meet(ctx, number, m.nothing, func() (bool, error) { return m.allHaveLocked(number-1, areas), nil })
	}
	if err == nil && !arrived {
		err = each(ctx, limit, areas, func(ctx context.Context, a Area) error { return a.Contribute(ctx, id) })
		m.takeBack(number, areas)
	}
	var r Result
	if err == nil {
		first, ready := m.arrival(number, true, &r)
		err = m.meet(ctx, number, first, ready)
	}
	if err == nil {
		nodes := r.nodes()
		err = each(ctx, limit, areas, func(ctx context.Context, a Area) error { return a.FinishRound(ctx, id, nodes, len(r.Members)) })
	}
	if errs.Is(err, errs.Timeout) || errs.Is(err, errs.Interrupted) { // the caller may go on
		return Result{}, err
	}
	m.n.step(func() { m.withdrawLocked() })
	return r, err
}

// Accumulate has add hand over something to the round of an area that is the member's next. It is put together by Meet, whichever areas that names.
// If add fails, nothing that came with it counts, unless the member or another one of the node has handed over something before. Like Meet it waits until
// the others of its node have the end of the round before.
func (m *Member) Accumulate(ctx context.Context, number uint64, id dsm.AreaID, a Area, add func(dsm.RoundID) error) error {
	areas := map[dsm.AreaID]Area{id: a}
	if err := m.n.call(ctx, m, m.nothing, func() (bool, error) { return m.allHaveLocked(number-1, areas), nil }); err != nil {
		return err
	}
	had := false
	err := func() error {
		m.n.mu.Lock()
		defer m.n.mu.Unlock()
		if m.ended != nil {
			return m.ended
		}
		next, err := m.mayArriveLocked(number, true)
		if err == nil && !next {
			err = errs.E(errs.Invalid, "accumulate", "round %d has begun: end it first", number)
		}
		if err == nil {
			_, had = m.stakes[id]
			m.stakeLocked(number, id, a)
		}
		return err
	}()
	if err != nil {
		return err
	}
	if err = add(m.Round(number)); err != nil && !had {
		m.n.step(func() { m.dropLocked(id) })
	}
	m.takeBack(number, areas)
	return err
}

// takeBack takes back what a member has contributed if it has ended meanwhile: when that was to be taken back there may have been nothing yet.
func (m *Member) takeBack(number uint64, areas map[dsm.AreaID]Area) {
	m.n.step(func() {
		for _, id := range slices.Sorted(maps.Keys(areas)) {
			a, k := areas[id], stake{id, m.Round(number)}
			if m.ended != nil && m.n.mu.stakes[k] == 0 {
				m.n.mu.abandoned = append(m.n.mu.abandoned, func() { a.AbandonRound(k.id) })
			}
		}
	})
}

// enter begins a round, and returns its areas: also those in which the member has accumulated. arrived says that it has contributed.
func (m *Member) enter(number uint64, areas map[dsm.AreaID]Area) (all map[dsm.AreaID]Area, arrived bool, err error) {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	if m.ended != nil {
		return nil, false, m.ended
	}
	if _, err := m.mayArriveLocked(number, true); err != nil {
		return nil, false, err
	}
	arrived = number == m.seat.Arrived
	if !arrived {
		for id, a := range areas {
			m.stakeLocked(number, id, a)
		}
	}
	all = maps.Clone(m.stakes)
	if all == nil {
		all = make(map[dsm.AreaID]Area)
	}
	maps.Copy(all, areas)
	return all, arrived, nil
}

func (m *Member) nothing() (bool, error) { return false, nil }

// allHaveLocked reports whether no member of this node is left in a round of some areas.
func (m *Member) allHaveLocked(number uint64, areas map[dsm.AreaID]Area) bool {
	for id := range areas {
		if m.n.mu.stakes[stake{id, m.Round(number)}] > 0 {
			return false
		}
	}
	return true
}

// stakeLocked records that the member has something in a round of an area.
func (m *Member) stakeLocked(number uint64, id dsm.AreaID, a Area) {
	if m.stakes == nil {
		m.stakes = make(map[dsm.AreaID]Area)
	}
	if _, ok := m.stakes[id]; !ok {
		m.n.mu.stakes[stake{id, m.Round(number)}]++
	}
	m.stakes[id], m.staked = a, number
}

// withdrawLocked ends what the member has in rounds.
func (m *Member) withdrawLocked() {
	for _, id := range slices.Sorted(maps.Keys(m.stakes)) {
		m.dropLocked(id)
	}
}

// dropLocked ends what the member has in the round of an area. What nobody of the node will end is taken back, when the lock is released;
// of a round that has ended there is nothing to take back.
func (m *Member) dropLocked(id dsm.AreaID) {
	a, ok := m.stakes[id]
	if !ok {
		return
	}
	delete(m.stakes, id)
	k := stake{id, m.Round(m.staked)}
	if m.n.mu.stakes[k]--; m.n.mu.stakes[k] == 0 {
		delete(m.n.mu.stakes, k)
		m.n.mu.abandoned = append(m.n.mu.abandoned, func() { a.AbandonRound(k.id) })
	}
}

// nodes returns where those are who took part.
func (r *Result) nodes() (list []dsm.NodeID) {
	for _, s := range r.Members {
		list = append(list, s.Node)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// areasAtOnce bounds what a round costs a node at a time.
const areasAtOnce = 16

// each does something to several areas at the same time, and returns one of the errors.
//
// At most areasAtOnce run at a time, in the order of their numbers: for each area the first that is not over runs wherever it is
// wanted, so nodes that wait for each other come to an end.
func each(ctx context.Context, limit time.Duration, areas map[dsm.AreaID]Area, do func(context.Context, Area) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if len(areas) == 1 { // in this goroutine
		for _, a := range areas {
			return do(ctx, a)
		}
	}
	failed := make([]error, 0, len(areas))
	var mu sync.Mutex
	var wg sync.WaitGroup
	room := make(chan struct{}, areasAtOnce)
	for _, id := range slices.Sorted(maps.Keys(areas)) {
		a := areas[id]
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			if err := do(ctx, a); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
	}
	wg.Wait()
	if len(failed) > 0 {
		return failed[0]
	}
	return nil
}
