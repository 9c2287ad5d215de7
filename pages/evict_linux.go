package pages

import (
	"errors"
	"io"
	"os"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// A program that has the working copy mapped can store to a page that seems clean at any moment, and
// tracking reports it only in the next scan. So the page's bytes are checked when no program can store
// to it any more:
//
//	splice(2) the run of pages into a pipe: the pipe has the pages themselves, not a copy
//	punch the run out of the file: that unmaps it everywhere; a program that touches it now waits
//	read the pipe: the final bytes, with all stores made until the unmapping
//	compare with the base copy: pages that differ were stored to, and are put back at once
//
// Copying first and punching then would lose the stores in between.
//
// Memory that a program has pinned (RDMA, O_DIRECT) is not covered: a device stores to it without a
// mapping, so it goes on after the punch, and these stores are lost. Areas whose memory must not move
// cannot be on demand.
//
// Large pages are an exception. The kernel removes a part of one from a file by splitting it, which
// it cannot do while the pipe has it. Then it fills the part with zeroes in place, in the pipe as
// well. Pages that Install brought are small, but a program can make the kernel collapse 512 of
// them into one (MADV_COLLAPSE, or khugepaged where shmem_enabled allows it). So the pages are
// checked between splice and punch: while the pipe has a page it cannot be collapsed.

// Measured on Linux 6.18, 2 cores, a virtual machine, for a page with its base, by the number of
// pages in a call:
//
//	                      1        16       256
//	run, not shared       8 us     1.9 us   1.4 us
//	run, shared           23 us    4.6 us   3.3 us
//	scattered, shared     23 us    11 us    -
//
// Bringing such a page takes 4 to 5 us. Half of the 23 us is the check for large pages, once for
// each call.

// Evict frees the working bytes, and the base, of the pages of extent e in set. The caller must
// know that they are here and, as far as anyone knows, clean, and that the kernel's page cache does
// not have them (Cached.Drop). The home's bytes stay.
//
// shared says that programs have the working copy mapped and may be storing into it. Pages that
// were stored to, compared with their base, stay and are returned; they are dirty. Bytes past the
// end of the area do not count. If a program finds one of these pages missing for a moment and
// stores to it against the rules, k merges that, as in Install.
//
// After an error, stored also has the pages that could not be evicted.
func (a *Area) Evict(k merge.Kernel, e dsm.ExtentIndex, set dsm.PageSet, shared bool) (stored dsm.PageSet, err error) {
	if a.ledger != nil {
		given := a.ledger.givenOf(e, set)
		invariants.Check(given.Empty(), "%v: pages %x of extent %d leave, and the page cache has them", a, given, e)
	}
	inFile := max(a.working.len-int64(e)*dsm.ExtentSize, 0) / dsm.PageSize
	set = set.And(dsm.Range(0, int(min(inFile, dsm.ExtentPages))))
	if shared {
		stored, err = a.evictShared(k, e, set)
	} else {
		stored, err = a.working.punch(e, set)
	}
	gone := set.Minus(stored)
	a.demand.release(e, gone)
	if !a.Homed(e) {
		_, baseErr := a.base.punch(e, gone)
		err = errors.Join(err, baseErr)
	} else if len(a.twins) > 0 {
		for i := range gone.All() {
			a.dropTwin(pageOfExtent(e, i))
		}
	}
	if err != nil {
		return stored, a.fail("evict", err)
	}
	return stored, nil
}

// KeepBase frees the base copy of extent e, which is homed elsewhere, except for the pages in keep:
// those that are here. It follows ResignHome: the home had all pages.
func (a *Area) KeepBase(e dsm.ExtentIndex, keep dsm.PageSet) error {
	if a.Homed(e) {
		panic("the base copy of a homed extent is the home's")
	}
	gone := dsm.AllPages.Minus(keep)
	a.demand.release(e, gone)
	if _, err := a.base.punch(e, gone); err != nil {
		return a.fail("give back", err)
	}
	return nil
}

// pageOfExtent returns the index in the area of page i of extent e.
func pageOfExtent(e dsm.ExtentIndex, i int) dsm.PageIndex {
	return dsm.PageIndex(e)*dsm.ExtentPages + dsm.PageIndex(i)
}

// punch makes the pages of extent e in set holes, and returns those for which that failed.
func (c *areaCopy) punch(e dsm.ExtentIndex, set dsm.PageSet) (left dsm.PageSet, err error) {
	for from, to := range set.Runs() {
		off := int64(pageOfExtent(e, from)) * dsm.PageSize
		if zeroErr := c.free(off, min(off+int64(to-from)*dsm.PageSize, c.len)); zeroErr != nil {
			left, err = left.Or(dsm.Range(from, to)), zeroErr
		}
	}
	return left, err
}

// evictShared is Evict for working bytes to which programs may be storing.
func (a *Area) evictShared(k merge.Kernel, e dsm.ExtentIndex, set dsm.PageSet) (stored dsm.PageSet, err error) {
	if err := a.Attachable(); err != nil {
		return set, err
	}
	if a.working.fd < 0 { // no program has it yet
		return a.working.punch(e, set)
	}
	v, err := takeEvictor()
	if err != nil {
		return set, err
	}
	stored = set
	for left := set; !left.Empty() && err == nil; {
		taken, err := v.take(a.working.fd, e, left)
		if err == nil {
			err = v.small(a.working.fd, e, taken)
		}
		holes := dsm.PageSet{}
		if err == nil {
			in, punchErr := a.working.punch(e, taken)
			holes, err = taken.Minus(in), punchErr
			stored = stored.Minus(holes).Or(a.takeBack(k, v, e, taken, holes))
		}
		if err != nil {
			return stored, errors.Join(err, v.close()) // not put: pages may be left in its pipe
		}
		left = left.Minus(taken)
	}
	return stored, v.put()
}

// takeBack reads the pages in taken from the pipe. Those in holes, which were punched, are nowhere
// else. takeBack puts back those of them that differ from their base, and returns these.
func (a *Area) takeBack(k merge.Kernel, v *evictor, e dsm.ExtentIndex, taken, holes dsm.PageSet) (differ dsm.PageSet) {
	base := a.base.present(e, taken) // a load would turn a hole into a page
	for from, to := range taken.Runs() {
		for from < to {
			n := min(to-from, len(v.buf)/dsm.PageSize)
			part := v.buf[:n*dsm.PageSize]
			if _, err := io.ReadFull(v, part); err != nil {
				panic(os.NewSyscallError("read of evicted pages", err)) // they are nowhere else
			}
			for i := from; i < from+n; i++ {
				is, p := part[(i-from)*dsm.PageSize:][:dsm.PageSize], pageOfExtent(e, i)
				end := int(min(a.size-int64(p)*dsm.PageSize, dsm.PageSize))
				same := false
				if base.Has(i) || a.HasTwin(p) {
					same = string(is[:end]) == string(a.Base(p)[:end])
				} else {
					same = allZero(is[:end])
				}
				if !same && holes.Has(i) {
					differ.Add(i)
					a.putBack(k, p, is)
				}
			}
			from += n
		}
	}
	return differ
}

// present returns which pages of extent e in of take memory.
func (c *areaCopy) present(e dsm.ExtentIndex, of dsm.PageSet) (set dsm.PageSet) {
	for i := range of.All() {
		if c.takes(pageOfExtent(e, i)) {
			set.Add(i)
		}
	}
	return set
}

// putBack puts back what a program stored to page p while it was being taken out. If the page
// cannot be put there as a whole, it is merged into what is there: a page that a program put there
// against the rules, or, if there was no memory, a page of zeroes which programs see for a moment.
func (a *Area) putBack(k merge.Kernel, p dsm.PageIndex, is []byte) {
	if done, _ := a.fill(p, is); done < dsm.PageSize {
		k.MergeShared(p, zeroPage, a.working.page(p), is)
	}
}
