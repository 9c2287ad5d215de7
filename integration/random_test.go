package integration

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// world is three nodes with one file each has open and mapped, and what must be
// in it. Operations are done one after the other on randomly drawn nodes;
// publishes by interval happen whenever they like.
//
// With merge=last every byte belongs to one node, which alone stores there, so
// that its own view of it is known at any time and everybody's once all have
// published. With merge=sum all add to the same elements: a node sees its own
// additions at once and those of others only after its own msync.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	all   []*harness.Client
	files []*harness.File
	maps  []*harness.Map
	size  int64
	done  map[string]int // how often each operation was done
	trace []string       // what was done, for a failure
}

const worldSize = 6*page + 1236 // whole elements, and a part of a page

func newWorld(t *testing.T, spec map[string]string) *world {
	c := nodes(t, 3)
	s := seed(t)
	w := &world{t: t, rng: rand.New(rand.NewPCG(s, 1)), all: clients(c), size: worldSize, done: map[string]int{}}
	t.Cleanup(func() {
		if t.Failed() {
			const last = 60
			t.Logf("the end of %d operations:\n%s", len(w.trace), strings.Join(w.trace[max(0, len(w.trace)-last):], "\n"))
		}
	})
	f := w.all[0].Open("w", "rw,creat,excl")
	for key, value := range spec {
		w.all[0].SetXattr("w", "user.dsm."+key, value)
	}
	f.Truncate(w.size)
	for _, cl := range w.all {
		f, m := cl.Attach("w", worldSize)
		w.files, w.maps = append(w.files, f), append(w.maps, m)
	}
	return w
}

func (w *world) run(standard int, step func(node int)) {
	w.t.Helper()
	ops := standard
	if testing.Short() {
		ops /= 4
	}
	if *opsFlag > 0 {
		ops = *opsFlag
	}
	for range ops {
		step(w.rng.IntN(len(w.maps)))
		if w.t.Failed() {
			return
		}
	}
	w.t.Logf("did %v", w.done)
}

// did records an operation of a node, counted from 0.
func (w *world) did(op string, node int, details string, args ...any) {
	w.done[op]++
	w.trace = append(w.trace, fmt.Sprintf("node %d: %s ", node+1, op)+fmt.Sprintf(details, args...))
}

// resize truncates through one node. Every node then looks at the size, as the
// kernel learns it from stat and open, not from a touch of the mapping.
func (w *world) resize(node int, size int64) {
	w.t.Helper()
	w.files[node].Truncate(size)
	w.size = size
	for i, f := range w.files {
		if st := f.Stat(); st.Size != size {
			w.t.Fatalf("node %d has size %d after a truncate to %d on node %d", i+1, st.Size, size, node+1)
		}
	}
}

func TestRandomOperationsLast(t *testing.T) {
	w := newWorld(t, map[string]string{"interval": "30ms"})
	model := make([]byte, worldSize)
	// Owners change every few bytes: within words, within pages, across pages.
	owner := make([]int, worldSize)
	for at := 0; at < worldSize; {
		n, run := w.rng.IntN(3), 1+w.rng.IntN(900)
		for ; run > 0 && at < worldSize; run-- {
			owner[at] = n
			at++
		}
	}
	// span draws a run of bytes of a node within the size; ok is false if it found none.
	span := func(node int) (lo, hi int64, ok bool) {
		for range 50 {
			lo = w.rng.Int64N(max(w.size, 1))
			if lo < w.size && owner[lo] == node {
				hi = lo + 1
				for n := w.rng.Int64N(3000); hi < w.size && owner[hi] == node && n > 0; n-- {
					hi++
				}
				return lo, hi, true
			}
		}
		return 0, 0, false
	}
	own := func(node int) { // what the node stored is there, whatever came from elsewhere
		t.Helper()
		got := w.maps[node].Load(0, w.size)
		for i := range got {
			if owner[i] == node && got[i] != model[i] {
				t.Fatalf("node %d: own byte %d is %#x, stored %#x", node+1, i, got[i], model[i])
			}
		}
	}
	converge := func() {
		t.Helper()
		for _, m := range w.maps {
			m.Sync()
		}
		for i, m := range w.maps {
			if w.size > 0 && !harness.Eventually(limit, func() bool { return bytes.Equal(m.Load(0, w.size), model[:w.size]) }) {
				at := firstDifference(m.Load(0, w.size), model[:w.size])
				t.Fatalf("node %d: byte %d of %d, stored by node %d, never becomes %#x", i+1, at, w.size, owner[at]+1, model[at])
			}
			if got := w.files[i].Read(0, worldSize); !bytes.Equal(got, model[:w.size]) {
				t.Fatalf("node %d: read differs from the mapping at %d", i+1, firstDifference(got, model[:w.size]))
			}
		}
	}
	w.run(600, func(node int) {
		m, f := w.maps[node], w.files[node]
		switch k := w.rng.IntN(100); {
		case k < 60:
			lo, hi, ok := span(node)
			if !ok {
				return
			}
			for i := lo; i < hi; i++ {
				model[i] = byte(w.rng.Uint32())
			}
			if k < 40 {
				w.did("store", node, "%d..%d", lo, hi)
				m.Store(lo, model[lo:hi])
			} else {
				w.did("pwrite", node, "%d..%d", lo, hi)
				f.Write(lo, model[lo:hi])
			}
		case k < 75:
			w.did("msync", node, "")
			m.Sync()
		case k < 80:
			w.did("fsync", node, "")
			f.Sync()
		case k < 90:
			w.did("look", node, "")
			own(node)
		case k < 95:
			size := w.rng.Int64N(worldSize + 1)
			if size < w.size {
				clear(model[size:])
			}
			w.did("truncate", node, "from %d to %d", w.size, size)
			w.resize(node, size)
		default:
			w.did("converge", node, "")
			converge()
		}
	})
	converge()
}

func TestRandomOperationsSum(t *testing.T) {
	w := newWorld(t, map[string]string{"merge": "sum", "dtype": "i32", "interval": "30ms"})
	const elements = worldSize / 4
	type values [elements]int32
	var total values                // of all additions so far
	view := make([]values, 3)       // what each node must see: it changes by its own additions and in its own msync
	get := func(node int) []int32 { // what it does see
		t.Helper()
		raw := w.maps[node].Load(0, elements*4)
		got := make([]int32, elements)
		for i := range got {
			got[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		return got
	}
	look := func(node int) {
		t.Helper()
		for i, v := range get(node) {
			if v != view[node][i] {
				t.Fatalf("node %d: element %d is %d without an msync, want %d", node+1, i, v, view[node][i])
			}
		}
	}
	sync := func(node int) {
		t.Helper()
		w.maps[node].Sync()
		copy(view[node][:], get(node)) // somewhere between what it had and the total: converge checks
	}
	w.run(500, func(node int) {
		lo := w.rng.IntN(elements)
		hi := min(elements, lo+1+w.rng.IntN(300))
		switch k := w.rng.IntN(100); {
		case k < 50:
			add := int32(w.rng.IntN(2001) - 1000)
			w.did("add", node, "%d to %d..%d", add, lo, hi)
			w.maps[node].Add("i32", int64(4*lo), hi-lo, float64(add), 1)
			if _, err := w.maps[node].Join(limit); err != nil {
				t.Fatal(err)
			}
			// Join may have called msync while the thread ran.
			for i := lo; i < hi; i++ {
				total[i] += add
			}
			copy(view[node][:], get(node))
		case k < 70: // read, change and write back with system calls
			w.did("pwrite", node, "%d..%d", lo, hi)
			raw := w.files[node].Read(int64(4*lo), int64(4*(hi-lo)))
			for i := lo; i < hi; i++ {
				p := raw[4*(i-lo):]
				binary.LittleEndian.PutUint32(p, binary.LittleEndian.Uint32(p)+uint32(i))
				total[i] += int32(i)
				view[node][i] += int32(i)
			}
			w.files[node].Write(int64(4*lo), raw)
			look(node)
		case k < 85:
			w.did("msync", node, "")
			sync(node)
		case k < 95:
			w.did("look", node, "")
			look(node)
		default:
			w.did("converge", node, "")
			settle(w.maps)
			for n := range w.maps {
				got := get(n)
				for i := range got {
					if got[i] != total[i] {
						t.Fatalf("node %d: element %d is %d after everybody published, want %d", n+1, i, got[i], total[i])
					}
				}
				copy(view[n][:], got)
			}
		}
	})
	settle(w.maps)
	for n := range w.maps {
		for i, v := range get(n) {
			if v != total[i] {
				t.Fatalf("node %d: element %d is %d at the end, want %d", n+1, i, v, total[i])
			}
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
