package pages

import (
	"errors"
	"io"
	"os"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/invariants"
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
func (a *Area) Evict(k Kernel, e dsm.ExtentIndex, set dsm.PageSet, shared bool) (stored dsm.PageSet, err error) {
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
func (c *copyFile) punch(e dsm.ExtentIndex, set dsm.PageSet) (left dsm.PageSet, err error) {
	for from, to := range set.Runs() {
		off := int64(pageOfExtent(e, from)) * dsm.PageSize
		if zeroErr := c.zero(off, min(off+int64(to-from)*dsm.PageSize, c.len)); zeroErr != nil {
			left, err = left.Or(dsm.Range(from, to)), zeroErr
		}
	}
	return left, err
}

// evictShared is Evict of the working bytes while programs may be storing into them.
func (a *Area) evictShared(k Kernel, e dsm.ExtentIndex, set dsm.PageSet) (stored dsm.PageSet, err error) {
	if err := a.Attachable(); err != nil {
		return set, err
	}
	v, err := takeEvictor()
	if err != nil {
		return set, err
	}
	stored = set
	for from, to := range set.Runs() {
		for from < to {
			p := pageOfExtent(e, from)
			n, err := v.splice(a.working.fd, p, to-from)
			if err == nil {
				err = v.small(a.working.fd, p, n)
			}
			if err == nil {
				off := int64(p) * dsm.PageSize
				err = a.working.zero(off, off+int64(n)*dsm.PageSize)
			}
			if err != nil {
				return stored, errors.Join(err, v.close()) // with what is in its pipe
			}
			differ, err := a.takeBack(k, v, p, n)
			stored = stored.Minus(dsm.Range(from, from+n)).Or(differ)
			if err != nil {
				return stored, errors.Join(err, v.close())
			}
			from += n
		}
	}
	return stored, v.put()
}

// takeBack reads n pages from p on, which are holes by now, from the pipe, and puts those back
// that differ from their base.
func (a *Area) takeBack(k Kernel, v *evictor, p dsm.PageIndex, n int) (differ dsm.PageSet, err error) {
	_, first := p.Extent()
	var has dsm.PageSet // in the base copy: a load would make a hole a page
	off := int64(p) * dsm.PageSize
	if err := a.base.data(off, int64(n)*dsm.PageSize, func(off, n int64) {
		_, i := dsm.PageIndex(off / dsm.PageSize).Extent()
		has = has.Or(dsm.Range(i, i+int(n/dsm.PageSize)))
	}); err != nil {
		has = dsm.AllPages // a load is only a waste
	}
	for done := 0; done < n; {
		part := v.buf[:min(len(v.buf), (n-done)*dsm.PageSize)]
		if _, err := io.ReadFull(v, part); err != nil {
			panic(os.NewSyscallError("read of evicted pages", err)) // they are nowhere else
		}
		for ; len(part) > 0; part, done = part[dsm.PageSize:], done+1 {
			q := p + dsm.PageIndex(done)
			is := part[:dsm.PageSize]
			end := int(min(a.size-int64(q)*dsm.PageSize, dsm.PageSize))
			same := false
			if a.HasTwin(q) || has.Has(first+done) {
				same = string(is[:end]) == string(a.Base(q)[:end])
			} else {
				same = allZero(is[:end])
			}
			if !same {
				differ.Add(first + done)
				a.putBack(k, q, is)
			}
		}
	}
	return differ, nil
}

// putBack puts back what a program stored to page p while it was taken out. If it cannot be
// put there as a whole it is merged into what is there: a page that a program put there against the
// rules, or, if the memory ran out, one of zeroes which programs see for a moment.
func (a *Area) putBack(k Kernel, p dsm.PageIndex, is []byte) {
	if done, _ := a.fill(p, is); done < dsm.PageSize {
		k.MergeShared(p, zeroPage, a.working.page(p), is)
	}
}

// small returns an error if pages cannot be taken out while a pipe holds them.
func (v *evictor) small(fd int, p dsm.PageIndex, n int) error {
	large, err := v.large(fd, p, n)
	if large {
		return errs.E(errs.Busy, "", "a program, or the kernel for it, has made a huge page of them (MADV_COLLAPSE, shmem_enabled)")
	}
	return err
}
