package hold

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Format is the version of the layout of the file and of all that is in it, the commands of the catalog among them: it changes with wire.JoinProtocol.
// A daemon adopts no other.
const Format = 16

const (
	headSize    = 64 << 10
	requestsAt  = 1 << 20
	areasAt     = 1 << 30
	maxAreas    = 1 << 24
	journalsAt  = 1 << 40 // two halves each, of journalHalf
	journalHalf = 1 << 40
	tagsAt      = 1 << 43
	// FramesAt is where the frames are.
	FramesAt = 3 << 42
	// PagesAt is where the pages of the areas begin.
	PagesAt = 1 << 44
	// End is the length of the file.
	End = 1 << 62
)

// Memory is the file.
type Memory struct {
	fd       int
	head     []byte
	requests []byte
	areas    []byte
	tags     []byte
	frames   map[int64][]byte // by the number of the piece
}

// Word is a number in the head.
type Word int

// The numbers. Values are in files that an older daemon has written: append only.
const (
	format      Word = iota
	Node             // the node's id
	Mounted          // 1: the mount is there
	Ended            // 1: the daemon was told to end, or the mount is gone
	Refused          // 1: no other daemon can take over; the log says why
	Daemons          // how many were started
	LastRequest      // the newest command of the node
	AreasUsed        // how many records of areas were ever used
	SlotsUsed        // likewise, large ranges of pages
	BlocksUsed       // likewise, blocks of small ones
	Others           // 1: somebody else than this node is or was a member
	catalogTail
	filesTail
	Serving   // the last of Daemons that serves
	Alive     // not 0 while the first thread of the daemon lives
	Expected  // counts the calls of Expect
	Device    // the minor number of the mount's device; 0: there is no mount yet
	SlabsUsed // as AreasUsed, of groups of frames
	Cluster   // the id of the cluster
	Inc       // the node's incarnation
	Rejoining // 1: the node is, or has become, another incarnation than that of the catalog's journal
	Left      // 1: others were members, and none is any more
	Epoch     // that of the newest view in which the node, as this incarnation, was a member
	Told      // 1: the holder was told to end, and no daemon has heard of that; 2: the last one has
	Listening // the number under which the holder has the socket that programs attach at; 0: there is none
	NotedInc  // the incarnation whose commands are noted: see Note
	Conflicts // the largest number that a conflict ever had
	Newest    // the newest version of any area that the node has heard of
)

// Text is a string in the head.
type Text int

// The strings.
const (
	Listen  Text = iota // where the node listens
	Key                 // the seed of the node's key
	Point               // the mount point
	InitIn              // the kernel's INIT request
	InitOut             // what the first daemon answered
	State               // the state directory
	Log                 // the daemons' log
	Members             // the addresses of the other members, one a line
	Keys                // by which the members of the cluster know each other, in msgpack
	texts
)

const (
	textSize = 4 << 10
	// MostReplaced is the most bytes of a string that is replaced.
	MostReplaced = (textSize - 4) / 2
	// inSecond is a bit of the length of a string that is in the second half of its place.
	inSecond = 1 << 31
)

// Create makes the file.
func Create() (*Memory, error) {
	fd, err := unix.MemfdCreate("dsmfs:held", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	m, err := Open(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if err := errors.Join(os.NewSyscallError("fchmod", unix.Fchmod(fd, 0o600)), os.NewSyscallError("ftruncate", unix.Ftruncate(fd, End))); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.Word(format).Store(Format)
	return m, nil
}

// Adopt takes over a file that another process has made.
func Adopt(fd int) (*Memory, error) {
	m, err := Open(fd)
	if err != nil {
		return nil, err
	}
	if f := m.Word(format).Load(); f != Format {
		return nil, fmt.Errorf("what is held has format %d, and this program has %d", f, Format)
	}
	return m, nil
}

// Open maps the parts of the file that are looked at as memory, all of them or none. The Memory owns the descriptor.
func Open(fd int) (m *Memory, err error) {
	m = &Memory{fd: fd, frames: make(map[int64][]byte)}
	for _, part := range []struct {
		mem *[]byte
		at  int64
		n   int
	}{{&m.head, 0, headSize}, {&m.requests, requestsAt, requestsSize}, {&m.areas, areasAt, maxAreas * areaSize}, {&m.tags, tagsAt, MaxFrames * tagSize}} {
		if *part.mem, err = unix.Mmap(fd, part.at, part.n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
			return nil, errors.Join(os.NewSyscallError("mmap", err), m.unmap())
		}
	}
	unix.CloseOnExec(fd)
	return m, nil
}

// FD returns the descriptor of the file, which the Memory owns.
func (m *Memory) FD() int { return m.fd }

// Word returns a number of the head.
func (m *Memory) Word(w Word) *atomic.Uint64 { return word(m.head, int(w)) }

// word returns the i-th number of a mapping.
func word(mem []byte, i int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[8*i])) }

// text returns the length of a string of the head, and its place.
func (m *Memory) text(t Text) (length *atomic.Uint32, at []byte) {
	all := m.head[headSize-int(texts-t)*textSize:][:textSize]
	return (*atomic.Uint32)(unsafe.Pointer(&all[0])), all[4:]
}

// SetText sets a string of the head, once.
func (m *Memory) SetText(t Text, s string) error {
	length, at := m.text(t)
	if len(s) > len(at) {
		return fmt.Errorf("%d bytes are too many to be held", len(s))
	}
	copy(at, s)
	length.Store(uint32(len(s)))
	return nil
}

// ReplaceText sets a string of the head that changes, and of which SetText sets nothing. Who is killed meanwhile leaves the old one, or the new one.
func (m *Memory) ReplaceText(t Text, s string) error {
	length, at := m.text(t)
	if len(s) > MostReplaced {
		return fmt.Errorf("%d bytes are too many to be held", len(s))
	}
	half := ^length.Load() & inSecond // the other one
	if half != 0 {
		at = at[MostReplaced:]
	}
	copy(at, s)
	length.Store(half | uint32(len(s)))
	return nil
}

// Text returns a string of the head, empty if it was never set.
func (m *Memory) Text(t Text) string {
	length, at := m.text(t)
	n := length.Load()
	if n&inSecond != 0 {
		at = at[MostReplaced:]
	}
	return string(at[:min(int(n&^inSecond), len(at))])
}

// Free gives back the memory of a range, which reads zero afterwards.
func (m *Memory) Free(off, n int64) error {
	return os.NewSyscallError("fallocate", unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n))
}

// Close unmaps the file and closes its descriptor. Nothing of it may be in use.
func (m *Memory) Close() error {
	return errors.Join(m.unmap(), os.NewSyscallError("close", unix.Close(m.fd)))
}

func (m *Memory) unmap() error {
	var failed []error
	parts := [][]byte{m.head, m.requests, m.areas, m.tags}
	for _, part := range m.frames {
		parts = append(parts, part)
	}
	for _, part := range parts {
		if part != nil {
			failed = append(failed, os.NewSyscallError("munmap", unix.Munmap(part)))
		}
	}
	return errors.Join(failed...)
}
