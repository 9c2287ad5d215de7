package uffd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// guarded is a Range of the guarded process.
type guarded struct {
	uffd    int
	process *process
	memory  memory
}

// GuardMain runs in the process of a Guard. It returns when the other end says goodbye. If the
// other end ends without that, it first poisons what it guards. The caller ignores the signals that
// end a whole service or terminal.
func GuardMain(socket *os.File) error {
	ranges := make(map[uint64]*guarded)
	defer func() {
		for _, x := range ranges {
			x.close()
		}
	}()
	fd := int(socket.Fd())
	if err := unix.SetNonblock(fd, false); err != nil {
		return errs.E(errs.Other, opGuard, "%w", err)
	}
	for {
		p, fds, err := receiveGuard(fd)
		switch {
		case err != nil:
			// The other process lives, and starts another guard.
			return errs.E(errs.Other, opGuard, "%w", err)
		case len(p) == 0:
			sealAll(ranges)
			return nil
		case p[0] == guardGoodbye && len(fds) == 0:
			return nil
		case p[0] == guardRemove && len(p) == 9 && len(fds) == 0:
			id := binary.NativeEndian.Uint64(p[1:])
			if x := ranges[id]; x != nil {
				delete(ranges, id)
				x.close()
			}
		case p[0] == guardAdd && len(p) == 25 && len(fds) == 3:
			id := binary.NativeEndian.Uint64(p[1:])
			m := memory{fds[2], binary.NativeEndian.Uint64(p[9:]), binary.NativeEndian.Uint64(p[17:])}
			x, err := newGuarded(fds[0], fds[1], m)
			if err != nil && !processGone(err) {
				return err
			}
			if err == nil {
				ranges[id] = x
			}
		default:
			closeAll(fds)
			return errs.E(errs.Corrupt, opGuard, "a message of %d bytes and %d descriptors", len(p), len(fds))
		}
	}
}

// receiveGuard returns one message, or an empty one at the end.
func receiveGuard(fd int) (p []byte, fds []int, err error) {
	buf, oob := make([]byte, 64), make([]byte, unix.CmsgSpace(3*4))
	n, oobn, flags := 0, 0, 0
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	}
	switch {
	case errors.Is(err, unix.ECONNRESET):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("recvmsg: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		if got, e := unix.ParseUnixRights(&messages[i]); e == nil {
			fds = append(fds, got...)
		}
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("a message does not fit: too many open files?")
	}
	if err != nil {
		closeAll(fds)
		return nil, nil, err
	}
	return buf[:n], fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		closeFD(fd)
	}
}

// newGuarded takes over the descriptors.
func newGuarded(fd, pidfd int, m memory) (*guarded, error) {
	p, err := newProcess(pidfd)
	closeFD(pidfd)
	if err != nil {
		closeAll([]int{fd, m.fd})
		return nil, err
	}
	return &guarded{fd, p, m}, nil
}

// processGone reports whether the error of a pidfd means that its process has ended.
func processGone(err error) bool { return errors.Is(err, unix.ESRCH) }

func (x *guarded) close() {
	x.process.close()
	closeAll([]int{x.uffd, x.memory.fd})
}

// sealAll poisons everything concurrently, so that no process waits for another.
func sealAll(ranges map[uint64]*guarded) {
	var done sync.WaitGroup
	for id, x := range ranges {
		delete(ranges, id)
		done.Go(func() {
			x.seal()
			x.close()
		})
	}
	done.Wait()
}

// sealPause is how long seal waits before it tries again, if no event comes earlier.
const sealPause = 10 * time.Millisecond

// seal poisons every page that the process has mapped and that is a hole of the memfd. Threads that
// wait for other pages go on when the userfaultfd is closed. It tries until all is done or the
// process has ended. Meanwhile threads that wait for a page keep waiting, which is better than
// reading zeroes.
func (x *guarded) seal() {
	// Waiting for events needs the flag, and the process may have cleared it.
	_ = unix.SetNonblock(x.uffd, true)
	said := false
	for !x.process.ended() {
		x.drain()
		at, err := mapped(x.process.pid, x.memory.dev, x.memory.ino)
		again := false
		if err == nil {
			again, err = poisonHoles(x.uffd, x.process.pid, x.memory, at)
		}
		if err == nil && !again {
			return
		}
		if err != nil && !said && !errors.Is(err, unix.EAGAIN) {
			said = true
			fmt.Fprintf(os.Stderr, "guard of process %d: %v\n", x.process.pid, err)
		}
		wait := unix.NsecToTimespec(int64(sealPause))
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(x.uffd), Events: unix.POLLIN}}, &wait, nil)
	}
}

// drain reads faults, and the events that threads in munmap and mremap wait for.
func (x *guarded) drain() {
	batch := make([]message, 64)
	buf := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(batch))), len(batch)*int(unsafe.Sizeof(message{})))
	for {
		if _, err := readNoWait(x.uffd, buf); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
