package coherence

import (
	"context"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// MayAccumulate returns why n bytes at off cannot be added to, as Accumulate would: errs.Invalid. nil if they can.
func (a *Area) MayAccumulate(ctx context.Context, off, n int64) error {
	err := a.detectLayout(ctx)
	if err == nil {
		a.note(func() { err = a.accumulatesLocked(off, n) })
	}
	if err != nil {
		return &errs.Error{Op: "accumulate", Area: a.id, Kind: errs.KindOf(err), Err: err}
	}
	return nil
}

// Accumulate adds elements that a program has in memory of its own to this node's part in a round: n bytes at off. piece returns size of them,
// from the byte at of the n on, with a reference for the caller; it is called for one extent at a time. Dense pieces are sent from that memory, and
// sent again, until the round is over. Several calls add
// up. The working copy does not change before the end of the round, and nothing has to be compared. The caller then calls Contribute. If
// the round is given up, what was handed over is dropped. If only finite numbers are published others are left out, and FinishRound fails. errs.Invalid if the elements of the area do not add up, or p is not whole ones.
func (a *Area) Accumulate(ctx context.Context, id dsm.RoundID, off, n int64, piece func(at, size int64) (*wire.Shared, error)) error {
	if err := a.awaitAllHere(ctx); err != nil { // or the next daemon would not take over what is handed over
		return err
	}
	for at := int64(0); at < n; {
		size := min(n-at, dsm.ExtentSize-(off+at)%dsm.ExtentSize)
		data, err := piece(at, size)
		if err != nil {
			return err
		}
		var bad error
		_, err = a.inRound(ctx, id, func(c *contribution) {
			if bad = a.accumulatesLocked(off+at, n-at); bad == nil {
				a.giveLocked(c, off+at, data)
			}
		})
		data.Release()
		if bad != nil {
			err = &errs.Error{Op: "accumulate", Area: a.id, Kind: errs.Invalid, Err: bad}
		}
		if err != nil {
			return err
		}
		at += size
	}
	return nil
}

// accumulatesLocked returns why n bytes at off cannot be added to; nil if they can.
func (a *Area) accumulatesLocked(off, n int64) error {
	ino := &a.mu.ino
	size := int64(ino.Layout.DType.Size())
	switch {
	case a.versionedLocked():
		return errs.E(errs.Invalid, "", "the area is versioned: its versions have one writer, and are no rounds")
	case ino.Spec.Merge != dsm.MergeSum && ino.Spec.Merge != dsm.MergeMean:
		return errs.E(errs.Invalid, "", "the merge rule of the area is neither sum nor mean")
	case off < ino.Layout.DataOffset || n > ino.Size-off:
		return errs.E(errs.Invalid, "", "%d bytes at %d: the elements are from %d to %d", n, off, ino.Layout.DataOffset, ino.Size)
	case size > 0 && ((off-ino.Layout.DataOffset)%size != 0 || n%size != 0):
		return errs.E(errs.Invalid, "", "%d bytes at %d are not whole elements of %d bytes", n, off, size)
	}
	return nil
}

// giveLocked sends bytes of one extent as a part. If they are dense they are sent from where they are.
func (a *Area) giveLocked(c *contribution, off int64, data *wire.Shared) {
	e := dsm.ExtentOf(off)
	at := int(off - int64(e)*dsm.ExtentSize)
	set := pagesOf(e, off, len(data.Bytes))
	within := func(i int) (lo int, values []byte) { // what data has of page i
		from := i*dsm.PageSize - at
		return max(-from, 0), data.Bytes[max(from, 0):min(from+dsm.PageSize, len(data.Bytes))]
	}
	pub := a.newGivenLocked(c, e, set.Len())
	pub.delta.Data = data.Bytes[:0]
	dense := true
	for i := range set.All() {
		lo, values := within(i)
		if dense = pub.kernel.AppendDense(&pub.delta, page(e, i), lo, values); !dense {
			break
		}
	}
	if dense {
		pub.data = data.Retain()
		a.sendGivenLocked(c, e, pub)
		return
	}
	a.givePagesLocked(c, e, set, func(page []byte, i int) {
		lo, values := within(i)
		clear(page)
		copy(page[lo:], values)
	})
}

// givePagesLocked sends pages of an extent as a part. fill writes what is to be added to one of them.
func (a *Area) givePagesLocked(c *contribution, e dsm.ExtentIndex, set dsm.PageSet, fill func(p []byte, i int)) {
	pub := a.newGivenLocked(c, e, set.Len())
	pub.data = wire.Share(set.Len() * dsm.PageSize)
	pub.delta.Data = pub.data.Bytes[:0]
	var bytes [dsm.PageSize]byte
	for i := range set.All() {
		if fill(bytes[:], i); !pub.kernel.AppendDense(&pub.delta, page(e, i), 0, bytes[:]) {
			pub.kernel.AppendDelta(&pub.delta, page(e, i), zeroPages[:dsm.PageSize], bytes[:])
		}
	}
	a.lookAtGivenLocked(c, pub)
	pub.data.Bytes = pub.delta.Data
	pub.data.Trim()
	pub.delta.Data = pub.data.Bytes
	if pub.delta.Pages.Empty() {
		pub.data.Release()
		return
	}
	a.sendGivenLocked(c, e, pub)
}

// newGivenLocked makes a part of so many pages, which a program has handed over.
func (a *Area) newGivenLocked(c *contribution, e dsm.ExtentIndex, pages int) *publication {
	pub := &publication{kernel: a.mu.kernel, stamp: a.stampLocked(), limit: dsm.ExtentSize, round: c.id, given: true}
	pub.delta.Reset(e)
	pub.delta.Grow(pages)
	return pub
}

func (a *Area) sendGivenLocked(c *contribution, e dsm.ExtentIndex, pub *publication) {
	r, x := &a.mu.replica, a.extentLocked(e)
	r.seq++
	pub.seq, pub.sent = r.seq, pub.delta.Pages
	a.keepPartLocked(x, pub)
	a.busyLocked(e, x)
	a.contributesLocked(pub, +1)
	a.keepPublicationLocked(e, pub)
	if c.whole { // by another program of the node
		a.markAgainLocked()
	}
	a.resendLocked(e, pub)
}

// giveAgainLocked sends what was handed over once more, made by the rules that the area has now.
func (a *Area) giveAgainLocked(e dsm.ExtentIndex, pub *publication) {
	a.givePagesLocked(a.mu.replica.contribution, e, pub.sent.And(a.withinLocked(e)), func(p []byte, i int) {
		clear(p)
		pub.overlay(p, i)
	})
}
