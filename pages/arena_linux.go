package pages

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// arena provides the memory of small copies: pieces of a few large mappings. With one mapping for
// each copy there could be only 65,530 (vm.max_map_count), each with page tables of its own.
type arena struct {
	mu struct {
		lockrank.Mutex
		classes [arenaClasses]arenaClass
	}
}

const (
	// smallCopy is the largest piece. Larger copies have mappings of their own.
	smallCopy    = dsm.PageSize << (arenaClasses - 1)
	arenaClasses = 5
	blockSize    = 4 << 20
)

// arenaClass has the pieces of one size.
type arenaClass struct {
	open []*arenaBlock // blocks with free pieces
	idle int           // how many blocks in open have no piece in use
}

// arenaBlock is a mapping that is divided into pieces of one size.
type arenaBlock struct {
	mem   []byte
	class int
	free  []uint16 // indices of free pieces, which take no memory
}

// piece is a part of a block.
type piece struct {
	block *arenaBlock
	i     uint16
}

// smallCopies is the arena of the process.
var smallCopies = newArena()

func newArena() *arena {
	a := &arena{}
	a.mu.Init("pages.arena")
	return a
}

// classOf returns the class with pieces for n bytes.
func classOf(n int64) (class int) {
	for int64(dsm.PageSize)<<class < n {
		class++
	}
	return class
}

// take returns a piece of at least n bytes, all zero. n is at most smallCopy.
func (a *arena) take(n int64) (mem []byte, p piece, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := classOf(n)
	c := &a.mu.classes[k]
	if len(c.open) == 0 {
		b, err := newBlock(k)
		if err != nil {
			return nil, p, err
		}
		c.open = append(c.open, b)
		c.idle++
	}
	b := c.open[len(c.open)-1]
	if b.isIdle() {
		c.idle--
	}
	last := len(b.free) - 1
	p = piece{b, b.free[last]}
	b.free = b.free[:last]
	if last == 0 {
		c.open = c.open[:len(c.open)-1]
	}
	return p.mem(), p, nil
}

// give frees a piece and its memory. One idle block of each class is kept.
func (a *arena) give(p piece) error {
	if err := unix.Madvise(p.mem(), unix.MADV_DONTNEED); err != nil {
		return os.NewSyscallError("madvise", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := p.block
	c := &a.mu.classes[b.class]
	b.free = append(b.free, p.i)
	if len(b.free) == 1 {
		c.open = append(c.open, b)
	}
	if !b.isIdle() {
		return nil
	}
	if c.idle++; c.idle == 1 {
		return nil
	}
	c.idle--
	at := slices.Index(c.open, b)
	c.open = slices.Delete(c.open, at, at+1)
	return os.NewSyscallError("munmap", unix.Munmap(b.mem))
}

func newBlock(class int) (*arenaBlock, error) {
	mem, err := anonymous(blockSize)
	if err != nil {
		return nil, err
	}
	b := &arenaBlock{mem: mem, class: class, free: make([]uint16, piecesOf(class))}
	for i := range b.free {
		b.free[i] = uint16(len(b.free) - 1 - i)
	}
	return b, nil
}

// piecesOf returns how many pieces a block of the class has.
func piecesOf(class int) int { return blockSize / dsm.PageSize >> class }

func (b *arenaBlock) isIdle() bool { return len(b.free) == piecesOf(b.class) }

func (p piece) mem() []byte {
	n := dsm.PageSize << p.block.class
	off := int(p.i) * n
	return p.block.mem[off : off+n : off+n]
}

// anonymous returns n bytes of new memory, all zero, which takes no memory until it is stored to.
// Large pages are disabled, so that storing to a page takes only that page.
func anonymous(n int64) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE) // EINVAL where the kernel has none
	return mem, nil
}
