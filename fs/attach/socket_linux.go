package attach

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/loop"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// Listen makes the attach socket. If an earlier daemon left one in the state directory it is
// replaced; the lock of the state directory makes sure that the earlier daemon is gone.
func Listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil { // each file's own permissions decide what a program may do
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// peer returns the program at the other end of the connection, and a pidfd of its process, which
// becomes readable when the process ends.
func peer(c *net.UnixConn) (who program, pidfd *os.File, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return who, nil, err
	}
	fd := -1
	cerr := raw.Control(func(s uintptr) {
		var u *unix.Ucred
		if u, err = unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		who = program{dsm.Credentials{UID: u.Uid, GID: u.Gid, Groups: peerGroups(int(s))}, int(u.Pid), 0}
		fd, err = uffd.PeerPidFD(int(s))
	})
	if err == nil {
		err = cerr
	}
	if err != nil {
		return who, nil, fmt.Errorf("who is it: %w", err)
	}
	who.start = StartOf(who.pid)
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime polls it
		return who, nil, errors.Join(err, unix.Close(fd))
	}
	return who, os.NewFile(uintptr(fd), "pidfd"), nil
}

// peerGroups returns the supplementary groups of the program. It returns none if the kernel does
// not tell; then they give no permissions.
func peerGroups(s int) []uint32 {
	list := make([]uint32, 1<<16) // the most a process can have
	size := uint32(4 * len(list))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return nil
	}
	return slices.Clone(list[:size/4])
}

// receive reads one packet. The descriptors that came with it are the caller's, even after an error. They may be of anything: see discard.
func receive(c loop.Socket, buf []byte) (packet []byte, fds []int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var m message
	var errno unix.Errno
	if err := raw.Read(func(fd uintptr) bool {
		errno = m.receive(fd, buf)
		return errno != unix.EAGAIN
	}); err != nil {
		return nil, nil, err
	}
	return m.parts(buf, errno)
}

// receiveNow is receive without waiting: there is no packet and no error if none has come.
func receiveNow(c *loop.Conn, buf []byte) (packet []byte, fds []int, err error) {
	var m message
	var errno unix.Errno
	if err := c.Control(func(fd uintptr) { errno = m.receive(fd, buf) }); err != nil {
		return nil, nil, err
	}
	if errno == unix.EAGAIN {
		return nil, nil, nil
	}
	return m.parts(buf, errno)
}

// message is what came with a packet.
type message struct {
	n, on, flags int
	oob          [24 + 4*maxDescriptors]byte
}

// receive reads a packet. A packet is small and the socket never blocks, so the call is made without telling Go's scheduler: otherwise
// the first one after a moment of rest wakes the scheduler's monitor, which then looks every 20 us.
func (m *message) receive(fd uintptr, buf []byte) unix.Errno {
	for {
		iov := unix.Iovec{Base: unsafe.SliceData(buf)}
		iov.SetLen(len(buf))
		h := unix.Msghdr{Iov: &iov, Control: &m.oob[0]}
		h.SetIovlen(1)
		h.SetControllen(unix.CmsgSpace(4 * maxDescriptors))
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&h)), unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if errno != unix.EINTR {
			m.n, m.on, m.flags = int(n), int(h.Controllen), int(h.Flags)
			return errno
		}
	}
}

// parts returns the packet and the descriptors. The loop calls it, so it neither closes them nor makes files of them: the first can wait
// for whoever serves the file, and the second has Go's poller ask that one, without telling Go's scheduler.
func (m *message) parts(buf []byte, errno unix.Errno) (packet []byte, fds []int, err error) {
	if errno != 0 {
		return nil, nil, os.NewSyscallError("recvmsg", errno)
	}
	n, on, flags, oob := m.n, m.on, m.flags, m.oob[:]
	if n > 0 && on == 0 && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0 {
		return buf[:n], nil, nil
	}
	messages, perr := unix.ParseSocketControlMessage(oob[:on])
	for _, m := range messages {
		if list, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, list...)
		}
	}
	switch {
	case n == 0:
		err = net.ErrClosed // an empty packet or the end of the connection; both are treated as the end
	case perr != nil:
		err = perr
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1:
		err = syscall.EMSGSIZE
	}
	if err != nil {
		return nil, fds, err
	}
	return buf[:n], fds, nil
}

// maxDescriptors is how many descriptors are received with one packet: as many as there can be (SCM_MAX_FD), because the kernel closes
// those that there is no room for, in the loop. One is allowed.
const maxDescriptors = 253

// fileOf returns the descriptor as the file that a request takes, or nil if the request takes none of its kind. It calls no file of a
// filesystem of the program.
func fileOf(o op, fd int) *os.File {
	if o == opAccumulate && isMemory(fd) || o == opTrack && uffd.IsUserfaultfd(fd) == nil {
		return os.NewFile(uintptr(fd), "received")
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // nothing was written to it
	}
}

// discard closes descriptors that no request takes. The filesystem or the socket that one belongs to may keep that waiting for ever, so
// it is done in another goroutine. Until it is over each counts as a connection of the user.
func (a *conn) discard(fds []int) {
	if len(fds) == 0 {
		return
	}
	s := a.s
	s.mu.Lock()
	a.user.conns += len(fds)
	s.mu.Unlock()
	go func() {
		closeAll(fds)
		s.mu.Lock()
		defer s.mu.Unlock()
		a.user.conns -= len(fds)
		s.forgetLocked(a.user)
	}()
}

// transmit sends one packet, with a descriptor if there is one, and waits until the program has read enough.
func transmit(c loop.Socket, packet []byte, f *os.File) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	send := func(rights []byte) error {
		return raw.Write(func(fd uintptr) bool {
			for {
				if _, sent = unix.SendmsgN(int(fd), packet, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); sent != unix.EINTR {
					return sent != unix.EAGAIN
				}
			}
		})
	}
	if f == nil {
		err = send(nil)
		return errors.Join(err, sent)
	}
	files, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var werr error
	err = files.Control(func(fd uintptr) { werr = send(unix.UnixRights(int(fd))) })
	return errors.Join(err, werr, sent)
}

// replyNow sends one packet if that takes no waiting, and reports whether it has.
func replyNow(c loop.Socket, packet []byte) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	sent := false
	err = raw.Control(func(fd uintptr) {
		const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(packet))), uintptr(len(packet)), flags, 0, 0)
		sent = errno == 0
	})
	return err == nil && sent
}

// hasOpen reports whether the process has a file with the number open. It reads fdinfo, because the
// file itself, which may be on this very mount, must not be touched. A file of another filesystem
// with the same number would pass too, but the file's mode is still checked.
func hasOpen(pid int, ino dsm.Ino) bool {
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(infos, func(info string) bool {
		text, err := os.ReadFile(info)
		return err == nil && slices.Contains(strings.Fields(lineAfter(string(text), "ino:")), strconv.FormatUint(uint64(ino), 10))
	})
}

// lineAfter returns the rest of the line that begins with the prefix.
func lineAfter(text, prefix string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return rest
		}
	}
	return ""
}
