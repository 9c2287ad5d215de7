package pages

import (
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// reserveAnonymous is reserve for anonymous memory.
func (c *areaCopy) reserveAnonymous(n int64) (err error) {
	var mem []byte
	var p piece
	var slot int64
	switch {
	case n <= smallCopy:
		mem, p, err = c.small().take(n)
	case c.mem == nil || c.piece.block != nil:
		mem, slot, err = c.large(capacityFor(n))
	default:
		mem, err = unix.Mremap(c.mem, int(capacityFor(n)), unix.MREMAP_MAYMOVE)
		if err == nil {
			c.mem = mem
		}
		return os.NewSyscallError("mremap", err)
	}
	if err != nil {
		return err
	}
	c.copyTo(mem, nil)
	c.isAt(placeOf(p, slot))
	err = c.unmap()
	c.mem, c.piece, c.slot = mem, p, slot
	return err
}

// small returns where small copies have their memory from.
func (c *areaCopy) small() *arena {
	if c.kept != nil {
		return c.kept.store.small
	}
	return smallCopies
}

// large returns memory for a large copy, and its slot if it is in a Keep.
func (c *areaCopy) large(n int64) (mem []byte, slot int64, err error) {
	if c.kept != nil {
		return c.kept.store.grabSlot(n)
	}
	mem, err = anonymous(n)
	return mem, 0, err
}

// isAt records where the copy is in a Keep, if it is in one; 0: nowhere.
func (c *areaCopy) isAt(place int64) {
	if c.at != nil {
		(*c.at).Store(uint64(place))
	}
}

// placeOf is how a Keep records a piece or a slot.
func placeOf(p piece, slot int64) int64 {
	if p.block == nil {
		return slot
	}
	return p.block.at + int64(p.span().from) + int64(p.block.class) + 1
}

// discard gives the memory of pages back, which read zero afterwards.
func (c *areaCopy) discard(mem []byte) error {
	if c.kept != nil {
		return remove(mem)
	}
	return os.NewSyscallError("madvise", unix.Madvise(mem, unix.MADV_DONTNEED))
}

// copyTo copies the pages that take memory to mem, which is as long as the copy or longer, but for those that are there already. A copy in a Keep that no daemon takes over gives its memory back meanwhile: it may be all that there is room for.
func (c *areaCopy) copyTo(mem []byte, there *moving) {
	for e, set := range c.taken.from(0) {
		for from, to := range there.lacks(e, *set).Runs() {
			first, last := int64(pageOfExtent(e, from))*dsm.PageSize, int64(pageOfExtent(e, to))*dsm.PageSize
			copy(mem[first:], c.mem[first:last])
			if c.kept != nil && c.at == nil {
				_ = c.discard(c.mem[first:last]) // else it goes with the rest
			}
		}
	}
}

func (c *areaCopy) resizeAnonymous(n int64) {
	end := wholePages(n)
	if end < c.len {
		// If madvise fails here no other call could free the memory: it stays taken, and is zero.
		if err := c.zeroAnonymous(end, c.len); err != nil {
			clear(c.mem[end:c.len])
		}
	}
	c.taken.resize(dsm.Extents(n))
	c.size, c.len = n, end
}

func (c *areaCopy) zeroAnonymous(from, to int64) error {
	c.moving.restart()
	for p := dsm.PageIndex(from / dsm.PageSize); int64(p)*dsm.PageSize < to; p++ {
		if p = c.nextTakenBefore(p, to); p == noPage {
			return nil
		}
		off, n := int64(p)*dsm.PageSize, int64(dsm.PageSize)
		if off < from || off+n > to {
			clear(c.mem[max(off, from):min(off+n, to)])
			continue
		}
		// The whole pages of this extent, from here on, that take memory.
		e, i := p.Extent()
		for off+n+dsm.PageSize <= to && i+int(n/dsm.PageSize) < dsm.ExtentPages && c.taken.has(e, i+int(n/dsm.PageSize)) {
			n += dsm.PageSize
		}
		if err := c.discard(c.mem[off : off+n]); err != nil {
			return err
		}
		set := c.taken.at(e)
		*set = set.Minus(dsm.Range(i, i+int(n/dsm.PageSize)))
		p += dsm.PageIndex(n/dsm.PageSize) - 1
	}
	return nil
}

// take records that n pages of one extent, from p on, are stored to.
func (c *areaCopy) take(p dsm.PageIndex, n int) {
	e, i := p.Extent()
	c.moving.stores(e, dsm.Range(i, i+n))
	set := c.taken.put(e)
	if n == 1 {
		set.Add(i)
		return
	}
	*set = set.Or(dsm.Range(i, i+n))
}

func (c *areaCopy) residentAnonymous() (n int64) {
	for _, set := range c.taken.from(0) {
		n += int64(set.Len()) * dsm.PageSize
	}
	return n
}

// anonymousData is data for anonymous memory.
func (c *areaCopy) anonymousData(off, end int64, f func(off, n int64)) {
	for p := dsm.PageIndex(off / dsm.PageSize); int64(p)*dsm.PageSize < end; {
		first := c.nextData(p)
		if first == noPage {
			return
		}
		for p = first; int64(p)*dsm.PageSize < end && c.takes(p); p++ {
		}
		if from, to := max(int64(first)*dsm.PageSize, off), min(int64(p)*dsm.PageSize, end); from < to {
			f(from, to-from)
		}
	}
}

// noPage stands for no page with data.
const noPage = dsm.PageIndex(math.MaxInt64)

// nextTaken returns the first page from p on that takes memory.
func (c *areaCopy) nextTaken(p dsm.PageIndex) dsm.PageIndex {
	return c.nextTakenBefore(p, math.MaxInt64)
}

// nextTakenBefore is nextTaken for a page that begins before an offset: it does not look on, so that an area of many extents can be freed one by
// one.
func (c *areaCopy) nextTakenBefore(p dsm.PageIndex, to int64) dsm.PageIndex {
	first, i := p.Extent()
	for e, set := range c.taken.from(int(first)) {
		if int64(e)*dsm.ExtentSize >= to {
			break
		}
		if e != first {
			i = 0
		}
		if j := set.Next(i); j < dsm.ExtentPages {
			if q := pageOfExtent(e, j); int64(q)*dsm.PageSize < to {
				return q
			}
			break
		}
	}
	return noPage
}
