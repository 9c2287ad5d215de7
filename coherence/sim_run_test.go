package coherence

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "seed of the simulation; 0: draw one")
	simRuns  = flag.Int("sim.runs", 60, "simulations of each kind")
	simSteps = flag.Int("sim.steps", 1500, "events of a simulation")
)

// simCase is a kind of run: what the area is and what programs store.
type simCase struct {
	name   string
	ino    dsm.Inode
	resize bool
	store  func(r *simRun, n *simNode)
	check  func(r *simRun, n *simNode)
}

// simRun is one simulation with its model of what the bytes must be.
type simRun struct {
	*sim
	bytes []byte  // last: the value of each byte; byte i belongs to writer owner(i)
	sums  []int32 // sum: the total of each element
	fsums []float64
}

const simSize = 3*dsm.ExtentSize + 5*dsm.PageSize

// hot are the pages that the runs store to: few, so that things collide.
var hot = []dsm.PageIndex{0, 1, 255, 256, 300, 512, 767, 768, 772}

func (r *simRun) owner(off int64) int { return int(off) % len(r.nodes) }

func storeBytes(r *simRun, n *simNode) {
	p := hot[r.rng.IntN(len(hot))]
	if int64(p+1)*dsm.PageSize > n.ino.Size {
		return
	}
	c := n.kernel.fault(p)
	if c == nil {
		return
	}
	for range 1 + r.rng.IntN(8) {
		off := int64(p)*dsm.PageSize + int64(r.rng.IntN(64))
		if r.owner(off) == n.i {
			v := byte(1 + r.rng.IntN(255))
			c.data[off%dsm.PageSize] = v
			r.bytes[off] = v
			c.dirty = true
		}
	}
}

func checkBytes(r *simRun, n *simNode) {
	for _, p := range hot {
		if int64(p+1)*dsm.PageSize > n.ino.Size {
			continue
		}
		c := n.kernel.fault(p)
		w := n.area.mu.mem.Working(p)
		for i := range dsm.PageSize {
			want := r.bytes[int(p)*dsm.PageSize+i]
			if w[i] != want || c.data[i] != want {
				r.t.Fatalf("node %d page %d byte %d (of writer %d): working %#x, in the page cache %#x, want %#x",
					n.i, p, i, r.owner(int64(i)), w[i], c.data[i], want)
			}
		}
	}
}

func addInts(r *simRun, n *simNode) {
	p := hot[r.rng.IntN(len(hot))]
	c := n.kernel.fault(p)
	if c == nil {
		return
	}
	for range 1 + r.rng.IntN(4) {
		i := r.rng.IntN(16)
		d := int32(r.rng.IntN(2000) - 1000)
		b := c.data[4*i:]
		binary.LittleEndian.PutUint32(b, uint32(int32(binary.LittleEndian.Uint32(b))+d))
		r.sums[int(p)*16+i] += d
		c.dirty = true
	}
}

func checkInts(r *simRun, n *simNode) {
	for _, p := range hot {
		c := n.kernel.fault(p)
		w := n.area.mu.mem.Working(p)
		for i := range 16 {
			want := r.sums[int(p)*16+i]
			work, got := int32(binary.LittleEndian.Uint32(w[4*i:])), int32(binary.LittleEndian.Uint32(c.data[4*i:]))
			if work != want || got != want {
				r.t.Fatalf("node %d page %d element %d: working %d, in the page cache %d, want %d", n.i, p, i, work, got, want)
			}
		}
	}
}

func addFloats(r *simRun, n *simNode) {
	p := hot[r.rng.IntN(len(hot))]
	c := n.kernel.fault(p)
	if c == nil {
		return
	}
	i := r.rng.IntN(16)
	d := float32(r.rng.NormFloat64() * 1000)
	b := c.data[4*i:]
	binary.LittleEndian.PutUint32(b, math.Float32bits(math.Float32frombits(binary.LittleEndian.Uint32(b))+d))
	r.fsums[int(p)*16+i] += float64(d)
	c.dirty = true
}

// checkFloats: every node has the same bits, and they are the sum but for rounding.
func checkFloats(r *simRun, n *simNode) {
	for _, p := range hot {
		c := n.kernel.fault(p)
		for i := range 16 {
			ref := binary.LittleEndian.Uint32(r.nodes[0].area.mu.mem.Working(p)[4*i:])
			work, got := binary.LittleEndian.Uint32(n.area.mu.mem.Working(p)[4*i:]), binary.LittleEndian.Uint32(c.data[4*i:])
			want := r.fsums[int(p)*16+i]
			if work != ref || got != ref || math.Abs(float64(math.Float32frombits(ref))-want) > 0.05 {
				r.t.Fatalf("node %d page %d element %d: working %x, in the page cache %x, on node 0 %x (%v), want about %v", n.i, p, i, work, got, ref, math.Float32frombits(ref), want)
			}
		}
	}
}

var simCases = []simCase{
	{name: "last", ino: dsm.Inode{Size: simSize}, store: storeBytes, check: checkBytes},
	{name: "last-resize", ino: dsm.Inode{Size: simSize}, resize: true, store: storeBytes, check: checkBytes},
	{name: "sum-sync", store: addInts, check: checkInts,
		ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Merge: dsm.MergeSum, DType: dsm.DTypeI32}, Layout: dsm.Layout{DType: dsm.DTypeI32}}},
	{name: "sum-float", store: addFloats, check: checkFloats,
		ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Merge: dsm.MergeSum, DType: dsm.DTypeF32}, Layout: dsm.Layout{DType: dsm.DTypeF32}}},
	{name: "sum-arrival", store: addInts, check: checkInts,
		ino: dsm.Inode{Size: simSize, Spec: dsm.Spec{Merge: dsm.MergeSum, DType: dsm.DTypeI32, Apply: dsm.ApplyArrival}, Layout: dsm.Layout{DType: dsm.DTypeI32}}},
}

// TestSimulation runs programs, kernels, messages, broken sessions, moving slots
// and resizes in a random order, then lets everything come to rest: every node must
// have exactly what the programs stored.
func TestSimulation(t *testing.T) {
	for _, c := range simCases {
		t.Run(c.name, func(t *testing.T) {
			for k := range *simRuns {
				seed := *simSeed
				if seed == 0 {
					seed = rand.Uint64()
				} else {
					seed += uint64(k)
				}
				if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runSim(t, seed, c) }) {
					t.Fatalf("reproduce: go test ./coherence -run 'TestSimulation/%s' -sim.seed=%d -sim.runs=1", c.name, seed)
				}
			}
		})
	}
}

func runSim(t *testing.T, seed uint64, c simCase) {
	r := &simRun{sim: newSim(t, seed, 3, c.ino), bytes: make([]byte, simSize+dsm.ExtentSize), sums: make([]int32, 16*1024), fsums: make([]float64, 16*1024)}
	r.onShrink = func(n *simNode, size int64) {
		for _, p := range hot {
			for off := max(size, int64(p)*dsm.PageSize); off < int64(p+1)*dsm.PageSize; off++ {
				if r.owner(off) == n.i {
					r.bytes[off] = 0
				}
			}
		}
	}
	for i, n := range r.nodes {
		// At times a node only reads, and its page cache is stored into in place.
		n.open(i < 2 || r.rng.IntN(2) == 0)
	}
	for range *simSteps {
		n := r.nodes[r.rng.IntN(len(r.nodes))]
		r.now = r.now.Add(time.Duration(r.rng.IntN(2000)) * time.Microsecond)
		switch x := r.rng.IntN(100); {
		case x < 25:
			if n.writer {
				c.store(r, n)
			} else {
				n.kernel.fault(hot[r.rng.IntN(4)])
			}
		case x < 35:
			n.kernel.harvest(0.5)
		case x < 43:
			n.area.step(func() { n.area.requestPublish() })
		case x < 70:
			for range r.rng.IntN(6) {
				r.deliver()
			}
		case x < 78:
			n.kernel.takeNotice()
		case x < 86:
			n.kernel.carryOut()
		case x < 92:
			n.kernel.reportDone()
		case x < 93:
			if r.rng.IntN(10) == 0 {
				n.reopen(n.i < 2 || r.rng.IntN(2) == 0)
			}
		case x < 94:
			n.area.step(func() {
				n.acq = append(n.acq, n.area.startAcquire())
			})
		case x < 95:
			n.endAcquires()
		case x < 96:
			r.breakSession()
		case x < 97:
			r.moveSlots()
		case x < 98:
			n.handOver()
		case x < 99:
			if n.applied < len(r.log) {
				n.apply()
			}
		default:
			if c.resize && n.applied == len(r.log) {
				r.resize(simSize - int64(r.rng.IntN(773))*dsm.PageSize)
			}
		}
	}
	r.settle()
	for _, n := range r.nodes {
		c.check(r, n)
	}
}
