package coherence

import (
	"encoding/binary"
	"math/bits"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// What a program writes by write(2) counts as stored, also where the bytes are what this node had. Another node may have published others
// meanwhile, of which this one has not heard: they are older than the write. A comparison with the base copy would not find them, and the file would have some bytes
// of each. So it is noted which bytes of a page were written since it was last published, by the rule `last`. In a comparison the base is another there.
//
// What is stored to mappings comes as a whole page, so it is not known where a program has stored what was there.
//
// Nothing is noted where the base has the home's bytes of now, nor for zeroes in a page of zeroes: holes stay holes. The next daemon does not know of the notes: of what was not published
// when one was killed, it publishes the bytes that differ from the base.

// writtenBytes are the bytes of a page that were written.
type writtenBytes [dsm.PageSize / 64]uint64

// allWritten is a page of which all bytes were written. It does not change.
var allWritten = func() *writtenBytes {
	w := new(writtenBytes)
	for i := range w {
		w[i] = ^uint64(0)
	}
	return w
}()

// add notes the bytes [lo, hi).
func (w *writtenBytes) add(lo, hi int) {
	for lo < hi {
		bit := lo % 64
		n := min(64-bit, hi-lo)
		w[lo/64] |= ^uint64(0) >> (64 - n) << bit
		lo += n
	}
}

// cut forgets the bytes from end on.
func (w *writtenBytes) cut(end int) {
	for i := range w {
		switch n := end - 64*i; {
		case n <= 0:
			w[i] = 0
		case n < 64:
			w[i] &= ^uint64(0) >> (64 - n)
		}
	}
}

// unlike makes the bytes of base others than those of page where it was written.
func (w *writtenBytes) unlike(base, page []byte) {
	for i, set := range w {
		if set == ^uint64(0) {
			for at := 64 * i; at < 64*(i+1); at += 8 {
				binary.NativeEndian.PutUint64(base[at:], ^binary.NativeEndian.Uint64(page[at:]))
			}
			continue
		}
		for ; set != 0; set &= set - 1 {
			at := 64*i + bits.TrailingZeros64(set)
			base[at] = ^page[at]
		}
	}
}

// noteWrittenLocked notes a write(2) of n bytes at off, which the working copy has. The pages are here, and dirty.
func (a *Area) noteWrittenLocked(off int64, n int) {
	if a.mu.ino.Spec.Merge != dsm.MergeLast || a.versionedLocked() {
		return
	}
	for n > 0 {
		p := dsm.PageIndex(off / dsm.PageSize)
		lo := int(off % dsm.PageSize)
		k := min(dsm.PageSize-lo, n)
		a.noteWrittenPageLocked(p, lo, lo+k)
		off, n = off+int64(k), n-k
	}
}

func (a *Area) noteWrittenPageLocked(p dsm.PageIndex, lo, hi int) {
	mem := a.mu.mem
	if e, _ := p.Extent(); mem.Homed(e) && !mem.HasTwin(p) {
		return
	}
	w := a.mu.replica.writtenTo(p)
	if w == nil && isZero(mem.Working(p)) && isZero(mem.Base(p)) {
		return
	}
	switch {
	case w == allWritten:
	case lo == 0 && hi == dsm.PageSize:
		w = allWritten
	case w == nil:
		w = new(writtenBytes)
		fallthrough
	default:
		w.add(lo, hi)
	}
	l := a.mu.replica.leaves()
	if l.written == nil {
		l.written = make(map[dsm.PageIndex]*writtenBytes)
	}
	l.written[p] = w
}

// storedAgainLocked makes the pages of a publication dirty that is taken back. By the rule `last` it notes all bytes of it as written: else the next publication would leave out those that
// the base has, too.
func (a *Area) storedAgainLocked(x *replicaExtent, pub *publication) {
	a.dirtyLocked(x.index, x, pub.sent.And(x.have).And(a.withinLocked(x.index))) // pages on demand that were truncated are not here
	if !pub.kernel.Last() || a.mu.ino.Spec.Merge != dsm.MergeLast || a.versionedLocked() {
		return
	}
	for i := range pub.pages.And(x.have).And(a.withinLocked(x.index)).All() {
		var none, all [dsm.PageSize]byte // two pages that differ wherever the publication has something, as one of them has just the other bytes there
		pub.overlay(none[:], i)
		for at := range none {
			none[at] = ^none[at]
		}
		all = none
		pub.overlay(all[:], i)
		p := page(x.index, i)
		for _, run := range pub.kernel.Differing(p, none[:], all[:]) {
			a.noteWrittenPageLocked(p, int(run.Off), int(run.Off+run.Len))
		}
	}
}

// writtenTo returns what was written to page p; nil: nothing.
func (r *replica) writtenTo(p dsm.PageIndex) *writtenBytes {
	if r.leaving == nil {
		return nil
	}
	return r.leaving.written[p]
}

// storedBaseLocked returns what page p is compared with to find what this node has stored there: base, or, if some of the page was written and the rule is still `last`, a copy of base
// in buf that differs from the page wherever it was written. Calls for different pages may run concurrently.
func (a *Area) storedBaseLocked(k merge.Kernel, p dsm.PageIndex, base []byte, buf *[dsm.PageSize]byte) []byte {
	w := a.mu.replica.writtenTo(p)
	if w == nil || !k.Last() {
		return base
	}
	copy(buf[:], base)
	w.unlike(buf[:], a.mu.mem.Working(p))
	return buf[:]
}

// published forgets what was written to pages of an extent that are not dirty any more.
func (r *replica) published(e dsm.ExtentIndex, set dsm.PageSet) {
	if r.leaving == nil || len(r.leaving.written) == 0 {
		return
	}
	for i := range set.All() {
		delete(r.leaving.written, page(e, i))
	}
}

// cutWritten forgets what was written past the end of the area.
func (r *replica) cutWritten(size int64) {
	if r.leaving == nil {
		return
	}
	for p, w := range r.leaving.written {
		switch end := size - int64(p)*dsm.PageSize; {
		case end <= 0:
			delete(r.leaving.written, p)
		case end < dsm.PageSize:
			c := *w
			c.cut(int(end))
			r.leaving.written[p] = &c
		}
	}
}
