package attach

import (
	"context"
	"errors"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// isMemory reports whether a descriptor is that of a memfd or of a file of tmpfs: only they have seals. A read of those waits for nobody.
func isMemory(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil
}

// accumulate serves ACCUMULATE. The elements come in memory that the program passes, and are read, not mapped: it may cut the memory off
// at any time. To read the program's own memory (process_vm_readv) would save it a copy. But the daemon, which may read everybody's, would have to
// be sure that the process is still the program that has asked, and did not become another one, of more rights, by exec.
func (a *conn) accumulate(m *membership, q *request) error {
	number, ino, off, n := q.arg[0], dsm.Ino(q.arg[1]), q.arg[2], q.arg[3]
	x := a.s.attachmentsOf(a.who.pid, []dsm.Ino{ino})[ino]
	switch {
	case q.file == nil:
		return errs.E(errs.Invalid, "accumulate", "no descriptor came with it")
	case off > math.MaxInt64 || n > math.MaxInt64:
		return errs.E(errs.Invalid, "accumulate", "%d bytes at %d", n, off)
	case x == nil:
		return errs.E(errs.Unsupported, "accumulate", "this program has not attached area %d", ino)
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.s.cfg.Timeout)
	defer cancel()
	if err := x.mayAdd(ctx); err != nil {
		return err
	}
	if err := x.area.MayAccumulate(ctx, int64(off), int64(n)); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(q.file.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Size < int64(n) {
		return errs.E(errs.Invalid, "accumulate", "%d bytes, in memory of %d", n, st.Size)
	}
	return m.Accumulate(number, dsm.AreaID(ino), roundArea{x}, func(id dsm.RoundID) error {
		return x.addFrom(ctx, id, q.file, int64(off), int64(n))
	})
}

// mayAdd returns why the program may not accumulate into the area. One that has attached it to read may if it might attach it to write: it
// stores nothing, so the daemon need not reckon with stores of it, which costs time whenever updates come in. As with open(2), that is
// asked once.
func (x *attachment) mayAdd(ctx context.Context) error {
	if x.write || x.adds.Load() {
		return nil
	}
	_, err := x.conn.s.openFile(ctx, &x.conn.who, x.file, dsm.MayWrite)
	if err == nil {
		x.adds.Store(true)
	}
	return err
}

// addFrom adds the first n bytes of a file to an area at off.
func (x *attachment) addFrom(ctx context.Context, id dsm.RoundID, f *os.File, off, n int64) error {
	return x.area.Accumulate(ctx, id, off, n, func(p []byte, at int64) error {
		switch _, err := f.ReadAt(p, at); {
		case errors.Is(err, io.EOF):
			return errs.E(errs.Invalid, "accumulate", "the memory was cut off meanwhile")
		case err != nil:
			return errs.E(errs.Invalid, "accumulate", "the memory cannot be read: %w", err)
		}
		return nil
	})
}
