package merge

import (
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// replica is a node of the convergence test: what it last received, and its stores.
type replica struct{ base, working []byte }

// publish returns what the replica stored since it last did, for a home to merge.
func (r *replica) publish(k Kernel) *Delta {
	d := new(Delta)
	k.AppendDelta(d, 0, r.base, r.working)
	return d
}

// receive takes the home's bytes, in which the deltas are that the replica published.
func (r *replica) receive(k Kernel, home []byte) {
	k.Merge(0, r.base, r.working, home, nil)
	copy(r.base, home)
}

// TestConvergence lets nodes store, publish and receive in any order: in the end
// all have the sum of what was added, every byte that was stored, or the smallest or largest value of each element.
func TestConvergence(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, kc := range kernelCases(t) {
		float := kc.dt >= dsm.DTypeF64 && kc.dt <= dsm.DTypeBF16
		if kc.head != 0 || kc.rule.Adds() && float {
			continue // floats round: their sum depends on the order
		}
		k, size := kc.Kernel, kc.dt.Size()
		home, want := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
		var nodes [3]replica
		for i := range nodes {
			nodes[i] = replica{make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)}
		}
		sync := func(r *replica) {
			k.Apply(r.publish(k), func(int) []byte { return home })
			copy(r.base, r.working) // as if the home had nothing else
			if kc.rule != dsm.MergeLast {
				copy(r.base, home)
				copy(r.working, home)
				return
			}
			r.receive(k, home)
		}
		for range 300 {
			i := rng.IntN(len(nodes))
			r := &nodes[i]
			if rng.IntN(3) == 0 {
				sync(r)
				continue
			}
			if rng.IntN(3) == 0 { // others' updates, beneath own stores
				r.receive(k, home)
				continue
			}
			e := rng.IntN(dsm.PageSize/size/8) * size
			if kc.rule == dsm.MergeLast {
				e = e*len(nodes) + i*size // its own elements
				storeRandom(rng, r.working[e:e+size])
				copy(want[e:], r.working[e:e+size])
				continue
			}
			add := make([]byte, size)
			storeRandom(rng, add)
			n := naive{kc}
			if !kc.rule.Adds() {
				if !isZeroes(add) {
					n.keep(r.working[e:e+size], add)
					n.keep(want[e:e+size], add)
				}
				continue
			}
			copy(r.working[e:], n.op(r.working[e:e+size], add, 1))
			copy(want[e:], n.op(want[e:e+size], add, 1))
		}
		for range 2 {
			for i := range nodes {
				sync(&nodes[i])
			}
		}
		pagetest.WantPage(t, kc.String()+": home", home, want)
		for i := range nodes {
			pagetest.WantPage(t, kc.String()+": working", nodes[i].working, want)
			nodes[i].receive(k, home)
			pagetest.WantPage(t, kc.String()+": received twice", nodes[i].working, want)
		}
	}
}

// keep leaves the better one of two elements in a, as programs do that look for the best value.
func (k naive) keep(a, b []byte) {
	var d Delta
	page, stored := make([]byte, dsm.PageSize), make([]byte, dsm.PageSize)
	copy(page, a)
	copy(stored, b)
	if changed, _ := k.AppendDelta(&d, 0, make([]byte, dsm.PageSize), stored); changed {
		k.Overlay(&d, 0, page)
	}
	copy(a, page)
}

// TestBestIsALattice: what min and max keep does not depend on the order in which values come, or on how often, down to
// the bits of zeroes and NaNs.
func TestBestIsALattice(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, kc := range kernelCases(t) {
		if kc.head != 0 || kc.rule != dsm.MergeMin && kc.rule != dsm.MergeMax {
			continue
		}
		k, size := naive{kc}, kc.dt.Size()
		of := func(x, y []byte) []byte {
			best := append([]byte(nil), x...)
			k.keep(best, y)
			return best
		}
		var v [3][]byte
		for range 300 {
			for i := range v {
				v[i] = make([]byte, size)
				storeRandom(rng, v[i])
				if rng.IntN(2) == 0 { // zeroes, infinities and NaNs
					v[i][size-1] = []byte{0, 0x80, 0x7f, 0xff}[rng.IntN(4)]
					if size > 1 {
						v[i][size-2] = []byte{0, 0x80, 0xf0, 0x7c, 0xfc}[rng.IntN(5)]
					}
					if rng.IntN(2) == 0 {
						clear(v[i][:max(size-2, 0)])
					}
				}
			}
			a, b, c := v[0], v[1], v[2]
			if isZeroes(a) || isZeroes(b) || isZeroes(c) {
				continue // nothing changes where zeroes are stored over zeroes
			}
			ab := of(a, b)
			if string(ab) != string(of(b, a)) || string(of(ab, c)) != string(of(a, of(b, c))) ||
				string(of(a, a)) != string(a) || string(of(ab, b)) != string(ab) || string(ab) != string(a) && string(ab) != string(b) {
				t.Fatalf("%v: of %x, %x and %x the best depends on the order", k, a, b, c)
			}
			if (k.isNaN(a) || k.isNaN(b)) != k.isNaN(ab) {
				t.Fatalf("%v: of %x and %x the best is %x", k, a, b, ab)
			}
			if w := k.better(kc.rule, a, b); !k.isNaN(w) && string(w) != string(ab) {
				t.Fatalf("%v: of %x and %x the best is %x, want %x", k, a, b, ab, w)
			}
		}
	}
}

func isZeroes(b []byte) bool { return string(b) == string(make([]byte, len(b))) }

func storeRandom(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}
