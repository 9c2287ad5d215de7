package coherence

import (
	"bytes"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages"
)

// fakeKernel is the page cache of a node as kernel.md measured it: programs
// store without telling anyone, a harvest delivers whole dirty pages, an
// invalidation delivers a dirty page before it drops it, a store notice changes the
// page in place.
type fakeKernel struct {
	n     *simNode
	cache map[dsm.PageIndex]*cachedPage
	out   []pages.Notice         // taken, not yet carried out
	done  []pages.Notice         // carried out, not yet reported
	past  map[dsm.PageIndex]bool // with a write past the page cache that may not be answered yet
	size  int64                  // that it knows: of a shrink elsewhere it is told at some time
	gen   dsm.Generation
}

type cachedPage struct {
	data  [dsm.PageSize]byte
	dirty bool
}

func newFakeKernel(n *simNode) *fakeKernel {
	return &fakeKernel{n: n, cache: make(map[dsm.PageIndex]*cachedPage), past: make(map[dsm.PageIndex]bool)}
}

// fault returns the page, reading it if need be; nil if it has to be fetched first.
func (k *fakeKernel) fault(p dsm.PageIndex) *cachedPage {
	off := int64(p) * dsm.PageSize
	if off >= k.size {
		return nil // SIGBUS
	}
	if c := k.cache[p]; c != nil {
		return c
	}
	c := &cachedPage{}
	if off >= k.n.ino.Size || !k.read(off, c.data[:]) {
		return nil // the same, or wait
	}
	k.cache[p] = c
	return c
}

// read does one READ; ok is false if the page has to be fetched first.
func (k *fakeKernel) read(off int64, to []byte) (ok bool) {
	a := k.n.area
	a.step(func() {
		if _, ok = a.read(to, off); !ok {
			a.fetch(off, len(to))
		}
	})
	return ok
}

// readPast is a READ of a page by a size that is out of date: what lies past the
// end comes as zeroes, and stays in the page cache.
func (k *fakeKernel) readPast(p dsm.PageIndex) {
	if c := new(cachedPage); k.cache[p] == nil && k.read(int64(p)*dsm.PageSize, c.data[:]) {
		k.cache[p] = c
	}
}

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
	c.dirty = false
	if n := min(dsm.PageSize, k.size-off); n > 0 {
		if err := k.n.area.WriteBack(bytes.Clone(c.data[:n]), off); err != nil {
			k.n.sim.t.Fatal(err)
		}
	}
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
	if err := k.n.area.write([]byte{b}, off, writtenPast); err != nil {
		k.n.sim.t.Fatal(err)
	}
	k.past[p] = true
}

// waits reports whether a write past the page cache to page p waits for its answer.
func (k *fakeKernel) waits(p dsm.PageIndex) bool {
	if k.past[p] && k.n.area.mu.cached.Told(int64(p)*dsm.PageSize, dsm.PageSize) {
		delete(k.past, p)
	}
	return k.past[p]
}

func (k *fakeKernel) takeNotice() {
	if n, ok := k.n.area.NextNotice(); ok {
		k.out = append(k.out, n)
	}
}

// carryOut does one of the taken notices.
func (k *fakeKernel) carryOut() {
	if len(k.out) == 0 {
		return
	}
	i := k.n.sim.rng.IntN(len(k.out))
	n := k.out[i]
	k.out = append(k.out[:i], k.out[i+1:]...)
	first, last := dsm.PageIndex(n.Off/dsm.PageSize), dsm.PageIndex((n.Off+n.Len-1)/dsm.PageSize)
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
	}
	k.done = append(k.done, n)
}

func (k *fakeKernel) reportDone() {
	if len(k.done) > 0 {
		n := k.done[0]
		k.done = k.done[1:]
		k.n.area.NoticeDone(n)
	}
}

func (k *fakeKernel) finishNotices() {
	for {
		k.takeNotice()
		if len(k.out)+len(k.done) == 0 {
			return
		}
		k.carryOut()
		k.reportDone()
	}
}

// learn has the kernel told of the attributes, as fs does it: before those of another generation everything is
// invalidated.
func (k *fakeKernel) learn() {
	if k.gen != k.n.ino.Gen {
		for p, c := range k.cache {
			if c.dirty {
				k.writeBack(p, c)
			}
		}
		clear(k.cache)
	}
	k.size, k.gen = k.n.ino.Size, k.n.ino.Gen
	k.truncate(k.size)
}

// setattr is what a program of this node does to the kernel by a truncate(2).
func (k *fakeKernel) setattr() {
	if k.n.area != nil {
		k.n.area.KernelCuts(k.n.ino.Size)
	}
	k.size, k.gen = k.n.ino.Size, k.n.ino.Gen
	k.truncate(k.size)
}

// truncate is what the kernel does when it learns of a smaller size.
func (k *fakeKernel) truncate(size int64) {
	for p, c := range k.cache {
		switch at := int64(p) * dsm.PageSize; {
		case at >= size:
			delete(k.cache, p)
		case at+dsm.PageSize > size:
			clear(c.data[size-at:])
		}
	}
}
