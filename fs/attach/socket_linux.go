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
	"github.com/dsmfs/dsmfs/internal/uffd"
	"golang.org/x/sys/unix"
)

// listen makes the attach socket. One that an earlier daemon of the same state
// directory left, which its lock keeps for us, is replaced.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil { // who may what is decided for each file
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// peer returns who is at the other end of the connection, and a descriptor of the
// process, which becomes readable when it ends.
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
		who = program{dsm.Credentials{UID: u.Uid, GID: u.Gid, Groups: peerGroups(int(s))}, int(u.Pid)}
		fd, err = uffd.PeerPidFD(int(s))
	})
	if err == nil {
		err = cerr
	}
	if err != nil {
		return who, nil, fmt.Errorf("who is it: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime polls it
		return who, nil, errors.Join(err, unix.Close(fd))
	}
	return who, os.NewFile(uintptr(fd), "pidfd"), nil
}

// peerGroups returns the supplementary groups of the program, none if the kernel
// does not tell: then they let it do nothing.
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

// receive reads one packet and the descriptors with it.
func receive(c *net.UnixConn, buf []byte) (packet []byte, files []*os.File, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	n, on, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, nil, err
	}
	messages, perr := unix.ParseSocketControlMessage(oob[:on])
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	switch {
	case n == 0:
		err = net.ErrClosed // an empty packet, or the end: no difference to us
	case perr != nil:
		err = perr
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(files) > 1:
		err = syscall.EMSGSIZE
	}
	if err != nil {
		closeAll(files)
		return nil, nil, err
	}
	return buf[:n], files, nil
}

// maxDescriptors is how many descriptors of one packet are looked at; one is allowed.
const maxDescriptors = 4

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing was written to it
	}
}

// transmit sends one packet, with a descriptor if there is one.
func transmit(c *net.UnixConn, packet []byte, f *os.File) error {
	if f != nil {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		var werr error
		err = raw.Control(func(fd uintptr) {
			_, _, werr = c.WriteMsgUnix(packet, unix.UnixRights(int(fd)), nil)
		})
		return errors.Join(err, werr)
	}
	_, _, err := c.WriteMsgUnix(packet, nil, nil)
	return err
}

// hasOpen reports whether the process has a file of the number open: fdinfo says so
// without touching the file, which may be of this very mount. Another filesystem's file of that number
// would do too, and lets in nobody whom the mode of the file does not.
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
