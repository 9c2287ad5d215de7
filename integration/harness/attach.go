package harness

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Attachment is the working copy of an area in this process: docs/attach.md has the
// protocol. Its bytes are real shared memory, which needs no other process as those of a
// mount do.
type Attachment struct {
	Mem  []byte
	Size int64
	How  uint64 // as TRACK says; 0 if only read
	// Demand says that pages are there only while they are needed.
	Demand bool

	conn *net.UnixConn
	id   uint64
	mu   sync.Mutex // one request at a time
	tag  uint64
}

// Operations of the protocol.
const (
	AttachOp  = 1
	TrackOp   = 2
	UntrackOp = 3
	PublishOp = 4
	AcquireOp = 5
	SyncOp    = 6
	WaitOp    = 7
	StatsOp   = 8
	DetachOp  = 9
	CreateOp  = 10
	ResizeOp  = 11
)

// AttachSocket returns the socket at which programs of the node attach.
func (n *Node) AttachSocket() string {
	n.c.t.Helper()
	res := n.Run(callLimit, "cat", filepath.Join(n.Mount, ".dsm/attach"))
	if res.Err != nil {
		n.c.t.Fatalf("%s: %v: %s", n.Name, res.Err, res.Stderr)
	}
	return strings.TrimSpace(res.Stdout)
}

// AttachDial connects to a node's attach socket; the caller closes it.
func AttachDial(socket string) (*net.UnixConn, error) {
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
}

// Attach attaches an area, with its memory mapped, and for writing tracked. It
// ends with the test.
func (n *Node) Attach(path string, write bool) *Attachment {
	n.c.t.Helper()
	a, err := n.TryAttach(path, write)
	if err != nil {
		n.c.t.Fatalf("%s: attach %s: %v", n.Name, path, err)
	}
	n.c.t.Cleanup(a.Close)
	return a
}

// TryAttach is Attach for what may fail.
func (n *Node) TryAttach(path string, write bool) (*Attachment, error) {
	return AttachAt(n.AttachSocket(), path, write)
}

// AttachAt attaches at a socket.
func AttachAt(socket, path string, write bool) (*Attachment, error) {
	return AttachFile(socket, path, 0, write)
}

// CreateAt makes a file at a socket; text is its path and settings, as the protocol
// has them. It returns the number of the file.
func CreateAt(socket, text string, size int64, perm uint32, excl bool) (ino uint64, err error) {
	conn, err := AttachDial(socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // nothing is left to say
	a := &Attachment{conn: conn}
	flags := uint64(0)
	if excl {
		flags = 1
	}
	r, _, err := a.call(CreateOp, []byte(text), -1, uint64(size), uint64(perm), flags)
	return r.arg[1], err
}

// AttachFile attaches the file of a number, 0: of whatever the path leads to.
func AttachFile(socket, path string, ino uint64, write bool) (*Attachment, error) {
	conn, err := AttachDial(socket)
	if err != nil {
		return nil, err
	}
	a := &Attachment{conn: conn}
	if err := a.attach(path, ino, write); err != nil {
		_ = conn.Close() // the other error matters
		return nil, err
	}
	return a, nil
}

func (a *Attachment) attach(path string, ino uint64, write bool) error {
	access, prot := uint64(1), unix.PROT_READ
	if write {
		access, prot = 3, unix.PROT_READ|unix.PROT_WRITE
	}
	r, fd, err := a.call(AttachOp, []byte(path), -1, access, ino)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // the mapping stays
	a.id, a.Size, a.Demand = r.attachment, int64(r.arg[0]), r.arg[3]&4 != 0
	length := (a.Size + 4095) &^ 4095
	if a.Mem, err = unix.Mmap(fd, 0, int(length), prot, unix.MAP_SHARED); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	if err := unix.Madvise(a.Mem, unix.MADV_DONTFORK); err != nil {
		return os.NewSyscallError("madvise", err)
	}
	if !write && !a.Demand {
		return nil
	}
	uffd := -1
	if r.arg[3]&1 != 0 {
		if uffd, err = Userfaultfd(); err != nil {
			return err
		}
		defer func() { _ = unix.Close(uffd) }() // the daemon has it
	}
	t, _, err := a.call(TrackOp, nil, uffd, a.Addr(), uint64(length), 0)
	a.How = t.arg[0]
	return err
}

// Memfd attaches the area once more, for writing, and returns the descriptor that comes with that. The caller closes it.
func (a *Attachment) Memfd(path string) (int, error) {
	_, fd, err := a.call(AttachOp, []byte(path), -1, 3, 0)
	return fd, err
}

// Userfaultfd makes one, with the flags that this process may use.
func Userfaultfd() (int, error) {
	const userModeOnly = 1
	for _, flags := range []uintptr{0, userModeOnly} {
		fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0, 0)
		if e == 0 {
			return int(fd), nil
		}
		if e != unix.EPERM {
			return -1, os.NewSyscallError("userfaultfd", e)
		}
	}
	return -1, os.NewSyscallError("userfaultfd", unix.EPERM)
}

// Addr returns the address of the mapping.
func (a *Attachment) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(&a.Mem[0]))) }

// GiveUp drops bytes [off, off+n) from the page table: those that could not be had, and are
// SIGBUS since, are asked for again at the next touch.
func (a *Attachment) GiveUp(off, n int) {
	_ = unix.Madvise(a.Mem[off:off+n], unix.MADV_DONTNEED) // fails for no mapping of ours
}

// Close ends the attachment and the mapping. It may be called again.
func (a *Attachment) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.conn.Close() // its error is that it was closed
	if a.Mem != nil {
		_ = unix.Munmap(a.Mem) // fails for no mapping of ours
		a.Mem = nil
	}
}

// Call makes a request about the attachment and returns the first argument of the reply.
func (a *Attachment) Call(op uint16, args ...uint64) (uint64, error) {
	r, _, err := a.call(op, nil, -1, args...)
	return r.arg[0], err
}

// Stats returns the text of STATS.
func (a *Attachment) Stats() (string, error) {
	r, _, err := a.call(StatsOp, nil, -1)
	return r.payload, err
}

type attachReply struct {
	attachment uint64
	arg        [4]uint64
	payload    string
}

// call sends a request, with a descriptor unless that is -1, and waits for its reply.
func (a *Attachment) call(op uint16, payload []byte, file int, args ...uint64) (r attachReply, fd int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.send(op, payload, file, args); err != nil {
		return r, -1, err
	}
	return a.receive()
}

// Post sends a request whose reply nobody waits for: one that comes in spite of that
// breaks the next Call.
func (a *Attachment) Post(op uint16, args ...uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.send(op, nil, -1, args)
}

func (a *Attachment) send(op uint16, payload []byte, file int, args []uint64) error {
	a.tag++
	le := binary.LittleEndian
	b := make([]byte, 64, 64+len(payload))
	le.PutUint32(b, 0x414d5344)
	le.PutUint16(b[4:], 1)
	le.PutUint16(b[6:], op)
	le.PutUint64(b[8:], a.tag)
	le.PutUint64(b[16:], a.id)
	for i, v := range args {
		le.PutUint64(b[24+8*i:], v)
	}
	le.PutUint32(b[56:], uint32(len(payload)))
	var oob []byte
	if file >= 0 {
		oob = unix.UnixRights(file)
	}
	_, _, err := a.conn.WriteMsgUnix(append(b, payload...), oob, nil)
	return err
}

// receive takes the reply to the last request.
func (a *Attachment) receive() (r attachReply, fd int, err error) {
	le := binary.LittleEndian
	in, ancillary := make([]byte, 64+4096), make([]byte, unix.CmsgSpace(4))
	n, on, _, _, err := a.conn.ReadMsgUnix(in, ancillary)
	if err != nil {
		return r, -1, err
	}
	if n < 64 {
		return r, -1, fmt.Errorf("a reply of %d bytes", n)
	}
	fd = -1
	if messages, _ := unix.ParseSocketControlMessage(ancillary[:on]); len(messages) == 1 {
		if fds, _ := unix.ParseUnixRights(&messages[0]); len(fds) == 1 {
			fd = fds[0]
		}
	}
	r = attachReply{attachment: le.Uint64(in[16:]), payload: string(in[64:n])}
	for i := range r.arg {
		r.arg[i] = le.Uint64(in[24+8*i:])
	}
	if e := syscall.Errno(le.Uint32(in[60:])); e != 0 {
		return r, fd, fmt.Errorf("%w: %s", e, r.payload)
	}
	if got := le.Uint64(in[8:]); got != a.tag {
		return r, fd, fmt.Errorf("reply to request %d, want %d", got, a.tag)
	}
	return r, fd, nil
}
