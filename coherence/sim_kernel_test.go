package coherence

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/pages"
)

// fakeKernel is the page cache of a node as kernel.md measured it: programs
// store without telling anyone, a harvest delivers whole dirty pages, an
// invalidation delivers a dirty page before it drops it, a store notice changes the
// page in place.
type fakeKernel struct {
	n      *simNode
	cache  map[dsm.PageIndex]*cachedPage
	out    []pages.Notice         // taken, not yet carried out
	done   []pages.Notice         // carried out, not yet reported
	past   map[dsm.PageIndex]bool // with a write past the page cache that may not be answered yet
	bell   atomic.Bool            // there may be a notice
	size   int64                  // that it knows: of a shrink elsewhere it is told at some time
	gen    dsm.Generation         // likewise
	deaf   bool                   // it is told by learn only
	change *change                // under way
	goesOn func()                 // says that the thread of the last hole that is dropped goes on
	// reading has the pages that wait for a READ: notices of them wait too.
	reading map[dsm.PageIndex]*reading
}

type cachedPage struct {
	data  [dsm.PageSize]byte
	given [dsm.PageSize]byte // data without the stores that were not delivered
	dirty bool
	// cut says that another node has truncated the page, from byte void on, since the page cache got it: what programs have stored there, and store there before
	// the kernel is told, does not count.
	cut   bool
	void  int
	mixed bool // a program of this node has changed the size since: the WRITE may be refused
}

// isVoid reports whether stores to a byte of the page do not count.
func (c *cachedPage) isVoid(i int) bool { return c.cut && i >= c.void }

// voided follows a shrink on another node.
func (k *fakeKernel) voided(size int64) {
	void := func(p dsm.PageIndex, c *cachedPage) {
		if from := size - int64(p)*dsm.PageSize; from < dsm.PageSize {
			if !c.cut || c.void > int(max(from, 0)) {
				c.void = int(max(from, 0))
			}
			c.cut = true
		}
	}
	for p, c := range k.cache {
		void(p, c)
	}
	for p, r := range k.reading {
		if r.reply != nil {
			void(p, r.reply)
		}
	}
}

// reading is a READ under way. valid is how much of the page no shrink has truncated since.
type reading struct {
	valid int
	hole  [2]int64    // of it, what a punch has dropped since
	send  func()      // it is in the queue of requests
	reply *cachedPage // answered, and not received: the page is still locked
}

func newFakeKernel(n *simNode) *fakeKernel {
	return &fakeKernel{n: n, cache: make(map[dsm.PageIndex]*cachedPage), past: make(map[dsm.PageIndex]bool), reading: make(map[dsm.PageIndex]*reading),
		size: n.ino.Size, gen: n.ino.Gen}
}

// fault returns the page, reading it if need be; nil if it has to be fetched first, or is past the end.
func (k *fakeKernel) fault(p dsm.PageIndex) *cachedPage {
	off := int64(p) * dsm.PageSize
	if off >= k.size {
		return nil // SIGBUS
	}
	if k.cache[p] == nil && off < k.n.ino.Size {
		k.ask(p)
		k.n.sim.rest()
	}
	return k.cache[p]
}

// ask starts a READ of a page.
func (k *fakeKernel) ask(p dsm.PageIndex) {
	if k.reading[p] != nil || k.cache[p] != nil || k.locked(p) || !k.n.isOpen() {
		return
	}
	if !k.n.sim.bubble {
		k.read(p)
		return
	}
	r, c := &reading{valid: dsm.PageSize}, &cachedPage{}
	k.reading[p] = r
	r.send = func() {
		r.send = nil
		k.n.ask("read", func(ctx context.Context) error {
			_, err := k.n.area.ReadAt(ctx, c.data[:], int64(p)*dsm.PageSize)
			return err
		}, func(err error) {
			if err != nil {
				delete(k.reading, p)
				return
			}
			r.reply = c
			if k.soon(4) {
				k.receive()
			}
		})
	}
	if k.soon(4) {
		r.send()
	}
}

// soon reports whether something is done at once: in tests of a few steps always, in a run in all but one of n cases.
func (k *fakeKernel) soon(n int) bool { return !k.n.sim.queues || k.n.sim.rng.IntN(n) > 0 }

// receive has the kernel receive the replies that are on their way, and the node the requests. It reports whether there are any.
func (k *fakeKernel) receive() (any bool) {
	for _, p := range k.readings() {
		r := k.reading[p]
		if r.send != nil {
			any = true
			r.send()
		}
		if c := r.reply; c != nil {
			any = true
			delete(k.reading, p)
			clear(c.data[r.hole[0]:r.hole[1]])
			if clear(c.data[r.valid:]); r.valid > 0 {
				c.given = c.data
				k.cache[p] = c
			}
		}
	}
	return any
}

// readPast is a READ of a page by a size that is out of date: what lies past the
// end comes as zeroes, and stays in the page cache.
func (k *fakeKernel) readPast(p dsm.PageIndex) { k.ask(p) }

// harvest delivers each dirty page with the probability.
func (k *fakeKernel) harvest(prob float64) {
	for p := range dsm.PageIndex(k.size+dsm.PageSize-1) / dsm.PageSize {
		if c := k.cache[p]; c != nil && c.dirty && k.n.sim.rng.Float64() < prob {
			k.writeBack(p, c)
		}
	}
}

func (k *fakeKernel) writeBack(p dsm.PageIndex, c *cachedPage) {
	off := int64(p) * dsm.PageSize
	n := max(min(dsm.PageSize, k.size-off), 0)
	taken := n
	if c.dirty = false; n > 0 {
		err := k.n.area.WriteBack(ended, bytes.Clone(c.data[:n]), off)
		switch {
		case k.n.starved.Load() && errs.Is(err, errs.NoSpace), k.n.area.mu.short.ino != nil && errs.Is(err, errs.Timeout): // the next fsync says so; what there is memory for is taken
			taken = min(n, k.n.area.mu.ino.Size-off)
		case k.n.daemons > 1 && k.n.sim.seen.shrinks > 0 && errs.Is(err, errs.Unavailable): // the daemon does not know what the page cache was given
			k.n.refused(p, c, n)
			taken = 0
		case c.mixed && errs.Is(err, errs.Unavailable): // what counts in it cannot be told
			k.n.refused(p, c, n)
			taken = 0
		case err != nil:
			k.n.sim.t.Fatal(err)
		}
	}
	k.n.deliveredTo(p, c, taken)
	copy(c.given[:n], c.data[:n]) // it does not write back again what was refused
}

// writePast is a write(2) past the page cache. Another program may read the page between the drop and the WRITE.
func (k *fakeKernel) writePast(off int64, b byte) {
	p := dsm.PageIndex(off / dsm.PageSize)
	if c := k.cache[p]; c != nil {
		if c.dirty {
			k.writeBack(p, c)
		}
		delete(k.cache, p)
	}
	if k.n.sim.rng.IntN(2) == 0 {
		k.fault(p)
	}
	k.past[p] = true
	wrote := k.n.writes(off, b)
	k.n.ask("write", func(ctx context.Context) error { return k.n.area.WriteDirect(ctx, []byte{b}, off) }, func(error) {
		delete(k.past, p)
		wrote()
	}).firm = true
}

// takeNotice takes a notice; a node is told when there may be one.
func (k *fakeKernel) takeNotice() {
	if !k.bell.Swap(false) {
		return
	}
	if n, ok := k.n.area.NextNotice(); ok {
		k.out = append(k.out, n)
		k.bell.Store(true)
	}
}

// carryOut does one of the taken notices.
func (k *fakeKernel) carryOut() {
	if len(k.out) == 0 {
		return
	}
	i := k.n.sim.rng.IntN(len(k.out))
	n := k.out[i]
	first, last := dsm.PageIndex(n.Off/dsm.PageSize), dsm.PageIndex((n.Off+n.Len-1)/dsm.PageSize)
	for p := first; p <= last; p++ {
		if k.reading[p] != nil || k.locked(p) || k.unanswered(p) {
			return // it waits for the page's lock
		}
	}
	k.out = append(k.out[:i], k.out[i+1:]...)
	for p := first; p <= last; p++ {
		c := k.cache[p]
		if n.Kind == pages.NoticeInvalidate {
			if c != nil && c.dirty {
				k.writeBack(p, c)
			}
			delete(k.cache, p)
			continue
		}
		if c != nil && c.dirty {
			k.n.sim.t.Fatalf("store notice on dirty page %d", p)
		}
		if int64(p)*dsm.PageSize >= k.n.ino.Size {
			continue
		}
		k.size = max(k.size, min(n.Off+n.Len, k.n.ino.Size))
		if c == nil {
			c = &cachedPage{}
			k.cache[p] = c
		}
		at := int64(p) * dsm.PageSize
		for j := range c.data {
			if o := at + int64(j) - n.Off; o >= 0 && o < n.Len && at+int64(j) < k.n.ino.Size {
				c.data[j] = n.Data[o]
			}
		}
		c.given = c.data
	}
	k.done = append(k.done, n)
}

func (k *fakeKernel) reportDone() {
	if k.soon(2) {
		k.receive()
	}
	if k.soon(2) {
		k.goOn()
	}
	if len(k.done) > 0 {
		n := k.done[0]
		k.done = k.done[1:]
		k.n.area.NoticeDone(n)
	}
}

func (k *fakeKernel) finishNotices() {
	for k.work() {
	}
}

// forget is the first OPEN, which has the kernel drop what it kept, and tells it the attributes.
func (k *fakeKernel) forget() {
	k.receive()
	k.n.area.KernelTold(k.n.ino.Size)
	clear(k.cache)
	k.size, k.gen = k.n.ino.Size, k.n.ino.Gen
}

// learn has the kernel told of the attributes, as fs does it: before those of another generation everything is
// invalidated.
func (k *fakeKernel) learn() {
	if k.gen != k.n.ino.Gen {
		if len(k.reading) > 0 || k.change != nil || len(k.n.stashedBack()) > 0 {
			return // the invalidation waits for the pages' locks
		}
		for p := range dsm.PageIndex(k.size+dsm.PageSize-1) / dsm.PageSize {
			if c := k.cache[p]; c != nil && c.dirty {
				k.writeBack(p, c)
			}
		}
		clear(k.cache)
	}
	if k.n.area != nil {
		k.n.area.KernelTold(k.n.ino.Size)
	}
	k.size, k.gen = k.n.ino.Size, k.n.ino.Gen
	k.truncate(k.size)
}

// setattr is what a program of this node does to the kernel by a truncate(2).
func (k *fakeKernel) setattr() {
	if k.n.area != nil {
		k.n.area.KernelShrinks(k.n.ino.Size)
		k.n.area.KernelTold(k.n.ino.Size)
	}
	k.size, k.gen = k.n.ino.Size, k.n.ino.Gen
	k.truncate(k.size)
	mix := func(p dsm.PageIndex, c *cachedPage) {
		if end := k.size - int64(p)*dsm.PageSize; c.cut && int64(c.void) >= end {
			c.cut = false
		}
		c.mixed = c.cut
	}
	for p, c := range k.cache {
		mix(p, c)
	}
	for p, r := range k.reading {
		if r.reply != nil {
			mix(p, r.reply)
		}
	}
}

// truncate is what the kernel does when it learns of a smaller size.
func (k *fakeKernel) truncate(size int64) {
	for p, c := range k.cache {
		switch at := int64(p) * dsm.PageSize; {
		case at >= size:
			delete(k.cache, p)
		case at+dsm.PageSize > size:
			clear(c.data[size-at:])
			clear(c.given[size-at:])
		}
	}
	for p, r := range k.reading {
		r.valid = int(min(int64(r.valid), max(size-int64(p)*dsm.PageSize, 0)))
	}
}

// endTruncations ends the READs that wait, and what a thread is about to clear in pages of which the replies come. The next daemon does not know of such
// threads: see pages/cached_told.go.
func (k *fakeKernel) endTruncations() {
	for p, r := range k.reading {
		if r.valid < dsm.PageSize {
			delete(k.reading, p)
		}
	}
}

// work does what the kernel has to do, and reports whether there was anything.
func (k *fakeKernel) work() bool {
	if k.n.area == nil {
		return false
	}
	before := len(k.out)
	moved := k.receive()
	moved = k.goOn() || moved
	moved = moved || k.bell.Load() || len(k.done) > 0
	k.takeNotice()
	moved = moved || len(k.out) > before
	before = len(k.out)
	k.carryOut()
	moved = moved || len(k.out) < before || len(k.done) > 0
	k.reportDone()
	return moved
}

// problem compares the page cache with what the ledger says that it has.
func (k *fakeKernel) problem() string {
	if k.n.area.mu.cached == nil {
		return ""
	}
	for _, p := range k.n.sim.hotPages() {
		c := k.cache[p]
		if c == nil || k.reading[p] != nil {
			continue
		}
		if g, known := k.n.area.mu.cached.Believed(p); known && string(g) != string(c.given[:len(g)]) {
			return fmt.Sprintf("the ledger is wrong about what the page cache was given of page %d", p)
		}
	}
	return ""
}
