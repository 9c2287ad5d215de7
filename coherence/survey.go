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
	round    uint64          // of the Survey that was sent last
	from, to dsm.ExtentIndex // the extents whose pages with data are asked for; the number of pages is that of the whole area
	pending  map[dsm.NodeID]struct{}
	pages    int64
	data     map[dsm.ExtentIndex]dsm.PageSet
}

// counted is how many pages of an area of one extent have data, as its home said with the last PublishAck. It is
// known only until the number may have changed. It changes by publishes of other nodes as well. The caller of Counted may
// enter its number in the catalog after a newer one of another node, so it is made to count again.
type counted struct {
	pages int64
	known bool
	taken bool // Counted has returned it
}

// Counted returns how many pages have data, if this node knows without asking. If that changes by a publish of another
// node, Recounts says so.
func (a *Area) Counted() (pages int64, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.mu.replica // the home pushes every publish to it, so it hears of changes; not if onRequest or demand
	c := &a.mu.counted
	if !c.known || !r.subscribed || r.onRequest || r.demand {
		return 0, false
	}
	c.taken = true
	return c.pages, true
}

// miscountedLocked records that the number of pages may have changed, and not by a publish of this node.
func (a *Area) miscountedLocked() {
	c := &a.mu.counted
	if c.known = false; c.taken {
		c.taken, a.mu.recount, a.mu.miscounted = false, true, true
	}
}

// CountPages returns how many pages of an area have data, that is, bytes other than zero. It asks the homes, unless this node knows.
// errs.Timeout if a home does not answer before ctx ends.
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

// survey sends q to the homes, and waits for all answers. before is called in the step that sends it; after is called in the step
// that ends it, also after an error.
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

// sendSurveyLocked sends q to all homes, with a new round, so that answers to an earlier round do not count. Otherwise the pages of a
// slot that has moved could be counted twice: by the old home and by the new one.
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

// homeSurveyLocked answers which pages have data at this home.
func (a *Area) homeSurveyLocked(from dsm.NodeID, m *wire.Survey) {
	r := &wire.Surveyed{Stamp: a.stampLocked(), Round: m.Round, Pages: int64(a.mu.home.data)}
	if a.handsOverLocked() {
		for e, x := range a.mu.home.extents { // extents that are being handed over are counted by their new home
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

// handsOverLocked reports whether an extent of the area is being handed over by this node.
func (a *Area) handsOverLocked() bool {
	for e := range dsm.ExtentIndex(a.coveringLocked()) {
		if a.isSelf(a.rowLocked(e).Source) {
			return true
		}
	}
	return false
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
