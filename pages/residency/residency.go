// Package residency says which pages of demand areas, of all areas of the node, should leave first.
package residency

import (
	"container/list"
	"slices"
	"sync"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Residency chooses which pages of demand areas leave first when room is needed. It
// only ever chooses: what it names can be fetched again, and whoever asked looks whether
// it is clean and not in use, and gives it back by Used if not.
//
// ristretto says what is worth keeping: a page that was used more often than
// others, as its sketch of frequencies has it, stays though a scan of everything
// goes by (TinyLFU; Einziger, Friedman, Manes 2017). It is a cache that may drop what it is told,
// and that forgets pages on a goroutine of its own, at some later time; so where each
// page is is kept here. A page is in one of these places:
//
//	held      ristretto has it, or will find it in the buffer of its insertions
//	queued    it was brought and not used, or ristretto has evicted or refused it, or dropped the insertion:
//	          it waits in a queue to leave
//	nowhere   never used, forgotten, or handed out as a victim
//
// Used makes it held: a page in the queue leaves the queue. Only a page that is not held is
// inserted, so there is one insertion of it at a time, and what comes of that is told: ristretto
// keeps it, or calls back, and the page is queued. So no page is ever in no place that ought to be in one.
//
// ristretto is given seven eighths of the limit. So the queue is an eighth of it long when the node
// is at its limit, and a page that readahead brought, or that ristretto refused, stays until as many
// others have come: else it would leave before it is read.
//
// Victims come from the queue, the oldest first. If it is empty, because ristretto is
// behind, or has room for all it knows, they are found by a second chance: a hand goes over the
// extents, takes the pages that nobody used since it came by, and at the second round the others.
//
// It takes about 200 bytes for each page of the limit. All methods may be called by any goroutine.
type Residency struct {
	cache   *ristretto.Cache[uint64, residentPage]
	deletes sync.WaitGroup // calls that may still use cache.Del, which waits for callbacks: not under the lock

	mu struct {
		lockrank.Mutex // guards all that follows, and the order of insertions
		closed         bool
		extents        map[residentKey]*residentExtent
		clock          []*residentExtent // those of extents, in the order in which the hand goes over them
		hand           int               // where in clock it is, modulo its length
		queue          list.List         // of *queuedPages, the oldest first
	}
}

// residentKey names an extent of an area.
type residentKey struct {
	area   dsm.AreaID
	extent dsm.ExtentIndex
}

// residentExtent is an extent with pages that are somewhere.
type residentExtent struct {
	residentKey
	at     int             // in the clock
	held   dsm.PageSet     // ristretto has them
	queued dsm.PageSet     // each in one of queue
	queue  []*list.Element // its elements of the queue
	leaves dsm.PageSet     // ristretto is about to be told to forget them
	recent dsm.PageSet     // used since the hand came by
}

// queuedPages are pages of an extent that were queued one after the other.
type queuedPages struct {
	x     *residentExtent
	pages dsm.PageSet
}

// residentPage is page i of an extent.
type residentPage struct {
	x *residentExtent
	i int
}

func (p residentPage) set() dsm.PageSet { return dsm.Range(p.i, p.i+1) }

// key names the page to ristretto, which wants keys that are spread over all 64 bits. Should two pages
// have one key they share a frequency, and one of them is refused.
func (p residentPage) key() uint64 {
	h := uint64(p.x.area)*0x9e3779b97f4a7c15 + uint64(p.x.extent)*dsm.ExtentPages + uint64(p.i)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9 // the finalizer of SplitMix64
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Victim is pages of an extent that are to leave.
type Victim struct {
	Area   dsm.AreaID
	Extent dsm.ExtentIndex
	Pages  dsm.PageSet
}

// countersPerPage is how many counters of frequency there are for each page of the limit, of 3 bytes. They
// are halved each time that as many uses were counted, so it is also how long a use counts. Half of the
// accesses to a hot set of half the limit, the others a scan: with 4 counters 39 % are hits, with 8
// 44 %, with 16 47 %; first in, first out has 29 %.
const countersPerPage = 8

// New returns a Residency for a node that wants to keep limit pages. Close ends it.
func New(limit int64) (*Residency, error) {
	r := &Residency{}
	r.mu.Init("residency.Residency")
	r.mu.extents = map[residentKey]*residentExtent{}
	var err error
	r.cache, err = ristretto.NewCache(&ristretto.Config[uint64, residentPage]{
		NumCounters:        max(limit, 128) * countersPerPage,
		MaxCost:            keptOf(limit),
		BufferItems:        64,
		IgnoreInternalCost: true,
		KeyToHash:          func(key uint64) (uint64, uint64) { return key, 0 },
		// A page is inserted only when it is not held. If it is there all the same it is about to be
		// deleted, and an update would be lost with it.
		ShouldUpdate: func(_, _ residentPage) bool { return false },
		OnEvict:      r.refused,
		OnReject:     r.refused,
	})
	if err != nil {
		return nil, errs.E(errs.Invalid, "residency", "%d pages: %w", limit, err)
	}
	return r, nil
}

// keptOf is what ristretto keeps of a limit.
func keptOf(limit int64) int64 { return max(limit-limit/8, 1) }

// SetLimit changes the limit, in pages. The counters of frequency stay as many as they were.
func (r *Residency) SetLimit(limit int64) { r.cache.UpdateMaxCost(keptOf(limit)) }

// Used says that pages of an extent are here and were used: read, or faulted on.
func (r *Residency) Used(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed || pages.Empty() {
		return
	}
	x := r.extentLocked(area, e)
	x.recent = x.recent.Or(pages)
	for i := range pages.All() {
		r.usedLocked(residentPage{x, i})
	}
}

// Brought says that pages of an extent are here that nobody has used yet, such as readahead brings. Those
// that are nowhere are queued: a scan goes by ristretto, in the order in which it came.
func (r *Residency) Brought(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed || pages.Empty() {
		return
	}
	x := r.extentLocked(area, e)
	r.queueLocked(x, pages.Minus(x.held))
}

func (r *Residency) extentLocked(area dsm.AreaID, e dsm.ExtentIndex) *residentExtent {
	k := residentKey{area, e}
	x := r.mu.extents[k]
	if x == nil {
		x = &residentExtent{residentKey: k, at: len(r.mu.clock)}
		r.mu.extents[k] = x
		r.mu.clock = append(r.mu.clock, x)
	}
	return x
}

func (r *Residency) usedLocked(p residentPage) {
	key := p.key()
	r.cache.Get(key) // counts, also what is not held
	switch {
	case p.x.held.Has(p.i):
	case p.x.leaves.Has(p.i):
		r.queueLocked(p.x, p.set()) // held again by the next use
	default:
		r.unqueueLocked(p.x, p.set())
		p.x.held.Add(p.i)
		if !r.cache.Set(key, p, 1) {
			r.queueLocked(p.x, p.set())
		}
	}
}

// refused is called by ristretto, on its goroutine, when it does not keep a page, or not any more.
func (r *Residency) refused(item *ristretto.Item[residentPage]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := item.Value; p.x != nil && p.x.held.Has(p.i) {
		r.queueLocked(p.x, p.set())
	}
}

// Forget says that pages have left otherwise than as victims.
func (r *Residency) Forget(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) {
	r.mu.Lock()
	x := r.mu.extents[residentKey{area, e}]
	if r.mu.closed || x == nil {
		r.mu.Unlock()
		return
	}
	r.unqueueLocked(x, pages)
	held := pages.And(x.held)
	r.leaveLocked(x, held)
	r.retireLocked(x)
	r.deletes.Add(1)
	r.mu.Unlock()
	defer r.deletes.Done()
	r.left(x, held)
}

// Victims hands out the pages that are worth least: n or a few more, if there are as many, the
// least worthy first, all of an extent together. They are forgotten; those that do not leave are given
// back by Used.
func (r *Residency) Victims(n int) []Victim {
	var victims []Victim
	places := map[*residentExtent]int{}
	add := func(x *residentExtent, pages dsm.PageSet) {
		at, ok := places[x]
		if !ok {
			at = len(victims)
			places[x] = at
			victims = append(victims, Victim{Area: x.area, Extent: x.extent})
		}
		victims[at].Pages = victims[at].Pages.Or(pages)
		n -= pages.Len()
	}
	held := map[*residentExtent]dsm.PageSet{}

	r.mu.Lock()
	if r.mu.closed {
		r.mu.Unlock()
		return nil
	}
	for n > 0 && r.mu.queue.Len() > 0 {
		oldest := r.mu.queue.Front().Value.(*queuedPages)
		x, pages := oldest.x, first(n, oldest.pages)
		r.unqueueLocked(x, pages)
		add(x, pages)
		r.retireLocked(x)
	}
	for turns := 2 * len(r.mu.clock); n > 0 && turns > 0; turns-- {
		x := r.mu.clock[r.mu.hand%len(r.mu.clock)]
		if pages := first(n, x.held.Minus(x.recent)); !pages.Empty() {
			r.leaveLocked(x, pages)
			held[x] = held[x].Or(pages)
			add(x, pages)
		}
		if n > 0 {
			x.recent = dsm.PageSet{}
			r.mu.hand++
		}
	}
	r.deletes.Add(1)
	r.mu.Unlock()
	defer r.deletes.Done()
	for x, pages := range held {
		r.left(x, pages)
	}
	return victims
}

// first returns the first n pages of the set, or all.
func first(n int, set dsm.PageSet) (some dsm.PageSet) {
	for i := range set.All() {
		if n--; n < 0 {
			break
		}
		some.Add(i)
	}
	return some
}

// Close ends the Residency. All else does nothing afterwards.
func (r *Residency) Close() {
	r.mu.Lock()
	was := r.mu.closed
	r.mu.closed = true
	r.mu.Unlock()
	if !was {
		r.deletes.Wait()
		r.cache.Close()
	}
}

// queueLocked puts pages at the end of the queue, those that are not in it.
func (r *Residency) queueLocked(x *residentExtent, pages dsm.PageSet) {
	x.held = x.held.Minus(pages)
	pages = pages.Minus(x.queued)
	if pages.Empty() {
		return
	}
	x.queued = x.queued.Or(pages)
	if last := r.mu.queue.Back(); last != nil && last.Value.(*queuedPages).x == x {
		q := last.Value.(*queuedPages)
		q.pages = q.pages.Or(pages)
		return
	}
	x.queue = append(x.queue, r.mu.queue.PushBack(&queuedPages{x, pages}))
}

// unqueueLocked takes pages out of the queue, those that are in it.
func (r *Residency) unqueueLocked(x *residentExtent, pages dsm.PageSet) {
	if pages = pages.And(x.queued); pages.Empty() {
		return
	}
	x.queued = x.queued.Minus(pages)
	x.queue = slices.DeleteFunc(x.queue, func(e *list.Element) bool {
		q := e.Value.(*queuedPages)
		q.pages = q.pages.Minus(pages)
		if !q.pages.Empty() {
			return false
		}
		r.mu.queue.Remove(e)
		return true
	})
}

// leaveLocked begins to make ristretto forget pages that it holds; left ends that, without
// the lock. Insertions and deletions of a page must reach ristretto in order, so until then the page is not
// inserted again.
func (r *Residency) leaveLocked(x *residentExtent, pages dsm.PageSet) {
	x.held, x.leaves = x.held.Minus(pages), x.leaves.Or(pages)
}

func (r *Residency) left(x *residentExtent, pages dsm.PageSet) {
	for i := range pages.All() {
		r.cache.Del(residentPage{x, i}.key())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x.leaves = x.leaves.Minus(pages)
	r.retireLocked(x)
}

// retireLocked forgets an extent of which no page is anywhere.
func (r *Residency) retireLocked(x *residentExtent) {
	if all := x.held.Or(x.queued).Or(x.leaves); !all.Empty() || r.mu.extents[x.residentKey] != x {
		return
	}
	delete(r.mu.extents, x.residentKey)
	last := r.mu.clock[len(r.mu.clock)-1]
	r.mu.clock[x.at], last.at = last, x.at
	r.mu.clock = r.mu.clock[:len(r.mu.clock)-1]
}
