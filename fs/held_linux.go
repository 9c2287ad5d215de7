package fs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
)

// serveHeld is serve with the descriptor of /dev/fuse that the holder has. The kernel negotiates once, with the first daemon. So a server
// gets a socket instead, in which it finds the request with which the kernel began, and where it leaves its answer. Then
// the socket's descriptor becomes that of /dev/fuse.
func serveHeld(b *bridge, mountpoint string) (*fuse.Server, error) {
	m, device := b.cfg.Held, b.cfg.Device
	first := m.Text(hold.InitOut) == ""
	if first {
		if err := b.mountDevice(device, mountpoint); err != nil {
			return nil, err
		}
	}
	server, err := b.negotiate(m, device, first)
	if err != nil && first {
		err = errMount(mountpoint, errors.Join(err, unmount(mountpoint, true))) // nobody serves it yet
	}
	return server, err
}

// negotiate makes the server and does its part of INIT, or does it over.
func (b *bridge) negotiate(m *hold.Memory, device int, first bool) (_ *fuse.Server, err error) {
	if first {
		request := make([]byte, 2*maxTransfer) // the kernel refuses to write to less than it may need
		n, err := unix.Read(device, request)
		if err != nil {
			return nil, os.NewSyscallError("read", err)
		}
		if !resends(request[:n]) {
			b.cfg.Unheld("the kernel cannot repeat requests, which takes Linux 6.9")
		}
		if err := m.SetText(hold.InitIn, string(request[:n])); err != nil {
			return nil, err
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer func() { err = errors.Join(err, unix.Close(pair[0])) }()
	if _, err := unix.Write(pair[0], []byte(m.Text(hold.InitIn))); err != nil {
		return nil, errors.Join(os.NewSyscallError("write", err), unix.Close(pair[1]))
	}
	server, err := fuse.NewServer(b, fmt.Sprintf("/dev/fd/%d", pair[1]), b.mountOptions()) // it owns the descriptor from now on
	if err != nil {
		return nil, err
	}
	if err := residentBuffers(server); err != nil {
		return nil, err
	}
	answer := make([]byte, 4096)
	n, err := unix.Read(pair[0], answer)
	if err != nil {
		return nil, os.NewSyscallError("read", err)
	}
	if answer = answer[:n]; first {
		if _, err = unix.Write(device, answer); err == nil {
			err = m.SetText(hold.InitOut, string(answer))
		}
	} else if !bytes.Equal(answer, []byte(m.Text(hold.InitOut))) {
		err = errs.E(errs.Unsupported, "resume", "this program wants other settings of the kernel than that which mounted")
	}
	if err == nil {
		err = os.NewSyscallError("dup3", unix.Dup3(device, pair[1], unix.O_CLOEXEC))
	}
	return server, err
}

// residentBuffers has the server read requests into memory that is there. If it is not, and the daemon is killed while the kernel copies a
// request, the kernel does not bring the memory in any more, and ends the request with EIO (fs/fuse/dev.c and mm/gup.c of Linux 6.18): a
// program would see that, and lose what was written back. The server makes its buffers itself, and has no option for it.
func residentBuffers(s *fuse.Server) error {
	field := reflect.ValueOf(s).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return errs.E(errs.Unsupported, "mount", "the FUSE server has no buffers that are known")
	}
	pool := (*sync.Pool)(field.Addr().UnsafePointer())
	fresh := pool.New
	pool.New = nil
	for pool.Get() != nil { // those that are there already
	}
	pool.New = func() any {
		b := fresh()
		if mem, ok := b.([]byte); ok {
			for i := 0; i < len(mem); i += os.Getpagesize() {
				mem[i] = 0
			}
		}
		return b
	}
	return nil
}

// Of the kernel's interface (uapi/linux/fuse.h): struct fuse_in_header and fuse_init_in, a bit of the latter's flags2, and a notification.
const (
	inHeaderSize   = 40
	initFlags2     = inHeaderSize + 16
	initHasResend  = 1 << (39 - 32)
	notifyResend   = 7
	notifyHeadSize = 16
)

// resends reports whether the kernel that sent this INIT repeats requests when it is asked to.
func resends(init []byte) bool {
	return len(init) >= initFlags2+4 && binary.LittleEndian.Uint32(init[initFlags2:])&initHasResend != 0
}

// askAgain asks the kernel for all requests that were read and not answered. They come with the bit resent.
func askAgain(device int) error {
	n := make([]byte, notifyHeadSize)
	binary.LittleEndian.PutUint32(n, notifyHeadSize)
	binary.LittleEndian.PutUint32(n[4:], notifyResend)
	_, err := unix.Write(device, n)
	return os.NewSyscallError("write", err)
}

// heldListener returns the socket at which programs attach. The holder has it from the first daemon on: programs that connect while no daemon is there wait for the next one.
func (b *bridge) heldListener() (*net.UnixListener, error) {
	word, files := b.cfg.Held.Word(hold.Listening), b.cfg.Descriptors
	if number := word.Load(); number != 0 {
		return listenerOf(files, number)
	}
	ln, err := attach.Listen(b.cfg.AttachSocket)
	if err != nil {
		return nil, err
	}
	raw, err := ln.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			var number uint64
			if number, err = files.Put(int(fd)); err == nil {
				word.Store(number)
			}
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// forgetListener has the holder close the socket, which has been closed here.
func (b *bridge) forgetListener() {
	if b.cfg.Held == nil {
		return
	}
	if number := b.cfg.Held.Word(hold.Listening).Swap(0); number != 0 {
		if err := b.cfg.Descriptors.Drop(number); err != nil {
			b.log.Warn("programs that are just connecting hear late that they cannot", "err", err)
		}
	}
}

// listenerOf returns the socket that the holder has under a number.
func listenerOf(files hold.Descriptors, number uint64) (*net.UnixListener, error) {
	fd, err := files.Get(number)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "attach")
	ln, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	l, ok := ln.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errs.E(errs.Corrupt, "resume", "what programs attach at is no socket"), ln.Close())
	}
	l.SetUnlinkOnClose(true)
	return l, nil
}
