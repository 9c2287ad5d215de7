package coherence

import (
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// inquiring is an Inquire that not all homes have answered.
type inquiring struct {
	pending map[dsm.NodeID]struct{}
	answers map[dsm.NodeID]dsm.Version
	again   bool // homes that had not heard of the newest version were asked once more, by which they hear of it
	subs    map[dsm.NodeID]struct{}
}

// Inspect asks the homes of an area what they know. All homes have then heard of the version in the report, so publishes that begin
// later get later versions. errs.Timeout if a home does not answer before ctx ends.
func (n *Node) Inspect(ctx context.Context, id dsm.AreaID) (Report, error) {
	a, err := n.area(id)
	if err != nil {
		return Report{}, err
	}
	q := &inquiring{}
	var round uint64
	a.step(func() {
		r := &a.mu.replica
		r.round++
		round = r.round
		r.inquiry[round] = q
		a.sendInquireLocked(round, q)
	})
	err = a.awaitHomes(ctx, "inspect", func() bool { return len(q.pending) == 0 }, a.deadInAreaLocked)
	var rep Report
	a.step(func() {
		delete(a.mu.replica.inquiry, round)
		rep = Report{Version: q.version(), Homes: a.homesLocked(), Subscribers: slices.Sorted(maps.Keys(q.subs))}
	})
	return rep, err
}

func (a *Area) sendInquireLocked(round uint64, q *inquiring) {
	*q = inquiring{pending: make(map[dsm.NodeID]struct{}), answers: make(map[dsm.NodeID]dsm.Version), subs: make(map[dsm.NodeID]struct{})}
	a.inquireLocked(round, q, a.homesLocked())
}

func (a *Area) inquireLocked(round uint64, q *inquiring, homes []dsm.NodeID) {
	for _, home := range homes {
		q.pending[home] = struct{}{}
		a.sendLocked(home, &wire.Inquire{Stamp: a.stampLocked(), Round: round})
	}
}

// restartInquiriesLocked asks again after the homes changed or a session broke.
func (a *Area) restartInquiriesLocked() {
	for _, round := range slices.Sorted(maps.Keys(a.mu.replica.inquiry)) {
		a.sendInquireLocked(round, a.mu.replica.inquiry[round])
	}
	a.askUntilLocked()
	a.restartSurveysLocked()
}

func (a *Area) replicaInquiredLocked(from dsm.NodeID, m *wire.Inquired) {
	q := a.mu.replica.inquiry[m.Round]
	if q == nil {
		return
	}
	delete(q.pending, from)
	q.answers[from] = m.Newest
	for _, s := range m.Subscribers {
		q.subs[s] = struct{}{}
	}
	if len(q.pending) == 0 && !q.again {
		q.again = true
		a.inquireLocked(m.Round, q, q.unaware())
	}
	a.mu.wake = true
}

// version is the newest of the answers.
func (q *inquiring) version() (v dsm.Version) {
	for _, w := range q.answers {
		v = max(v, w)
	}
	return v
}

// unaware returns the homes that answered with an older version than the newest.
func (q *inquiring) unaware() (homes []dsm.NodeID) {
	newest := q.version()
	for home, v := range q.answers {
		if v < newest {
			homes = append(homes, home)
		}
	}
	slices.Sort(homes)
	return homes
}
