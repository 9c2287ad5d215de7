// Package residency chooses the pages that leave first, among the pages of all areas on demand of a
// node.
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

// Residency chooses which pages of areas on demand leave first when room is needed. It only
// chooses, and pages that it chooses can be fetched again. The caller checks whether such a page is
// clean and not in use, and if not gives it back by Used.
//
// ristretto decides what is worth keeping. By its sketch of frequencies, a page that was used more
// often than others stays even while a scan passes over everything (TinyLFU; Einziger, Friedman,
// Manes 2017). But ristretto is a cache that may ignore what it is told, and that forgets pages on
// a goroutine of its own, some time later. So Residency itself records where each page is. A page
// is in one of these places:
//
//	kept      ristretto has it, or will find it in the buffer of its insertions
//	queued    it was brought and not used, or ristretto has evicted or refused it, or ignored
//	          the insertion: it waits in a queue to leave
//	nowhere   never used, forgotten, or handed out as a victim
//
// Used makes a page kept, and takes it out of the queue. Only a page that is not kept is inserted.
// So there is one insertion of a page at a time, and its outcome is known: ristretto keeps the
// page, or calls back, and the page is queued. No page can be forgotten between the places.
//
// ristretto gets seven eighths of the limit, so when the node is at its limit the queue has an eighth
// of the pages. A page that readahead brought, or that ristretto refused, stays until as many others
// have come. Otherwise it would leave before it is read.
//
// Victims come from the queue, oldest first. It may be empty, because ristretto has work left to
// do, or has room for all pages it knows. Then victims are found by a second chance: a hand passes
// over the extents and takes the pages that were not used since it last passed, and in a second
// round the others.
//
// It takes about 200 bytes for each page of the limit. All methods may be called from any
// goroutine.
type Residency struct {
	cache *ristretto.Cache[uint64, residentPage]
	// deletes counts the calls that may still use cache.Del. Del waits for callbacks, which take the
	// lock, so it is called without the lock, and Close must wait for these calls.
	deletes sync.WaitGroup

	mu struct {
		lockrank.Mutex // guards all fields below, and the order of insertions
		closed         bool
		extents        map[residentKey]*residentExtent
		clock          []*residentExtent // the extents in extents, in the order in which the hand passes over them
		hand           int               // the position of the hand in clock, modulo its length
		queue          list.List         // of *queuedPages, oldest first
	}
}

// residentKey names an extent of an area.
type residentKey struct {
	area   dsm.AreaID
	extent dsm.ExtentIndex
}

// residentExtent is an extent of which at least one page is kept, queued or leaving.
type residentExtent struct {
	residentKey
	at     int             // position in the clock
	kept   dsm.PageSet     // ristretto has them
	queued dsm.PageSet     // each is in one element of queue
	queue  []*list.Element // the elements of mu.queue with pages of this extent
	leaves dsm.PageSet     // ristretto is about to be told to forget them
	recent dsm.PageSet     // used since the hand last passed
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

// key returns ristretto's key for the page. ristretto needs keys that are spread over all 64 bits.
// If two pages have the same key they share a frequency, and one of them is refused.
func (p residentPage) key() uint64 {
	h := uint64(p.x.area)*0x9e3779b97f4a7c15 + uint64(p.x.extent)*dsm.ExtentPages + uint64(p.i)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9 // the finalizer of SplitMix64
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Victim is pages of an extent that should leave.
type Victim struct {
	Area   dsm.AreaID
	Extent dsm.ExtentIndex
	Pages  dsm.PageSet
}

// countersPerPage is how many frequency counters, of 3 bytes, there are for each page of the limit.
// When as many uses were counted as there are counters, all are halved. So this number also decides
// for how long a use counts.
//
// Measured hits, where half of the accesses go to a hot set of half the limit, and the others are a
// scan: 39 % with 4 counters, 44 % with 8, 47 % with 16. First in, first out has 29 %.
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
		// A page is inserted only when it is not kept. If ristretto has it all the same, it is
		// about to be deleted, and an update would be lost with it.
		ShouldUpdate: func(_, _ residentPage) bool { return false },
		OnEvict:      r.refused,
		OnReject:     r.refused,
	})
	if err != nil {
		return nil, errs.E(errs.Invalid, "residency", "%d pages: %w", limit, err)
	}
	return r, nil
}

// keptOf returns ristretto's part of a limit.
func keptOf(limit int64) int64 { return max(limit-limit/8, 1) }

// SetLimit changes the limit, in pages. The number of frequency counters does not change.
func (r *Residency) SetLimit(limit int64) { r.cache.UpdateMaxCost(keptOf(limit)) }

// Used says that pages of an extent are here and were used: read, or faulted on.
func (r *Residency) Used(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.useLocked(area, e, pages)
}

// TryUsed is Used for a caller that must not wait: it returns false, and has done nothing, while another call is at work. Victims may take a while.
func (r *Residency) TryUsed(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) bool {
	return r.try(func() { r.useLocked(area, e, pages) })
}

// try calls do with the lock, if that is free.
func (r *Residency) try(do func()) bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	do()
	return true
}

func (r *Residency) useLocked(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) {
	if r.mu.closed || pages.Empty() {
		return
	}
	x := r.extentLocked(area, e)
	x.recent = x.recent.Or(pages)
	for i := range pages.All() {
		r.usedLocked(residentPage{x, i})
	}
}

// Brought says that pages of an extent are here that nobody has used yet, for instance because of
// readahead. Those that are nowhere are queued: a scan passes through the queue, in its order, and
// leaves ristretto alone.
func (r *Residency) Brought(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bringLocked(area, e, pages)
}

// TryBrought is to Brought what TryUsed is to Used.
func (r *Residency) TryBrought(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) bool {
	return r.try(func() { r.bringLocked(area, e, pages) })
}

func (r *Residency) bringLocked(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) {
	if r.mu.closed || pages.Empty() {
		return
	}
	x := r.extentLocked(area, e)
	r.queueLocked(x, pages.Minus(x.kept))
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
	r.cache.Get(key) // counts the use even of a page that is not kept
	switch {
	case p.x.kept.Has(p.i):
	case p.x.leaves.Has(p.i):
		r.queueLocked(p.x, p.set()) // the next use will keep it
	default:
		r.unqueueLocked(p.x, p.set())
		p.x.kept.Add(p.i)
		if !r.cache.Set(key, p, 1) {
			r.queueLocked(p.x, p.set())
		}
	}
}

// refused is called by ristretto, on its goroutine, for a page that it does not keep, or does not
// keep any more.
func (r *Residency) refused(item *ristretto.Item[residentPage]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := item.Value; p.x != nil && p.x.kept.Has(p.i) {
		r.queueLocked(p.x, p.set())
	}
}

// Forget says that pages have left, other than as victims.
func (r *Residency) Forget(area dsm.AreaID, e dsm.ExtentIndex, pages dsm.PageSet) {
	r.mu.Lock()
	x := r.mu.extents[residentKey{area, e}]
	if r.mu.closed || x == nil {
		r.mu.Unlock()
		return
	}
	r.unqueueLocked(x, pages)
	kept := pages.And(x.kept)
	r.leaveLocked(x, kept)
	r.retireLocked(x)
	r.deletes.Add(1)
	r.mu.Unlock()
	defer r.deletes.Done()
	r.left(x, kept)
}

// Victims hands out the n pages that are worth least, or all if there are fewer. The least worthy
// come first, and pages of one extent together. Residency forgets them. The caller gives back by Used
// those that do not leave.
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
	kept := map[*residentExtent]dsm.PageSet{}

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
		if pages := first(n, x.kept.Minus(x.recent)); !pages.Empty() {
			r.leaveLocked(x, pages)
			kept[x] = kept[x].Or(pages)
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
	for x, pages := range kept {
		r.left(x, pages)
	}
	return victims
}

// first returns the first n pages of the set, or all if it has fewer.
func first(n int, set dsm.PageSet) (some dsm.PageSet) {
	for i := range set.All() {
		if n--; n < 0 {
			break
		}
		some.Add(i)
	}
	return some
}

// Close ends the Residency. Other methods do nothing afterwards.
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

// queueLocked appends those of the pages that are not in the queue.
func (r *Residency) queueLocked(x *residentExtent, pages dsm.PageSet) {
	x.kept = x.kept.Minus(pages)
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

// unqueueLocked removes those of the pages that are in the queue.
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

// leaveLocked begins to make ristretto forget pages that it keeps; left completes it, without the
// lock. Insertions and deletions of a page must reach ristretto in order, so until then the page is
// not inserted again.
func (r *Residency) leaveLocked(x *residentExtent, pages dsm.PageSet) {
	x.kept, x.leaves = x.kept.Minus(pages), x.leaves.Or(pages)
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

// retireLocked forgets an extent that has no page left in any place.
func (r *Residency) retireLocked(x *residentExtent) {
	if all := x.kept.Or(x.queued).Or(x.leaves); !all.Empty() || r.mu.extents[x.residentKey] != x {
		return
	}
	delete(r.mu.extents, x.residentKey)
	last := r.mu.clock[len(r.mu.clock)-1]
	r.mu.clock[x.at], last.at = last, x.at
	r.mu.clock = r.mu.clock[:len(r.mu.clock)-1]
}
