package hold

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Descriptors cannot be in the file. The holder keeps those that are to outlive a daemon, each under a number. A daemon talks to it
// through a pair of sockets that no other daemon has:
//
//	put     a descriptor    ->  its number; numbers are never used again
//	get     a number        ->  the descriptor
//	drop    a number        ->
//	after   a number        ->  the next larger one, 0: there is none
//
// A daemon that is killed after a put, and before it has noted the number, leaves a descriptor that nothing names: the next one drops it.

const (
	filePut = iota + 1
	fileGet
	fileDrop
	fileAfter
)

// fileMessage is the length of a request and of a reply: four numbers of eight bytes. The request has a tag, what is asked and a number. The reply has
// the tag, an errno and a number.
const fileMessage = 32

// mostFiles bounds the table of the holder. It keeps some descriptors for itself.
const mostFiles = 1 << 16

// Descriptors is the table, as the holder has it (Shelf) or a daemon (Files). The methods may be called from any goroutine. Descriptors that they take stay the caller's, and
// those that they return are the caller's.
type Descriptors interface {
	// Put keeps a descriptor, and returns its number.
	Put(fd int) (number uint64, err error)
	// Get returns another descriptor of what is kept under a number.
	Get(number uint64) (fd int, err error)
	// Drop closes what is kept under a number.
	Drop(number uint64) error
	// After returns the smallest number in use that is larger than one, 0 if there is none.
	After(number uint64) (next uint64, err error)
}

var _, _ Descriptors = (*Shelf)(nil), (*Files)(nil)

// Shelf is the table of the holder. Who has the turn may use it.
type Shelf struct {
	turn  chan struct{}
	files map[uint64]int
	last  uint64
}

// NewShelf returns an empty table.
func NewShelf() *Shelf { return &Shelf{turn: make(chan struct{}, 1), files: make(map[uint64]int)} }

func (s *Shelf) begin() { s.turn <- struct{}{} }
func (s *Shelf) end()   { <-s.turn }

// Put implements Descriptors.
func (s *Shelf) Put(fd int) (number uint64, err error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("fcntl", err)
	}
	return s.keep(own)
}

// keep is Put for a descriptor that becomes that of the table, or is closed.
func (s *Shelf) keep(fd int) (number uint64, err error) {
	s.begin()
	defer s.end()
	if len(s.files) >= mostFiles {
		return 0, errors.Join(unix.EMFILE, unix.Close(fd))
	}
	s.last++
	s.files[s.last] = fd
	return s.last, nil
}

// Get implements Descriptors.
func (s *Shelf) Get(number uint64) (fd int, err error) {
	s.begin()
	defer s.end()
	own, ok := s.files[number]
	if !ok {
		return -1, unix.ENOENT
	}
	fd, err = unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("fcntl", err)
}

// Drop implements Descriptors.
func (s *Shelf) Drop(number uint64) error {
	s.begin()
	fd, ok := s.files[number]
	delete(s.files, number)
	s.end()
	if !ok {
		return unix.ENOENT
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// After implements Descriptors.
func (s *Shelf) After(number uint64) (next uint64, err error) {
	s.begin()
	defer s.end()
	for n := range s.files {
		if n > number && (next == 0 || n < next) {
			next = n
		}
	}
	return next, nil
}

// Close closes all that is kept.
func (s *Shelf) Close() error {
	s.begin()
	defer s.end()
	var failed error
	for _, fd := range s.files {
		failed = errors.Join(failed, unix.Close(fd))
	}
	clear(s.files)
	return failed
}

// Pair returns the two ends of what a daemon and the holder talk through.
func Pair() (holder, daemon int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return pair[0], pair[1], os.NewSyscallError("socketpair", err)
}

// Serve answers the requests of a daemon until that has ended, or the holder has shut its end. Whatever comes, it goes on: what is no request is
// not answered.
func (s *Shelf) Serve(fd int) {
	buf, oob := make([]byte, fileMessage+1), make([]byte, unix.CmsgSpace(4*8))
	for {
		n, on, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 && on == 0 {
			return
		}
		fds := rightsIn(oob[:on])
		if n != fileMessage {
			closeFiles(fds)
			continue
		}
		reply, give := s.answer(buf[:n], fds)
		var rights []byte
		if give >= 0 {
			rights = unix.UnixRights(give)
		}
		_ = unix.Sendmsg(fd, reply, rights, nil, unix.MSG_NOSIGNAL) // if the daemon has ended, that is heard next
		if give >= 0 {
			_ = unix.Close(give) // the daemon has its own
		}
	}
}

// answer does what a request asks for. give is a descriptor that goes with the reply, -1: none.
func (s *Shelf) answer(request []byte, fds []int) (reply []byte, give int) {
	le := binary.LittleEndian
	number, err := le.Uint64(request[16:]), error(unix.EINVAL)
	give = -1
	switch op := le.Uint64(request[8:]); {
	case op == filePut && len(fds) == 1:
		number, err = s.keep(fds[0])
		fds = nil
	case op == filePut && len(fds) == 0: // there was no descriptor left for it
		err = unix.EMFILE
	case op == fileGet:
		if give, err = s.Get(number); err != nil {
			give = -1
		}
	case op == fileDrop:
		err = s.Drop(number)
	case op == fileAfter:
		number, err = s.After(number)
	}
	closeFiles(fds)
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EIO
	}
	reply = le.AppendUint64(nil, le.Uint64(request))
	reply = le.AppendUint64(reply, uint64(errno))
	reply = le.AppendUint64(reply, number)
	return le.AppendUint64(reply, 0), give
}

// rightsIn returns the descriptors that came with a message.
func rightsIn(oob []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if list, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, list...)
		}
	}
	return fds
}

func closeFiles(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // nothing was written to it
	}
}

// Files is the table as a daemon has it. One exchange is under way at a time.
type Files struct {
	fd   int
	turn chan struct{}
	tag  uint64 // of the last request; who has the turn changes it
}

// filesLimit is how long the holder has for an answer: it may be stopped.
const filesLimit = 10 * time.Second

// NewFiles returns the table at the other end of a socket, which it owns.
func NewFiles(fd int) (*Files, error) {
	unix.CloseOnExec(fd)
	tv := unix.NsecToTimeval(filesLimit.Nanoseconds())
	err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	return &Files{fd: fd, turn: make(chan struct{}, 1)}, os.NewSyscallError("setsockopt", err)
}

// Put implements Descriptors.
func (f *Files) Put(fd int) (number uint64, err error) {
	number, _, err = f.ask(filePut, 0, unix.UnixRights(fd))
	return number, err
}

// Get implements Descriptors.
func (f *Files) Get(number uint64) (fd int, err error) {
	_, fds, err := f.ask(fileGet, number, nil)
	switch {
	case err == nil && len(fds) == 1:
		return fds[0], nil
	case err == nil: // there was none left for it
		err = unix.EMFILE
	}
	closeFiles(fds)
	return -1, err
}

// Drop implements Descriptors.
func (f *Files) Drop(number uint64) error {
	_, fds, err := f.ask(fileDrop, number, nil)
	closeFiles(fds)
	return err
}

// After implements Descriptors.
func (f *Files) After(number uint64) (next uint64, err error) {
	next, fds, err := f.ask(fileAfter, number, nil)
	closeFiles(fds)
	return next, err
}

// ask does an exchange.
func (f *Files) ask(op, number uint64, rights []byte) (answer uint64, fds []int, err error) {
	f.turn <- struct{}{}
	defer func() { <-f.turn }()
	le := binary.LittleEndian
	f.tag++
	request := slices.Concat(le.AppendUint64(nil, f.tag), le.AppendUint64(nil, op), le.AppendUint64(nil, number), make([]byte, 8))
	if err := unix.Sendmsg(f.fd, request, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return 0, nil, os.NewSyscallError("ask the holder: sendmsg", err)
	}
	buf, oob := make([]byte, fileMessage), make([]byte, unix.CmsgSpace(4*8))
	for {
		n, on, _, _, err := unix.Recvmsg(f.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			err = unix.EPIPE
		}
		if err != nil {
			return 0, nil, os.NewSyscallError("ask the holder: recvmsg", err)
		}
		fds := rightsIn(oob[:on])
		if n != fileMessage || le.Uint64(buf) != f.tag { // an answer that came too late
			closeFiles(fds)
			continue
		}
		if errno := unix.Errno(le.Uint64(buf[8:])); errno != 0 {
			closeFiles(fds)
			return 0, nil, os.NewSyscallError("the holder", errno)
		}
		return le.Uint64(buf[16:]), fds, nil
	}
}
