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
// all hold the sum of what was added, or every byte that was stored.
func TestConvergence(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, kc := range kernelCases(t) {
		float := kc.dt >= dsm.DTypeF64 && kc.dt <= dsm.DTypeBF16
		if kc.head != 0 || kc.rule == dsm.MergeSum && float {
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
			if kc.rule == dsm.MergeSum {
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

func storeRandom(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}
