package pages

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// A program that attaches must not get the file of the Keep, which has everything. So the copy that it maps moves into a memfd of its own first, a HeldFile. The holder has that
// before the copy is in it, and the record names it after that: at each moment the record names a copy that is whole. It stays where it is until
// the copy ends. A memfd that no record names, because the daemon was killed in between, is dropped by the next one.

// Copy is one of the two copies of an area that programs map.
type Copy int

const (
	WorkingCopy Copy = iota
	BaseCopy         // of a versioned area, for programs that only read
)

// suffixes are those of the names of copies.
var suffixes = map[Copy]string{WorkingCopy: "w", BaseCopy: "b"}

func (a *Area) of(which Copy) *areaCopy {
	if which == BaseCopy {
		return a.base
	}
	return a.working
}

// ownFile is the bit of a place that says that the rest is the number of a HeldFile.
const ownFile = 1 << 62

func isFile(at int64) bool            { return at&ownFile != 0 }
func numberOf(at int64) uint64        { return uint64(at &^ ownFile) }
func placeOfFile(number uint64) int64 { return int64(number | ownFile) }

// HeldFile is a memfd that the holder has, too. Close gives it up, unless a copy has taken it over.
type HeldFile struct {
	files  hold.Descriptors
	fd     int
	number uint64
}

// NewFile makes a memfd for a copy of an area, or for a draft. It asks the holder, so the caller has no lock.
func (s *Keep) NewFile(id dsm.AreaID, which Copy) (*HeldFile, error) {
	if s.files == nil {
		return nil, errs.E(errs.Unsupported, "open memory", "programs cannot attach here")
	}
	fd, err := newFile(newCopy(id, suffixes[which], false).String())
	if err != nil {
		return nil, err
	}
	number, err := s.files.Put(fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &HeldFile{s.files, fd, number}, nil
}

// Close gives the memfd up. nil is none.
func (f *HeldFile) Close() error {
	if f == nil || f.files == nil {
		return nil
	}
	err := errors.Join(os.NewSyscallError("close", unix.Close(f.fd)), f.files.Drop(f.number))
	f.files = nil
	return err
}

// restoreFiles drops the files that nothing names.
func (s *Keep) restoreFiles(in map[uint64]bool) error {
	if s.files == nil {
		return nil
	}
	var failed error
	for n := uint64(0); ; {
		next, err := s.files.After(n)
		if err != nil || next == 0 {
			return errors.Join(failed, err)
		}
		if n = next; !in[n] {
			failed = errors.Join(failed, s.files.Drop(n))
		}
	}
}

// moving is a copy of which some pages are in the file already that it is about to move to. A large one takes the kernel a while to copy, so that is done bit by bit, between which others have the lock of the area. The
// methods of nil do nothing.
type moving struct {
	file  *HeldFile
	mem   []byte
	there takenPages // pages of which the file has the bytes
	again bool       // what is there has to be dropped first
	next  int        // the extent to go on with
}

// moveAhead is the size from which on a copy moves bit by bit.
const moveAhead = 8 << 20

// lacks returns the pages of a set of an extent that are not there.
func (m *moving) lacks(e dsm.ExtentIndex, set dsm.PageSet) dsm.PageSet {
	if m == nil || m.again || int(e) >= m.there.n {
		return set
	}
	if there := m.there.at(e); there != nil {
		return set.Minus(*there)
	}
	return set
}

// stores says that pages of an extent change. Those of different extents may do so concurrently.
func (m *moving) stores(e dsm.ExtentIndex, set dsm.PageSet) {
	if m == nil || int(e) >= m.there.n {
		return
	}
	if there := m.there.at(e); there != nil {
		*there = there.Minus(set)
	}
}

// restart says that pages lose their memory.
func (m *moving) restart() {
	if m != nil {
		m.again = true
	}
}

// MoveAhead copies up to n pages of a copy to the file to which TakeFile will move it, and reports whether more are left than that. Between the calls others may change it. another says that
// it is being copied to another file.
func (a *Area) MoveAhead(which Copy, f *HeldFile, n int) (more, another bool, err error) {
	c := a.of(which)
	switch {
	case f == nil || !a.WantsFile(which) || c.len < moveAhead:
		return false, false, nil
	case c.moving != nil && c.moving.file != f:
		return false, true, nil
	case c.moving == nil:
		c.moving = &moving{file: f, again: true}
	}
	m := c.moving
	if m.again || int64(len(m.mem)) < c.len {
		err = m.begin(c)
	} else { // it may have grown
		err = os.NewSyscallError("ftruncate", unix.Ftruncate(f.fd, c.size))
	}
	if err != nil {
		return false, false, a.fail("open", err)
	}
	m.there.resize(dsm.Extents(c.size))
	begun := m.next
	for e, set := range c.taken.from(begun) {
		for i := range m.lacks(e, *set).All() {
			if n--; n < 0 {
				m.next = int(e)
				return true, false, nil
			}
			off := int64(pageOfExtent(e, i)) * dsm.PageSize
			copy(m.mem[off:off+dsm.PageSize], c.mem[off:])
			m.there.put(e).Add(i)
		}
	}
	m.next = 0
	return begun > 0, false, nil // programs may have stored to those before
}

// begin begins to copy, or begins anew.
func (m *moving) begin(c *areaCopy) error {
	m.end()
	if err := errors.Join(unix.Ftruncate(m.file.fd, 0), unix.Ftruncate(m.file.fd, c.size)); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	mem, err := mapFile(m.file.fd, c.len)
	if err == nil {
		m.mem, m.there, m.again = mem, takenPages{}, false
	}
	return err
}

func (m *moving) end() {
	if m != nil && m.mem != nil {
		_ = unix.Munmap(m.mem) // it is a mapping, as a whole
		m.mem = nil
	}
}

// Moves reports whether a copy is being copied to a file.
func (a *Area) Moves(which Copy) bool { return a.of(which).moving != nil }

// StayPut ends MoveAhead without TakeFile.
func (a *Area) StayPut(f *HeldFile) {
	for _, c := range []*areaCopy{a.working, a.base} {
		if m := c.moving; m != nil && m.file == f {
			m.end()
			c.moving = nil
		}
	}
}

// file returns the file that the copy is, nil if it is none.
func (c *areaCopy) file() *HeldFile {
	if c.number == 0 {
		return nil
	}
	return &HeldFile{c.kept.store.files, c.fd, c.number}
}

// WantsFile reports whether a copy must get a HeldFile before a program can have it.
func (a *Area) WantsFile(which Copy) bool { return a.Outlives() && a.of(which).fd < 0 }

// TakeFile moves a copy into a file, unless it is in one. After an error it is where it was.
func (a *Area) TakeFile(which Copy, f *HeldFile) error {
	if !a.WantsFile(which) || f == nil {
		return nil
	}
	c := a.of(which)
	if m := c.moving; m != nil && (m.file != f || m.again) {
		m.end()
		c.moving = nil
		if err := unix.Ftruncate(f.fd, 0); err != nil {
			return a.fail("open", os.NewSyscallError("ftruncate", err))
		}
	}
	c.number = f.number
	moved, err := c.moveTo(f.fd, c.len)
	if moved {
		f.files = nil
	} else {
		c.number = 0
	}
	c.moving.end()
	c.moving = nil
	return a.failed("open", err)
}

// leaveFile moves a copy that no program maps any more out of its memfd, so that files which were attached once take no descriptors. A large one stays: there cannot be many, and to copy them takes a while. So does one for which there is no other
// memory. What is to be closed afterwards may fail.
func (c *areaCopy) leaveFile() error {
	if c.fd < 0 || c.holes || c.len >= moveAhead {
		return nil
	}
	n := newCopy(c.id, c.suffix, c.filed)
	n.kept = c.kept
	if n.copyOf(c) != nil {
		return n.close()
	}
	n.at = c.at
	n.isAt(placeOf(n.piece, n.slot))
	c.at = nil
	*c, *n = *n, *c
	return n.close()
}

// Filed reports whether programs may have a copy: it is a memfd.
func (a *Area) Filed(which Copy) bool { return a.of(which).fd >= 0 }

// Is reports whether a copy is a memfd with an inode number.
func (a *Area) Is(which Copy, memory uint64) bool { return a.of(which).is(memory) }

// Attached reports whether programs may have memory of the area: one of its copies is in a memfd, or there are drafts.
func (l Left) Attached() bool {
	return isFile(int64(l.k.record.Working.Load())) || isFile(int64(l.k.record.Base.Load())) || len(l.k.store.drafts[l.ID]) > 0
}

// adoptFile makes the copy what an earlier daemon has left in a file. Its bytes from size on are zero.
func (c *areaCopy) adoptFile(number uint64, size int64) error {
	files := c.kept.store.files
	if files == nil {
		return errs.E(errs.Unsupported, "open memory", "file %d is not here", number)
	}
	fd, err := files.Get(number)
	if err != nil {
		return err
	}
	c.fd, c.number = fd, number
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0) // EINVAL if it is no memfd
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	c.sealed = seals&unix.F_SEAL_SHRINK != 0
	st, err := c.stat()
	if err != nil {
		return err
	}
	if st.Size < size { // programs were never told that it is as long
		size = st.Size
	}
	if from, is := c.leftFreeing(); is {
		size, c.droppingFrom, c.left = min(size, from), from, true
	}
	c.size, c.len = st.Size, wholePages(st.Size)
	if c.mem, err = mapFile(fd, max(size, 1)); err != nil {
		return err
	}
	if c.sealed {
		err = c.wipePast(size)
	} else if err = c.zero(size, min(wholePages(size), c.len)); err == nil {
		err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, size))
	}
	c.size, c.len = size, wholePages(size)
	return err
}

// leftFreeing reports whether a process of an earlier daemon is freeing what is past an offset: it waits for a program. If that cannot be found out, it may free all.
func (c *areaCopy) leftFreeing() (from int64, is bool) {
	st, err := c.stat()
	if err == nil {
		from, is, err = c.kept.store.mem.Freeing(st.Ino)
	}
	return from, is || err != nil
}

// longest returns how long the copy can be now.
func (c *areaCopy) longest() int64 {
	if c.left {
		return c.droppingFrom
	}
	return dsm.MaxAreaSize
}

// wipePast makes all bytes of a sealed memfd from an offset on read zero, of which there is no mapping: how long the copy was is not known any more.
func (c *areaCopy) wipePast(size int64) error {
	err := uffd.DataRuns(c.fd, size&^(dsm.PageSize-1), sealedLen(), func(from, to int64) error {
		mem, err := unix.Mmap(c.fd, from, int(to-from), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return os.NewSyscallError("mmap", err)
		}
		clear(mem[max(size-from, 0):])
		return unix.Munmap(mem)
	})
	if uffd.CannotCount(err) {
		return c.free(size, math.MaxInt64)
	}
	return err
}
