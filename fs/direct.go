package fs

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// directState is the state of an area with user.dsm.access=direct. Plain opens get the memfd of the
// working copy itself, and the kernel passes reads, writes and mappings on to it (K17). To the data
// plane the programs are like one attached program whose stores nobody reports: it compares.
//
// The kernel's RELEASE comes at close(2), but a mapping may remain, be stored to, and must be kept
// up to date. So the handles do not keep the area open. Two sessions do: one lasts while any program has the memfd open or mapped, the other while any has it
// open or mapped for writing. unusedLocked asks the kernel.
//
// All fields that are not atomic are guarded by the area's gate.
type directState struct {
	// on says whether the mount's handles have the area open directly. An inode cannot be open in
	// both ways (EIO), so the first open decides until the last handle is closed.
	on atomic.Bool
	// writers is the number of handles of the mount that may store.
	writers atomic.Int32
	// writing is the number of sessions for writing, including one that is ending.
	writing atomic.Int32
	// rest is how long the next comparison had to wait because of the last one.
	rest atomic.Int64
	// noRoom is why something that was written past the end was truncated, until a program has been
	// told.
	noRoom atomic.Pointer[error]
	// backing is the memfd's number in the kernel while the mount has handles, otherwise 0.
	backing atomic.Int32

	reading, storing Attachment // of the sessions

	file  *os.File // the memfd, opened for reading; nil if nobody has it
	stop  func()   // ends the tracking; nil if nobody can store
	timer *time.Timer
	pause time.Duration // until it fires
}

const (
	// The pauses between looks for remaining mappings start with firstLook and double up to
	// lastLook.
	firstLook = 5 * time.Millisecond
	lastLook  = time.Second
	// compareShare limits the comparing of direct areas at their intervals to one part in this many
	// of a core. That is the price for programs that do not report their stores, whether they store
	// or not. With a tenth, 256 MiB without changes (K24: 40 ms) are compared two or three times a
	// second.
	compareShare = 10
)

// errRefused says that the kernel refused the memfd, or that programs have attached it for writing, so the area goes
// through the page cache.
var errRefused = errors.New("no passthrough")

// choose decides, at the first open of the mount, how the mount has the area open. alone says that
// the noted inode is up to date.
func (o *opens) choose(ctx context.Context, a *openArea, alone bool) error {
	if !alone {
		i, err := o.b.cfg.Names.Getattr(ctx, dsm.Ino(a.id))
		if err != nil {
			return err
		}
		a.note(i)
	}
	wanted := a.access() == dsm.AccessDirect && !o.b.resuming.Load() // of what was direct no daemon follows, so the kernel has it in its page cache
	if wanted && o.b.passthrough.reason() != "" {
		o.b.passthrough.refused(o.b.log)
		wanted = false
	}
	a.direct.on.Store(wanted)
	return nil
}

// enterDirectLocked prepares the memfd for another handle of the mount. errRefused, which only the first
// handle can get, says that the area must be opened through the page cache.
func (o *opens) enterDirectLocked(ctx context.Context, a *openArea, write bool) error {
	d := &a.direct
	if d.file == nil {
		if err := o.addLocked(ctx, a, false); err != nil {
			return err
		}
		at, f, err := a.current().Attach(ctx, dsm.ByMount, false)
		if err != nil {
			o.closeLocked(a, false, false, false)
			if errs.Is(err, errs.Busy) {
				o.b.log.Info("a file with user.dsm.access=direct is served through the page cache until all have closed it", "area", a.id, "why", err)
				return errRefused
			}
			return err
		}
		d.reading, d.file = at, f
	}
	if d.backing.Load() == 0 {
		id, err := o.b.passthrough.register(d.file)
		if err != nil {
			o.b.passthrough.refused(o.b.log)
			return errRefused
		}
		d.backing.Store(id)
	}
	if write {
		if err := o.startWritingLocked(ctx, a); err != nil {
			return err
		}
		d.writers.Add(1)
	}
	return nil
}

// startWritingLocked begins the session for writing unless there is one.
func (o *opens) startWritingLocked(ctx context.Context, a *openArea) error {
	d := &a.direct
	if d.stop != nil {
		return nil
	}
	if err := o.addLocked(ctx, a, false); err != nil {
		return err
	}
	at, f, err := a.current().Attach(ctx, dsm.ByMount, true)
	if err != nil {
		o.closeLocked(a, false, false, false)
		return err
	}
	_ = f.Close() // the kernel opens the memfd by d.file, even for writing
	d.storing, d.stop = at, at.Track(nil, 0, dsm.MaxAreaSize)
	if d.writing.Add(1) == 1 {
		o.b.passthrough.writing.Add(1)
	}
	if a.attached.Add(1) == 1 {
		o.b.intervals.opened(a)
	}
	return nil
}

// stopWritingLocked ends the session for writing, in the background: the last stores are first found and
// published.
func (o *opens) stopWritingLocked(a *openArea) {
	d := &a.direct
	stop, at := d.stop, d.storing
	d.stop = nil
	o.b.releases.run(func() {
		stop()
		o.publishLast(a)
		a.gate <- struct{}{} // or another program could open it, and write past the end, before the Trim
		if d.writing.Add(-1) == 0 {
			o.b.passthrough.writing.Add(-1)
			a.current().Trim() // what could not be added to the file
		}
		<-a.gate
		at.Detach()
		o.detach(a, true)
	})
}

// publishLast publishes what the programs of a session for writing have left. What they have written past the end is truncated when the session ends, so
// it tries until that is part of the file, or cannot be: the catalog may be away for longer than anybody waits for it.
func (o *opens) publishLast(a *openArea) {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		ctx, cancel := o.b.lasting()
		err := o.b.publish(ctx, a)
		cancel()
		if err != nil {
			o.b.log.Warn("stores of a closed file are not published yet", "area", a.id, "err", err)
		}
		if a.current().Extended() == 0 || a.direct.writing.Load() > 1 { // the last session truncates
			return
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
		case <-o.b.life.Done():
			next.Stop()
			return
		}
	}
}

// releaseDirect ends a handle of the mount. Its stores were published at close(2). Later ones,
// through a mapping that remains, are published at the interval, and when the last mapping is gone.
func (o *opens) releaseDirect(a *openArea, write bool) {
	a.gate <- struct{}{}
	defer func() { <-a.gate }()
	if write {
		a.direct.writers.Add(-1)
	}
	o.closeLocked(a, write, true, false)
	a.direct.pause = 0
	o.lookLocked(a)
}

// lookLocked ends sessions that nobody uses any more. If only mappings remain, it looks again
// later.
func (o *opens) lookLocked(a *openArea) {
	d := &a.direct
	if d.file == nil {
		return
	}
	open := d.on.Load() && a.kernelHandles() > 0
	if id := d.backing.Load(); !open && id != 0 {
		if e := o.b.passthrough.server.UnregisterBackingFd(id); e != 0 {
			o.b.log.Debug("the kernel does not give up a memory file", "area", a.id, "err", e)
		}
		d.backing.Store(0)
	}
	gone := !open && o.unusedLocked(a, unix.F_WRLCK)
	if d.stop != nil && d.writers.Load() == 0 && (gone || o.unusedLocked(a, unix.F_RDLCK)) {
		o.stopWritingLocked(a)
	}
	if gone {
		o.dropLocked(a)
		return
	}
	if open && (d.stop == nil || d.writers.Load() > 0) {
		return // the next RELEASE looks again
	}
	d.pause = min(max(2*d.pause, firstLook), lastLook)
	if d.timer == nil {
		d.timer = time.AfterFunc(d.pause, func() { o.b.background.run(func() { o.look(a) }) })
		return
	}
	d.timer.Reset(d.pause)
}

func (o *opens) look(a *openArea) {
	a.gate <- struct{}{}
	defer func() { <-a.gate }()
	o.lookLocked(a)
}

func (o *opens) unusedLocked(a *openArea, kind int) bool {
	free, err := attach.Unused(a.direct.file, kind)
	if err != nil {
		o.b.log.Debug("cannot tell whether a file is still mapped", "area", a.id, "err", err)
	}
	return free
}

// dropLocked ends the session for reading.
func (o *opens) dropLocked(a *openArea) {
	_ = a.direct.file.Close() // only read
	a.direct.file = nil
	a.direct.reading.Detach()
	o.closeLocked(a, false, false, false)
}

// endDirect ends all sessions when the mount is gone. The remaining programs keep the memory for
// themselves.
func (o *opens) endDirect() {
	for _, a := range o.all(func(*openArea) bool { return true }) {
		a.gate <- struct{}{}
		if a.direct.stop != nil {
			o.stopWritingLocked(a)
		}
		if a.direct.file != nil {
			o.dropLocked(a)
		}
		<-a.gate
	}
}

// grown adds to the file what programs have written past the end of an area that they have open
// directly, which nobody reported. What there is no room for is truncated again, and the next fsync
// or close reports it.
func (b *bridge) grown(ctx context.Context, a *openArea) {
	if a.direct.writing.Load() == 0 {
		return
	}
	area := a.current()
	end := area.Extended()
	if end == 0 {
		return
	}
	var i dsm.Inode
	err := error(errs.E(errs.TooLarge, "write", ""))
	if end <= dsm.MaxAreaSize {
		// Not resize, which waits for releases: this may run in one of them.
		i, err = b.cfg.Names.SetAttr(ctx, dsm.Ino(a.id), dsm.SetAttr{GrowTo: &end})
	}
	switch {
	case errs.Is(err, errs.NotExist): // the file is removed
		area.Trim()
	case errs.Is(err, errs.NoSpace), errs.Is(err, errs.TooLarge):
		area.Trim()
		a.direct.noRoom.Store(&err)
		b.log.Error("what was written past the end of a direct file is truncated again", "area", a.id, "end", end, "err", err)
		b.notify.attrChanged(a) // the kernel believes that the bytes are there
	case err != nil:
		b.log.Warn("what was written past the end of a direct file is not part of it yet", "area", a.id, "end", end, "err", err)
	default:
		a.note(i)
		a.kernelSize.Store(i.Size) // it knew before
	}
}

// takeNoRoom returns why something that was written past the end is gone. It returns each reason
// once.
func (d *directState) takeNoRoom() error {
	if err := d.noRoom.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// restAfter returns how long the area's interval must rest after a round in which comparing took
// that long, so that all areas of the node together stay within their share.
func (b *bridge) restAfter(a *openArea, compared time.Duration) time.Duration {
	if a.direct.writing.Load() == 0 {
		return 0
	}
	n := max(b.passthrough.writing.Load(), 1)
	rest := (compareShare*time.Duration(n) - 1) * compared
	a.direct.rest.Store(int64(rest))
	return rest
}

// accessNow says how plain opens of the area are served, and why, if that is not what its setting
// says.
func (b *bridge) accessNow(a *openArea) string {
	if a.direct.on.Load() {
		return dsm.AccessDirect.String()
	}
	cached := dsm.AccessCached.String()
	switch why := b.passthrough.reason(); {
	case a.access() == dsm.AccessCached:
		return cached
	case why != "":
		return cached + " " + why
	case a.kernelHandles() > 0:
		return cached + " until all that have it open have closed it"
	}
	return dsm.AccessDirect.String()
}

func (a *openArea) access() dsm.Access {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.spec.Access
}

func (a *openArea) spec() dsm.Spec {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.spec
}

func (a *openArea) kernelHandles() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.kernel
}
