package coherence

import (
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// subscriber is what a home knows about one node that wants an area's updates: the *set* of pages
// that it lacks, not a queue of updates. However slow it is, it costs five bits for each page, gets
// the newest bytes once, and delays no other node.
type subscriber struct {
	id        dsm.NodeID
	area      *Area
	onRequest bool                     // push only for an Acquire or Fetch
	partial   bool                     // push only pages that it has
	lacking   int32                    // how many extents have pages to push
	slots     slotBits                 // that it has subscribed to, until they move
	extents   map[dsm.ExtentIndex]*lag // extents in these slots, if there is something to remember of them
	flying    map[dsm.ExtentIndex]bool // extents with pushes under way
	queue     lagQueue                 // extents with pages to push, and without a push under way, oldest first
	fetches   []dsm.ExtentIndex        // extents with pages that a program waits for, oldest first
	lastTurn  uint64
	inFlight  int // bytes pushed and not acked
	acquires  []*acquireWait
	batches   *batches // of a versioned area; then extents and what belongs to it are not used
}

// lag is what a subscriber lacks of an extent.
type lag struct {
	has     dsm.PageSet // for a partial subscriber: pages fetched and not released
	asked   dsm.PageSet // by a Fetch whose answer has not been acked
	fetched dsm.PageSet // those of them that are to be pushed before anything else
	lacks   dsm.PageSet // to be pushed
	sent    dsm.PageSet // pushed and not acked: the subscriber has this value or an older one
	pushes  []pushed    // not acked
	turn    uint64      // increasing number, set when the extent got pages to push; 0: it has none
	queued  uint64      // the turn with which it is in the queue; 0: it is not in it
	group   uint64      // of the last Subscribe that named it
}

type pushed struct {
	id     uint64
	bytes  int
	answer dsm.PageSet
}

// acquireWait is an Acquire. It is answered when everything that was lacking when it came has been
// pushed.
type acquireWait struct {
	round uint64
	until uint64      // the last turn for which it waits
	left  int         // how many extents it still waits for
	upto  dsm.Version // what was merged up to here is what it waits for
}

// lagQueue is a heap of extents, ordered by their turns. An entry whose extent has another turn by
// now is ignored.
type lagQueue []queuedLag

type queuedLag struct {
	turn   uint64
	extent dsm.ExtentIndex
}

func (q *lagQueue) push(x queuedLag) {
	l := append(*q, x)
	*q = l
	for i := len(l) - 1; i > 0 && x.turn < l[(i-1)/2].turn; i = (i - 1) / 2 {
		l[i], l[(i-1)/2] = l[(i-1)/2], x
	}
}

// pop drops the first one.
func (q *lagQueue) pop() {
	last := len(*q) - 1
	l, x := (*q)[:last], (*q)[last]
	*q = l
	for i := 0; i < last; {
		l[i] = x
		next := 2*i + 1
		if next+1 < last && l[next+1].turn < l[next].turn {
			next++
		}
		if next >= last || l[next].turn > x.turn {
			return
		}
		l[i], i = l[next], next
	}
}

func newSubscriber(a *Area, id dsm.NodeID) *subscriber {
	return &subscriber{id: id, area: a, extents: make(map[dsm.ExtentIndex]*lag)}
}

// lagLocked returns what is known of an extent; nil: the subscriber has not subscribed to it.
func (s *subscriber) lagLocked(e dsm.ExtentIndex) *lag {
	l := s.extents[e]
	if l == nil && s.slots.has(slotIndex(s.area.slotLocked(e))) {
		l = s.makeLocked(e)
	}
	return l
}

// makeLocked returns what is known of an extent that it has subscribed to.
func (s *subscriber) makeLocked(e dsm.ExtentIndex) *lag {
	l := s.extents[e]
	if l == nil {
		l = &lag{}
		s.extents[e] = l
		h := &s.area.mu.home
		h.below = max(h.below, e+1)
	}
	return l
}

// lackLocked adds pages to those that the subscriber lacks. If it has not subscribed to the extent, its
// Subscribe will say what it lacks.
func (s *subscriber) lackLocked(e dsm.ExtentIndex, p dsm.PageSet) {
	l := s.lagLocked(e)
	if l != nil && s.partial {
		p = p.And(l.has)
	}
	if l == nil || p.Empty() {
		return
	}
	l.lacks = l.lacks.Or(p)
	s.enqueue(e, l)
}

// enqueue puts an extent in the queue, if it belongs there.
func (s *subscriber) enqueue(e dsm.ExtentIndex, l *lag) {
	if l.lacks.Empty() {
		return
	}
	if l.turn == 0 {
		s.lastTurn++
		s.lacking++
		l.turn = s.lastTurn
	}
	if len(l.pushes) == 0 && l.queued != l.turn {
		l.queued = l.turn
		s.queue.push(queuedLag{l.turn, e})
	}
}

// next returns the extent that has waited longest, nil if there is none.
func (s *subscriber) next() (dsm.ExtentIndex, *lag) {
	for len(s.queue) > 0 {
		q := s.queue[0]
		if l := s.extents[q.extent]; l != nil && l.turn == q.turn && len(l.pushes) == 0 {
			return q.extent, l
		} else if l != nil && l.queued == q.turn {
			l.queued = 0
		}
		s.queue.pop()
	}
	return 0, nil
}

// settle records that an extent may have nothing left to push.
func (s *subscriber) settle(l *lag) {
	if l.turn == 0 || !l.lacks.Empty() {
		return
	}
	for _, w := range s.acquires {
		if l.turn <= w.until {
			w.left--
		}
	}
	s.lacking--
	l.turn = 0
}

// fetch makes pages go before all others.
func (s *subscriber) fetch(e dsm.ExtentIndex, l *lag, p dsm.PageSet) {
	if p.Empty() {
		return
	}
	if l.fetched.Empty() {
		s.fetches = append(s.fetches, e)
	}
	l.fetched = l.fetched.Or(p)
}

// fly records a push.
func (s *subscriber) fly(e dsm.ExtentIndex, l *lag, p pushed) {
	l.pushes = append(l.pushes, p)
	if s.flying == nil {
		s.flying = make(map[dsm.ExtentIndex]bool)
	}
	s.flying[e] = true
	s.inFlight += p.bytes
}

// ackedLocked handles a PushAck. Unknown ids are those of pushes that were given up.
func (s *subscriber) ackedLocked(e dsm.ExtentIndex, id uint64, declined dsm.PageSet) {
	l := s.extents[e]
	if l == nil {
		return
	}
	for i, p := range l.pushes {
		if p.id == id {
			s.landedLocked(p.bytes)
			l.asked = l.asked.Minus(p.answer)
			l.pushes = append(l.pushes[:i], l.pushes[i+1:]...)
			if len(l.pushes) == 0 {
				delete(s.flying, e)
				l.sent = dsm.PageSet{}
			}
			s.lackLocked(e, declined)
			s.enqueue(e, l)
			return
		}
	}
}

// landedLocked records that bytes are not under way any more.
func (s *subscriber) landedLocked(bytes int) {
	s.inFlight -= bytes
	s.area.node.links.give(s.id, s.area, bytes)
}

// requeueLocked takes back what was pushed of an extent, because it may not have arrived.
func (s *subscriber) requeueLocked(e dsm.ExtentIndex) {
	l := s.extents[e]
	for _, p := range l.pushes {
		s.landedLocked(p.bytes)
	}
	l.pushes = nil
	delete(s.flying, e)
	sent := l.sent
	l.sent = dsm.PageSet{}
	s.fetch(e, l, sent.And(l.asked)) // even if the subscriber wants pushes only when it asks
	s.lackLocked(e, sent)
	s.enqueue(e, l)
}

func (s *subscriber) requeueAllLocked() {
	for _, e := range slices.Sorted(maps.Keys(s.flying)) {
		s.requeueLocked(e)
	}
}

// forgetLocked drops an extent that moved to another home.
func (s *subscriber) forgetLocked(e dsm.ExtentIndex) {
	l := s.extents[e]
	for _, p := range l.pushes {
		s.landedLocked(p.bytes)
	}
	l.lacks = dsm.PageSet{}
	s.settle(l)
	delete(s.extents, e)
	delete(s.flying, e)
}

// endLocked takes back what is under way to a node that is not a subscriber any more.
func (s *subscriber) endLocked() {
	if s != nil {
		s.area.endBatchesLocked(s)
		s.landedLocked(s.inFlight)
	}
}

// wanted reports whether an Acquire waits for an extent.
func (s *subscriber) wanted(l *lag) bool {
	return len(s.acquires) > 0 && l.turn <= s.acquires[len(s.acquires)-1].until
}
