package pages

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Keep is where the copies of areas are that outlive the daemon: in the file of package hold, in place of anonymous memory. Each
// area has a record there, which says where its copies are and which of them has all of the area's bytes.
//
//	pages       a range of the file
//	blocks      blocks of small copies: see arena
//	slots       as long as an area can be, one for each larger copy, so that it grows in place
//
// A copy that programs have attached is a memfd of its own, which the holder has as well: see keep_files_linux.go.
//
// A copy that moves is in its new place before the record says so, and leaves its old one after that. What a daemon was killed with
// in between, memory that no record names, the next one frees.
type Keep struct {
	mem   *hold.Memory
	files hold.Descriptors // nil: programs cannot attach
	small *arena
	mu    struct {
		lockrank.Mutex
		records, slots, blocks, slabs numbers
		idle                          []*slab // no area uses them, and they have their memory
		fewest                        int     // of idle since trim was planned
		trims                         bool    // trim is planned
	}
	lingers int                  // slabs: see Linger
	left    map[dsm.AreaID][]int // the slabs of areas that were not taken yet
	// drafts are the records of drafts of such areas.
	drafts    map[dsm.AreaID][]int
	conflicts conflicts
	homes     homes
}

const (
	slotSize  = int64(dsm.MaxAreaSize)
	slotsAt   = int64(hold.PagesAt) + slotSize // blocks are before
	mostSlots = int((int64(hold.End) - slotsAt) / slotSize)
	// Where a piece is has its class, and 1 more, in the low bits.
	classMask = dsm.PageSize - 1
)

// numbers gives out numbers from 0 on.
type numbers struct {
	free []int
	used int // those from here on were never given out
	most int
	held func(used int) // notes used, before the number is used
}

func (n *numbers) take() (int, error) {
	if k := len(n.free); k > 0 {
		i := n.free[k-1]
		n.free = n.free[:k-1]
		return i, nil
	}
	if n.used == n.most {
		return 0, unix.ENOSPC
	}
	n.used++
	n.held(n.used)
	return n.used - 1, nil
}

// restore says which numbers are in use.
func (n *numbers) restore(used uint64, in map[int]bool) {
	n.used = int(used)
	for i := range n.used {
		if !in[i] {
			n.free = append(n.free, i)
		}
	}
}

// NewKeep returns the keep in a memory. It has what earlier daemons have left there: see Areas. files has the memfds of copies that programs have attached; if it
// is nil they cannot.
func NewKeep(m *hold.Memory, files hold.Descriptors) (*Keep, error) {
	s := &Keep{mem: m, files: files}
	s.mu.Init("pages.Keep")
	note := func(w hold.Word) func(int) { return func(used int) { m.Word(w).Store(uint64(used)) } }
	s.mu.records = numbers{most: hold.MaxAreas, held: note(hold.AreasUsed)}
	s.mu.slots = numbers{most: mostSlots, held: note(hold.SlotsUsed)}
	s.mu.blocks = numbers{most: int(slotSize / blockSize), held: note(hold.BlocksUsed)}
	s.mu.slabs = numbers{most: hold.MaxFrames / slabFrames, held: note(hold.SlabsUsed)}
	s.small = newArena()
	s.small.back, s.small.grab, s.small.drop = remove, s.grabBlock, s.dropBlock
	s.conflicts.init(s)
	s.homes.init(s)
	return s, errors.Join(s.restore(), s.conflicts.restore(), s.homes.restore(s))
}

// restore finds out what is in use, and frees the rest. Nobody else has the keep yet, so it takes no lock: arenas take theirs before it.
func (s *Keep) restore() error {
	records, slots := make(map[int]bool), make(map[int]bool)
	ids := make(map[dsm.AreaID]bool)
	pieces := make(map[int]map[uint16]bool) // by block
	class := make(map[int]int)
	files := map[uint64]bool{s.mem.Word(hold.Listening).Load(): true}
	for i := range int(s.mem.Word(hold.AreasUsed).Load()) {
		if id := s.mem.Area(i).ID.Load(); id != 0 && id&hold.OfDraft == 0 {
			ids[dsm.AreaID(id)] = true
		}
	}
	s.drafts = make(map[dsm.AreaID][]int)
	for i := range int(s.mem.Word(hold.AreasUsed).Load()) {
		r := s.mem.Area(i)
		id := dsm.AreaID(r.ID.Load() &^ hold.OfDraft)
		if !ids[id] { // or it is a draft of an area that has gone
			r.ID.Store(0)
			r.Base.Store(0)
			r.Working.Store(0)
			continue
		}
		if records[i] = true; r.ID.Load()&hold.OfDraft != 0 {
			s.drafts[id] = append(s.drafts[id], i)
		}
		for _, at := range []int64{int64(r.Base.Load()), int64(r.Working.Load())} {
			switch {
			case isFile(at):
				files[numberOf(at)] = true
			case at >= slotsAt:
				slots[slotOf(at)] = true
			case at != 0:
				b, k := blockOf(at), int(at&classMask)-1
				if pieces[b] == nil {
					pieces[b] = make(map[uint16]bool)
				}
				class[b] = k
				pieces[b][uint16(at%blockSize/(dsm.PageSize<<k))] = true
			}
		}
	}
	blocks := make(map[int]bool)
	for b := range pieces {
		blocks[b] = true
	}
	s.mu.records.restore(s.mem.Word(hold.AreasUsed).Load(), records)
	s.mu.slots.restore(s.mem.Word(hold.SlotsUsed).Load(), slots)
	s.mu.blocks.restore(s.mem.Word(hold.BlocksUsed).Load(), blocks)
	failed := errors.Join(s.restoreSlabs(ids), s.restoreFiles(files))
	for _, i := range s.mu.slots.free {
		failed = errors.Join(failed, s.mem.Free(slotAt(i), slotSize))
	}
	for _, i := range s.mu.blocks.free {
		failed = errors.Join(failed, s.mem.Free(hold.PagesAt+int64(i)*blockSize, blockSize))
	}
	for b, used := range pieces {
		mem, err := s.mapRange(hold.PagesAt+int64(b)*blockSize, blockSize)
		if err != nil {
			return errors.Join(failed, err)
		}
		s.small.restore(&arenaBlock{mem: mem, class: class[b], at: hold.PagesAt + int64(b)*blockSize}, used)
	}
	return failed
}

func slotAt(i int) int64    { return slotsAt + int64(i)*slotSize }
func slotOf(at int64) int   { return int((at - slotsAt) / slotSize) }
func blockOf(at int64) int  { return int((at - hold.PagesAt) / blockSize) }
func remove(b []byte) error { return os.NewSyscallError("madvise", unix.Madvise(b, unix.MADV_REMOVE)) }

// mapRange maps a part of the file.
func (s *Keep) mapRange(at, n int64) ([]byte, error) {
	mem, err := unix.Mmap(s.mem.FD(), at, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE) // EINVAL where the kernel has none
	return mem, nil
}

// grabBlock is arena.grab.
func (s *Keep) grabBlock() (mem []byte, at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.mu.blocks.take()
	if err != nil {
		return nil, 0, err
	}
	at = hold.PagesAt + int64(i)*blockSize
	if mem, err = s.mapRange(at, blockSize); err != nil {
		s.mu.blocks.free = append(s.mu.blocks.free, i)
	}
	return mem, at, err
}

// dropBlock is arena.drop.
func (s *Keep) dropBlock(b *arenaBlock) error {
	err := errors.Join(s.mem.Free(b.at, blockSize), os.NewSyscallError("munmap", unix.Munmap(b.mem)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.blocks.free = append(s.mu.blocks.free, blockOf(b.at))
	return err
}

// grabSlot returns the place of a large copy, and a mapping of n bytes of it.
func (s *Keep) grabSlot(n int64) (mem []byte, at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.mu.slots.take()
	if err != nil {
		return nil, 0, err
	}
	if mem, err = s.mapRange(slotAt(i), n); err != nil {
		s.mu.slots.free = append(s.mu.slots.free, i)
	}
	return mem, slotAt(i), err
}

// dropSlot frees the place of a large copy.
func (s *Keep) dropSlot(at int64) error {
	err := s.mem.Free(at, slotSize)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.slots.free = append(s.mu.slots.free, slotOf(at))
	return err
}

// keeping is what an area in a store has of it.
type keeping struct {
	store  *Keep
	i      int
	record hold.Area
}

// keep makes the record of an area.
func (s *Keep) keep(id dsm.AreaID) (*keeping, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.mu.records.take()
	if err != nil {
		return nil, err
	}
	k := &keeping{s, i, s.mem.Area(i)}
	k.record.Base.Store(0)
	k.record.Working.Store(0)
	k.record.Newest.Store(0)
	k.record.Rev.Store(0)
	k.record.Uncertain.Store(0)
	k.record.Size.Store(0)
	k.record.Parts.Store(0)
	k.record.Whole.Store(0)
	k.record.Changing.Store(0)
	k.record.Older.Store(0)
	k.record.Owner.Store(0)
	k.record.Lost.Store(0)
	k.record.ID.Store(uint64(id))
	return k, nil
}

// forget ends the record, before the memory goes. The number is free after that: see end.
func (k *keeping) forget() {
	if k != nil {
		k.record.ID.Store(0)
	}
}

func (k *keeping) end() {
	if k == nil {
		return
	}
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	k.store.mu.records.free = append(k.store.mu.records.free, k.i)
}

// NewHeldArea is NewArea for an area whose copies outlive the daemon.
func (s *Keep) NewHeldArea(id dsm.AreaID, size int64) (*Area, error) {
	k, err := s.keep(id)
	if err != nil {
		return nil, &errs.Error{Op: "memory: hold", Area: id, Kind: errs.NoSpace, Err: err}
	}
	return newArea(id, size, nil, k)
}

// NewHeldDemandArea is NewDemandArea for an area whose copies outlive the daemon.
func (s *Keep) NewHeldDemandArea(id dsm.AreaID, size int64) (*Area, error) {
	k, err := s.keep(id)
	if err != nil {
		return nil, &errs.Error{Op: "memory: hold", Area: id, Kind: errs.NoSpace, Err: err}
	}
	return newArea(id, size, &demand{none: missing()}, k)
}

// Outlives reports whether both copies outlive the daemon.
func (a *Area) Outlives() bool { return a.kept != nil && !a.ends }

// EndsWithDaemon says that no other daemon takes the copies over. From now on programs may have of the area what they may have of one that is in no Keep. The
// memory that the copies have stays theirs.
func (a *Area) EndsWithDaemon() {
	if !a.Outlives() {
		return
	}
	a.ends = true
	for _, c := range []*areaCopy{a.working, a.base} {
		c.moving.end()
		c.at, c.moving = nil, nil
	}
	a.working.filed = true
}

// FollowedTo says up to which change of the catalog the copies follow.
func (a *Area) FollowedTo(rev dsm.Generation) {
	if a.kept != nil {
		a.kept.record.Rev.Store(uint64(rev))
	}
}

// HasNewest reports whether the next daemon takes the working copy over: see WorkingIsNewest.
func (a *Area) HasNewest() bool { return a.kept != nil && a.kept.record.Newest.Load() != 0 }

// WorkingIsNewest says that the working copy has all bytes of the area, from now until EndReplica: programs are going to store into it. What it
// has counts for the next daemon. Of an area on demand it has the pages that are here, and the bases of all of them are kept.
func (a *Area) WorkingIsNewest() {
	if a.Outlives() {
		a.kept.record.Newest.Store(1)
	}
}

// HasParts says whether this node has parts of a round that are not over.
func (a *Area) HasParts(has bool) {
	switch {
	case a == nil || a.kept == nil:
	case has:
		a.kept.record.Parts.Store(1)
	default:
		a.kept.record.Parts.Store(0)
	}
}

// Left is an area that an earlier daemon has left.
type Left struct {
	ID   dsm.AreaID
	Rev  dsm.Generation
	Home bool // TakeBoth leaves the base copy what the home had merged, where the replica on its node had not followed
	// Homed says of which extents the node stays the home, nil of none. TakeBoth leaves the base copy what the home had merged, and the replica the base that it had.
	Homed func(dsm.ExtentIndex) bool
	// Demand says that the area is one on demand. Take makes one of which no page is here: no program of this node has stored to it.
	Demand bool
	k      *keeping
}

// Areas returns what earlier daemons have left.
func (s *Keep) Areas() (all []Left) {
	for i := range int(s.mem.Word(hold.AreasUsed).Load()) {
		if r := s.mem.Area(i); r.ID.Load() != 0 && r.ID.Load()&hold.OfDraft == 0 {
			all = append(all, Left{ID: dsm.AreaID(r.ID.Load()), Rev: dsm.Generation(r.Rev.Load()), k: &keeping{s, i, r}})
		}
	}
	return all
}

// Take returns the area, whose size is now size and has been as little as least since Left.Rev, without a working
// copy. All bytes that programs have stored count as published: the base has them. If the daemon is killed before it
// is done, the next one does it again.
func (l Left) Take(size, least int64) (a *Area, err error) {
	if err := l.dropDrafts(); err != nil {
		return nil, err
	}
	l.k.record.Parts.Store(0)
	a = &Area{id: l.ID, homed: map[dsm.ExtentIndex]struct{}{}, twins: map[dsm.PageIndex]frame{}, drops: &Drops{}, kept: l.k}
	a.frames.kept = l.k
	a.base, err = l.restore("b", l.k.record.Base.Load(), min(size, least))
	if err != nil {
		return nil, a.fail("restore", err)
	}
	if err := l.dropFrames(a.base, a.base.size); err != nil {
		return nil, a.fail("restore", errors.Join(err, a.base.unmap()))
	}
	a.base.clearPast(min(size, least))
	working, err := l.restore("w", l.k.record.Working.Load(), min(size, least))
	if err != nil {
		return nil, a.fail("restore", errors.Join(err, a.base.unmap()))
	}
	if l.k.record.Newest.Load() != 0 {
		err = a.base.become(working)
	}
	if err == nil {
		l.k.record.Newest.Store(0)
		err = working.close()
	}
	if l.Demand {
		a.demand = &demand{none: missing()}
	}
	a.working = newCopy(l.ID, "w", false)
	a.placeCopies()
	a.working.absent = true
	a.size = min(a.base.size, size)
	if err == nil {
		err = a.base.leaveFile()
	}
	if err == nil {
		a.working.resizeAnonymous(a.size)
		err = a.Resize(size)
	}
	return a, a.failed("restore", err)
}

// Drop frees what is left of an area that is gone.
func (l Left) Drop() error {
	l.k.forget()
	err := errors.Join(l.dropDrafts(), l.dropFrames(nil, 0), l.drop("b", l.k.record.Base.Load()), l.drop("w", l.k.record.Working.Load()))
	l.k.end()
	return err
}

// drop frees a copy that is at a place of the store. Programs keep the memory that they have mapped.
func (l Left) drop(suffix string, at uint64) error {
	if files := l.k.store.files; isFile(int64(at)) && files != nil {
		return files.Drop(numberOf(int64(at)))
	}
	c, err := l.restore(suffix, at, 0)
	if err != nil {
		return err
	}
	return c.close()
}

// restore returns a copy that is at a place of the store. Its bytes from size on are zero.
func (l Left) restore(suffix string, at uint64, size int64) (*areaCopy, error) {
	c := newCopy(l.ID, suffix, false)
	c.kept, c.at = l.k, &l.k.record.Base
	if suffix == "w" {
		c.at = &l.k.record.Working
	}
	if at == 0 {
		return c, nil
	}
	s := l.k.store
	var err error
	if isFile(int64(at)) {
		return c, c.adoptFile(numberOf(int64(at)), size)
	}
	if int64(at) >= slotsAt {
		c.slot = int64(at)
		if c.mem, err = s.mapRange(c.slot, capacityFor(size)); err == nil {
			err = s.mem.Free(c.slot+wholePages(size), slotSize-wholePages(size))
		}
	} else {
		c.piece = s.small.piece(int64(at) &^ classMask)
		c.mem = c.piece.mem()
		size = min(size, int64(len(c.mem)))
	}
	if err != nil {
		return c, err
	}
	whole := wholePages(size)
	if c.piece.block != nil && whole < int64(len(c.mem)) {
		if err := remove(c.mem[whole:]); err != nil {
			return c, err
		}
	}
	c.resizeAnonymous(whole)
	err = s.data(int64(at)&^classMask, whole, func(off, n int64) {
		for p := dsm.PageIndex(off / dsm.PageSize); int64(p)*dsm.PageSize < off+n; p++ {
			c.take(p, 1)
		}
	})
	c.clearPast(size)
	c.resizeAnonymous(size)
	return c, err
}

// data calls f for the parts of a range that take memory.
func (s *Keep) data(at, n int64, f func(off, n int64)) error {
	for off := int64(0); off < n; {
		from, err := unix.Seek(s.mem.FD(), at+off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && from >= at+n {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		to, err := unix.Seek(s.mem.FD(), from, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		to = min(to, at+n)
		f(from-at, to-from)
		off = to - at
	}
	return nil
}

// become makes the copy equal to another one, which is as long or longer unless it was never made.
func (c *areaCopy) become(o *areaCopy) error {
	if err := c.reserve(o.len); err != nil {
		return err
	}
	if err := c.resize(max(c.size, o.size)); err != nil {
		return err
	}
	for p := dsm.PageIndex(0); int64(p)*dsm.PageSize < c.len; p++ {
		switch off := int64(p) * dsm.PageSize; {
		case o.takes(p):
			if string(c.look(p, 1)) != string(o.look(p, 1)) {
				copy(c.page(p), o.look(p, 1))
			}
		case c.takes(p):
			if err := c.zero(off, off+dsm.PageSize); err != nil {
				return err
			}
		}
	}
	return nil
}

// Data calls f for each page of the base copy that takes memory.
func (a *Area) Data(f func(p dsm.PageIndex)) {
	for p := a.base.nextData(0); p != noPage; p = a.base.nextData(p + 1) {
		f(p)
	}
}

// Stored calls f for each page of which one of the copies takes memory.
func (a *Area) Stored(f func(p dsm.PageIndex)) {
	for w, b := a.working.nextData(0), a.base.nextData(0); w != noPage || b != noPage; {
		p := w
		if w == noPage || b != noPage && b < w {
			p = b
		}
		if int64(p)*dsm.PageSize >= a.size { // a program may have made its memfd longer
			return
		}
		f(p)
		if w == p {
			w = a.working.nextData(p + 1)
		}
		if b == p {
			b = a.base.nextData(p + 1)
		}
	}
}
