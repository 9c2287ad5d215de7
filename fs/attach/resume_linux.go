package attach

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/procs"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// Where the memory outlives the daemon, so do attachments. A journal has them. The next daemon attaches for each of them by itself (Adopt), and finds what is stored by comparing, as to a mapping that
// is left after a DETACH. So a program that never comes back loses nothing. One that does makes a new connection, and an attachment in place of each that it had:
//
//	program                                next daemon
//	RESUME area, memory    ->              is it the memory that the area has?
//	                       <-              a new attachment
//	TRACK address, uffd    ->              from now on its stores are found as before
//
// When no mapping is left that is not tracked, the attachment of the daemon's own ends.

// Journal keeps attachments for the daemon that follows this one.
type Journal interface {
	// Attached records an attachment, or what has changed of it, before the program is told. It returns its number, which is new if it was 0. One that has ended
	// stays so.
	Attached(h Held) (number uint64, err error)
	// Detached says that nobody can store to the memory through it any more.
	Detached(number uint64)
}

// Held is an attachment as the journal has it.
type Held struct {
	Number  uint64
	File    dsm.Ino
	PID     int
	Start   uint64 // when the process began
	UID     uint32
	Write   bool
	Unnamed bool   // PREPARE made the file, and it has no name
	Memory  uint64 // the inode number of the memfd
}

// note records the attachment.
func (x *attachment) note() error {
	j := x.conn.s.cfg.Journal
	if j == nil {
		return nil
	}
	who := &x.conn.who
	x.mu.Lock()
	unnamed := x.mu.unnamed
	x.mu.Unlock()
	n, err := j.Attached(Held{Number: x.held, File: x.file, PID: who.pid, Start: who.start, UID: who.UID, Write: x.write, Unnamed: unnamed, Memory: x.ino})
	if err == nil && x.held == 0 {
		x.held = n
	}
	return err
}

// forget takes it out of the journal.
func (x *attachment) forget() {
	if x.held == 0 {
		return
	}
	s := x.conn.s
	s.mu.Lock()
	delete(s.mu.left, x.held)
	s.mu.Unlock()
	s.cfg.Journal.Detached(x.held)
}

// Adopt takes over what programs had attached when the daemon before was killed. Nothing is served yet.
func (s *Server) Adopt(ctx context.Context, all []Held) {
	for _, h := range all {
		x, err := s.adopt(ctx, h)
		if ctx.Err() != nil { // the next daemon may have more luck
			return
		}
		if err != nil {
			s.log.Error("memory that a program has attached is lost: it may have stores that nobody sees", "inode", h.File, "pid", h.PID, "err", err)
			s.cfg.Journal.Detached(h.Number)
			continue
		}
		s.cfg.Mount.Background(func() {
			x.abide(h.Start)
			x.letGo()
		})
	}
}

// adopt attaches for a program that may come back.
func (s *Server) adopt(ctx context.Context, h Held) (*attachment, error) {
	area, err := s.cfg.Mount.Open(ctx, h.File, h.Write)
	if err != nil {
		return nil, err
	}
	at, f, err := area.Reattach(h.PID, h.Write, h.Memory)
	if err != nil {
		area.Close(h.Write)
		return nil, err
	}
	a := &conn{s: s, who: program{dsm.Credentials{UID: h.UID}, h.PID, h.Start}}
	if h.Write {
		if a.process, err = procs.Open(h.PID); err != nil || StartOf(h.PID) != h.Start {
			a.killed.Store(true) // or it has ended: nobody knows
		}
	}
	x := &attachment{conn: a, area: area, at: at, write: h.Write, file: h.File, held: h.Number}
	x.mu.Init("attach.attachment")
	x.dev, x.ino, err = identity(f)
	_ = f.Close() // nothing was written to it
	if err != nil {
		a.process.Close()
		at.Detach()
		area.Close(h.Write)
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.user = s.userLocked(h.UID)
	a.user.attachments++
	s.mu.left[h.Number] = h
	return x, nil
}

func errStale() error {
	return errs.E(errs.StaleGen, "resume", "the memory that the program has mapped is not that of this node any more")
}

// abide returns when the program of an attachment of the daemon before has come back, or has nothing mapped any more. Until then its stores are found by comparing.
func (x *attachment) abide(start uint64) {
	defer x.conn.process.Close()
	f, err := x.at.Memory()
	if err != nil {
		return // the area is gone
	}
	defer func() { _ = f.Close() }() // only for asking the kernel
	left := func() bool { return x.leftToRead(f, start) }
	if x.write {
		defer x.publishRest()
		defer func() {
			if x.conn.process.Killed() {
				x.conn.killed.Store(true)
			}
		}()
		defer x.at.Track(nil, 0, 1<<62)()
		left = func() bool { return x.left(f) }
	}
	for pause := firstLook; left(); pause = min(2*pause, lastLook) {
		select {
		case <-time.After(pause):
		case <-x.conn.s.cfg.Life.Done():
			return
		}
	}
}

// leftToRead reports whether the program has memory mapped that it has not attached again.
func (x *attachment) leftToRead(f *os.File, start uint64) bool {
	if free, err := Unused(f, unix.F_WRLCK); free || err != nil {
		return false
	}
	pid := x.conn.who.pid
	if pid == 0 { // it is not known which process it is
		return true
	}
	if StartOf(pid) != start {
		return false
	}
	for _, c := range x.conn.s.connections() {
		if c.who.pid == pid && c.has(x.dev, x.ino) {
			return false
		}
	}
	left, err := uffd.Maps(pid, x.dev, x.ino)
	return left && err == nil
}

// has reports whether the connection has attached some memory.
func (a *conn) has(dev, ino uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.mu.attachments {
		if x.dev == dev && x.ino == ino {
			return true
		}
	}
	return false
}

// resume serves RESUME: it attaches an area of which the program has the memory mapped, since an earlier daemon.
func (a *conn) resume(ctx context.Context, q *request) (reply, error) {
	access, ino := q.arg[0], dsm.Ino(q.arg[1])
	write := access == accessWrite
	switch {
	case !write && access != accessRead:
		return reply{}, errs.E(errs.Invalid, "resume", "access %d: want 1 to read, 3 to read and write", access)
	case a.s.cfg.Journal == nil:
		return reply{}, errStale()
	}
	had, i, err := a.resumable(ctx, q, ino, write)
	if err != nil {
		return reply{}, err
	}
	if err := a.s.attached(a.user); err != nil {
		return reply{}, err
	}
	area, err := a.s.cfg.Mount.Open(ctx, ino, write)
	if err != nil {
		a.s.endAttachment(a.user)
		return reply{}, err
	}
	x, f, err := a.attachTo(i, q.payload, write, area, func() (Attachment, *os.File, error) {
		at, f, err := area.Reattach(a.who.pid, write, q.arg[2])
		if err != nil {
			return nil, nil, err
		}
		if err := at.Ready(ctx); err != nil {
			_ = f.Close() // nothing was written to it
			at.Detach()
			return nil, nil, err
		}
		return at, f, nil
	})
	if err != nil {
		return reply{}, err
	}
	_ = f.Close() // nothing was written to it
	x.mu.Lock()
	x.mu.unnamed = had.Unnamed
	x.mu.Unlock()
	if err = x.note(); err == nil {
		i, err = a.s.cfg.Mount.Getattr(ctx, ino)
	}
	if err != nil {
		_ = a.detach(x) // cannot fail: the attachment is there
		return reply{}, err
	}
	return x.told(i, nil), nil
}

// resumable checks that the program may resume. That it had attached the file is enough: it may have no name any more, or other permissions, as for a file that is open.
func (a *conn) resumable(ctx context.Context, q *request, ino dsm.Ino, write bool) (had Held, i dsm.Inode, err error) {
	s := a.s
	if had, ok := s.had(&a.who, ino, write); ok {
		i, err := s.cfg.Mount.Getattr(ctx, ino)
		return had, i, err
	}
	want := uint32(dsm.MayRead)
	if write {
		want |= dsm.MayWrite
	}
	if i, err = s.file(ctx, &a.who, q.payload, want); err != nil || i.Ino != ino {
		i, err = s.openFile(ctx, &a.who, ino, want)
	}
	return had, i, err
}

// had returns an attachment that the process had with the daemon before.
func (s *Server) had(who *program, ino dsm.Ino, write bool) (Held, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.mu.left {
		if h.File == ino && who.start != 0 && h.PID == who.pid && h.Start == who.start && (h.Write || !write) {
			return h, true
		}
	}
	return Held{}, false
}

// Ticks returns the time of now as StartOf has it.
func Ticks() uint64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return math.MaxUint64
	}
	const perSecond = 100 // USER_HZ, on all machines that Go knows
	return uint64(t.Nano()) / (uint64(time.Second) / perSecond)
}

// StartOf returns when a process or thread began, in the kernel's ticks; 0 if that is not known.
func StartOf(pid int) uint64 {
	if pid == 0 {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // what follows the name, which is in brackets
	const starttime = 22 - 3
	if len(fields) <= starttime {
		return 0
	}
	n, err := strconv.ParseUint(fields[starttime], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
