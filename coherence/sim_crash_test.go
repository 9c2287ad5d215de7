package coherence

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// In a run with crashes nodes die at any moment, with their programs, if the rows say that nothing is lost by that. Calls of other programs do not
// fail. What anybody has seen stays; of what the dead have published, and nobody has been told, each publish may be there, or not.

// simCrash is what a run knows of its dead.
type simCrash struct {
	crashed int
	left    map[int64]bool         // bytes whose last stores died with a node, as far as they were not published
	ones    map[int64]int          // likewise of what programs have counted: what the first node that was looked at has
	by      map[int]map[int]uint32 // the best values that programs of each node have found
	best    map[int]uint32         // those that were seen when a node died
	ends    map[int]uint32         // at rest
}

// mostCrashes is how many nodes die in a run.
const mostCrashes = 2

// crashOn has a node die at times, most often while something is under way, or has the catalog hear of a death.
func (r *simRun) crashOn() {
	if !r.kind.crashes || r.rng.IntN(40) > 0 || r.rng.IntN(2) == 0 && r.buryOne() || r.crash.crashed == mostCrashes {
		return
	}
	busy := r.busyRows()
	if !busy && r.rng.IntN(4) > 0 {
		return
	}
	for more := true; more && r.crash.crashed < mostCrashes; more = r.copies > 2 && r.rng.IntN(2) == 0 { // perhaps two at about the same time
		list := slices.DeleteFunc(r.programNodes(), r.loses)
		if len(list) == 0 {
			return
		}
		r.crashes(list[r.rng.IntN(len(list))])
	}
}

// busyRows reports whether some slot is on its way, or not all of its backups are in sync, or who has it is dead.
func (r *simRun) busyRows() bool {
	v := r.lastView()
	for e := range dsm.ExtentIndex(4) {
		row := r.rowOf(v, e)
		if _, filling := backups(row); row.Source != 0 || r.nodes[row.Holder()-1].dead || len(filling) > 0 {
			return true
		}
	}
	return false
}

// loses reports whether something is lost if the node dies now, and the catalog hears of it, and of another death of which it has not heard, in either order.
func (s *sim) loses(n *simNode) bool {
	dead := []*simNode{n}
	for _, o := range s.nodes {
		if o.dead && !o.gone {
			dead = append(dead, o)
		}
	}
	v := s.lastView().Clone()
	for _, o := range dead {
		v.Members[o.i].Gone = true
	}
	for _, row := range v.Rows() {
		if row.Source == 0 || !v.IsGone(row.Primary) {
			continue
		}
		// Where a new home has died, its source says so at some time, and then the first in sync has it.
		if len(dead) > 1 || row.Primary != n.id && row.BackupOf(n.id) >= 0 {
			return true
		}
		// It may have arrived there: then only a backup has it, too.
		if !isBacked(v, *row) {
			return true
		}
	}
	return s.losesAll(dead) || len(dead) == 2 && s.losesAll([]*simNode{dead[1], dead[0]})
}

// losesAll reports whether something is lost when the catalog hears of deaths one after the other.
func (s *sim) losesAll(dead []*simNode) bool {
	v := s.lastView().Clone()
	for _, n := range dead {
		v.Epoch++
		v.Members[n.i].Gone = true
		s.takeOver(v, n.id)
	}
	for _, row := range v.Rows() {
		if v.IsGone(row.Holder()) {
			return true
		}
	}
	return false
}

// twoUnheard reports whether two nodes are dead of which the catalog has not heard, where there are to be two copies: then no slot begins to move. Of three copies
// a move has place for two backups and its source.
func (s *sim) twoUnheard() bool {
	n := 0
	for _, o := range s.nodes {
		if o.dead && !o.gone {
			n++
		}
	}
	return n > 1 && s.copies < 3
}

// buryOne has the catalog hear of a death. It reports whether there was one to hear of.
func (r *simRun) buryOne() bool {
	for _, n := range r.nodes {
		if n.dead && !n.gone {
			r.bury(n)
			return true
		}
	}
	return false
}

// crashes ends a node with programs.
func (r *simRun) crashes(n *simNode) {
	r.crash.crashed++
	r.remember(n)
	r.leaves(n)
	r.kill(n)
}

// remember takes what programs could have read until now as seen.
func (r *simRun) remember(dying *simNode) {
	clear(r.crash.best) // may have what programs of this node have stored
	for _, n := range r.programNodes() {
		n.area.mu.Lock()
		if n.area.mu.short.ino == nil && n.area.mu.ino.Gen == r.lastInode().Gen && n.area.mu.replica.subscribed {
			for _, p := range r.hotPages() {
				if e, i := p.Extent(); n.area.inAreaLocked(e, i) && n.area.replicaHasLocked(e, i) {
					r.read(n, p, n.area.mu.mem.Working(p), n != dying)
				}
			}
		}
		n.area.mu.Unlock()
	}
}

// read takes what a node has of a page as seen. What its own programs have stored there stays if the node lives on.
func (r *simRun) read(n *simNode, p dsm.PageIndex, b []byte, lives bool) {
	at := int64(p) * dsm.PageSize
	for off := at; off < min(at+hotBytes, n.area.mu.ino.Size); off++ {
		if k := r.seen.storesIn(b, off); r.owner(off) != n.i && (r.seen.tally.on() || !punchable(off)) && k > r.seen.published[off] {
			r.seen.published[off] = k
		}
	}
	if r.best != nil && lives && len(r.crash.by) > 0 {
		for i := range hotElems {
			k := int(p)*hotElems + i
			r.crash.best[k] = r.better(r.crash.best[k], binary.LittleEndian.Uint32(b[4*i:]))
		}
	}
}

// leaves takes what the programs of a node have stored as perhaps lost.
func (r *simRun) leaves(n *simNode) {
	for _, p := range r.hotPages() {
		at := int64(p) * dsm.PageSize
		for off := at; off < at+hotBytes; off++ {
			if r.owner(off) == n.i {
				r.crash.left[off] = true
			}
		}
	}
	r.shrinkLeft(r.leastAfter(n), n)
	r.pinned = slices.DeleteFunc(r.pinned, func(p pinnedVersion) bool { return p.n == n })
	if m := r.group.members; m != nil {
		m[n.i].void = true
		if r.group.list != nil || m[n.i].state != roundContributed {
			m[n.i].state = roundOver
		}
	}
}

// leastAfter is the smallest size that the area has in the entries which a node has not applied.
func (s *sim) leastAfter(n *simNode) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := int64(math.MaxInt64)
	for _, e := range s.log[n.applied:] {
		if e.ino != nil {
			least = min(least, e.ino.Size)
		}
	}
	return least
}

// shrinkLeft follows a shrink: what the dead have stored past it is zero from then on. They need not have died as the owners of a versioned area. dying, which may be nil,
// is about to.
func (r *simRun) shrinkLeft(size int64, dying *simNode) {
	for off, i := range r.storers {
		if n := r.nodes[i]; off >= size && (n.dead || n == dying) {
			delete(r.bytes, off)
			delete(r.maybe, off)
		}
	}
	for off := range r.crash.left {
		if off >= size {
			delete(r.crash.left, off)
			delete(r.bytes, off)
			delete(r.maybe, off)
		}
	}
}

// resize commits a new size.
func (r *simRun) resize(size int64) {
	r.shrinkLeft(size, nil)
	r.sim.resize(size)
}

// mayBeLeft reports whether a byte that a dead node was the last to store to may have the value at rest.
func (r *simRun) mayBeLeft(off int64, v byte) bool {
	k := r.seen.storeOf(off, v)
	return k >= 0 && (v == 0 || k > 0) && (k >= r.seen.published[off] || v == 0 && r.maybe[off] || punchable(off))
}

// tally says how numbers are made of the ones that programs of each node have added: each node has its own bits of it.
type tally struct {
	size int // bytes of an element
	bits int // of a node
}

var (
	intTally   = tally{4, 8}
	floatTally = tally{8, 13}
)

func (t tally) on() bool { return t.size > 0 }

// digit returns how often the node has added to the element in a page. off is the offset of the element, and the node.
func (t tally) digit(page []byte, off int64) int {
	at, n := t.split(off)
	v := uint64(0)
	if t.size == 4 {
		v = uint64(binary.LittleEndian.Uint32(page[at:]))
	} else {
		v = uint64(math.Float64frombits(binary.LittleEndian.Uint64(page[at:])))
	}
	return int(v >> (n * t.bits) & (1<<t.bits - 1))
}

// split returns where in its page an element is, and the node.
func (t tally) split(off int64) (at int64, node int) {
	at = off % dsm.PageSize / int64(t.size) * int64(t.size)
	return at, int(off % int64(t.size))
}

// add adds one.
func (t tally) add(page []byte, off int64) {
	at, n := t.split(off)
	one := uint64(1) << (n * t.bits)
	if t.size == 4 {
		binary.LittleEndian.PutUint32(page[at:], binary.LittleEndian.Uint32(page[at:])+uint32(one))
		return
	}
	was := math.Float64frombits(binary.LittleEndian.Uint64(page[at:]))
	binary.LittleEndian.PutUint64(page[at:], math.Float64bits(was+float64(one)))
}

// addOnes has a program add to elements of which can be read how often the programs of each node have.
func addOnes(r *simRun, n *simNode) {
	t, p := r.seen.tally, r.aHot()
	b, attached := n.stores(p)
	if b == nil {
		return
	}
	for range 1 + r.rng.IntN(4) {
		off := int64(p)*dsm.PageSize + int64(t.size*r.rng.IntN(hotBytes/t.size)+n.i)
		if r.seen.stores[off] == 1<<t.bits-1 {
			continue
		}
		r.seen.stores[off]++
		t.add(b, off)
		if attached {
			n.given[off]++
		}
	}
}

// checkOnes: every store of those that live is there, once. Of the dead what was seen is there, and nothing twice.
func checkOnes(r *simRun, n *simNode) {
	t := r.seen.tally
	if r.crash.ones == nil {
		r.crash.ones = make(map[int64]int)
	}
	for _, p := range r.hotPages() {
		w, c := n.page(p)
		for i := range int64(hotBytes) {
			off := int64(p)*dsm.PageSize + i
			if _, node := t.split(off); node >= simNodes {
				continue
			}
			got, most := t.digit(w, off), r.seen.stores[off]
			least := most
			if _, node := t.split(off); r.nodes[node].dead {
				least = r.seen.published[off]
				if was, ok := r.crash.ones[off]; ok {
					least, most = was, was
				}
				r.crash.ones[off] = got
			}
			if is := t.digit(c.data[:], off); got < least || got > most || is != got {
				r.t.Fatalf("node %d page %d: %d at %d, in the page cache %d, want %d to %d", n.i, p, got, i, is, least, most)
			}
		}
	}
}

// finds says that a program has found a value.
func (r *simRun) finds(n *simNode, at int, v uint32) {
	x := &r.crash
	if x.by == nil {
		x.by, x.best, x.ends = make(map[int]map[int]uint32), make(map[int]uint32), make(map[int]uint32)
	}
	if x.by[n.i] == nil {
		x.by[n.i] = make(map[int]uint32)
	}
	x.by[n.i][at] = r.better(x.by[n.i][at], v)
}

// bestLeft returns what an element must be at rest, given what a node has.
func (r *simRun) bestLeft(n *simNode, at int, is uint32) uint32 {
	x := &r.crash
	if end, ok := x.ends[at]; ok {
		return end
	}
	least := x.best[at]
	for _, o := range r.programNodes() {
		least = r.better(least, x.by[o.i][at])
	}
	if r.better(least, is) != is || r.better(is, r.best[at]) != r.best[at] {
		return least
	}
	x.ends[at] = is
	return is
}

var crashCases = []simCase{
	{name: "last-crash", ino: dsm.Inode{Size: simSize}, crashes: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "cut-crash", ino: dsm.Inode{Size: simSize}, crashes: true, resize: true, starves: true, unaware: true, rules: applyRule, store: storeBytes, check: checkBytes},
	{name: "auto-crash", ino: dsm.Inode{Size: simSize}, crashes: true, auto: true, resize: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "demand-crash", ino: onDemand(dsm.Inode{Size: simSize}), crashes: true, resize: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "sum-crash", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), crashes: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "float-crash", ino: sumOf(dsm.DTypeF64, dsm.ApplyAuto), crashes: true, tally: floatTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "sum-demand-crash", ino: onDemand(sumOf(dsm.DTypeI32, dsm.ApplyAuto)), crashes: true, tally: intTally, rules: addsRule, store: addOnes, check: checkOnes},
	{name: "max-crash", ino: bestOf(dsm.MergeMax, dsm.DTypeI32, dsm.ApplyAuto), crashes: true, careful: true, rules: applyRule, store: findBest, check: checkBest},
	{name: "round-crash", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), crashes: true, rounds: true, tally: intTally, rules: applyRule, store: addOnes, check: checkOnes},
	crashOf(versioned, "versioned-crash"),
	crashOf(versionedMarked, "marked-crash"),
}

func crashOf(c simCase, name string) simCase {
	c.name, c.crashes = name, true
	return c
}

func init() { simCases = append(simCases, crashCases...) }
