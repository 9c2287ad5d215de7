package coherence

import (
	"encoding/binary"
	"math"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// liveCase is a kind of run: what the area is and what programs store.
type liveCase struct {
	name   string
	ino    dsm.Inode
	resize bool
	rules  func(r *liveRun, ino *dsm.Inode) // changes what the model allows to change
	store  func(r *liveRun, n *liveNode)
	check  func(r *liveRun, n *liveNode)
}

// liveRun is one simulation with its model of what the bytes must be.
type liveRun struct {
	*cluster
	kind  liveCase
	bytes map[int64]byte // last: the value of each byte; byte i belongs to writer owner(i)
	sums  map[int]int32  // sum: the total of each element
	fsums map[int]float64
}

func (s *cluster) owner(off int64) int { return int(off) % len(s.nodes) }

// toAttached says which of the node's programs stores to the byte: of two that store to
// one byte at the same time by different ways either may be the last.
func (s *cluster) toAttached(off int64) bool { return int(off)/len(s.nodes)%2 == 1 }

// shrunk forgets the bytes past the end of the writer that has heard of it.
func (r *liveRun) shrunk(n *liveNode, size int64) {
	for off := range r.bytes {
		if off >= size && r.owner(off) == n.i {
			delete(r.bytes, off)
			delete(n.given, off)
		}
	}
}

// liveApplyRule changes when updates enter memory.
func liveApplyRule(r *liveRun, ino *dsm.Inode) {
	ino.Spec.Apply = []dsm.Apply{dsm.ApplyAuto, dsm.ApplyArrival, dsm.ApplySync}[r.rng.IntN(3)]
}

// liveBytesRule changes any rule: since a byte has one writer, the sum of what it
// added is what it stored last.
func liveBytesRule(r *liveRun, ino *dsm.Inode) {
	liveApplyRule(r, ino)
	ino.Spec.Merge, ino.Layout = dsm.MergeLast, dsm.Layout{}
	switch r.rng.IntN(3) {
	case 0:
		ino.Spec.Merge = dsm.MergeSum
		fallthrough
	case 1:
		ino.Layout.DType = dsm.DTypeU8
	}
}

func liveStoreBytes(r *liveRun, n *liveNode) {
	p := hot[r.rng.IntN(len(hot))]
	if int64(p+1)*dsm.PageSize > n.ino.Size {
		return
	}
	if n.writer && r.rng.IntN(8) == 0 {
		if off := int64(p)*dsm.PageSize + int64(r.rng.IntN(hotBytes)); r.owner(off) == n.i && !r.toAttached(off) {
			if n.kernel.reading[p] == nil && !n.kernel.past[p] {
				r.bytes[off] = r.seen.store(off)
				n.kernel.writePast(off, r.bytes[off])
			}
		}
		return
	}
	b, attached := n.stores(p)
	if b == nil {
		return
	}
	for range 1 + r.rng.IntN(8) {
		off := int64(p)*dsm.PageSize + int64(r.rng.IntN(hotBytes))
		if r.owner(off) == n.i && r.toAttached(off) == attached {
			v := r.seen.store(off)
			b[off%dsm.PageSize] = v
			r.bytes[off] = v
			if attached {
				n.given[off] = r.seen.stores[off]
			}
		}
	}
}

func liveCheckBytes(r *liveRun, n *liveNode) {
	for _, p := range hot {
		if int64(p+1)*dsm.PageSize > n.ino.Size {
			continue
		}
		w, c := n.page(p)
		for i := range dsm.PageSize {
			var want byte
			if i < hotBytes {
				want = r.bytes[int64(p)*dsm.PageSize+int64(i)]
			}
			if w[i] != want || c.data[i] != want {
				r.t.Fatalf("node %d page %d byte %d (of writer %d): working %#x, in the page cache %#x, want %#x",
					n.i, p, i, r.owner(int64(i)), w[i], c.data[i], want)
			}
		}
	}
}

func liveAddInts(r *liveRun, n *liveNode) {
	p := hot[r.rng.IntN(len(hot))]
	page, _ := n.stores(p)
	if page == nil {
		return
	}
	for range 1 + r.rng.IntN(4) {
		i := r.rng.IntN(hotElems)
		d := int32(r.rng.IntN(2000) - 1000)
		b := page[4*i:]
		binary.LittleEndian.PutUint32(b, uint32(int32(binary.LittleEndian.Uint32(b))+d))
		r.sums[int(p)*hotElems+i] += d
	}
}

func liveCheckInts(r *liveRun, n *liveNode) {
	for _, p := range hot {
		w, c := n.page(p)
		for i := range hotElems {
			want := r.sums[int(p)*hotElems+i]
			work, got := int32(binary.LittleEndian.Uint32(w[4*i:])), int32(binary.LittleEndian.Uint32(c.data[4*i:]))
			if work != want || got != want {
				r.t.Fatalf("node %d page %d element %d: working %d, in the page cache %d, want %d", n.i, p, i, work, got, want)
			}
		}
	}
}

func liveAddFloats(r *liveRun, n *liveNode) {
	p := hot[r.rng.IntN(len(hot))]
	page, _ := n.stores(p)
	if page == nil {
		return
	}
	i := r.rng.IntN(hotElems)
	d := float32(r.rng.NormFloat64() * 1000)
	b := page[4*i:]
	binary.LittleEndian.PutUint32(b, math.Float32bits(math.Float32frombits(binary.LittleEndian.Uint32(b))+d))
	r.fsums[int(p)*hotElems+i] += float64(d)
}

// liveCheckFloats: every node has the same bits, and they are the sum but for rounding.
func liveCheckFloats(r *liveRun, n *liveNode) {
	for _, p := range hot {
		w, c := n.page(p)
		first, _ := r.nodes[0].page(p)
		for i := range hotElems {
			ref := binary.LittleEndian.Uint32(first[4*i:])
			work, got := binary.LittleEndian.Uint32(w[4*i:]), binary.LittleEndian.Uint32(c.data[4*i:])
			want := r.fsums[int(p)*hotElems+i]
			if work != ref || got != ref || math.Abs(float64(math.Float32frombits(ref))-want) > 0.05 {
				r.t.Fatalf("node %d page %d element %d: working %x, in the page cache %x, on node 0 %x (%v), want about %v", n.i, p, i, work, got, ref, math.Float32frombits(ref), want)
			}
		}
	}
}

var liveCases = []liveCase{
	{name: "last", ino: dsm.Inode{Size: simSize}, rules: liveBytesRule, store: liveStoreBytes, check: liveCheckBytes},
	{name: "last-resize", ino: dsm.Inode{Size: simSize}, resize: true, rules: liveBytesRule, store: liveStoreBytes, check: liveCheckBytes},
	{name: "sum-sync", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), rules: liveApplyRule, store: liveAddInts, check: liveCheckInts},
	{name: "sum-float", ino: sumOf(dsm.DTypeF32, dsm.ApplyAuto), rules: liveApplyRule, store: liveAddFloats, check: liveCheckFloats},
	{name: "last-demand", ino: onDemand(dsm.Inode{Size: simSize}), resize: true, rules: liveBytesRule, store: liveStoreBytes, check: liveCheckBytes},
	{name: "sum-demand", ino: onDemand(sumOf(dsm.DTypeI32, dsm.ApplyAuto)), rules: liveApplyRule, store: liveAddInts, check: liveCheckInts},
	{name: "float-demand", ino: onDemand(sumOf(dsm.DTypeF32, dsm.ApplyAuto)), rules: liveApplyRule, store: liveAddFloats, check: liveCheckFloats},
	{name: "sum-arrival", ino: sumOf(dsm.DTypeI32, dsm.ApplyArrival), rules: liveApplyRule, store: liveAddInts, check: liveCheckInts},
}

// stores returns the bytes of page p that a program of the node stores into, nil if
// it has to wait or there is none; and whether it is one that has attached.
func (n *liveNode) stores(p dsm.PageIndex) (b []byte, attached bool) {
	if n.attached && (!n.writer || n.cluster.rng.IntN(2) == 0) {
		if !n.here(p) {
			return nil, true
		}
		n.found[p] = true
		return n.area.mu.mem.Working(p), true
	}
	if !n.writer || n.kernel.waits(p) {
		return nil, false
	}
	c := n.kernel.fault(p)
	if c == nil {
		return nil, false
	}
	c.dirty = true
	return c.data[:], false
}

// evict has a node of an area on demand give up pages, whether it is short of room or not.
func (n *liveNode) evict() {
	set := make(map[dsm.ExtentIndex]dsm.PageSet)
	for _, p := range hot {
		if n.cluster.rng.IntN(3) > 0 {
			continue
		}
		e, i := p.Extent()
		s := set[e]
		s.Add(i)
		set[e] = s
	}
	n.area.step(func() {
		for _, e := range []dsm.ExtentIndex{0, 1, 2, 3} {
			n.area.evict(e, set[e], n.cluster.rng.IntN(2) == 0)
		}
	})
}

// here reports whether page p is here for an attached program, which waits for it if not.
func (n *liveNode) here(p dsm.PageIndex) (ok bool) {
	off := int64(p) * dsm.PageSize
	// No step may come between the look and a store: it could wake those who evict, and the page is not protected from them
	// here as it is in the memory of a program.
	n.cluster.rest()
	if ok = n.holds(off); !ok {
		n.waitFor(p)
		n.cluster.rest()
		ok = n.holds(off)
	}
	return ok
}

// holds reports whether the page at off is here.
func (n *liveNode) holds(off int64) bool {
	n.area.mu.Lock()
	defer n.area.mu.Unlock()
	return n.area.present(off, dsm.PageSize)
}

// page brings page p to the node, at rest, and returns what the working copy and the page cache
// have of it.
func (n *liveNode) page(p dsm.PageIndex) (working []byte, cached *livePage) {
	for !n.here(p) {
		n.cluster.calm()
	}
	n.kernel.fault(p)
	n.cluster.calm()
	for !n.here(p) { // to make room for the one, another may have left
		n.cluster.calm()
	}
	return n.area.mu.mem.Working(p), n.kernel.fault(p)
}
