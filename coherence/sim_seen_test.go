package coherence

import (
	"context"
	"maps"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// seen is what a simulation knows of who must see what: a byte has one writer, whose k-th store
// is of the value (k-1)%255+1, so that a value says how old it is.
type seen struct {
	stores     map[int64]int // to each byte
	published  map[int64]int // of them, those that a call which has returned published
	history    []acked       // oldest first, if there is a bound on staleness
	shrinks    int
	lastShrink int            // index in the catalog
	refused    map[int64]bool // these bytes are as they were: the last WRITE of them was refused
	added      map[int64]bool // of these bytes of sums: stores of before the kernel had heard of a shrink, which are added to what is there since
	tally      tally
}

// acked is what was published at a time.
type acked struct {
	at     time.Time
	counts map[int64]int
}

// snapshot is counts of stores as they were at some moment.
type snapshot struct {
	counts  map[int64]int
	shrinks int
	gen     dsm.Generation
	size    int64
	paused  bool // updates enter memory in sync calls only
}

// shrink follows a shrink at an index of the catalog: what was published before is not known any more.
func (k *seen) shrink(index int) {
	k.shrinks++
	k.lastShrink = index
	clear(k.published)
	k.history = nil
}

// store returns the value of the next store to a byte.
func (k *seen) store(off int64) byte {
	k.stores[off]++
	return byte((k.stores[off]-1)%255 + 1)
}

// storeOf returns which of the stores to a byte its value is of.
func (k *seen) storeOf(off int64, v byte) int {
	n := k.stores[off]
	if v == 0 || n == 0 {
		return 0
	}
	return n - ((n-1)%255+1-int(v)+255)%255
}

// storesIn returns which of the stores to a byte a page has.
func (k *seen) storesIn(page []byte, off int64) int {
	if k.tally.on() {
		return k.tally.digit(page, off)
	}
	return k.storeOf(off, page[off%dsm.PageSize])
}

// deliveredTo says that the node's area has what its programs have stored to the first bytes of a page of the page cache.
func (n *simNode) deliveredTo(p dsm.PageIndex, c *cachedPage, size int64) {
	for i, v := range c.data[:min(max(size, 0), hotBytes)] {
		off := int64(p)*dsm.PageSize + int64(i)
		if t := n.sim.seen.tally; t.on() {
			if i%t.size == n.i {
				n.given[off] += t.digit(c.data[:], off) - t.digit(c.given[:], off)
			}
			continue
		}
		switch {
		case v == c.given[i] || c.isVoid(i) || off >= n.ino.Size || n.sim.owner(off) != n.i || n.sim.toAttached(off):
		case n.ino.Spec.Merge == dsm.MergeSum && n.sim.seen.shrinks > 0 && !n.took(off, v):
			delete(n.given, off)
			n.sim.seen.added[off] = true
		default:
			n.given[off] = n.sim.seen.storeOf(off, v)
			delete(n.sim.seen.refused, off)
		}
	}
}

// refused says that what programs have stored to the first bytes of a page of the page cache is lost: the next fsync says so.
func (n *simNode) refused(p dsm.PageIndex, c *cachedPage, size int64) {
	for i, v := range c.data[:min(max(size, 0), hotBytes)] {
		if off := int64(p)*dsm.PageSize + int64(i); v != c.given[i] && !c.isVoid(i) && n.sim.owner(off) == n.i && !n.sim.toAttached(off) {
			n.sim.seen.refused[off] = true
			if n.given[off] == n.sim.seen.storeOf(off, v) { // a daemon that was killed had it, and had not answered
				delete(n.given, off)
			}
		}
	}
}

// writes returns what to call when a write(2) of a byte has returned. If the area has become shorter meanwhile, or locks were lost or found to be, it may be there or not.
func (n *simNode) writes(off int64, b byte) (wrote func()) {
	s := n.sim
	shrinks, losses, stays := s.seen.shrinks, n.losses, n.applied > s.seen.lastShrink && off < n.ino.Size
	return func() {
		if stays && shrinks == s.seen.shrinks && losses == n.losses {
			n.given[off] = s.seen.storeOf(off, b)
			delete(s.seen.refused, off)
		}
	}
}

// took reports whether a byte of the area is of the value that was just written back.
func (n *simNode) took(off int64, v byte) bool {
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	return off < n.area.mu.ino.Size && n.area.mu.mem.Working(dsm.PageIndex(off / dsm.PageSize))[off%dsm.PageSize] == v
}

// delivered returns the stores that the node's area has: a publish that begins now publishes them.
func (n *simNode) delivered() snapshot {
	s := snapshot{shrinks: n.sim.seen.shrinks}
	if n.applied > n.sim.seen.lastShrink {
		s.counts = maps.Clone(n.given)
	}
	return s
}

// ack says that a publish which began at the snapshot has returned.
func (s *sim) ack(mine snapshot) {
	if mine.shrinks != s.seen.shrinks {
		return
	}
	for off, k := range mine.counts {
		s.seen.published[off] = max(s.seen.published[off], k)
	}
	if s.lastInode().Spec.Staleness > 0 {
		s.seen.history = append(s.seen.history, acked{time.Now(), maps.Clone(s.seen.published)})
	}
}

// due returns what a read that begins now must see because of the bound on staleness.
func (n *simNode) due() snapshot {
	s, bound := n.sim, n.ino.Spec.Staleness
	is := n.acked()
	is.counts = nil
	for _, h := range s.seen.history {
		if bound > 0 && !h.at.After(time.Now().Add(-bound)) {
			is.counts = h.counts
		}
	}
	return is
}

// readDirect is a read(2) past the page cache, as files with a bound are read. What pages of the page cache are filled with is not compared: a
// fault may get what the kernel was given before.
func (n *simNode) readDirect(p dsm.PageIndex) {
	if n.ino.Spec.Staleness == 0 || !n.isOpen() {
		return
	}
	began, b, refused := n.due(), make([]byte, hotBytes), false
	n.ask("read past the page cache", func(ctx context.Context) error {
		_, err := n.area.ReadDirect(ctx, b, int64(p)*dsm.PageSize)
		if refused = errs.Is(err, errs.Unavailable); refused { // only syncs bring updates
			return nil
		}
		return err
	}, func(err error) {
		if err == nil && !refused {
			n.reads(began, p, b)
		}
	})
}

// reads checks what a read of a page has brought. It began at the snapshot.
func (n *simNode) reads(began snapshot, p dsm.PageIndex, b []byte) {
	s := n.sim
	if n.area.mu.short.ino != nil || began.paused || n.ino.Spec.AppliesInSync() || began.gen != n.ino.Gen || began.shrinks != s.seen.shrinks || began.gen != s.lastInode().Gen {
		return
	}
	for off, least := range began.counts {
		if at := off - int64(p)*dsm.PageSize; at < 0 || at >= int64(len(b)) || s.owner(off) == n.i || punchable(off) || off >= min(began.size, n.ino.Size) {
			continue
		}
		if k := s.seen.storesIn(b, off); k < least {
			s.t.Fatalf("node %d: a read brought store %d of byte %d; store %d was published %v before it began", n.i, k, off, least, n.ino.Spec.Staleness)
		}
	}
}

// acked returns what every acquire that begins now must see.
func (n *simNode) acked() snapshot {
	s := n.sim
	paused := n.ino.Spec.AppliesInSync() || n.area.mu.ino.Spec.AppliesInSync() // an area that is short goes by its old rules
	return snapshot{maps.Clone(s.seen.published), s.seen.shrinks, n.ino.Gen, n.ino.Size, paused}
}

// sees checks that the programs of the node see what was published at the snapshot. If updates enter memory in sync calls only, that
// is so after those of programs that store. Of a program with a draft, d, that has called it, its memory is looked at.
func (n *simNode) sees(began snapshot, what string, storing bool, d *draft) {
	s := n.sim
	if n.area.mu.short.ino != nil || began.paused && !storing || began.gen != n.ino.Gen || began.shrinks != s.seen.shrinks || began.gen != s.lastInode().Gen {
		return
	}
	check := func(where string, off int64, page []byte, least int) {
		if k := s.seen.storesIn(page, off); k < least {
			s.t.Fatalf("node %d: %s has returned, and byte %d %s is that of store %d; store %d was published before it began", n.i, what, off, where, k, least)
		}
	}
	for off, least := range began.counts {
		p := dsm.PageIndex(off / dsm.PageSize)
		if s.owner(off) == n.i || punchable(off) || off >= min(began.size, n.ino.Size) { // of extents that it has not heard of it asks nobody
			continue
		}
		n.area.mu.Lock()
		e, i := p.Extent()
		here, v := n.area.replicaHasLocked(e, i), []byte(nil)
		if here {
			v = n.area.mu.mem.Working(p)
		}
		n.area.mu.Unlock() // a failed check ends the test, which takes the lock
		if here {
			check("in memory", off, v, least)
		}
		if d != nil {
			check("in the draft", off, d.mem.Memory(p), least)
		}
		if c := n.kernel.cache[p]; c != nil && n.kernel.reading[p] == nil {
			check("in the page cache", off, c.data[:], least)
		}
	}
}
