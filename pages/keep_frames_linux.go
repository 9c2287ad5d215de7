package pages

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// What neither copy has outlives the daemon in frames of the Keep. A frame has a tag, which says what it has:
//
//	given    what the page cache was given of a page, where that is not the working copy: the ledger's g
//	next     the g that takes its place when what the page cache has now is in the working copy
//	other    what it may have in place of g
//	twin     the base of a page, where that is not the home's bytes
//	working  both copies of a page that are just being changed together: see BeginMerge. The next daemon puts back what was there before
//	base
//	before   the base alone, likewise: programs may be storing to the working copy
//	mine     what the working copy of such a page is merged from: see MergeShared. The next daemon goes on with the merge
//	note     how far it is
//	stored   likewise, what a WRITE brings to such a page: see storeShared. It counts if there is a next
//	after    what the base becomes with it
//	coming   what comes in; it is set last, and cleared first
//	taken    the working copy and the base of a draft, while the first takes what a program has stored: see BeginTake
//	draft    what the memory of a draft is merged from, what comes in, and how far that is: see Refresh
//	to base, to working    what comes in goes to one of the copies, and the other is whole: see Replace
//	incoming what comes in to such a page where programs store: see ReplaceShared. It has a note of its own
//	refreshing, refreshed  what is in the working copy goes to the memory of a draft; to its base: see Refresh
//	sent     pieces of what was sent, and not answered: see KeepSent
//	sets     which sets of what was sent have the page that is being changed; and how that is when a merge is done with which the next daemon goes on
//	punched   a page in which a hole begins or ends that the kernel may not have dropped: see Cached.KernelPunches. It has no bytes
//	compared  an extent of which nothing is published before it has been compared: see IsCompared. It has no bytes
//	adding     an extent to which the home is just adding something: see BeginAdding
//	added      what it contains with that
//	added more  the rest of that, if it is much
//	unadded    a page of it as it was before
//	homes      what the home of extents knows of them: see homes. They are of no area
//	conflicts  values that were given up: see KeepConflict. They are of no area
//
// A frame has its bytes before it gets its tag, and loses the tag before it has others. The exceptions are changes that may be done twice.
type frameKind uint64

const (
	frameNone frameKind = iota
	frameGiven
	frameOther
	frameTwin
	frameWorking
	frameBase
	frameSent
	frameNext
	frameBefore
	frameMine
	frameAfter
	frameComing
	frameTaken
	frameTakenBase
	frameDraftMine
	frameDraftComing
	frameDraftNote
	frameNote
	frameStored
	frameSets
	frameSetsAfter
	frameToBase
	frameToWorking
	frameRefreshing
	frameRefreshed
	frameConflicts
	frameIncoming
	frameIncomingNote
	frameIncomingMerged
	frameCompared
	framePunched
	frameHomes
	frameAdding
	frameAdded
	frameUnadded
	frameAddedMore
)

// ofNoArea is in the tags of frames that are no area's.
const ofNoArea dsm.AreaID = 0

func slabOffset(at int) int64 { return hold.FramesAt + int64(at)*slabBytes }

// grabSlab returns a slab of the Keep. Like slabMemory, it does not return if there is none.
func (s *Keep) grabSlab() *slab {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := len(s.mu.idle); k > 0 {
		x := s.mu.idle[k-1]
		s.mu.idle = s.mu.idle[:k-1]
		s.mu.fewest = min(s.mu.fewest, k-1)
		return x
	}
	at, err := s.mu.slabs.take()
	var mem []byte
	if err == nil {
		mem, err = s.mem.Frames(int64(at)*slabBytes, slabBytes)
	}
	if err != nil {
		panic(fmt.Sprintf("no memory for page frames: %v", err))
	}
	return &slab{mem: mem, at: at}
}

// dropSlab frees a slab, with what is in it. As with other slabs, the memory of some is kept: the next daemon, which finds nothing in them, frees it.
func (s *Keep) dropSlab(x *slab) {
	for i := range slabFrames {
		s.tag(x, uint8(i)).Kind.Store(0)
	}
	s.mu.Lock()
	if n := len(s.mu.idle); n < s.lingers || keepsIdle(n) {
		s.mu.idle = append(s.mu.idle, x)
		s.planTrimLocked()
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.freeSlab(x)
}

// lingerTime is how long a slab is kept at least of those that are many: longer than a step of a training.
const lingerTime = 2 * time.Second

// Linger has as many bytes of frames that nothing uses be kept for some seconds, if that are more than KeepIdle says. What programs send in a round, they send again in the next one, and
// to have the kernel take the memory and give it back costs more than to copy. It is called before anything else.
func (s *Keep) Linger(bytes int64) { s.lingers = int(bytes / slabBytes) }

func (s *Keep) planTrimLocked() {
	if n := len(s.mu.idle); !s.mu.trims && n > 0 && !keepsIdle(n-1) {
		s.mu.trims, s.mu.fewest = true, n
		time.AfterFunc(lingerTime, s.trim)
	}
}

// trim frees slabs that nobody has needed since it was planned, as far as they are too many.
func (s *Keep) trim() {
	var out []*slab
	s.mu.Lock()
	for n := len(s.mu.idle); n > 0 && !keepsIdle(n-1) && len(out) < s.mu.fewest; n-- {
		out = append(out, s.mu.idle[n-1])
		s.mu.idle = s.mu.idle[:n-1]
	}
	s.mu.trims = false
	s.planTrimLocked()
	s.mu.Unlock()
	for _, x := range out {
		s.freeSlab(x)
	}
}

func (s *Keep) freeSlab(x *slab) {
	keptBytes.Add(-int64(x.took) * dsm.PageSize)
	if err := s.mem.Free(slabOffset(x.at), slabBytes); err != nil {
		panic(fmt.Sprintf("freeing page frames: %v", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.slabs.free = append(s.mu.slabs.free, x.at)
}

func (s *Keep) tag(x *slab, i uint8) hold.Tag { return s.mem.Tag(x.at*slabFrames + int(i)) }

// restoreSlabs finds the slabs of the areas that have records, and of none, and frees the others.
func (s *Keep) restoreSlabs(ids map[dsm.AreaID]bool) error {
	s.left = make(map[dsm.AreaID][]int)
	in := make(map[int]bool)
	used := s.mem.Word(hold.SlabsUsed).Load()
	for at := range int(used) {
		for i := range slabFrames {
			t := s.mem.Tag(at*slabFrames + i)
			if id := dsm.AreaID(t.ID.Load()); t.Kind.Load() == 0 || id != ofNoArea && id != ofHomes && !ids[id] {
				t.Kind.Store(0)
			} else if !in[at] {
				in[at] = true
				s.left[id] = append(s.left[id], at)
			}
		}
	}
	s.mu.slabs.restore(used, in)
	var failed error
	for _, at := range s.mu.slabs.free {
		failed = errors.Join(failed, s.mem.Free(slabOffset(at), slabBytes))
	}
	return failed
}

// tag says to the next daemon what a frame has, from now on.
func (f *frames) tag(x frame, kind frameKind, arg, more uint64) {
	if f.kept == nil {
		return
	}
	t := f.kept.store.tag(x.slab, x.i)
	t.ID.Store(f.kept.record.ID.Load())
	t.Arg.Store(arg)
	t.More.Store(more)
	t.Kind.Store(uint64(kind))
}

// retag says that what a tagged frame says of its page is another thing from now on.
func (f *frames) retag(x frame, kind frameKind) {
	f.kept.store.tag(x.slab, x.i).Kind.Store(uint64(kind))
}

// untag says that a frame has nothing any more.
func (f *frames) untag(x frame) {
	if f.kept == nil {
		return
	}
	if t := f.kept.store.tag(x.slab, x.i); t.Kind.Load() != 0 { // a store costs ten times as much
		t.Kind.Store(0)
	}
}

// tagged is a frame of an earlier daemon.
type tagged struct {
	frame
	arg, more uint64
}

// adopt takes over the frames that an earlier daemon has left of an area, by kind, in the order of their tags.
func (f *frames) adopt(id dsm.AreaID) (left map[frameKind][]tagged, err error) {
	s := f.kept.store
	left = make(map[frameKind][]tagged)
	for _, at := range s.left[id] {
		x := &slab{at: at}
		s.mu.Lock()
		x.mem, err = s.mem.Frames(int64(at)*slabBytes, slabBytes)
		if s.mu.Unlock(); err != nil {
			return nil, err
		}
		x.takes(slabFrames) // at most
		if f.all == nil {
			f.all = make(map[*slab]struct{})
		}
		f.all[x] = struct{}{}
		for i := range slabFrames {
			t := s.tag(x, uint8(i))
			k := frameKind(t.Kind.Load())
			if k == frameNone {
				x.free = append(x.free, uint8(i))
				continue
			}
			f.used++
			off := i * dsm.PageSize
			left[k] = append(left[k], tagged{frame{x.mem[off : off+dsm.PageSize : off+dsm.PageSize], x, uint8(i)}, t.Arg.Load(), t.More.Load()})
		}
		if len(x.free) > 0 {
			f.open = append(f.open, x)
		}
	}
	delete(s.left, id)
	return left, nil
}

// dropFrames frees what is left in frames of an area, but for what the home's bytes need, of which there is a copy unless it is nil.
func (l Left) dropFrames(home *areaCopy, size int64) error {
	f := frames{kept: l.k}
	left, err := f.adopt(l.ID)
	if home != nil {
		l.undoAdding(left, home, size)
	}
	f.close()
	return err
}

// Newest reports whether programs could store: the working copy has all bytes of the area.
func (l Left) Newest() bool { return l.k.record.Newest.Load() != 0 }

// KernelHas is the end of what the page cache may have.
func (l Left) KernelHas() int64 { return int64(l.k.record.Size.Load()) }

// KernelHas says, before ResumeCached, that the page cache may have pages up to end, which may be past the end of the area: of an earlier daemon of which nothing else is left.
func (a *Area) KernelHas(end int64) {
	if k := a.kept; k != nil && uint64(end) > k.record.Size.Load() {
		k.record.Size.Store(uint64(end))
	}
}

// longest returns how long the area can be now, because of what earlier daemons are still freeing.
func (a *Area) longest() int64 {
	n := a.working.longest()
	for _, d := range a.drafts {
		n = min(n, d.memory.longest())
	}
	return n
}

// TakeBoth returns the area, whose size is now size and has been as little as least since Left.Rev, with both copies: the working copy has
// what programs have stored, and the base copy what the homes had. It is shorter where a process of the daemon before has yet to free what is past its end. No extent is homed here. What was sent and not answered comes with
// it. k is the rule by which pages of memory that programs have attached were merged. If the daemon is killed before it is done, the next one does it again.
func (l Left) TakeBoth(k merge.Kernel, size, least int64) (a *Area, sent []*Sent, err error) {
	end := min(size, least)
	a = &Area{id: l.ID, homed: map[dsm.ExtentIndex]struct{}{}, twins: map[dsm.PageIndex]frame{}, drops: &Drops{}, kept: l.k}
	a.frames.kept = l.k
	if a.base, err = l.restore("b", l.k.record.Base.Load(), end); err != nil {
		return nil, nil, a.fail("restore", err)
	}
	if a.working, err = l.restore("w", l.k.record.Working.Load(), end); err != nil {
		return nil, nil, a.fail("restore", errors.Join(err, a.base.unmap()))
	}
	a.size = min(a.base.size, a.working.size, end)
	if err := errors.Join(a.working.resize(a.size), a.base.resize(a.size)); err != nil {
		return nil, nil, a.fail("restore", err)
	}
	left, err := a.frames.adopt(l.ID)
	if err != nil {
		return nil, nil, a.fail("restore", err)
	}
	within := func(x tagged) bool { // of a page that was just leaving nothing is needed
		return int64(x.arg)*dsm.PageSize < a.size && (!l.Demand || a.working.takes(dsm.PageIndex(x.arg)))
	}
	l.undoAdding(left, a.base, a.size)
	a.stays = l.Homed
	defer func() { a.stays = nil }()
	for _, x := range left[frameTwin] {
		p := dsm.PageIndex(x.arg)
		if e, _ := p.Extent(); within(x) && l.Homed != nil && l.Homed(e) {
			a.homed[e] = struct{}{}
			a.twins[p] = x.frame
			continue
		}
		if within(x) && !l.Home {
			copy(a.base.page(p), x.mem)
		}
		a.frames.put(x.frame)
	}
	sent = a.leftSent(left[frameSent])
	for _, w := range left[frameWorking] {
		i := slices.IndexFunc(left[frameBase], func(b tagged) bool { return b.arg == w.arg })
		if i < 0 || !within(w) {
			continue
		}
		p := dsm.PageIndex(w.arg)
		copy(a.working.page(p), w.mem)
		copy(a.leftBase(p), left[frameBase][i].mem)
		putSets(p, left[frameSets], sent)
	}
	a.mergeAgain(k, left, sent, within)
	a.replaceAgain(k, left, sent, within)
	if err := a.takeDrafts(l, end); err != nil {
		return nil, nil, a.fail("restore", err)
	}
	a.endOfDrafts(k, left)
	for _, next := range left[frameNext] {
		same := func(x tagged) bool { return x.arg == next.arg }
		if slices.ContainsFunc(left[frameWorking], same) { // the working copy is as before
			a.frames.put(next.frame)
			continue
		}
		if i := slices.IndexFunc(left[frameGiven], same); i >= 0 {
			a.frames.put(left[frameGiven][i].frame)
			left[frameGiven] = slices.Delete(left[frameGiven], i, i+1)
		}
		a.frames.tag(next.frame, frameGiven, next.arg, 0)
		left[frameGiven] = append(left[frameGiven], next)
	}
	for _, kind := range []frameKind{frameWorking, frameBase, frameBefore, frameComing, frameStored, frameMine, frameNote, frameAfter, frameTaken, frameTakenBase, frameDraftNote, frameDraftMine, frameDraftComing, frameSets, frameSetsAfter, frameToBase, frameToWorking, frameRefreshing, frameRefreshed, frameIncoming, frameIncomingNote, frameIncomingMerged, frameAdding, frameAdded, frameAddedMore, frameUnadded} {
		for _, x := range left[kind] {
			a.frames.put(x.frame)
		}
	}
	a.leftCompared(left[frameCompared])
	if l.Demand {
		a.takeDemand(left[frameGiven], l.k.uncertain(), l.KernelHas())
	}
	a.working.clearPast(end)
	a.base.clearPast(end)
	a.truncateTwins(end)
	a.left = left
	size = min(size, a.longest())
	for _, d := range a.drafts {
		if err := d.Resize(size); err != nil {
			return nil, nil, a.fail("restore", err)
		}
	}
	return a, sent, a.failed("restore", a.Resize(size))
}

// ResumeCached is NewCached for an area of an earlier daemon: the page cache may have any page. If programs may have stored to it (writers), the area
// was TakeBoth. From the byte from on it is not certain what it has.
func ResumeCached(a *Area, writers bool, from int64) *Cached {
	c := newCached(a)
	c.writers, c.resumed, c.shaken, c.again = writers, a.size, true, true
	if a.kept != nil {
		c.resumed = max(a.size, int64(a.kept.record.Size.Load()))
		from = min(from, a.kept.uncertain())
	}
	if c.resumed > a.size {
		from = min(from, a.size)
	}
	if !writers {
		from = 0
	}
	if writers && a.demand != nil && a.demand.before != nil {
		c.before = a.demand.before
		c.findSparse()
	}
	for _, x := range a.left[frameGiven] {
		p := dsm.PageIndex(x.arg)
		if (int64(p)+1)*dsm.PageSize > from || int64(p)*dsm.PageSize >= a.size {
			a.frames.put(x.frame)
			continue
		}
		c.given[p] = x.frame
		at, i := c.page(p)
		c.want(at, i)
	}
	for _, x := range a.left[frameOther] {
		p := dsm.PageIndex(x.arg)
		if _, ok := c.given[p]; !ok {
			a.frames.put(x.frame)
			continue
		}
		at, i := c.page(p)
		c.others[p] = append(c.others[p], x.frame)
		at.unsure.Add(i)
		c.want(at, i)
	}
	c.resumePunched(a.left[framePunched])
	a.left = nil
	if from >= c.resumed {
		return c
	}
	c.notCertain(from)
	for e := dsm.ExtentOf(from); int(e) < dsm.Extents(c.resumed); e++ {
		x := c.extent(e)
		if x == nil {
			continue
		}
		for i := range x.given.All() {
			if (int64(x.page(i))+1)*dsm.PageSize > from {
				c.doubt(x, i)
			}
		}
	}
	return c
}

// notCertain says to the next daemon that it is not certain what the page cache has from a byte on.
func (c *Cached) notCertain(from int64) {
	if k := c.area.kept; k != nil && from < k.uncertain() {
		k.record.Uncertain.Store(uint64(from) + 1)
	}
}

// uncertain returns from which byte on it is not certain what the page cache has.
func (k *keeping) uncertain() int64 {
	if more := k.record.Uncertain.Load(); more != 0 {
		return int64(more - 1)
	}
	return math.MaxInt64
}

// gavePast follows a READ of page i, which lies past the end: the kernel had begun it before it heard of a smaller size. The page cache has zeroes there, and is to drop them if
// another daemon may follow: that does not look for them when the area has grown.
func (c *Cached) gavePast(x *cachedExtent, i int) {
	if c.area.kept == nil {
		return
	}
	c.hasPast(x.page(i))
	clear(c.keep(x, i).mem)
	c.keepsGiven(x, i)
	c.shrunkAt(c.size)
	c.doubt(x, i)
}

// hasPast says to the next daemon that the page cache may have page p, which lies past the end.
func (c *Cached) hasPast(p dsm.PageIndex) {
	c.area.KernelHas((int64(p) + 1) * dsm.PageSize)
}

// certainAgain takes that back when it is.
func (c *Cached) certainAgain() {
	k := c.area.kept
	if k == nil || k.record.Uncertain.Load() == 0 && k.record.Size.Load() == uint64(c.area.size) {
		return
	}
	end := wholePages(c.area.size) / dsm.PageSize
	for e, x := range c.extents {
		first := min(max(end-int64(e)*dsm.ExtentPages, 0), dsm.ExtentPages)
		if past := x.given.And(dsm.Range(int(first), dsm.ExtentPages)); !x.doubtful.Empty() || !past.Empty() {
			return
		}
	}
	k.record.Size.Store(uint64(c.area.size))
	k.record.Uncertain.Store(0)
}

// keepsGiven says to the next daemon what the page cache was given of page i.
func (c *Cached) keepsGiven(x *cachedExtent, i int) {
	if c.area.kept == nil {
		return
	}
	p := x.page(i)
	c.area.frames.tag(c.given[p], frameGiven, uint64(p), 0)
}

// nowGiven puts data, which the page cache has at lo of page p, into its g, which it returns. The working copy has been changed by it, and BeginMerge was called before. If
// the daemon is killed before this is done, both are as before: the WRITE comes again, and must not count twice.
func (c *Cached) nowGiven(p dsm.PageIndex, lo int, data []byte) frame {
	g := c.given[p]
	if !c.area.Outlives() {
		copy(g.mem[lo:], data)
		return g
	}
	next := c.nextGiven(p, lo, data)
	c.area.EndMerge()
	c.isGiven(p, next)
	return next
}

// nextGiven returns the g of page p with data in it. It takes the place of g by isGiven.
func (c *Cached) nextGiven(p dsm.PageIndex, lo int, data []byte) frame {
	next := c.area.frames.take()
	copy(next.mem, c.given[p].mem)
	copy(next.mem[lo:], data)
	c.area.frames.tag(next, frameNext, uint64(p), 0)
	return next
}

func (c *Cached) isGiven(p dsm.PageIndex, next frame) {
	g := c.given[p]
	c.given[p] = next
	c.area.frames.put(g)
	c.area.frames.tag(next, frameGiven, uint64(p), 0)
}

// storeShared brings stored, which was made from base by a WRITE of data at lo of page p, into memory to which programs may be storing, and data into its g, which it returns. If the daemon is killed meanwhile
// the WRITE comes again: then either nothing was done, or the next daemon does the rest, and the WRITE changes nothing.
func (c *Cached) storeShared(k merge.Kernel, p dsm.PageIndex, lo int, data, base, stored []byte) frame {
	a := c.area
	if !a.Outlives() {
		k.StoreShared(p, base, a.Working(p), stored)
		g := c.given[p]
		copy(g.mem[lo:], data)
		return g
	}
	note := a.noteStored(p, base, stored)
	next := c.nextGiven(p, lo, data) // from here on it is done
	k.StoreNoted(note, p, base, a.Working(p), stored)
	c.isGiven(p, next)
	a.EndMerge()
	return next
}

// Resumed reports whether the ledger was taken over from an earlier daemon.
func (c *Cached) Resumed() bool { return c.resumed > 0 || c.area.size == 0 }
