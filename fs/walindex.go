package fs

import (
	"context"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/locks"
)

// walIndexes keeps the index of a SQLite write-ahead log to the programs of one node at a time.
//
// In WAL mode SQLite has three files. The programs find in the third, DB-shm, what of the log DB-wal is valid. They map
// it and order their loads and stores by memory barriers: on two nodes it would be two memories, and commits would be lost with no error. So the
// open of it by a second node is EBUSY, at which SQLite says that it is unable to open the database.
//
// The node whose programs have it open has a lock of it, of an owner that is no program. So it is free when they have
// closed it, or some seconds after the node has died. What they stored in the other two files is published before the lock goes, and the
// node that gets it acquires all three, for it reads in the log where to write on.
//
// A file counts as such an index if the file without the suffix is open here, as SQLite has it then, and is a SQLite database.
type walIndexes struct {
	b      *bridge
	warned recently[dsm.Ino, struct{}]
	// refused are the threads whose open for writing was refused. SQLite opens the index for reading then: were it free by now,
	// the connection could never write.
	refused recently[uint32, dsm.Ino]
	mu      struct {
		lockrank.Mutex
		at   map[dsm.Ino]toldPlace // of files with the suffix
		open map[dsm.Ino]*walIndex
	}
}

// toldPlace is where the kernel was last told that a file is, and how often it was told of the file. It says so when it forgets.
type toldPlace struct {
	place
	told uint64
}

// walIndex is one that programs of this node have open. Whoever has its gate may wait for the network.
type walIndex struct {
	gate  chan struct{}
	users int // with walIndexes.mu: those that have it, or wait for the gate
	opens int // with the gate: those that have it
	at    place
}

const (
	walIndexSuffix = "-shm"
	walSuffix      = "-wal"
	sqliteMagic    = "SQLite format 3\x00"
	// walIndexOwner is the owner of the lock, among those that the kernel has.
	walIndexOwner = ^uint64(0)
	// walIndexWarning is how often the log says that an open was refused.
	walIndexWarning = time.Minute
	// walIndexRefused is how long after an open that was refused the next one may come.
	walIndexRefused = time.Minute
)

func (x *walIndexes) init(b *bridge) {
	x.b = b
	x.mu.Init("fs.walIndexes")
	x.warned.init(walIndexWarning)
	x.refused.init(walIndexRefused)
	x.mu.at, x.mu.open = make(map[dsm.Ino]toldPlace), make(map[dsm.Ino]*walIndex)
}

// told is called before the kernel is told that the inode is at p.
func (x *walIndexes) told(i dsm.Inode, p place) {
	if i.Kind != dsm.KindFile || !strings.HasSuffix(p.name, walIndexSuffix) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.at[i.Ino] = toldPlace{p, x.mu.at[i.Ino].told + 1}
}

// forget says that the kernel has forgotten what it was told of the inode, so many times.
func (x *walIndexes) forget(ino dsm.Ino, times uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at, ok := x.mu.at[ino]
	if at.told -= min(times, at.told); ok && at.told > 0 {
		x.mu.at[ino] = at // it has been told once more meanwhile
		return
	}
	delete(x.mu.at, ino)
}

// enter takes the index for one more handle, if the area, which is open, is one. errs.Busy says that another
// node has it. leave is nil if it is none.
func (x *walIndexes) enter(ctx context.Context, tid uint32, write bool, a *openArea) (leave func(), err error) {
	ino := dsm.Ino(a.id)
	x.mu.Lock()
	known, named := x.mu.at[ino]
	at := known.place
	x.mu.Unlock()
	if !named || x.b.cfg.Locks == nil {
		return nil, nil
	}
	if is, err := x.isIndex(ctx, at); err != nil || !is {
		return nil, err
	}
	if of, ok := x.refused.get(tid); ok {
		x.refused.drop(tid)
		if of == ino && !write {
			return nil, errs.E(errs.Busy, "open", "%s was in use on another node", at.name)
		}
	}
	w := x.use(ino, at)
	select {
	case w.gate <- struct{}{}:
	case <-ctx.Done():
		x.drop(ino, w)
		return nil, ctx.Err()
	}
	defer func() { <-w.gate }()
	if w.opens == 0 {
		// It acquires the log and the database as well. So what was acquired of the index alone does not count.
		err = x.b.cfg.Locks.Set(ctx, ino, x.lock(locks.Write), false, nil)
		if err == nil {
			if err = x.acquire(ctx, a, at); err != nil {
				last, cancel := x.b.lasting() // ctx may have ended
				x.release(last, ino, w)
				cancel()
			}
		}
		if errs.Is(err, errs.WouldBlock) {
			err = errs.E(errs.Busy, "open", "%s is in use on another node", at.name)
			x.warn(ino, at)
			if write {
				x.refused.put(tid, ino)
			}
		}
		if err != nil {
			x.drop(ino, w)
			return nil, err
		}
		x.b.held.indexed(ino, w.at)
	}
	w.opens++
	return func() { x.leave(ino, w) }, nil
}

// again enters the index for a handle that the daemon before had. Its lock is resumed later.
func (x *walIndexes) again(ino dsm.Ino, at place) (leave func()) {
	x.mu.Lock()
	if _, named := x.mu.at[ino]; !named {
		x.mu.at[ino] = toldPlace{at, 1}
	}
	x.mu.Unlock()
	w := x.use(ino, at)
	w.gate <- struct{}{}
	w.opens++
	<-w.gate
	return func() { x.leave(ino, w) }
}

// has reports whether programs of this node have the index.
func (x *walIndexes) has(ino dsm.Ino) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.open[ino] != nil
}

// leave ends a handle. The kernel does not wait for it.
func (x *walIndexes) leave(ino dsm.Ino, w *walIndex) {
	w.gate <- struct{}{}
	if w.opens--; w.opens == 0 {
		ctx, cancel := x.b.lasting()
		x.publish(ctx, w.at)
		x.b.held.unindexed(ino)
		x.release(ctx, ino, w)
		cancel()
	}
	<-w.gate
	x.drop(ino, w)
}

func (x *walIndexes) release(ctx context.Context, ino dsm.Ino, w *walIndex) {
	if err := x.b.cfg.Locks.Release(ctx, ino, x.lock(locks.Unlock).Owner); err != nil {
		x.b.log.Warn("the index of a write-ahead log is not given up", "file", w.at.name, "err", err)
	}
}

func (x *walIndexes) use(ino dsm.Ino, at place) *walIndex {
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.mu.open[ino]
	if w == nil {
		w = &walIndex{gate: make(chan struct{}, 1), at: at}
		x.mu.open[ino] = w
	}
	w.users++
	return w
}

func (x *walIndexes) drop(ino dsm.Ino, w *walIndex) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(x.mu.open, ino)
	}
}

func (x *walIndexes) lock(t locks.Type) locks.Lock {
	return locks.Lock{Owner: x.b.cfg.Locks.Owner(walIndexOwner, true), Type: t, Last: locks.End}
}

// isIndex reports whether a file at p is the index of a database that is open here.
func (x *walIndexes) isIndex(ctx context.Context, p place) (bool, error) {
	db, err := x.sibling(ctx, p, "")
	if err != nil || db == nil {
		return false, err
	}
	head := make([]byte, len(sqliteMagic))
	n, err := db.current().ReadBy(ctx, 0, head, 0)
	return err == nil && string(head[:n]) == sqliteMagic, err
}

// sibling returns the file of the database with another suffix, or nil if it is not open here.
func (x *walIndexes) sibling(ctx context.Context, p place, suffix string) (*openArea, error) {
	i, err := x.b.cfg.Names.Lookup(ctx, inoOf(uint64(p.dir)), strings.TrimSuffix(p.name, walIndexSuffix)+suffix)
	if errs.Is(err, errs.NotExist) {
		return nil, nil
	}
	if a := x.b.opens.find(i.Area()); err == nil && a != nil && a.handles() > 0 {
		return a, nil
	}
	return nil, err
}

// acquire brings this node up to what others have published of the database.
func (x *walIndexes) acquire(ctx context.Context, index *openArea, p place) error {
	if err := index.current().Acquire(ctx, true); err != nil {
		return err
	}
	return x.eachSibling(ctx, p, func(a *openArea) error { return a.current().Acquire(ctx, true) })
}

// publish publishes what this node has stored of the database.
func (x *walIndexes) publish(ctx context.Context, p place) {
	if err := x.eachSibling(ctx, p, func(a *openArea) error { return x.b.publish(ctx, a) }); err != nil {
		x.b.log.Warn("publish before the index of a write-ahead log is given up", "file", p.name, "err", err)
	}
}

// eachSibling does something to the log and the database, if they are open here.
func (x *walIndexes) eachSibling(ctx context.Context, p place, do func(*openArea) error) error {
	for _, suffix := range []string{walSuffix, ""} {
		a, err := x.sibling(ctx, p, suffix)
		if err == nil && a != nil {
			err = do(a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// warn says what to do, once in a while: SQLite tries again.
func (x *walIndexes) warn(ino dsm.Ino, p place) {
	if _, before := x.warned.get(ino); before {
		return
	}
	x.warned.put(ino, struct{}{})
	x.b.log.Warn("a SQLite database in WAL mode is open on another node, and takes the programs of one node at a time; "+
		"for several nodes PRAGMA journal_mode=DELETE", "file", p.name, "dir", p.dir)
}
