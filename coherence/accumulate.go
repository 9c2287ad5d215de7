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

// Accumulate adds elements that a program has in memory of its own to this node's part in a round: the bytes p at off. Several calls add
// up. The working copy does not change before the end of the round, and nothing has to be compared. The caller then calls Contribute. If
// the round is given up, what was handed over is dropped. If only finite numbers are published others are left out, and FinishRound fails. errs.Invalid if the elements of the area do not add up, or p is not whole ones.
func (a *Area) Accumulate(ctx context.Context, id dsm.RoundID, off int64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), int(dsm.ExtentSize-off%dsm.ExtentSize))
		var bad error
		if _, err := a.inRound(ctx, id, func(c *contribution) {
			if bad = a.accumulatesLocked(off, int64(len(p))); bad == nil {
				a.giveLocked(c, off, p[:n])
			}
		}); err != nil {
			return err
		}
		if bad != nil {
			return &errs.Error{Op: "accumulate", Area: a.id, Kind: errs.Invalid, Err: bad}
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// accumulatesLocked returns why n bytes at off cannot be added to; nil if they can.
func (a *Area) accumulatesLocked(off, n int64) error {
	ino := &a.mu.ino
	size := int64(ino.Layout.DType.Size())
	switch {
	case ino.Spec.Merge != dsm.MergeSum && ino.Spec.Merge != dsm.MergeMean:
		return errs.E(errs.Invalid, "", "the merge rule of the area is neither sum nor mean")
	case off < ino.Layout.DataOffset || n > ino.Size-off:
		return errs.E(errs.Invalid, "", "%d bytes at %d: the elements are from %d to %d", n, off, ino.Layout.DataOffset, ino.Size)
	case size > 0 && ((off-ino.Layout.DataOffset)%size != 0 || n%size != 0):
		return errs.E(errs.Invalid, "", "%d bytes at %d are not whole elements of %d bytes", n, off, size)
	}
	return nil
}

// giveLocked sends bytes of one extent as a part.
func (a *Area) giveLocked(c *contribution, off int64, p []byte) {
	e := dsm.ExtentOf(off)
	at := off - int64(e)*dsm.ExtentSize
	set := pagesOf(e, off, len(p))
	a.givePagesLocked(c, e, set, func(page []byte, i int) {
		from := int64(i)*dsm.PageSize - at // of the page in p
		clear(page)
		copy(page[max(-from, 0):], p[max(from, 0):])
	})
}

// givePagesLocked sends pages of an extent as a part. fill writes what is to be added to one of them.
func (a *Area) givePagesLocked(c *contribution, e dsm.ExtentIndex, set dsm.PageSet, fill func(p []byte, i int)) {
	pub := &publication{kernel: a.mu.kernel, stamp: a.stampLocked(), limit: dsm.ExtentSize, round: c.id, given: true}
	pub.delta.Reset(e)
	pub.delta.Grow(set.Len())
	pub.data = wire.Share(set.Len() * dsm.PageSize)
	pub.delta.Data = pub.data.Bytes[:0]
	var bytes [dsm.PageSize]byte
	for i := range set.All() {
		fill(bytes[:], i)
		if changed, _ := pub.kernel.AppendDelta(&pub.delta, page(e, i), zeroPages[:dsm.PageSize], bytes[:]); changed {
			pub.sent.Add(i)
		}
	}
	a.lookAtGivenLocked(c, pub)
	pub.data.Bytes = pub.delta.Data
	pub.data.Trim()
	pub.delta.Data = pub.data.Bytes
	if pub.sent.Empty() {
		pub.data.Release()
		return
	}
	r, x := &a.mu.replica, a.extentLocked(e)
	r.seq++
	pub.seq = r.seq
	a.keepPartLocked(x, pub)
	a.busyLocked(e, x)
	a.contributesLocked(pub, +1)
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
