package pages

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// arena provides the memory of small copies: pieces of a few large mappings. With one mapping for
// each copy there could be only 65,530 (vm.max_map_count), each with page tables of its own.
//
// Memory of freed pieces is given back in ranges: a call for each piece takes 26 us, and much longer by the
// clock if all processors are in use, so a node of 20,000 files took seconds to end.
type arena struct {
	back func(mem []byte) error                   // gives memory back
	grab func() (mem []byte, at int64, err error) // makes the memory of a block; at is where it is in a Keep
	drop func(b *arenaBlock) error                // ends a block
	mu   struct {
		lockrank.Mutex
		classes  [arenaClasses]arenaClass
		many     int           // calls of FreeMany that have not ended
		restored []*arenaBlock // see restore
	}
}

const (
	// smallCopy is the largest piece. Larger copies have mappings of their own.
	smallCopy    = dsm.PageSize << (arenaClasses - 1)
	arenaClasses = 5
	blockSize    = 4 << 20
	// unclean says which part of a block may be freed pieces that still take memory: 1/unclean.
	unclean = 8
)

// arenaClass has the pieces of one size.
type arenaClass struct {
	open []*arenaBlock // blocks with pieces that are not in use
	idle int           // how many blocks in open have no piece in use
}

// arenaBlock is a mapping that is divided into pieces of one size.
type arenaBlock struct {
	mem   []byte
	at    int64 // in a Keep
	class int
	free  []uint16 // indices of free pieces, which take no memory
	dirty []uint16 // of those that still do
}

// piece is a part of a block.
type piece struct {
	block *arenaBlock
	i     uint16
}

// smallCopies is the arena of the process.
var smallCopies = newArena()

func newArena() *arena {
	a := &arena{back: func(mem []byte) error { return os.NewSyscallError("madvise", unix.Madvise(mem, unix.MADV_DONTNEED)) }}
	a.grab = func() ([]byte, int64, error) {
		mem, err := anonymous(blockSize)
		return mem, 0, err
	}
	a.drop = func(b *arenaBlock) error { return os.NewSyscallError("munmap", unix.Munmap(b.mem)) }
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
		b, err := a.newBlock(k)
		if err != nil {
			return nil, p, err
		}
		c.open = append(c.open, b)
		c.idle++
	}
	b := c.open[len(c.open)-1]
	if len(b.free) == 0 {
		if err := b.clean(a.back); err != nil {
			return nil, p, err
		}
	}
	if b.isIdle() {
		c.idle--
	}
	last := len(b.free) - 1
	p = piece{b, b.free[last]}
	b.free = b.free[:last]
	if last == 0 && len(b.dirty) == 0 {
		c.open = c.open[:len(c.open)-1]
	}
	return p.mem(), p, nil
}

// give frees a piece; its memory goes at the latest when a part of the block is free. One idle block of each class is kept.
func (a *arena) give(p piece) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := p.block
	c := &a.mu.classes[b.class]
	b.dirty = append(b.dirty, p.i)
	if len(b.free)+len(b.dirty) == 1 {
		c.open = append(c.open, b)
	}
	idle := b.isIdle()
	if idle && c.idle > 0 {
		at := slices.Index(c.open, b)
		c.open = slices.Delete(c.open, at, at+1)
		return a.drop(b)
	}
	if idle {
		c.idle++
	}
	if a.mu.many == 0 && (idle || len(b.dirty)*unclean >= piecesOf(b.class)) {
		return b.clean(a.back)
	}
	return nil
}

// FreeMany says that most of the areas of this process are about to be closed. Memory of small ones is
// given back when nothing near it is in use, or at the latest when ended is called.
func FreeMany() (ended func() error) { return smallCopies.freeMany() }

func (a *arena) freeMany() (ended func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.many++
	return func() (err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.mu.many--; a.mu.many > 0 {
			return nil
		}
		for k := range a.mu.classes {
			for _, b := range a.mu.classes[k].open {
				err = errors.Join(err, b.clean(a.back))
			}
		}
		return err
	}
}

// clean gives back the memory of freed pieces. Those for which that fails stay dirty.
func (b *arenaBlock) clean(back func(mem []byte) error) error {
	slices.Sort(b.dirty)
	for len(b.dirty) > 0 {
		n := 1
		for n < len(b.dirty) && b.dirty[n] == b.dirty[0]+uint16(n) {
			n++
		}
		first, last := piece{b, b.dirty[0]}.span(), piece{b, b.dirty[n-1]}.span()
		if err := back(b.mem[first.from:last.to]); err != nil {
			return err
		}
		b.free = append(b.free, b.dirty[:n]...)
		b.dirty = b.dirty[n:]
	}
	b.dirty = nil
	return nil
}

func (a *arena) newBlock(class int) (*arenaBlock, error) {
	mem, at, err := a.grab()
	if err != nil {
		return nil, err
	}
	b := &arenaBlock{mem: mem, at: at, class: class, free: make([]uint16, piecesOf(class))}
	for i := range b.free {
		b.free[i] = uint16(len(b.free) - 1 - i)
	}
	return b, nil
}

// restore adds a block of a Keep of which some pieces are in use. The others may take memory.
func (a *arena) restore(b *arenaBlock, used map[uint16]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range uint16(piecesOf(b.class)) {
		if !used[i] {
			b.dirty = append(b.dirty, i)
		}
	}
	if len(b.dirty) > 0 {
		a.mu.classes[b.class].open = append(a.mu.classes[b.class].open, b)
	}
	a.mu.restored = append(a.mu.restored, b)
}

// piece returns the piece at a place of a Keep, which is in use since restore.
func (a *arena) piece(at int64) piece {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.mu.restored {
		if at >= b.at && at < b.at+blockSize {
			return piece{b, uint16((at - b.at) / int64(dsm.PageSize<<b.class))}
		}
	}
	panic(fmt.Sprintf("no block at %#x is in use", at))
}

// piecesOf returns how many pieces a block of the class has.
func piecesOf(class int) int { return blockSize / dsm.PageSize >> class }

func (b *arenaBlock) isIdle() bool { return len(b.free)+len(b.dirty) == piecesOf(b.class) }

// span is where a piece is in its block.
type span struct{ from, to int }

func (p piece) span() span {
	n := dsm.PageSize << p.block.class
	return span{int(p.i) * n, (int(p.i) + 1) * n}
}

func (p piece) mem() []byte {
	s := p.span()
	return p.block.mem[s.from:s.to:s.to]
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
