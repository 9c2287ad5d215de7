package coherence

import (
	"context"
	"errors"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// way is how stores of a program arrive here.
type way uint8

const (
	writtenThrough way = iota // by write(2), through the page cache
	writtenBack               // through a mapping, and written back by the page cache
	writtenPast               // by write(2), past the page cache
)

// WriteDirect is WriteAt for a write(2) that the kernel sends past its page cache. It returns when
// the page cache does not show the old bytes any more: from then on programs of this node see what
// was written, however they read. It may wait for notices, and for READs that those wait for. If
// ctx ends first that is not an error, because the stores have been accepted.
func (a *Area) WriteDirect(ctx context.Context, p []byte, off int64) error {
	if err := a.writeWithRoom(ctx, p, off, writtenPast); err != nil {
		return err
	}
	if err := a.awaitTold(ctx, off, int64(len(p))); err != nil && !errs.Is(err, errs.Timeout) {
		return err
	}
	return nil
}

// Punch stores zeroes in [off, off+n) for a program that punches a hole there. It returns when the page cache does not have the old
// bytes any more, or when ctx ends. The kernel drops the hole from its page cache after the answer: see pages.Cached.KernelPunches.
// The caller calls over when the thread that punches has gone on after that.
func (a *Area) Punch(ctx context.Context, off, n int64) (over func(), err error) {
	answered, end := func(time.Time) {}, func() {}
	a.step(func() {
		if a.mu.cached != nil && n > 0 {
			answered, end = a.mu.cached.KernelPunches(off, n)
		}
	})
	defer func() { a.note(func() { answered(a.now()) }) }()
	return func() { a.note(end) }, a.punch(ctx, off, n)
}

func (a *Area) punch(ctx context.Context, off, n int64) error {
	for at := off; at < off+n; at += int64(len(zeroPages)) {
		if err := a.writeWithRoom(ctx, zeroPages[:min(off+n-at, int64(len(zeroPages)))], at, writtenPast); err != nil {
			return err
		}
	}
	if err := a.awaitTold(ctx, off, n); err != nil && !errs.Is(err, errs.Timeout) {
		return err
	}
	return nil
}

// punchLimit is how long a program that punches a hole may take at most to go on when it is answered, and drop the hole from the page cache.
const punchLimit = 100 * time.Millisecond

// freeZeroedLocked gives back the memory of pages that a publish of this node has made zero, as after a punch. While programs
// may store into the working copy itself the pages keep it, or could, for they may have the file still, and have this wait. So do pages on demand: without memory they would count as missing.
func (a *Area) freeZeroedLocked(e dsm.ExtentIndex, x *replicaExtent, set dsm.PageSet) {
	set = set.And(x.have).Minus(x.dirty).And(a.withinLocked(e))
	if set.Empty() || a.mu.replica.demand || a.sharedLocked() || a.mu.mem.Sealed() {
		return
	}
	for i := range set.All() {
		// Another node has stored there since, or a part of a round is about what is there: then the base is not zero.
		if p := page(e, i); x.unmerged(i) || !isZero(a.mu.mem.Working(p)) || !isZero(a.mu.mem.Base(p)) {
			set.Remove(i)
		}
	}
	if err := a.mu.mem.FreeZeroed(e, set); err != nil {
		a.node.cfg.Log.Error("memory is not given back", "area", a.id, "extent", e, "err", err)
	}
}

// awaitTold returns when the kernel has been told everything about [off, off+n).
func (a *Area) awaitTold(ctx context.Context, off, n int64) error {
	return a.awaitNotices(ctx, func() bool { return a.mu.cached == nil || a.mu.cached.Told(off, n) })
}

// sureLimit is how long a write(2) through the page cache waits for a notice. One that takes longer waits for a page that the
// kernel has locked, which may be until the write(2) is answered.
const sureLimit = 20 * time.Millisecond

// awaitSure returns when it is known what the page cache has of [off, off+n) after a write(2), or after sureLimit:
// who writes and then stores to a mapping stores on top of what was written. See pages.Cached.Sure. What is void is mixed then.
func (a *Area) awaitSure(ctx context.Context, off, n int64) {
	sure := func() bool { return a.mu.cached == nil || a.mu.cached.Sure(off, n) }
	now := false
	a.note(func() { now = sure() })
	if now {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sureLimit)
	defer cancel()
	if err := a.awaitNotices(ctx, sure); err != nil {
		a.node.cfg.Log.Debug("a write(2) is answered before its pages are dropped", "area", a.id, "offset", off, "err", err)
		a.note(func() {
			if a.mu.cached != nil {
				a.mu.cached.Answered(off, n)
			}
		})
	}
}

// awaitNotices returns when done, which becomes true by notices.
func (a *Area) awaitNotices(ctx context.Context, done func() bool) error {
	now := false
	a.note(func() {
		now = done()
		a.mu.telling++
	})
	defer a.note(func() { a.mu.telling-- })
	if now {
		return nil
	}
	return a.await(ctx, "write", done)
}

// ReadDirect is ReadAt for a read(2) that the kernel makes past its page cache, which is not
// filled.
func (a *Area) ReadDirect(ctx context.Context, p []byte, off int64) (n int, err error) {
	return a.readBy(ctx, p, off, a.readDirectLocked, true)
}

// readDirectLocked is ReadDirect if the pages are here.
func (a *Area) readDirectLocked(p []byte, off int64) (n int, ok bool) {
	n = int(max(min(int64(len(p)), a.mu.ino.Size-off), 0))
	if n == 0 {
		return 0, true
	}
	if !a.mu.replica.subscribed || !a.presentLocked(off, n) {
		return 0, false
	}
	a.useLocked(off, n)
	return a.mu.mem.ReadWorking(p[:n], off), true
}

// ReadBy is ReadDirect by a program. It sees what the program has stored to its memory, even if
// that is a draft.
func (a *Area) ReadBy(ctx context.Context, program int, p []byte, off int64) (n int, err error) {
	began := a.now()
	for {
		var d *draft
		old, follows := false, false
		a.step(func() {
			if d = a.draftWithLocked(program); d == nil {
				return
			}
			if old = !a.withinBoundLocked(d.fresh, began); old {
				if follows = d.writers == 0; !follows && a.mu.ino.Spec.AppliesInSync() {
					err = a.errPastBoundLocked("read", d.fresh, began)
				}
				return
			}
			if err = a.missesLocked(off, int64(len(p))); err != nil {
				return
			}
			n = int(max(min(int64(len(p)), a.mu.ino.Size-off), 0))
			d.mem.Read(p[:n], off)
			a.sawLocked(atRead, d.fresh, began)
		})
		switch {
		case d == nil:
			return a.ReadDirect(ctx, p, off)
		case errors.Is(err, errGrowing):
			if err = a.awaitGrown(ctx); err != nil {
				return 0, err
			}
			continue
		case err != nil || !old:
			return n, err
		}
		if err = a.freshen(ctx, began); err != nil {
			return 0, err
		}
		if follows {
			a.follow(d)
		} else { // the draft is from before the rule changed
			a.refresh(d)
		}
	}
}

// WriteBy is WriteDirect by a program, whose memory shows the written bytes at once.
func (a *Area) WriteBy(ctx context.Context, program int, p []byte, off int64) error {
	own := false
	err := a.onceGrown(ctx, func() (err error) {
		a.step(func() {
			d := a.draftWithLocked(program)
			if own = d != nil; !own {
				return
			}
			if err = a.missesLocked(off, int64(len(p))); err != nil {
				return
			}
			p := p[:max(min(int64(len(p)), a.mu.ino.Size-off), 0)]
			d.mem.Write(p, off)
			for _, s := range appendRange(nil, off, int64(len(p))) {
				a.takeLocked(d, s.Extent, s.Pages)
			}
		})
		return err
	})
	if own {
		return err
	}
	return a.WriteDirect(ctx, p, off)
}
