package coherence

import (
	"context"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// surveying is a Survey that not all homes have answered.
type surveying struct {
	round    uint64          // of the last sending
	from, to dsm.ExtentIndex // of which the pages are asked for
	pending  map[dsm.NodeID]struct{}
	pages    int64
	data     map[dsm.ExtentIndex]dsm.PageSet
}

// counted is how many pages have data, as the only home said with the last ack. It is known until
// something may have changed since.
type counted struct {
	pages int64
	known bool
}

// Counted returns how many pages have data, if this node knows without asking.
func (a *Area) Counted() (pages int64, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.mu.replica // homes tell it of every publish, or of some only
	return a.mu.counted.pages, a.mu.counted.known && r.subscribed && !r.onRequest && !r.demand
}

// CountPages asks the homes of an area how many of its pages have data: bytes other than zero. errs.Timeout if one does not answer
// before ctx ends.
func (n *Node) CountPages(ctx context.Context, id dsm.AreaID) (pages int64, err error) {
	a, err := n.area(id)
	if err != nil {
		return 0, err
	}
	if pages, known := a.Counted(); known {
		return pages, nil
	}
	q := &surveying{}
	err = a.survey(ctx, q, func() {}, func() { pages = q.pages })
	return pages, err
}

// survey asks the homes. before is called in the step that asks, after in the one that ends it.
func (a *Area) survey(ctx context.Context, q *surveying, before, after func()) error {
	a.step(func() {
		before()
		if a.mu.surveys == nil {
			a.mu.surveys = make(map[uint64]*surveying)
		}
		a.sendSurveyLocked(q)
	})
	err := a.awaitHomes(ctx, "survey", func() bool { return len(q.pending) == 0 }, a.deadInAreaLocked)
	a.step(func() {
		delete(a.mu.surveys, q.round)
		after()
	})
	return err
}

// sendSurveyLocked asks under a new number: of a slot that moves meanwhile the old home may have answered already, and the new one
// will. Both would count.
func (a *Area) sendSurveyLocked(q *surveying) {
	delete(a.mu.surveys, q.round)
	a.mu.replica.round++
	q.round = a.mu.replica.round
	a.mu.surveys[q.round] = q
	q.pending, q.pages, q.data = make(map[dsm.NodeID]struct{}), 0, make(map[dsm.ExtentIndex]dsm.PageSet)
	for _, home := range a.homesLocked() {
		q.pending[home] = struct{}{}
		a.sendLocked(home, &wire.Survey{Stamp: a.stampLocked(), Round: q.round, From: q.from, To: q.to})
	}
}

// restartSurveysLocked asks again after the homes changed or a session broke.
func (a *Area) restartSurveysLocked() {
	for _, round := range slices.Sorted(maps.Keys(a.mu.surveys)) {
		a.sendSurveyLocked(a.mu.surveys[round])
	}
}

// homeSurveyLocked answers where this home has data.
func (a *Area) homeSurveyLocked(from dsm.NodeID, m *wire.Survey) {
	r := &wire.Surveyed{Stamp: a.stampLocked(), Round: m.Round, Pages: int64(a.mu.home.data)}
	if slices.ContainsFunc(a.mu.view.Slots[:], func(s dsm.SlotHome) bool { return a.isSelf(s.Source) }) {
		for e, x := range a.mu.home.extents { // those that another home has by now count there
			if !a.isSelf(a.rowLocked(e).Primary) {
				r.Pages -= int64(x.data.Len())
			}
		}
	}
	for e := m.From; e < min(m.To, m.From+subscribePart, dsm.ExtentIndex(a.extentsLocked())); e++ {
		if x := a.mu.home.extents[e]; x != nil && !x.data.Empty() && a.isSelf(a.rowLocked(e).Primary) {
			r.Data = append(r.Data, wire.ExtentPages{Extent: e, Pages: x.data})
		}
	}
	a.sendLocked(from, r)
}

func (a *Area) replicaSurveyedLocked(from dsm.NodeID, m *wire.Surveyed) {
	q := a.mu.surveys[m.Round]
	if q == nil {
		return
	}
	if _, ok := q.pending[from]; !ok {
		return
	}
	delete(q.pending, from)
	q.pages += m.Pages
	for _, d := range m.Data {
		q.data[d.Extent] = d.Pages
	}
	a.mu.wake = true
}
