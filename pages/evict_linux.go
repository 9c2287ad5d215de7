package pages

import (
	"errors"
	"io"
	"os"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/invariants"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// A page that is clean as far as anyone knows can be stored to at any moment by
// a program that has the working copy mapped, and no tracking tells before the next
// scan. So its bytes are looked at when no program can store to it any more:
//
//	splice(2) the run of pages into a pipe: the pipe holds the pages themselves, no copy
//	punch the run out of the file: unmaps it everywhere; who touches it from here on waits
//	read the pipe: the final bytes, with all stores that were made until the unmapping
//	compare with the base copy: what differs was stored to and is put back at once
//
// Copying first and punching then would lose the stores in between. What this does not
// see is what needs no mapping: memory that a program has pinned (RDMA, O_DIRECT) goes on being
// stored to, in vain. Memory that must not move is not of demand kind.
//
// A large page is the exception: the kernel takes part of one out of a file by splitting it, which
// it cannot while the pipe holds it. It then fills the part with zeroes in place, in
// the pipe as well. Pages that Install brought are small, but a program can have the kernel collapse
// 512 of them into one (MADV_COLLAPSE, or khugepaged where shmem_enabled allows). So between splice
// and punch the pages are looked at: while the pipe holds one it cannot be collapsed.

// Measured on Linux 6.18, 2 cores, a virtual machine, for a page with its base, by the pages of a call:
//
//	                      1        16       256
//	run, not shared       8 us     1.9 us   1.4 us
//	run, shared           23 us    4.6 us   3.3 us
//	scattered, shared     23 us    11 us    -
//
// Bringing such a page takes 4 to 5 us. Half of the 23 us is the look for large pages, once a call.

// Evict gives up the working bytes of the pages of extent e in set, and their base: pages
// that the caller knows to be here and, as far as anyone knows, clean, and that the
// kernel's page cache does not hold (Cached.Drop). The home's bytes stay.
//
// shared says that programs have the working copy mapped and may be storing into it.
// Pages that were stored to, compared with their base, stay and are returned; they are dirty. Bytes
// past the end of the area do not count. Should a program find one of these pages missing for
// a moment and store to it against the rules, k merges that, as in Install.
//
// After an error the pages that it concerns are among those returned.
func (a *Area) Evict(k merge.Kernel, e dsm.ExtentIndex, set dsm.PageSet, shared bool) (stored dsm.PageSet, err error) {
	if a.ledger != nil {
		given := a.ledger.holds(e, set)
		invariants.Check(given.Empty(), "%v: pages %x of extent %d leave, and the page cache holds them", a, given, e)
	}
	inFile := max(a.working.len-int64(e)*dsm.ExtentSize, 0) / dsm.PageSize
	set = set.And(dsm.Range(0, int(min(inFile, dsm.ExtentPages))))
	if shared {
		stored, err = a.evictShared(k, e, set)
	} else {
		stored, err = a.working.punch(e, set)
	}
	gone := set.Minus(stored)
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

// KeepBase gives back the base copy of extent e, which is homed elsewhere, but for the pages in
// keep: those that are here. It follows ResignHome in a demand area, where the home had
// all pages.
func (a *Area) KeepBase(e dsm.ExtentIndex, keep dsm.PageSet) error {
	if a.Homed(e) {
		panic("the base copy of a homed extent is the home's")
	}
	if _, err := a.base.punch(e, dsm.AllPages.Minus(keep)); err != nil {
		return a.fail("give back", err)
	}
	return nil
}

// pageOfExtent returns the index in the area of page i of extent e.
func pageOfExtent(e dsm.ExtentIndex, i int) dsm.PageIndex {
	return dsm.PageIndex(e)*dsm.ExtentPages + dsm.PageIndex(i)
}

// punch makes the pages of extent e in set holes, and returns those that it could not.
func (c *areaCopy) punch(e dsm.ExtentIndex, set dsm.PageSet) (left dsm.PageSet, err error) {
	for from, to := range set.Runs() {
		off := int64(pageOfExtent(e, from)) * dsm.PageSize
		if zeroErr := c.zero(off, min(off+int64(to-from)*dsm.PageSize, c.len)); zeroErr != nil {
			left, err = left.Or(dsm.Range(from, to)), zeroErr
		}
	}
	return left, err
}

// evictShared is Evict of the working bytes while programs may be storing into them.
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
			return stored, errors.Join(err, v.close()) // with what is in its pipe
		}
		left = left.Minus(taken)
	}
	return stored, v.put()
}

// takeBack reads the pages in taken from the pipe, and puts those of holes back that differ from
// their base. It returns them.
func (a *Area) takeBack(k merge.Kernel, v *evictor, e dsm.ExtentIndex, taken, holes dsm.PageSet) (differ dsm.PageSet) {
	base := a.base.present(e, taken) // a load would make a hole a page
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

// present returns those pages of extent e in of that take memory.
func (c *areaCopy) present(e dsm.ExtentIndex, of dsm.PageSet) (set dsm.PageSet) {
	for i := range of.All() {
		if c.takes(pageOfExtent(e, i)) {
			set.Add(i)
		}
	}
	return set
}

// putBack puts back what a program stored to page p while it was taken out. If it cannot be
// put there as a whole it is merged into what is there: a page that a program put there against the
// rules, or, if the memory ran out, one of zeroes which programs see for a moment.
func (a *Area) putBack(k merge.Kernel, p dsm.PageIndex, is []byte) {
	if done, _ := a.fill(p, is); done < dsm.PageSize {
		k.MergeShared(p, zeroPage, a.working.page(p), is)
	}
}
