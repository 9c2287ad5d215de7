package attach

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// attachment is one area that a program has attached: a handle of the area, as for an open file,
// and what the program has mapped for writing.
type attachment struct {
	id    uint64
	conn  *conn
	area  Area
	at    Attachment
	path  string
	write bool
	adds  atomic.Bool // it may accumulate, though it is attached to read
	// file is the area's inode.
	file dsm.Ino
	// held is its number in the journal, 0 if it is in none.
	held uint64
	// dev and ino identify the memfd.
	dev, ino uint64
	// memory is a descriptor of the memfd. It is nil unless the area is on demand. serving counts what
	// keeps such an area open after the program has detached: its mappings, the faults on them, and
	// TRACKs under way.
	memory  *os.File
	serving sync.WaitGroup
	overdue overdue

	mu struct {
		lockrank.Mutex
		ended   bool
		ranges  []*mappedRange
		line    *line  // nil: it has not watched
		told    int64  // the largest size that the program has been told
		unnamed bool   // PREPARE made the file, and no NAME has given it a name or is doing so
		tried   string // the name that the file may have: a NAME was not answered in time; "" if there is none
	}
}

// mappedRange is one mapping of the program.
type mappedRange struct {
	addr, n uint64
	note    func()      // finds the last stores, and ends the tracking
	watched *uffd.Range // nil if stores are found by comparing
}

// attach serves ATTACH: it opens the area as open(2) would.
func (a *conn) attach(ctx context.Context, q *request) (reply, error) {
	access := q.arg[0]
	want, write := uint32(dsm.MayRead), access == accessWrite
	switch {
	case write:
		want |= dsm.MayWrite
	case access != accessRead:
		return reply{}, errs.E(errs.Invalid, "attach", "access %d: want 1 to read, 3 to read and write", access)
	}
	i, err := a.s.file(ctx, &a.who, q.payload, want)
	if ino := dsm.Ino(q.arg[1]); ino != 0 && (errs.Is(err, errs.NotExist) || err == nil && i.Ino != ino) {
		i, err = a.s.openFile(ctx, &a.who, ino, want)
	}
	if err != nil {
		return reply{}, err
	}
	if err := a.s.attached(a.user); err != nil {
		return reply{}, err
	}
	area, err := a.s.cfg.Mount.Open(ctx, i.Ino, write)
	if err != nil {
		a.s.endAttachment(a.user)
		return reply{}, err
	}
	x, f, err := a.attachTo(i, q.payload, write, area, func() (Attachment, *os.File, error) { return area.Attach(ctx, a.who.pid, write) })
	if err != nil {
		return reply{}, err
	}
	i, err = a.s.cfg.Mount.Getattr(ctx, i.Ino)
	if err == nil {
		err = x.note()
	}
	if err != nil {
		_ = f.Close()   // nothing was written to it
		_ = a.detach(x) // cannot fail: the attachment is there
		return reply{}, err
	}
	return x.told(i, f), nil
}

// attachTo attaches the program, by a function, to an area, which has been opened and counted for it. Both is undone if
// that fails.
func (a *conn) attachTo(i dsm.Inode, path string, write bool, area Area, attach func() (Attachment, *os.File, error)) (*attachment, *os.File, error) {
	at, f, err := attach()
	if err != nil {
		area.Close(write)
		a.s.endAttachment(a.user)
		return nil, nil, err
	}
	x := &attachment{conn: a, area: area, at: at, path: path, write: write, file: i.Ino}
	x.mu.Init("attach.attachment")
	x.overdue.mu.Init("attach.overdue")
	x.dev, x.ino, err = identity(f)
	demand := area.Demand() // it may have changed before Attach, but cannot any more
	switch {
	case err != nil || !demand:
	case !a.who.May(i, dsm.MayWrite):
		err = errOnDemand(path)
	default:
		x.memory, err = duplicate(f)
	}
	if err != nil {
		_ = f.Close() // nothing was written to it
		x.end()
		return nil, nil, err
	}
	a.mu.Lock()
	a.mu.last++
	x.id = a.mu.last
	a.mu.attachments[x.id] = x
	a.mu.Unlock()
	return x, f, nil
}

// told returns what ATTACH and PREPARE answer.
func (x *attachment) told(i dsm.Inode, memory *os.File) reply {
	access, flags := uint64(accessRead), x.wantsUffd()
	if x.write {
		access = accessWrite
	}
	if i.Spec.Merge != dsm.MergeLast {
		flags |= mergesElements
	}
	if x.area.Direct() {
		flags |= isDirect
	}
	if x.held != 0 {
		flags |= outlivesDaemon
	}
	x.grew(i.Size)
	x.conn.s.log.Debug("attached", "path", x.path, "pid", x.conn.who.pid, "write", x.write)
	return reply{attachment: x.id, arg: [4]uint64{uint64(i.Size), uint64(i.Ino), access, flags}, file: memory}
}

// Values of ATTACH's access.
const (
	accessRead  = 1
	accessWrite = 3
)

// end ends the attachment. When it returns, the last stores have been found. They are published,
// and the area is closed, in the background.
func (x *attachment) end() {
	x.mu.Lock()
	x.mu.ended = true
	ranges := x.mu.ranges
	x.mu.ranges = nil
	x.mu.Unlock()
	x.unwatch()
	for _, r := range ranges {
		x.forgo(r)
		if x.memory != nil {
			r.watched.Mapped() // after an exec nothing else shows that the mapping is gone, and serve would wait for ever
		}
	}
	stores := x.write && (x.memory != nil || x.inUse())
	if x.write && !stores {
		x.released() // at once: what the process reads next is to have what others have published
	}
	m := x.conn.s.cfg.Mount
	published := make(chan struct{})
	m.Release(func() {
		ctx, cancel := m.Lasting()
		defer cancel()
		defer close(published)
		if x.write {
			if err := x.at.PublishReleased(ctx); err != nil {
				x.conn.s.log.Warn("stores of a program that has detached are not published yet", "path", x.path, "err", err)
			}
		}
		switch {
		case x.memory != nil:
		case stores && x.inUse():
			m.Background(func() {
				x.outlast()
				x.publishRest()
				x.letGo()
			})
		case stores:
			x.publishRest()
			x.letGo()
		default:
			x.letGo()
		}
	})
	if x.memory != nil {
		m.Background(func() {
			<-published
			x.serving.Wait()
			_ = x.memory.Close() // nothing was written to it
			if stores {
				x.publishRest()
			}
			x.letGo()
		})
	}
}

// released says that the program cannot store any more.
func (x *attachment) released() {
	if x.conn.killed.Load() {
		x.at.Killed()
	} else {
		x.at.Released()
	}
}

// letGo closes the area. No mapping of the program may need it any more: see end.
func (x *attachment) letGo() {
	x.at.Detach()
	x.area.Close(x.write)
	x.conn.s.endAttachment(x.conn.user)
	x.forget()
}

// maxRanges bounds the tracked mappings of an attachment: each takes some descriptors.
const maxRanges = 1024

// grew records a size before the program is told of it.
func (x *attachment) grew(size int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.told = max(x.mu.told, size)
}

// trackAhead is how far past the end of the area a mapping may reach. Some programs map more than
// there is, and then let the file grow. To protect this much beyond the end takes 2 MiB of page
// tables.
const trackAhead = 1 << 30

// largest returns how far the program's mappings may reach: trackAhead past the largest size that the
// program was told, or past the size now if that is larger.
func (x *attachment) largest() uint64 {
	now := x.area.Size()
	x.mu.Lock()
	defer x.mu.Unlock()
	return (uint64(max(x.mu.told, now))+dsm.PageSize-1)&^(dsm.PageSize-1) + trackAhead
}

// track serves TRACK.
func (x *attachment) track(ctx context.Context, q *request) (reply, error) {
	addr, n, off := q.arg[0], q.arg[1], q.arg[2]
	switch {
	case !x.write && x.memory == nil:
		return reply{}, errs.E(errs.Access, "track", "attached for reading only")
	case addr%dsm.PageSize != 0 || n%dsm.PageSize != 0 || off%dsm.PageSize != 0 || n == 0:
		return reply{}, errs.E(errs.Invalid, "track", "address %#x, length %d and offset %d must be multiples of %d, the length not 0", addr, n, off, dsm.PageSize)
	case n > dsm.MaxAreaSize || off > dsm.MaxAreaSize || addr+n < addr || off+n > x.largest():
		return reply{}, errs.E(errs.Invalid, "track", "length %d at offset %d is more than %d bytes past the end of the area", n, off, trackAhead)
	}
	if err := x.area.Grown(ctx, int64(off), int64(n)); err != nil {
		return reply{}, err
	}
	x.mu.Lock()
	ended, many := x.mu.ended, len(x.mu.ranges) >= maxRanges
	if !ended && !many {
		x.serving.Add(1) // end waits for it: the first faults may come before the reply
		defer x.serving.Done()
	}
	x.mu.Unlock()
	switch {
	case ended:
		return reply{}, &errs.Error{Op: "track", Err: unix.ENOTCONN}
	case many:
		return reply{}, errs.E(errs.NoSpace, "track", "more than %d mappings of one attachment", maxRanges)
	}
	file := q.file
	q.file = nil
	source, how, err := x.source(file, addr, n, int64(off))
	if err != nil {
		return reply{}, err
	}
	r := &mappedRange{addr: addr, n: n, note: func() {}}
	switch {
	case source == nil:
		r.note = x.at.Track(nil, int64(off), int64(n))
	case x.write:
		r.note = sync.OnceFunc(x.at.Track(source, int64(off), int64(n)))
		fallthrough
	default:
		r.watched = source.Range
	}
	if x.memory != nil {
		x.serving.Go(func() { x.serve(r) })
	}
	x.mu.Lock()
	if ended = x.mu.ended; !ended {
		x.mu.ranges = append(x.mu.ranges, r)
	}
	x.mu.Unlock()
	if ended {
		x.forgo(r)
		return reply{}, &errs.Error{Op: "track", Err: unix.ENOTCONN}
	}
	return reply{arg: [4]uint64{uint64(how)}}, nil
}

// forgo ends the tracking of a mapping. A mapping on demand is still served as long as it exists.
func (x *attachment) forgo(r *mappedRange) {
	r.note()
	if r.watched != nil && x.memory == nil {
		x.close(r.watched)
	}
}

// untrack serves UNTRACK: it ends all mappings in the range.
func (x *attachment) untrack(addr, n uint64) error {
	var found []*mappedRange
	x.mu.Lock()
	kept := x.mu.ranges[:0]
	for _, r := range x.mu.ranges {
		in := addr <= r.addr && r.addr+r.n <= addr+n
		if in {
			found = append(found, r)
		}
		if !in || x.memory != nil { // on demand a mapping is served until it is unmapped
			kept = append(kept, r)
		}
	}
	x.mu.ranges = kept
	x.mu.Unlock()
	for _, r := range found {
		x.forgo(r)
	}
	if len(found) == 0 {
		return errs.E(errs.Invalid, "untrack", "no mapping of this attachment lies in %#x and the %d bytes from there on", addr, n)
	}
	return nil
}

// wait serves WAIT.
func (x *attachment) wait(ctx context.Context, version, ms uint64) error {
	if ms > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(min(ms, maxWaitMillis))*time.Millisecond)
		defer cancel()
	}
	err := x.at.Wait(ctx, dsm.Version(version))
	if errs.Is(err, errs.Timeout) {
		return errs.E(errs.Timeout, "wait", "version %d has not come in time; the newest here is %d", version, x.area.Version())
	}
	return err
}

// expect serves EXPECT: as WAIT, but the answer comes at once, and that the version has come is told in the header page.
func (x *attachment) expect(ctx context.Context, q *request) error {
	q.replied = true
	x.conn.reply(q, reply{}, nil)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(min(q.arg[1], maxExpectMillis))*time.Millisecond)
	defer cancel()
	if err := x.at.Expect(ctx, dsm.Version(q.arg[0])); err != nil && !errs.Is(err, errs.Timeout) {
		x.conn.s.log.Debug("a version that a program expects", "path", x.path, "err", err)
	}
	return nil
}

// maxExpectMillis bounds an EXPECT, which goes on when the program does not wait any more.
const maxExpectMillis = 60_000

// maxWaitMillis is a century: more would overflow a time.Duration.
const maxWaitMillis = 100 * 365 * 24 * 3600 * 1000

// resize serves RESIZE.
func (x *attachment) resize(ctx context.Context, size int64) (reply, error) {
	switch {
	case !x.write:
		return reply{}, errs.E(errs.Access, "resize", "attached for reading only")
	case size < 0 || size > dsm.MaxAreaSize:
		return reply{}, errs.E(errs.TooLarge, "resize", "")
	}
	i, err := x.area.Resize(ctx, size)
	if err != nil {
		return reply{}, err
	}
	x.grew(i.Size)
	return reply{arg: [4]uint64{uint64(i.Size)}}, nil
}

// identity returns device and inode number of an open file.
func identity(f *os.File) (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, 0, os.NewSyscallError("fstat", err)
	}
	return st.Dev, st.Ino, nil
}
