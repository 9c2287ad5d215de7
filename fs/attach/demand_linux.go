package attach

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// This file serves the mappings of areas on demand. A program that touches a page which is not in
// memory waits until the page is there; missing asks for it. A mapping is served as long as it
// exists, even after the program has detached: a touch of a mapping that nobody serves would read
// zeroes, and put a page of zeroes into memory that others use.

// onDemand begins to track a mapping, or, for a program that only reads, to serve it. Comparing
// cannot replace this, so where the kernel or its rules do not allow it the error is
// errs.Unsupported.
func (x *attachment) onDemand(c uffd.Config) (*uffdSource, uffd.Mode, error) {
	var r *uffd.Range
	ready := make(chan struct{})
	c.Memfd, c.ReadOnly = int(x.memory.Fd()), !x.write
	if c.Mode == uffd.Sync {
		// A page that is evicted while a program touches it can lose its write protection, and
		// protecting it again might have to wait for the program: see uffd.Config.Mode.
		c.Mode = uffd.Compare
	}
	c.Missing = func(off int64) {
		<-ready // wait until r is set
		x.missing(r, off)
	}
	var err error
	r, err = uffd.Track(c)
	close(ready)
	switch {
	case errs.Is(err, errs.Access):
		return nil, 0, errs.E(errs.Unsupported, "track", "missing pages of %s cannot be found: %w", x.path, err)
	case err != nil:
		return nil, 0, err
	}
	_ = x.conn.s.guard.Add(r) // Add logs its failure; the program is served even without the guard
	return &uffdSource{Range: r, log: x.conn.s.log.With("path", x.path, "pid", x.conn.who.pid)}, c.Mode, nil
}

// missing asks for the page at off. It runs in the goroutine that received the fault, because
// waking another one takes longer. So it may wait for the area's lock, but not for a message. If
// the page does not come, overdue starts a goroutine that waits for it.
func (x *attachment) missing(r *uffd.Range, off int64) {
	f := &fault{x: x, r: r, off: off, since: time.Now()}
	o := &x.overdue
	o.add(f)
	if x.area.BeginFault(off, func() {
		o.remove(f)
		r.Wake(off, dsm.PageSize)
	}) {
		return
	}
	if o.remove(f) {
		x.serving.Go(f.bring) // the counter is not 0: track, or serve for this mapping, is counted
	}
}

// bring brings the page, or lets the thread have SIGBUS if it does not come in time, or is past the end.
func (f *fault) bring() {
	x, r, off := f.x, f.r, f.off
	ctx, cancel := context.WithDeadline(x.conn.s.ctx, f.since.Add(x.conn.s.cfg.Timeout))
	defer cancel()
	err := x.area.Fault(ctx, off, func() { r.Wake(off, dsm.PageSize) })
	if err == nil {
		return
	}
	log := x.conn.s.log.With("path", x.path, "pid", x.conn.who.pid, "off", off)
	if errs.Is(err, errs.NotExist) {
		log.Debug("a program gets SIGBUS past the end")
	} else {
		log.Warn("a program gets SIGBUS for a page that does not come", "err", err)
	}
	if err := r.Poison(off, dsm.PageSize); err != nil && !errs.Is(err, errs.Closed) {
		log.Warn("poison", "err", err)
	}
}

// serve ends the tracking of a mapping on demand when it is gone, or when the daemon ends: pages
// that are not there are SIGBUS then.
func (x *attachment) serve(r *mappedRange) {
	select {
	case <-r.watched.Unmapped():
	case <-x.conn.s.ctx.Done():
	}
	r.note()
	x.close(r.watched)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.ranges = slices.DeleteFunc(x.mu.ranges, func(o *mappedRange) bool { return o == r })
}

// close ends the tracking of a mapping, and its entry with the guard.
func (x *attachment) close(r *uffd.Range) {
	err := r.Close()
	for _, f := range x.overdue.take(r) {
		if err != nil { // the Range is unchanged
			x.serving.Go(f.bring)
		}
	}
	if err != nil {
		x.conn.s.log.Warn("end of tracking", "path", x.path, "pid", x.conn.who.pid, "err", err)
	}
	if x.memory != nil && err == nil { // if Close failed, the guard must keep it
		x.conn.s.guard.Remove(r)
	}
}

// errOnDemand refuses a program that may only read a file on demand: the kernel reports missing
// pages only for mappings that could be made writable.
func errOnDemand(path string) error {
	return errs.E(errs.Unsupported, "attach", "%s has residency demand: only programs that may write it attach it, others map it through the mount", path)
}

// duplicate returns another descriptor of a file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
