package attach

import (
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// isMemory reports whether a descriptor is that of a memfd or of a file of tmpfs: only they have seals. A read of those waits for nobody.
func isMemory(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil
}

// given is what a program hands over with an ACCUMULATE.
type given struct {
	q      *request
	mapped *wire.Shared // nil: it is read
}

// newGiven returns the n bytes of a request, for a round. The caller closes it.
func (a *conn) newGiven(q *request, number uint64, n int64) (*given, error) {
	g := &given{q: q}
	if q.file == nil {
		return g, nil
	}
	kept := cannotShrink(q.file) // before its length is asked for: a program may make its memory shorter, and seal it then
	var st unix.Stat_t
	if err := unix.Fstat(int(q.file.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Size < n {
		return nil, errs.E(errs.Invalid, "accumulate", "%d bytes, in memory of %d", n, st.Size)
	}
	if n > 0 && kept && st.Blocks*512 >= n {
		g.mapped = a.mapped(q.file, &st, number, n)
	}
	return g, nil
}

// mapping is memory that a program has handed over.
type mapping struct {
	dev, ino uint64
	number   uint64 // of the round in which it was used last
	mem      *wire.Shared
}

// mappings is what a connection has mapped. Memory stays mapped until a round has gone by in which it was not used: a program mostly hands over
// the same in one round after the other, and the kernel takes about as long to map a page as to copy it.
type mappings struct {
	list   []*mapping
	number uint64 // of the last round that something was handed over for
}

// mostMapped bounds how many mappings a connection has.
const mostMapped = 256

// mapped maps a file for a round, or finds that it is mapped, and returns n bytes of it or more, with a reference for the caller. nil: it cannot be
// mapped, as the process, the user or the connection has too many mappings.
func (a *conn) mapped(f *os.File, st *unix.Stat_t, number uint64, n int64) *wire.Shared {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := &a.mu.mapped
	var before uint64
	if number != g.number {
		before, g.number = g.number, number
	}
	var is *mapping
	g.list = slices.DeleteFunc(g.list, func(m *mapping) bool {
		same := m.dev == st.Dev && m.ino == st.Ino
		if same && int64(len(m.mem.Bytes)) >= n {
			is = m
			return false
		}
		drop := same || m.number < before
		if drop {
			m.mem.Release()
		}
		return drop
	})
	if is == nil && len(g.list) < mostMapped {
		if is = a.newMapping(f, st, n); is != nil {
			g.list = append(g.list, is)
		}
	}
	if is == nil {
		return nil
	}
	is.number = number
	return is.mem.Retain()
}

// newMapping maps the first n bytes of a file. nil: it cannot be mapped. What is on its way counts for the user as well: a process can have some 65,000
// mappings, and this one ends without.
func (a *conn) newMapping(f *os.File, st *unix.Stat_t, n int64) *mapping {
	count := &a.user.mapped
	if count.Add(1) > int32(a.s.limits.mapped) {
		count.Add(-1)
		return nil
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		count.Add(-1)
		return nil
	}
	back := func() {
		_ = unix.Munmap(b) // it is a mapping, as a whole
		count.Add(-1)
	}
	return &mapping{dev: st.Dev, ino: st.Ino, mem: wire.Lend(b, back)}
}

// unmapAll ends the mappings of a connection, of which no request runs any more. What is on its way stays mapped until it has been sent.
func (a *conn) unmapAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.mu.mapped.list {
		m.mem.Release()
	}
	a.mu.mapped.list = nil
}

// cannotShrink reports whether a file can be mapped in place of being read, which saves a copy. If the program could make the memory shorter, a touch would end
// the daemon by SIGBUS. So the memory has to be sealed against that, which only memfds can be; of huge pages there may be too few, which is SIGBUS too. All
// that is mapped has to be there: else the daemon would make the pages that it reads. A program that still stores to it, or punches holes, makes what it has
// handed over another number, and harms nobody else.
func cannotShrink(f *os.File) bool {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return false
	}
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && fs.Type == unix.TMPFS_MAGIC
}

func (g *given) close() {
	if g.mapped != nil {
		g.mapped.Release()
	}
}

// piece returns size of the bytes, from at on: see coherence.Area.Accumulate.
func (g *given) piece(at, size int64) (*wire.Shared, error) {
	if g.mapped != nil {
		return wire.Lend(g.mapped.Bytes[at:at+size], g.mapped.Retain().Release), nil
	}
	s := wire.Share(int(size))
	if g.q.file == nil {
		copy(s.Bytes, g.q.payload[at:])
		return s, nil
	}
	_, err := g.q.file.ReadAt(s.Bytes, at)
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, io.EOF):
		err = errs.E(errs.Invalid, "accumulate", "the memory became shorter meanwhile")
	default:
		err = errs.E(errs.Invalid, "accumulate", "the memory cannot be read: %w", err)
	}
	s.Release()
	return nil, err
}
