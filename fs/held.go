package fs

import (
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/locks"
)

// heldFiles keeps, for the daemon that follows this one, what the kernel has been told of: handles, and locks. The kernel's
// numbers of inodes are those of the catalog, which is kept too.
//
// A record is written before the request that it belongs to is answered. So the kernel never knows of something that the next
// daemon does not know. What the next daemon knows and the kernel does not is a handle of an open that was not answered: the
// request comes again, and the handle is closed then. A lock is recorded when it was granted, and what is given up of one before that
// is done: see package locks, back.go. A handle for writing, or through which locks were taken, is closed for good when what was stored is published, and the locks
// have been given up.
//
// The index of a write-ahead log that the node's programs have is recorded with its place, as a lock is. The next daemon enters it for each handle of
// the file, and resumes its lock.
//
// What programs have attached is recorded before they are told, and ends when none of them can store any more: see package attach.
//
// A listing of a directory goes on at its place in the directory as it is then.
type heldFiles struct {
	b       *bridge
	journal *hold.Journal // nil: nothing is held
	closing []uint64      // handles that the daemon before was closing
	mu      struct {
		lockrank.Mutex
		handles  map[uint64]heldHandle
		locks    map[heldLock]heldLocks
		indexes  map[dsm.Ino]place // that walIndexes has entered
		attached map[uint64]attach.Held
		last     uint64            // numbers heldLocks and attachments
		opens    map[uint64]uint64 // handles of earlier daemons, by the request that opened them
		written  int64             // size of the journal when it was last written anew
	}
}

// resent is the bit that a request has which comes again.
const resent = 1 << 63

// heldHandle is an open file or directory.
type heldHandle struct {
	fh     uint64
	ino    dsm.Ino
	flags  uint32
	tid    uint32
	dir    bool
	late   bool   // see lateHandle
	unique uint64 // of the request that opened it
}

type heldLock struct {
	ino   dsm.Ino
	owner locks.Owner
}

type heldLocks struct {
	fh  uint64
	at  uint64 // later ones have larger numbers
	set []locks.Lock
}

// Kinds of records.
const (
	heldOpened = iota + 1
	heldClosed
	heldLocked
	heldCloses
	heldIndex
	heldAttached
	heldDetached
)

func (x *heldFiles) init(b *bridge) {
	x.b = b
	x.mu.Init("fs.heldFiles")
	x.mu.handles, x.mu.locks, x.mu.opens = make(map[uint64]heldHandle), make(map[heldLock]heldLocks), make(map[uint64]uint64)
	x.mu.indexes = make(map[dsm.Ino]place)
	x.mu.attached = make(map[uint64]attach.Held)
	if b.cfg.Held != nil {
		x.journal = b.cfg.Held.Files()
	}
}

// Attached implements attach.Journal.
func (x *heldFiles) Attached(h attach.Held) (number uint64, err error) {
	if h.Number == 0 && x.b.cfg.Held.Word(hold.Refused).Load() != 0 {
		return 0, nil // no daemon follows
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.Number == 0 {
		x.mu.last++
		h.Number = x.mu.last
	} else if x.mu.attached[h.Number] == h || x.mu.attached[h.Number].Number == 0 {
		return h.Number, nil
	}
	if err := x.journal.Append(attachedRecord(h)); err != nil {
		return 0, err
	}
	x.mu.attached[h.Number] = h
	return h.Number, nil
}

// Detached implements attach.Journal.
func (x *heldFiles) Detached(number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.mu.attached[number]; ok {
		delete(x.mu.attached, number)
		x.writeLocked(record(heldDetached, number))
	}
}

// indexed records that programs have the index of a write-ahead log.
func (x *heldFiles) indexed(ino dsm.Ino, at place) {
	if x.journal == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.indexes[ino] = at
	x.writeLocked(indexRecord(ino, at))
}

// unindexed records that they have it no more, before its lock is given up.
func (x *heldFiles) unindexed(ino dsm.Ino) {
	if x.journal == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.mu.indexes[ino]; ok {
		delete(x.mu.indexes, ino)
		x.writeLocked(indexRecord(ino, place{}))
	}
}

// opened records a handle. If the request came to an earlier daemon, the handle that it had made is closed.
func (x *heldFiles) opened(r *request, h heldHandle) error {
	if x.journal == nil {
		return nil
	}
	h.unique = r.unique
	x.mu.Lock()
	before, again := x.mu.opens[r.unique]
	delete(x.mu.opens, r.unique)
	x.mu.handles[h.fh] = h
	err := x.journal.Append(h.record())
	x.mu.Unlock()
	if again && h.dir {
		x.b.ReleaseDir(&fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: uint64(h.ino)}, Fh: before})
	} else if again {
		x.b.Release(nil, &fuse.ReleaseIn{Fh: before})
	}
	return err
}

// entered records that a lateHandle becomes that of an open file. It stays the one that its OPEN made, whoever truncates the file. If it was closed meanwhile, there is nothing to record.
func (x *heldFiles) entered(h heldHandle) error {
	if x.journal == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	was, ok := x.mu.handles[h.fh]
	if !ok || !was.late {
		return nil
	}
	h.unique = was.unique
	x.mu.handles[h.fh] = h
	return x.journal.Append(h.record())
}

// closed ends a handle, with the locks that were taken through it.
func (x *heldFiles) closed(fh uint64) {
	if x.journal == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.mu.handles[fh]; !ok {
		return
	}
	delete(x.mu.handles, fh)
	maps.DeleteFunc(x.mu.locks, func(_ heldLock, l heldLocks) bool { return l.fh == fh })
	x.writeLocked(record(heldClosed, fh))
}

// closing is a bit that the numbers of handles have that are being closed. The kernel may use the others again.
const closing = 1 << 63

// closes says that a handle is being closed, and returns a number that it has from now on: closed follows when what was stored is
// published, and its locks have been given up.
func (x *heldFiles) closes(fh uint64) (to uint64) {
	if x.journal == nil {
		return fh
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for to = fh | closing; ; to++ {
		if _, used := x.mu.handles[to]; !used {
			break
		}
	}
	x.renameLocked(fh, to)
	x.writeLocked(record(heldCloses, fh, to))
	return to
}

func (x *heldFiles) renameLocked(fh, to uint64) {
	h, ok := x.mu.handles[fh]
	if !ok {
		return
	}
	delete(x.mu.handles, fh)
	h.fh = to
	x.mu.handles[to] = h
	for of, l := range x.mu.locks {
		if l.fh == fh {
			l.fh = to
			x.mu.locks[of] = l
		}
	}
}

// locking records what the owner of l still has for certain while it asks for l.
func (x *heldFiles) locking(ino dsm.Ino, l locks.Lock) {
	if x.journal == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	of := heldLock{ino, l.Owner}
	if had, ok := x.mu.locks[of]; ok && !had.lost() {
		x.setLocked(of, had.fh, locks.Weaker(had.set, l))
	}
}

// setLocked records the locks of an owner, if they are others than before.
func (x *heldFiles) setLocked(of heldLock, fh uint64, set []locks.Lock) {
	l := x.mu.locks[of]
	if l.fh == fh && slices.Equal(l.set, set) || len(set)+len(l.set) == 0 {
		return
	}
	x.mu.last++
	l = heldLocks{fh: fh, at: x.mu.last, set: set}
	if x.mu.locks[of] = l; len(set) == 0 {
		delete(x.mu.locks, of)
	}
	x.writeLocked(l.record(of))
}

// locked records the locks that an owner has now, after a request through the handle; 0: through none.
func (x *heldFiles) locked(fh uint64, ino dsm.Ino, o locks.Owner) {
	if x.journal == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	of := heldLock{ino, o}
	if x.mu.locks[of].lost() && x.b.cfg.Locks.Dropped(ino) && x.b.cfg.Locks.HasLocks(ino, o) {
		return
	}
	set := x.b.cfg.Locks.Granted(ino, o)
	if _, open := x.mu.handles[fh]; !open {
		if fh = x.mu.locks[of].fh; fh == 0 && len(set) > 0 {
			return // it is being released
		}
	}
	x.setLocked(of, fh, set)
}

// journalSlack is how much the journal may grow before it is written anew.
const journalSlack = 1 << 20

// writeLocked appends a record of what has happened already.
func (x *heldFiles) writeLocked(r []byte) {
	err := x.journal.Append(r)
	if err == nil && x.journal.Size() > 2*x.mu.written+journalSlack {
		err = x.compactLocked()
	}
	if err != nil {
		x.b.cfg.Unheld("what is open cannot be noted: " + err.Error())
	}
}

func (x *heldFiles) compactLocked() error {
	var all [][]byte
	for _, fh := range slices.Sorted(maps.Keys(x.mu.handles)) {
		all = append(all, x.mu.handles[fh].record())
	}
	for _, of := range x.locksLocked() {
		all = append(all, x.mu.locks[of].record(of))
	}
	for ino, at := range x.mu.indexes {
		all = append(all, indexRecord(ino, at))
	}
	for _, h := range x.mu.attached {
		all = append(all, attachedRecord(h))
	}
	err := x.journal.Rewrite(all)
	x.mu.written = x.journal.Size()
	return err
}

// locksLocked returns the owners of locks in the order in which they got them.
func (x *heldFiles) locksLocked() []heldLock {
	return slices.SortedFunc(maps.Keys(x.mu.locks), func(a, b heldLock) int { return cmp.Compare(x.mu.locks[a].at, x.mu.locks[b].at) })
}

// readLocked brings in what earlier daemons have recorded.
func (x *heldFiles) readLocked(b []byte) error {
	f := make([]uint64, len(b)/8)
	for i := range f {
		f[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	switch {
	case len(f) == 7 && f[0] == heldOpened:
		x.mu.handles[f[1]] = heldHandle{fh: f[1], ino: dsm.Ino(f[2]), flags: uint32(f[3]), tid: uint32(f[4]), dir: f[5] == heldDir, late: f[5] == heldLate, unique: f[6]}
	case len(f) == 2 && f[0] == heldClosed:
		delete(x.mu.handles, f[1])
		maps.DeleteFunc(x.mu.locks, func(_ heldLock, l heldLocks) bool { return l.fh == f[1] })
	case len(f) == 3 && f[0] == heldCloses:
		x.renameLocked(f[1], f[2])
	case len(f) >= 5 && f[0] == heldLocked && len(f)%4 == 1:
		of := heldLock{dsm.Ino(f[2]), x.b.cfg.Locks.Owner(f[3], f[4] != 0)}
		x.mu.last++
		l := heldLocks{fh: f[1], at: x.mu.last}
		for k := f[5:]; len(k) > 0; k = k[4:] {
			l.set = append(l.set, locks.Lock{Owner: of.owner, Type: locks.Type(k[0]), First: k[1], Last: k[2], PID: uint32(k[3])})
		}
		if x.mu.locks[of] = l; len(l.set) == 0 {
			delete(x.mu.locks, of)
		}
	case len(f) >= 3 && f[0] == heldIndex:
		if name := string(b[3*8:]); name != "" {
			x.mu.indexes[dsm.Ino(f[1])] = place{nodeID(f[2]), name}
		} else {
			delete(x.mu.indexes, dsm.Ino(f[1]))
		}
	case len(f) == 9 && f[0] == heldAttached:
		x.mu.attached[f[1]] = attach.Held{Number: f[1], File: dsm.Ino(f[2]), PID: int(f[3]), Start: f[4], UID: uint32(f[5]), Write: f[6] != 0, Unnamed: f[7] != 0, Memory: f[8]}
	case len(f) == 2 && f[0] == heldDetached:
		delete(x.mu.attached, f[1])
	default:
		return errs.E(errs.Corrupt, "resume", "a record of %d bytes", len(b))
	}
	return nil
}

// LoseLocks tells node which of the locks that earlier daemons have recorded are lost: all, or those that were lost to one of these daemons. What programs have
// stored under them is not published from now on.
func LoseLocks(held *hold.Memory, node *locks.Node, all bool) error {
	var x heldFiles
	x.init(&bridge{cfg: Config{Held: held, Locks: node}})
	if err := x.journal.Read(x.readLocked); err != nil {
		return err
	}
	for of, l := range x.mu.locks {
		if all || l.lost() {
			node.Lost(of.ino, of.owner)
		}
	}
	return nil
}

// lostLocks is the record of an owner that has lost its locks, and believes to have them.
func lostLocks(o locks.Owner) []locks.Lock {
	return []locks.Lock{{Owner: o, Type: locks.Unlock, Last: locks.End}}
}

func (l heldLocks) lost() bool { return len(l.set) > 0 && l.set[0].Type == locks.Unlock }

// resumeLimit bounds how long it may take to open everything again.
const resumeLimit = time.Minute

// resume opens again what programs have open, before any request is served. claimed are the files that this node claims in the
// catalog. The number of the daemon is not that of any before. After an error nothing is lost: another daemon can do it.
func (x *heldFiles) resume(daemon uint64, claimed []dsm.Ino, s *attach.Server) error {
	x.b.resuming.Store(true)
	defer x.b.resuming.Store(false)
	ctx, cancel := context.WithTimeout(x.b.life, resumeLimit)
	defer cancel()
	x.mu.Lock()
	err := x.journal.Read(x.readLocked)
	handles := slices.SortedFunc(maps.Values(x.mu.handles), func(a, b heldHandle) int { return cmp.Compare(a.fh, b.fh) })
	for _, h := range handles {
		x.mu.opens[h.unique] = h.fh
	}
	x.mu.last = daemon << 40
	owners := x.locksLocked() // also of files that cannot be opened again
	attached := slices.SortedFunc(maps.Values(x.mu.attached), func(a, b attach.Held) int { return cmp.Compare(a.Number, b.Number) })
	x.mu.Unlock()
	if err != nil {
		return err
	}
	used := make(map[dsm.Ino]bool)
	x.b.handles.begin(daemon << 40)
	x.b.versions.begin(daemon << 32)
	for _, h := range handles {
		used[h.ino] = true
		err := x.open(ctx, h)
		if err != nil && ctx.Err() != nil { // the cluster may answer the next daemon
			return errs.E(errs.Timeout, "resume", "what programs have open is not open again after %v: %w", resumeLimit, err)
		}
		if err != nil {
			x.b.log.Error("a file that programs have open is lost; what they do with it fails", "inode", h.ino, "err", err)
			x.closed(h.fh)
		}
	}
	for _, h := range attached {
		used[h.File] = true
	}
	if s.Adopt(ctx, attached); ctx.Err() != nil {
		return errs.E(errs.Timeout, "resume", "what programs have attached is not attached again after %v: %w", resumeLimit, ctx.Err())
	}
	for _, of := range owners {
		x.mu.Lock()
		l := x.mu.locks[of]
		x.mu.Unlock()
		h, ok := x.b.handles.get(l.fh).(*fileHandle)
		if !ok {
			_ = x.b.cfg.Locks.Release(ctx, of.ino, of.owner) // LoseLocks may have told of it
			continue
		}
		h.locks(of.owner)
		if slices.ContainsFunc(l.set, func(k locks.Lock) bool { return k.Type == locks.Write }) {
			h.area.writeLocked.Store(true)
		}
		if x.b.cfg.LocksLost || l.lost() { // see LoseLocks
			x.mu.Lock()
			x.setLocked(of, l.fh, lostLocks(of.owner))
			x.mu.Unlock()
			continue
		}
		err := x.b.cfg.Locks.Resume(ctx, of.ino, l.set)
		if err != nil && ctx.Err() != nil {
			return errs.E(errs.Timeout, "resume", "programs do not have their locks again after %v: %w", resumeLimit, err)
		}
		if err != nil {
			x.b.log.Error("a lock is lost", "inode", of.ino, "err", err)
		}
	}
	if err := x.resumeIndexes(ctx); err != nil {
		return err
	}
	for _, h := range handles {
		if h.fh&closing != 0 {
			x.closing = append(x.closing, h.fh)
		}
	}
	for _, ino := range claimed {
		if !used[ino] {
			x.b.background.run(func() { x.b.claims.made(ino) }) // unless a request that comes again opens it
		}
	}
	return nil
}

// resumeIndexes has this node keep the indexes of write-ahead logs of which handles are open again. Other nodes may get the others.
func (x *heldFiles) resumeIndexes(ctx context.Context) error {
	x.mu.Lock()
	indexes := slices.Sorted(maps.Keys(x.mu.indexes))
	x.mu.Unlock()
	for _, ino := range indexes {
		w := &x.b.walIndexes
		if !w.has(ino) {
			x.unindexed(ino)
			continue
		}
		l := w.lock(locks.Write)
		if x.b.cfg.LocksLost {
			x.b.cfg.Locks.Lost(ino, l.Owner)
			continue
		}
		err := x.b.cfg.Locks.Resume(ctx, ino, []locks.Lock{l})
		if err != nil && ctx.Err() != nil {
			return errs.E(errs.Timeout, "resume", "programs do not have the index of a write-ahead log again after %v: %w", resumeLimit, err)
		}
		if err != nil {
			x.b.log.Error("the index of a write-ahead log is lost", "inode", ino, "err", err)
		}
	}
	return nil
}

// goOn closes what the daemon before was closing.
func (x *heldFiles) goOn() {
	for _, fh := range x.closing {
		x.b.Release(nil, &fuse.ReleaseIn{Fh: fh})
	}
	x.closing = nil
}

// open makes a handle again.
func (x *heldFiles) open(ctx context.Context, h heldHandle) error {
	if h.dir {
		i, err := x.b.cfg.Names.Getattr(ctx, h.ino)
		if errs.Is(err, errs.NotExist) { // it was removed, and is open
			i, err = dsm.Inode{Ino: h.ino, Kind: dsm.KindDir}, nil
		}
		if err == nil {
			x.b.dirs.opened(i)
			x.b.handles.put(h.fh, newDirHandle())
		}
		return err
	}
	if h.late {
		x.b.handles.put(h.fh, &lateHandle{ino: h.ino, flags: h.flags, tid: h.tid})
		return nil
	}
	a, _, err := x.b.opens.open(ctx, h.ino, wanted(h.flags)&dsm.MayWrite != 0, nil)
	if err != nil {
		return err
	}
	a.kernelGen.Store(0) // nor may it have heard of a shrink
	a.stored.Add(1)      // what the daemon before was told of may not be published
	var out fuse.OpenOut
	f := x.b.newHandle(a, h.tid, h.flags, &out)
	x.mu.Lock()
	at, index := x.mu.indexes[h.ino]
	x.mu.Unlock()
	if index {
		f.leave = x.b.walIndexes.again(h.ino, at)
	}
	if f.streams != nil {
		f.streams.left = attach.Ticks()
	}
	x.b.handles.put(h.fh, f)
	a.kernelPages.Store(true)
	a.kernelSize.Store(0) // it may not have taken in what it was told last
	return nil
}

// dropPages makes the kernel hand over what it has of the files that are open, and read it again. The ledger of a node alone knows nothing of it.
func (x *heldFiles) dropPages() {
	for _, a := range x.b.opens.all(func(a *openArea) bool { return a.current() != nil }) {
		x.b.background.run(func() {
			ended := a.current().KernelDrops()
			x.b.notify.log(a, "invalidate", x.b.notify.server.InodeNotify(uint64(a.id), 0, 0))
			ended()
		})
	}
}
