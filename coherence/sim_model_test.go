package coherence

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages"
)

// simCase is a kind of run: what the area is and what programs store.
type simCase struct {
	name     string
	ino      dsm.Inode
	resize   bool
	unaware  bool                            // see sim
	careful  bool                            // see sim
	dies     bool                            // a node dies: see withTaker
	crashes  bool                            // nodes die, with their programs: see crashOn
	aways    bool                            // nodes are evicted, and come back: see awayOn
	restarts bool                            // daemons are killed, and others follow: see restartOn
	attaches bool                            // of restarts: programs have attached
	alone    bool                            // of aways: nobody takes over from them
	locks    bool                            // of aways: programs lose locks, under which they had stored
	tally    tally                           // see addOnes
	auto     bool                            // some extents live together, others are spread
	small    bool                            // the area has a few pages: see smallPages
	marked   bool                            // see storeMark
	starves  bool                            // at times memory cannot be made longer
	rounds   bool                            // see simGroup
	rules    func(r *simRun, ino *dsm.Inode) // changes what the model allows to change
	store    func(r *simRun, n *simNode)
	check    func(r *simRun, n *simNode)
}

// simRun is one simulation with its model of what the bytes must be.
type simRun struct {
	*sim
	kind      simCase
	bytes     map[int64]byte // last: the value of each byte; byte i belongs to writer owner(i)
	storers   map[int64]int  // the node whose program has stored it
	maybe     map[int64]bool // that byte or zero: it was truncated, and the kernel had the store
	sums      map[int]int32  // sum: the total of each element
	fsums     map[int]float64
	best      map[int]uint32 // min and max: the best value of each element that a program has stored
	marks     uint32         // how often a program has stored a mark: see storeMark
	crash     simCrash
	evictions int             // how often a node was evicted
	restarts  int             // how often a daemon was killed
	both      int             // how often that of another node, too, before the next one was there
	kept      int             // attachments that were taken over
	found     int             // how many values programs have found
	hot       []dsm.PageIndex // that this run stores to
	group     simGroup
	scrubs    simScrubs

	versions map[dsm.Version]map[int64]byte // what is stored to in versions, as the first node that had them had them
}

const simSize = 3*dsm.ExtentSize + 5*dsm.PageSize

// hot are the pages that the runs store to: few, so that things collide.
var hot = []dsm.PageIndex{0, 1, 255, 256, 300, 512, 767, 768, 772}

// smallPages is how long a small area is. What is asked of it is served at once, by whoever reads the message: see Node.HandleNow, Area.PublishNow.
const smallPages = 5

// hotPages are the pages that the runs of a kind store to.
func (s *sim) hotPages() []dsm.PageIndex {
	list := slices.Clone(hot)
	if s.small {
		for i := range smallPages {
			list[i] = dsm.PageIndex(i)
		}
		return list[:smallPages]
	}
	for i := range list {
		if p := &list[i]; *p >= 2 {
			*p += s.farther * dsm.ExtentPages
		}
	}
	return list
}

// fullSize is the size of the area at the beginning.
func (s *sim) fullSize() int64 {
	if s.small {
		return smallPages * dsm.PageSize
	}
	return simSize + int64(s.farther)*dsm.ExtentSize
}

// drawHot draws the pages that a run stores to: all that are hot, or two, where more collides.
func (r *simRun) drawHot() {
	if r.hot = r.hotPages(); r.rng.IntN(2) == 0 {
		r.hot = []dsm.PageIndex{r.aHot(), r.aHot()}
	}
}

// aHot is one of the pages that the run stores to.
func (r *simRun) aHot() dsm.PageIndex { return r.hot[r.rng.IntN(len(r.hot))] }

// hotBytes and hotElems are what of each page is stored to.
const (
	hotBytes = 64
	hotElems = 16
)

func (s *sim) owner(off int64) int {
	if s.whole {
		return int(s.rowOf(s.lastView(), 0).Primary) - 1
	}
	return int(off) % len(s.nodes)
}

// toAttached says which of the node's programs stores to the byte: of two that store to
// one byte at the same time by different ways either may be the last.
func (s *sim) toAttached(off int64) bool { return int(off)/len(s.nodes)%2 == 1 }

// shrunk forgets the bytes past the end of the writer that has heard of it.
func (r *simRun) shrunk(n *simNode, size int64) {
	if r.whole { // it may have stored them when it was the owner
		maps.DeleteFunc(n.given, func(off int64, _ int) bool { return off >= size })
	}
	for off := range r.bytes {
		if off >= size && r.storers[off] == n.i {
			delete(n.given, off)
			p := dsm.PageIndex(off / dsm.PageSize)
			if n.kernel.changing(off) || r.unaware && n.kernel.past[p] {
				r.maybe[off] = true
				continue
			}
			delete(r.bytes, off)
			delete(r.maybe, off)
		}
	}
}

// isOusted reports whether the node has the versioned area again, and not yet its newest version: what is stored now may lose against that.
func (n *simNode) isOusted() bool {
	if !n.sim.whole || n.area == nil {
		return false
	}
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	return n.area.oustedLocked()
}

// storesTo says that a program of a node stores to a byte.
func (r *simRun) storesTo(n *simNode, off int64) {
	r.storers[off] = n.i
}

// isKept reports whether the last store to a byte is not in the file, as another node has owned the versioned area and published: it is a conflict of the node that has stored it.
func (r *simRun) isKept(off int64) bool {
	i, ok := r.storers[off]
	if !r.whole || !ok {
		return false
	}
	return r.nodes[i].keeps(off)
}

// keeps reports whether the node keeps what its programs have stored to a byte as a conflict.
func (n *simNode) keeps(off int64) bool {
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	if n.area.mu.absence == nil {
		return false
	}
	return slices.ContainsFunc(n.area.mu.absence.list, func(x pages.Conflict) bool { return x.Off <= off && off < x.Off+int64(len(x.Kept)) })
}

// isRefused reports whether what programs of the node store to the versioned area is kept as conflicts, until they have closed it.
func (n *simNode) isRefused() bool {
	if n.area == nil {
		return false
	}
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	return n.area.mu.owning.lost || n.area.mu.owning.late
}

// applyRule changes when updates enter memory.
func applyRule(r *simRun, ino *dsm.Inode) {
	ino.Spec.Apply = []dsm.Apply{dsm.ApplyAuto, dsm.ApplyArrival, dsm.ApplySync}[r.rng.IntN(3)]
}

// bytesRule changes any rule: since a byte has one writer, the sum of what it
// added is what it stored last.
func bytesRule(r *simRun, ino *dsm.Inode) {
	applyRule(r, ino)
	ino.Spec.Merge, ino.Layout = dsm.MergeLast, dsm.Layout{}
	switch r.rng.IntN(3) {
	case 0:
		ino.Spec.Merge = dsm.MergeSum
		fallthrough
	case 1:
		ino.Layout.DType = dsm.DTypeU8
	}
}

func storeBytes(r *simRun, n *simNode) {
	if n.reopens {
		return
	}
	p := r.aHot()
	// The kernel has not heard that the page is truncated: programs go on storing to it.
	if n.isOusted() {
		return
	}
	past := int64(p+1)*dsm.PageSize > n.ino.Size || !n.hasMemory(p)
	if past && (len(n.attached) > 0 || n.kernel.cache[p] == nil || int64(p+1)*dsm.PageSize > n.kernel.size) {
		return
	}
	if n.writer != nil && !past && r.rng.IntN(4) == 0 {
		r.changeByte(n, p)
		return
	}
	b, attached := n.stores(p)
	if b == nil {
		return
	}
	for range 1 + r.rng.IntN(8) {
		off := int64(p)*dsm.PageSize + int64(r.rng.IntN(hotBytes))
		if !attached && off >= n.kernel.size {
			continue // past the end that programs know
		}
		if c := n.kernel.cache[p]; !attached && c != nil && c.isVoid(int(off%dsm.PageSize)) {
			continue // it does not count
		}
		if r.owner(off) == n.i && r.toAttached(off) == attached && !n.kernel.changing(off) {
			v := r.seen.store(off)
			b[off%dsm.PageSize] = v
			r.storesTo(n, off)
			r.bytes[off] = v
			delete(r.maybe, off)
			if past && off >= n.hasUpTo() { // it may be delivered before or after the area grows
				r.maybe[off] = true
			}
			if attached {
				n.given[off] = r.seen.stores[off]
			}
		}
	}
}

func checkBytes(r *simRun, n *simNode) {
	for _, p := range r.hotPages() {
		size := min(n.ino.Size-int64(p)*dsm.PageSize, dsm.PageSize)
		if size <= 0 {
			continue
		}
		w, c := n.page(p)
		for i := range size {
			off := int64(p)*dsm.PageSize + i
			want := r.bytes[off]
			if r.crash.left[off] && r.mayBeLeft(off, w[i]) {
				r.crash.left[off], r.bytes[off], want = false, w[i], w[i]
			}
			if r.maybe[off] && w[i] == 0 {
				delete(r.bytes, off) // then it is zero everywhere
				want = 0
			}
			delete(r.maybe, off)
			if r.seen.refused[off] {
				delete(r.seen.refused, off)
				r.bytes[off], want = w[i], w[i]
			}
			if r.seen.added[off] { // all nodes have the same
				delete(r.seen.added, off)
				if r.kind.locks && !punchable(off) && r.seen.storeOf(off, w[i]) < r.seen.published[off] {
					r.t.Fatalf("node %d page %d byte %d: %#x, and a later store was published", n.i, p, i, w[i])
				}
				r.bytes[off], want = w[i], w[i]
			}
			if w[i] != want && w[i] == c.data[i] && r.isKept(off) {
				r.bytes[off], want = w[i], w[i] // all nodes have the same
			}
			if w[i] != want || c.data[i] != want {
				r.t.Fatalf("node %d page %d byte %d (of writer %d): working %#x, in the page cache %#x, want %#x",
					n.i, p, i, r.owner(off), w[i], c.data[i], want)
			}
		}
	}
}

func addInts(r *simRun, n *simNode) { addIntsTo(r, n, hotElems) }

// addIntsTo adds to the first elements of a page.
func addIntsTo(r *simRun, n *simNode, elems int) {
	p := r.aHot()
	page, _ := n.stores(p)
	if page == nil {
		return
	}
	for range 1 + r.rng.IntN(4) {
		i := r.rng.IntN(elems)
		d := int32(r.rng.IntN(2000) - 1000)
		b := page[4*i:]
		binary.LittleEndian.PutUint32(b, uint32(int32(binary.LittleEndian.Uint32(b))+d))
		r.sums[int(p)*hotElems+i] += d
	}
}

func checkInts(r *simRun, n *simNode) { checkIntsOf(r, n, hotElems) }

func checkIntsOf(r *simRun, n *simNode, elems int) {
	for _, p := range r.hotPages() {
		w, c := n.page(p)
		for i := range elems {
			want := r.sums[int(p)*hotElems+i]
			work, got := int32(binary.LittleEndian.Uint32(w[4*i:])), int32(binary.LittleEndian.Uint32(c.data[4*i:]))
			if work != want || got != want {
				r.t.Fatalf("node %d page %d element %d: working %d, in the page cache %d, want %d", n.i, p, i, work, got, want)
			}
		}
	}
}

func addFloats(r *simRun, n *simNode) { addFloatsFrom(r, n, 0) }

// addFloatsFrom adds to the elements of a page from the given one on.
func addFloatsFrom(r *simRun, n *simNode, first int) {
	p := r.aHot()
	page, _ := n.stores(p)
	if page == nil {
		return
	}
	i := first + r.rng.IntN(hotElems-first)
	d := float32(r.rng.NormFloat64() * 1000)
	b := page[4*i:]
	binary.LittleEndian.PutUint32(b, math.Float32bits(math.Float32frombits(binary.LittleEndian.Uint32(b))+d))
	r.fsums[int(p)*hotElems+i] += float64(d)
}

// checkFloats: every node has the same bits, and they are the sum but for rounding.
func checkFloats(r *simRun, n *simNode) { checkFloatsFrom(r, n, 0) }

func checkFloatsFrom(r *simRun, n *simNode, from int) {
	for _, p := range r.hotPages() {
		w, c := n.page(p)
		first, _ := r.nodes[0].page(p)
		for i := from; i < hotElems; i++ {
			ref := binary.LittleEndian.Uint32(first[4*i:])
			work, got := binary.LittleEndian.Uint32(w[4*i:]), binary.LittleEndian.Uint32(c.data[4*i:])
			want := r.fsums[int(p)*hotElems+i]
			if work != ref || got != ref || math.Abs(float64(math.Float32frombits(ref))-want) > 0.05 {
				r.t.Fatalf("node %d page %d element %d: working %x, in the page cache %x, on node 0 %x (%v), want about %v", n.i, p, i, work, got, ref, math.Float32frombits(ref), want)
			}
		}
	}
}

// onDemand is the area with pages that come and go.
func onDemand(ino dsm.Inode) dsm.Inode {
	ino.Spec.Residency = dsm.ResidencyDemand
	return ino
}

func sumOf(t dsm.DType, apply dsm.Apply) dsm.Inode {
	return dsm.Inode{Size: simSize, Spec: dsm.Spec{Merge: dsm.MergeSum, DType: t, Apply: apply}, Layout: dsm.Layout{DType: t}}
}

// inParts is an area of the rule sum in which every page that is stored to has seven integers, and then floats: the parts meet within a word.
func inParts() dsm.Inode {
	var parts []dsm.Part
	for _, p := range hot {
		at := int64(p) * dsm.PageSize
		parts = append(parts, dsm.Part{From: at, To: at + partInts*4, DType: dsm.DTypeI32}, dsm.Part{From: at + partInts*4, To: at + hotElems*4, DType: dsm.DTypeF32})
	}
	l, err := dsm.LayoutOf(parts)
	if err != nil {
		panic(err)
	}
	return dsm.Inode{Size: simSize, Spec: dsm.Spec{Merge: dsm.MergeSum}, Layout: l}
}

const partInts = 7

func addToParts(r *simRun, n *simNode) {
	if r.rng.IntN(2) == 0 {
		addIntsTo(r, n, partInts)
		return
	}
	addFloatsFrom(r, n, partInts)
}

func checkParts(r *simRun, n *simNode) {
	checkIntsOf(r, n, partInts)
	checkFloatsFrom(r, n, partInts)
}

var simCases = []simCase{
	{name: "last", ino: dsm.Inode{Size: simSize}, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "last-cut", ino: dsm.Inode{Size: simSize}, resize: true, starves: true, unaware: true, rules: applyRule, store: storeBytes, check: checkBytes},
	{name: "last-death", ino: dsm.Inode{Size: simSize}, dies: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "last-auto", ino: dsm.Inode{Size: simSize}, auto: true, resize: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "last-resize", ino: dsm.Inode{Size: simSize}, resize: true, starves: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "sum-sync", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), rules: addsRule, store: addInts, check: checkInts},
	{name: "sum-float", ino: sumOf(dsm.DTypeF32, dsm.ApplyAuto), rules: addsRule, store: addFloats, check: checkFloats},
	{name: "demand-cut", ino: onDemand(dsm.Inode{Size: simSize}), resize: true, starves: true, unaware: true, rules: applyRule, store: storeBytes, check: checkBytes},
	{name: "last-demand", ino: onDemand(dsm.Inode{Size: simSize}), resize: true, starves: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "sum-demand", ino: onDemand(sumOf(dsm.DTypeI32, dsm.ApplyAuto)), rules: addsRule, store: addInts, check: checkInts},
	{name: "float-demand", ino: onDemand(sumOf(dsm.DTypeF32, dsm.ApplyAuto)), rules: addsRule, store: addFloats, check: checkFloats},
	{name: "parts", ino: inParts(), rules: addsRule, store: addToParts, check: checkParts},
	{name: "parts-demand", ino: onDemand(inParts()), rules: addsRule, store: addToParts, check: checkParts},
	{name: "round-sum", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), rounds: true, rules: applyRule, store: addInts, check: checkInts},
	{name: "round-float", ino: sumOf(dsm.DTypeF32, dsm.ApplyAuto), rounds: true, rules: applyRule, store: addFloats, check: checkFloats},
	{name: "round-last", ino: dsm.Inode{Size: simSize}, rounds: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "round-resize", ino: dsm.Inode{Size: simSize}, rounds: true, resize: true, starves: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "round-death", ino: dsm.Inode{Size: simSize}, rounds: true, dies: true, rules: bytesRule, store: storeBytes, check: checkBytes},
	{name: "round-demand", ino: onDemand(sumOf(dsm.DTypeI32, dsm.ApplyAuto)), rounds: true, rules: applyRule, store: addInts, check: checkInts},
	{name: "round-max", ino: bestOf(dsm.MergeMax, dsm.DTypeI32, dsm.ApplyAuto), careful: true, rounds: true, rules: applyRule, store: findBest, check: checkBest},
	sumOfTemporaries,
	versioned,
	versionedMarked,
	{name: "min", ino: bestOf(dsm.MergeMin, dsm.DTypeI32, dsm.ApplyAuto), careful: true, rules: applyRule, store: findBest, check: checkBest},
	{name: "max-float", ino: bestOf(dsm.MergeMax, dsm.DTypeF32, dsm.ApplyAuto), careful: true, rules: applyRule, store: findBest, check: checkBest},
	{name: "max-demand", ino: onDemand(bestOf(dsm.MergeMax, dsm.DTypeI32, dsm.ApplyAuto)), careful: true, rules: applyRule, store: findBest, check: checkBest},
	{name: "sum-arrival", ino: sumOf(dsm.DTypeI32, dsm.ApplyArrival), rules: addsRule, store: addInts, check: checkInts},
}
