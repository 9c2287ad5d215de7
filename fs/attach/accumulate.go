package attach

import (
	"context"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// accumulate serves ACCUMULATE. The elements come in the packet, or in memory that the program passes. To read the program's own memory
// (process_vm_readv) would save it a copy. But the daemon, which may read everybody's, would have to
// be sure that the process is still the program that has asked, and did not become another one, of more rights, by exec.
func (a *conn) accumulate(m *membership, q *request) error {
	number, ino, off, n := q.arg[0], dsm.Ino(q.arg[1]), q.arg[2], q.arg[3]
	x := a.s.attachmentsOf(a.who.pid, []dsm.Ino{ino})[ino]
	switch {
	case off > math.MaxInt64 || n > math.MaxInt64:
		return errs.E(errs.Invalid, "accumulate", "%d bytes at %d", n, off)
	case q.file == nil && uint64(len(q.payload)) != n:
		return errs.E(errs.Invalid, "accumulate", "no descriptor came with it, and %d bytes in place of %d", len(q.payload), n)
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
	g, err := a.newGiven(q, number, int64(n))
	if err != nil {
		return err
	}
	defer g.close()
	return m.Accumulate(ctx, number, dsm.AreaID(ino), roundArea{x}, func(id dsm.RoundID) error {
		return x.area.Accumulate(ctx, id, int64(off), int64(n), g.piece)
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
