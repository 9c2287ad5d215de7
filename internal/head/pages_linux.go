package head

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"golang.org/x/sys/unix"
)

// Pages is a memfd of lines. Memory is taken only for pages of lines that were used. mu guards the lists of lines.
type Pages struct {
	keeper *Keeper
	file   *os.File
	// mem is one page of this process alone, which links these Pages into the Keeper's list, and after it the mapped memfd.
	mem []byte

	mu struct {
		lockrank.Mutex
		next int   // the first line that was never used
		free []int // lines that were
	}
}

// lastNumber is of all Pages: a line of Pages that were made anew may lie where another was.
var lastNumber atomic.Uint64

// NewPages makes room for so many lines.
func NewPages(k *Keeper, lines int) (*Pages, error) {
	const op = "make header pages"
	own := os.Getpagesize()
	size := ((lines+1)*LineSize + own - 1) / own * own
	fd, err := unix.MemfdCreate("dsmfs:head", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, errs.E(errs.Other, op, "memfd_create: %w", err)
	}
	p := &Pages{keeper: k, file: os.NewFile(uintptr(fd), "header pages")}
	p.mu.Init("head.Pages")
	p.mu.next = 1
	if err := p.mapIn(fd, own, size); err != nil {
		return nil, errs.E(errs.Other, op, "%w", errors.Join(err, p.file.Close()))
	}
	k.link(p)
	return p, nil
}

// mapIn maps the memfd for writing and then seals it: nobody else can do so, or make it shorter.
func (p *Pages) mapIn(fd, own, size int) error {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(own+size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	p.mem = unsafe.Slice((*byte)(base), own+size)
	_, err = unix.MmapPtr(fd, 0, unsafe.Add(base, own), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return errors.Join(err, unix.MunmapPtr(base, uintptr(own+size)))
	}
	return nil
}

func (p *Pages) line(i int) *Line {
	return (*Line)(unsafe.Pointer(&p.mem[os.Getpagesize()+i*LineSize]))
}

// link is the life line's place in the Keeper's list. life is the word itself.
func (p *Pages) link() *link   { return (*link)(unsafe.Pointer(unsafe.SliceData(p.mem))) }
func (p *Pages) life() *uint32 { return &p.line(0).word }

// Take returns a line that says nothing yet, and where it is in the memfd; errs.NoSpace if there is none.
func (p *Pages) Take() (l *Line, off int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.mu.next
	switch n := len(p.mu.free); {
	case n > 0:
		i, p.mu.free = p.mu.free[n-1], p.mu.free[:n-1]
	case os.Getpagesize()+(i+1)*LineSize > len(p.mem):
		return nil, 0, errs.E(errs.NoSpace, "watch", "all %d lines of the header pages are in use", i-1)
	default:
		p.mu.next++
	}
	l = p.line(i)
	atomic.StoreUint64(&l.number, lastNumber.Add(1))
	l.Set(Values{})
	return l, int64(i) * LineSize, nil
}

// Give gives a line back. Programs that wait there are told.
func (p *Pages) Give(l *Line) {
	l.Set(Values{State: Ended})
	l.Waiters().Wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	at := uintptr(unsafe.Pointer(l)) - uintptr(unsafe.Pointer(p.line(0)))
	p.mu.free = append(p.mu.free, int(at/LineSize))
}

// File is the memfd, for programs to map. It is open as long as the Pages.
func (p *Pages) File() *os.File { return p.file }

// End tells the programs that the daemon has ended.
func (p *Pages) End() {
	atomic.StoreUint32(p.life(), Died)
	p.line(0).Waiters().Wake() // its word is the life word
}

// Close ends them and unmaps them. No line may be in use.
func (p *Pages) Close() error {
	p.keeper.drop(p)
	p.End()
	err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(p.mem)), uintptr(len(p.mem)))
	return errors.Join(err, p.file.Close())
}

// Wake wakes them, in any process. It does not block.
func (w Waiters) Wake() {
	const futexWake, all = 1, 1<<31 - 1
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(w), futexWake, all, 0, 0, 0)
}
