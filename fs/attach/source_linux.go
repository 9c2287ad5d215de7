package attach

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// uffdSource is a Source that learns of stores from a userfaultfd.
type uffdSource struct {
	*uffd.Range
	stores uffd.Stores
	log    *slog.Logger
	said   bool // the log says that the kernel does not report stores any more
}

// Scan implements Source. It is called by one goroutine at a time.
func (s *uffdSource) Scan(stored, suspect func(off, n int64)) error {
	s.stores.Reset()
	if err := s.Range.Scan(&s.stores); err != nil {
		return err
	}
	if err := s.Failure(); err != nil && !s.said {
		s.said = true
		s.log.Warn("stores of a program are found by comparing from now on", "err", err)
	}
	for _, r := range s.stores.Written {
		stored(r.Off, r.Len)
	}
	for _, r := range s.stores.Suspect {
		suspect(r.Off, r.Len)
	}
	return nil
}

// Bits in ATTACH's reply: whether TRACK needs a userfaultfd, and whether the memory has holes.
const (
	wantsUffd = 1
	wantsNone = 2
	hasHoles  = 4
	// mergesElements says that user.dsm.merge is not last.
	mergesElements = 8
	// isDirect says that programs of the node have it by the mount, with access=direct.
	isDirect = 16
	// outlivesDaemon says that the attachment does: the program should RESUME it.
	outlivesDaemon = 32
)

func (x *attachment) wantsUffd() uint64 {
	switch {
	case x.memory != nil:
		return wantsUffd | hasHoles
	case x.conn.s.cfg.Tracking == uffd.Compare:
		return wantsNone
	}
	return wantsUffd
}

// source begins to track a mapping, and takes over the userfaultfd in file. If this daemon may not
// inspect the program, it returns no source and no error, since the program cannot change that. Then
// stores are found by comparing.
func (x *attachment) source(file *os.File, addr, n uint64, off int64) (*uffdSource, uffd.Mode, error) {
	mode := x.conn.s.cfg.Tracking
	if !x.write {
		mode = uffd.Compare
	}
	switch {
	case mode == uffd.Compare && x.memory == nil:
		if file != nil {
			_ = file.Close() // nothing was written to it
		}
		return nil, mode, nil
	case file == nil:
		return nil, 0, errs.E(errs.Invalid, "track", "no userfaultfd came with the request")
	}
	defer func() { _ = file.Close() }() // nothing was written to it
	s, how, err := x.sourceOf(file, mode, addr, n, off)
	for began, pause := time.Now(), firstLook; errs.Is(err, errs.Busy) && x.held != 0 && time.Since(began) < formerEnds; pause *= 2 {
		select {
		case <-time.After(pause):
		case <-x.conn.ctx.Done():
			return nil, 0, err
		}
		s, how, err = x.sourceOf(file, mode, addr, n, off)
	}
	if errs.Is(err, errs.Busy) && x.held != 0 {
		x.conn.s.log.Warn("stores of a program are found by comparing: the daemon before has not ended", "path", x.path, "pid", x.conn.who.pid)
		return nil, uffd.Compare, nil
	}
	return s, how, err
}

// formerEnds is how long TRACK waits for the daemon before to give up a userfaultfd. It does nothing any more, but may not have ended yet: it may wait in the kernel for what this daemon answers.
const formerEnds = 5 * time.Second

// sourceOf is source for one try. file stays open.
func (x *attachment) sourceOf(file *os.File, mode uffd.Mode, addr, n uint64, off int64) (*uffdSource, uffd.Mode, error) {
	// The Range polls the descriptor itself, so it needs one that no os.File owns.
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, 0, os.NewSyscallError("dup", err)
	}
	var pidfd int
	raw, err := x.conn.pidfd.SyscallConn()
	if err == nil {
		var derr error
		err = raw.Control(func(fd uintptr) { pidfd, derr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
		if err == nil {
			err = derr
		}
	}
	if err != nil {
		return nil, 0, errors.Join(err, unix.Close(fd))
	}
	defer func() { _ = unix.Close(pidfd) }() // Track has its own
	c := uffd.Config{UFFD: fd, PidFD: pidfd, Addr: addr, Length: n, Off: off, Dev: x.dev, Ino: x.ino, Mode: mode}
	if x.memory != nil {
		return x.onDemand(c)
	}
	r, err := uffd.Track(c)
	switch {
	case errs.Is(err, errs.Access), errs.Is(err, errs.Unsupported):
		x.conn.s.log.Warn("stores of a program are found by comparing", "path", x.path, "pid", x.conn.who.pid, "err", err)
		return nil, uffd.Compare, nil
	case err != nil:
		return nil, 0, err
	}
	return &uffdSource{Range: r, log: x.conn.s.log.With("path", x.path, "pid", x.conn.who.pid)}, mode, nil
}
