package coherence

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/pages"
	"github.com/dsmfs/dsmfs/pages/residency"
)

// room is the memory that pages on demand may take on this node: what full areas, and pages whose
// home is this node, leave of the budget. A page takes twice its size, for its working and its base
// bytes. A call takes room before it fetches pages. If there is too little, it evicts other pages.
//
// So the pages here and under way never take more than there is room for, with two exceptions, which
// do not wait for room: WriteBack, because such stores cannot be refused for lack of it, and READs for
// which notices wait (see bring).
//
// mu guards the bell that calls waiting for room listen to. Nothing is called with it held.
type room struct {
	node    *Node
	budget  int64         // in bytes; 0: no limit, and nothing is evicted
	least   int64         // leastRoom; tests may use another value
	taken   atomic.Int64  // pages for which room is taken: here, under way, or about to be asked for
	fixed   atomic.Int64  // bytes that cannot be evicted
	drafts  atomic.Int64  // of fixed, those of drafts
	copies  atomic.Int64  // of fixed, those of pages in place: the others are in frames, or in Go's heap
	kept    atomic.Int64  // bytes that are kept of the areas besides their pages
	told    atomic.Int64  // what Config.Taken was last told
	gate    chan struct{} // capacity 1: only one goroutine evicts at a time
	freeing atomic.Bool   // keepFree is running
	ending  atomic.Bool   // the node is being closed, and gives memory back at the end only: nothing is told any more
	crowded atomic.Bool   // there is less room than is taken: fit is to look
	// waiters is the number of calls of make under way.
	waiters atomic.Int64
	// policy chooses the pages that leave. It takes memory, so it is made only for the first page on
	// demand.
	policy atomic.Pointer[residency.Residency]
	once   sync.Once
	tasks  sync.WaitGroup
	ctx    context.Context // of tasks
	end    context.CancelFunc
	mu     struct {
		lockrank.Mutex
		bell chan struct{} // closed and replaced when there may be more room
	}
}

const (
	pageCost = 2 * dsm.PageSize
	// leastRoom is what pages on demand may take even if full areas leave less. With no room at all
	// programs could not go on.
	leastRoom = 4 << 20
	// evictBatch is how many pages are evicted at once, at least: each eviction costs system calls,
	// and a message for each extent.
	evictBatch = 64
)

func (m *room) init(n *Node) {
	m.node, m.budget, m.least = n, n.cfg.Memory, leastRoom
	m.ctx, m.end = context.WithCancel(context.Background())
	m.gate = make(chan struct{}, 1)
	m.mu.Init("coherence.room")
	m.mu.bell = make(chan struct{})
}

func (m *room) close() {
	m.end()
	m.tasks.Wait()
	if p := m.policy.Load(); p != nil {
		p.Close()
	}
}

// limit returns how many pages there is room for. They do not get all that is left: a node on which they did would be as full as can be at any
// time, and Go would collect garbage without end to have room for what is under way.
func (m *room) limit() int64 {
	if m.budget == 0 {
		return 1 << 62
	}
	rest := m.forPages() - m.fixed.Load()
	return max(rest-min(rest/4, m.budget/16), m.least) / pageCost
}

// forPages returns how many bytes there are for pages of all kinds.
func (m *room) forPages() int64 { return m.budget - m.kept.Load() }

// keep records that areas came, or went: what is kept of them besides their pages.
func (m *room) keep(areas int) { m.kept.Add(int64(areas) * dsm.FileCost) }

// tell tells Config.Taken what there may be outside Go's heap, if that has changed much since it was last told. No lock may be held.
func (m *room) tell() {
	if m.node.cfg.Taken == nil || m.ending.Load() {
		return
	}
	now, told := m.copies.Load()+m.taken.Load()*pageCost+pages.FrameBytes(), m.told.Load()
	if d := now - told; max(d, -d) >= tellStep && m.told.CompareAndSwap(told, now) {
		m.node.cfg.Taken(now)
	}
}

// tellStep is by how much the memory outside the heap changes until Config.Taken is told.
const tellStep = 2 << 20

// window returns how many pages may be read ahead: few enough to be still here when the program
// comes to them.
func (m *room) window() int { return int(min(m.limit()/16, mostAhead)) }

// mostAhead is 16 MiB, in pages: what a link of 2 GB/s brings in 8 ms. A home whose processors are
// busy may wait that long for one. With 4 MiB a scan ran at four fifths of the speed. A page that is
// asked for out of order waits behind at most this much.
const mostAhead = 16 << 20 / dsm.PageSize

// tryTake takes room for n pages if there is enough, otherwise nothing.
func (m *room) tryTake(n int) bool {
	for {
		was := m.taken.Load()
		if !m.fits(was, n) {
			return false
		}
		if m.taken.CompareAndSwap(was, was+int64(n)) {
			return true
		}
	}
}

// overtake takes room for n pages even if there is none.
func (m *room) overtake(n int) { m.taken.Add(int64(n)) }

// take takes room for n pages, and makes it if necessary. When must, unless it is nil, returns true, take waits no longer, and takes room whether there is any or not. Whoever makes
// it true rings.
func (m *room) take(ctx context.Context, n int, must func() bool) error {
	for n > 0 && !m.tryTake(n) {
		if must != nil && must() {
			m.overtake(n)
			return nil
		}
		if err := m.make(ctx, n, must); err != nil {
			return err
		}
	}
	return nil
}

// make evicts pages until there is room for n. If all pages must be published first it waits, until
// ctx ends, or until must, as for take, returns true.
func (m *room) make(ctx context.Context, n int, must func() bool) error {
	m.waiters.Add(1)
	defer m.waiters.Add(-1)
	for {
		bell := m.hear()
		if m.free(n) || must != nil && must() || m.evict(ctx, n) {
			return nil
		}
		select {
		case <-bell:
		case <-ctx.Done():
			return fmt.Errorf("no room for %d pages: of %d that there is room for %d are taken and wait to be published: %w",
				n, m.limit(), m.taken.Load(), ctx.Err())
		}
	}
}

// free reports whether there is room for n pages.
func (m *room) free(n int) bool { return m.fits(m.taken.Load(), n) }

// fits reports whether n pages fit in addition to those that are taken. If none are taken it is
// always true: otherwise a call that needs more than the limit at once could never go on.
func (m *room) fits(taken int64, n int) bool { return taken == 0 || taken+int64(n) <= m.limit() }

// fit evicts in the background when an area has come that is full, or has grown, and leaves less room than pages on demand have. The area does
// not wait, since its pages come one by one. Pages that cannot leave now do so when a call wants room: who waited for them here would evict what
// READs bring that do not wait for room, again and again.
func (m *room) fit() {
	if !m.crowded.Load() || m.ctx.Err() != nil || !m.crowded.CompareAndSwap(true, false) {
		return
	}
	m.tasks.Go(func() {
		for !m.free(0) && m.evict(m.ctx, 0) {
		}
	})
}

// give gives back room for n pages.
func (m *room) give(n int) {
	if n > 0 {
		m.taken.Add(int64(-n))
		m.ring()
	}
}

// charge records that an area takes more, or less.
func (m *room) charge(pages int, fixed, copies int64) {
	m.taken.Add(int64(pages))
	m.copies.Add(copies)
	if fixed != 0 {
		m.fixed.Add(fixed)
		if p := m.policy.Load(); p != nil {
			p.SetLimit(m.limit())
		}
	}
	if fixed > 0 && !m.free(0) {
		m.crowded.Store(true)
	}
}

// ring makes calls that wait for room look again. Calls count themselves in waiters before they look,
// so ring misses none.
func (m *room) ring() {
	if m.waiters.Load() == 0 {
		return
	}
	m.mu.Lock()
	bell := m.mu.bell
	m.mu.bell = make(chan struct{})
	m.mu.Unlock()
	close(bell)
}

func (m *room) hear() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.bell
}

// chooses reports whether there is a policy, or none is needed: to make it takes a while.
func (m *room) chooses() bool { return m.budget == 0 || m.policy.Load() != nil }

// used tells the policy that pages have been used. They must be here.
func (m *room) used(a dsm.AreaID, e dsm.ExtentIndex, set dsm.PageSet) {
	if p := m.choice(); p != nil {
		p.Used(a, e, set)
	}
}

// broughtLocked tells the policy of pages that have come and that no program has used yet. If the policy is at work, another goroutine
// tells it, of those that are still here then: the caller may be one that must not wait. Until then nobody evicts them.
func (m *room) broughtLocked(a *Area, e dsm.ExtentIndex, set dsm.PageSet) {
	if p := m.choice(); p != nil && !p.TryBrought(a.id, e, set) {
		m.tellLaterLocked(a, e, set, p.Brought)
	}
}

// waitedForLocked is used for pages that have just come, for a caller that must not wait.
func (m *room) waitedForLocked(a *Area, e dsm.ExtentIndex, set dsm.PageSet) {
	if p := m.choice(); p != nil && !p.TryUsed(a.id, e, set) {
		m.tellLaterLocked(a, e, set, p.Used)
	}
}

func (m *room) tellLaterLocked(a *Area, e dsm.ExtentIndex, set dsm.PageSet, tell func(dsm.AreaID, dsm.ExtentIndex, dsm.PageSet)) {
	go func() {
		a.mu.Lock()
		if r := &a.mu.replica; !a.mu.removed && r.demand && int(e) < r.n && r.extents[e] != nil {
			tell(a.id, e, set.And(r.extents[e].have))
		}
		a.mu.Unlock()
		m.ring() // who waits for room has looked before the policy knew of them
	}()
}

// choice returns the policy, and makes it at first use; nil if nothing is evicted.
func (m *room) choice() *residency.Residency {
	if m.budget == 0 {
		return nil
	}
	m.once.Do(func() {
		p, err := residency.New(m.limit())
		if err != nil {
			m.node.cfg.Log.Error("no page on demand will be evicted", "err", err)
			return
		}
		m.policy.Store(p)
	})
	return m.policy.Load()
}

// forget tells the policy that pages are not here any more.
func (m *room) forget(a dsm.AreaID, e dsm.ExtentIndex, set dsm.PageSet) {
	if p := m.policy.Load(); p != nil && !set.Empty() {
		p.Forget(a, e, set)
	}
}

// evict evicts pages until there is room for n more, and reports whether any page left. Pages that
// the kernel has been told to drop count as room. Pages with unpublished stores do not leave; evict
// starts to publish them.
func (m *room) evict(ctx context.Context, n int) bool {
	policy := m.policy.Load()
	if policy == nil {
		return false
	}
	select {
	case m.gate <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-m.gate }()
	went, leaving := false, 0
	for _, hard := range []bool{false, true} {
		for looked := int64(0); looked <= m.taken.Load() && !m.free(n-leaving); {
			victims := policy.Victims(max(n, evictBatch))
			if len(victims) == 0 {
				break
			}
			for _, v := range victims {
				looked += int64(v.Pages.Len())
				gone, left := m.evictFrom(v, hard)
				went, leaving = went || gone, leaving+left
			}
		}
		if went {
			break
		}
	}
	return went
}

// evictFrom evicts the pages of the victim that may leave, and gives the others back to the policy.
// leaving is how many pages the kernel was told to drop.
func (m *room) evictFrom(v residency.Victim, hard bool) (went bool, leaving int) {
	a := m.node.known(v.Area)
	if a == nil {
		return false, 0
	}
	a.step(func() {
		done := a.evictLocked(v.Extent, v.Pages, hard)
		if !done.dirty.Empty() && a.publishableLocked() == nil {
			a.wantLocked(v.Extent, a.extentLocked(v.Extent))
			a.startPublicationsLocked()
		}
		went, leaving = !done.gone.Empty(), done.leaving.Len()
		if a.mu.replica.demand && int(v.Extent) < a.mu.replica.n {
			m.used(v.Area, v.Extent, a.hereLocked(v.Extent, v.Pages))
		}
	})
	return went, leaving
}

// keepFree evicts in the background when less than an eighth of the room is free, so that the next
// fault need not wait.
func (m *room) keepFree() {
	spare := int(m.limit() / 8)
	if m.policy.Load() == nil || m.free(spare) || !m.freeing.CompareAndSwap(false, true) {
		return
	}
	m.tasks.Go(func() {
		m.evict(m.ctx, spare)
		m.freeing.Store(false)
	})
}
