package attach

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/uffd"
)

// Unused reports whether nobody has the memfd of f open for writing (kind F_RDLCK), or open at all
// (F_WRLCK). A mapping counts as the open file from which it was made, until the last process has
// unmapped it. The descriptor that memfd_create returned does not count, nor does f, if it is open for
// reading.
//
// It asks the kernel for a lease (fcntl(2)), which is granted only if there is no such file, and
// gives it back at once. Whoever opens the memfd in between waits for that.
func Unused(f *os.File, kind int) (bool, error) {
	switch _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind); {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case err != nil:
		return false, os.NewSyscallError("F_SETLEASE", err)
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return true, os.NewSyscallError("F_SETLEASE", err)
}

const (
	// The pauses between looks for remaining mappings start with firstLook and double up to
	// lastLook.
	firstLook = 5 * time.Millisecond
	lastLook  = time.Second
)

// outlast returns when nobody can store any more to the memory of an attachment that has ended. A
// mapping may remain: in the program, if it detached and goes on storing, or in an unknown process
// that inherited it. As long as there is one, stores are found by comparing; otherwise this node
// would have bytes that no other node ever gets.
//
// Most programs are just about to unmap, or to close their descriptor. So outlast waits a moment
// before it begins to compare.
func (x *attachment) outlast() {
	f, err := x.at.Memory()
	if err != nil {
		return // the area is gone
	}
	defer func() { _ = f.Close() }() // only for asking the kernel
	var stop func()
	for pause := firstLook; x.left(f); pause = min(2*pause, lastLook) {
		if stop == nil && pause > firstLook {
			stop = x.at.Track(nil, 0, 1<<62)
		}
		select {
		case <-time.After(pause):
		case <-x.conn.s.cfg.Life.Done():
			return
		}
	}
	if stop != nil {
		stop()
	}
}

// publishRest publishes what was stored to a mapping that was left, when nobody can store to it any more.
func (x *attachment) publishRest() {
	if x.conn.s.cfg.Life.Err() != nil {
		return
	}
	x.released()
	ctx, cancel := x.conn.s.cfg.Mount.Lasting()
	defer cancel()
	if err := x.at.PublishReleased(ctx); err != nil {
		x.conn.s.log.Warn("stores to what was left of a mapping are not published yet", "path", x.path, "inode", x.file, "err", err)
	}
}

// inUse reports whether somebody may still store to the memory.
func (x *attachment) inUse() bool {
	f, err := x.at.Memory()
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // only for asking the kernel
	return x.left(f)
}

// left reports whether somebody may still store to the memory without being tracked. If others have
// attached the memory for writing, the kernel's answer says nothing, so only the mappings of the
// program itself are checked. Any other mappings are found when the last attachment ends.
func (x *attachment) left(f *os.File) bool {
	if free, err := Unused(f, unix.F_RDLCK); free || err != nil {
		return false
	}
	tracked, others := x.conn.s.tracked(x)
	if !others {
		return true
	}
	left, err := uffd.MapsElsewhere(x.conn.who.pid, x.dev, x.ino, tracked)
	return left && err == nil
}

// tracked returns the tracked mappings that the attachment's process has of its memory, in order,
// and whether there are other attachments for writing to the same memory.
func (s *Server) tracked(x *attachment) (ranges [][2]uint64, others bool) {
	for _, c := range s.connections() {
		c.mu.Lock()
		var list []*attachment
		for _, o := range c.mu.attachments {
			if o != x && o.write && o.dev == x.dev && o.ino == x.ino {
				list = append(list, o)
			}
		}
		c.mu.Unlock()
		others = others || len(list) > 0
		if c.who.pid != x.conn.who.pid {
			continue
		}
		for _, o := range list {
			o.mu.Lock()
			for _, r := range o.mu.ranges {
				ranges = append(ranges, [2]uint64{r.addr, r.addr + r.n})
			}
			o.mu.Unlock()
		}
	}
	slices.SortFunc(ranges, func(a, b [2]uint64) int { return int(int64(a[0] - b[0])) })
	return ranges, others
}

func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		list = append(list, c)
	}
	return list
}
