package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

func TestQuotas(t *testing.T) {
	for _, x := range []struct {
		budgets []int64
		want    []int // in the order of the budgets
	}{
		{[]int64{5}, []int{512}},
		{[]int64{7, 7}, []int{256, 256}},
		{[]int64{9, 9, 9}, []int{172, 170, 170}}, // of 64 slots one gets 22, twice
		{[]int64{1, 3}, []int{128, 384}},
		{[]int64{1 << 30, 1 << 31, 1 << 30}, []int{128, 256, 128}},
		{[]int64{1, 1, 1, 4}, []int{73, 73, 73, 293}},              // 54.9 and 219.4, and 9.1 and 36.6 twice
		{[]int64{1, 511}, []int{1, 511}},                           // a slot's part
		{[]int64{10, 7600}, []int{1, 511}},                         // more than half of one
		{[]int64{10, 7800}, []int{0, 512}},                         // less
		{[]int64{1, 1 << 50}, []int{0, 512}},                       // hardly anything
		{[]int64{1 << 50, 1 << 50, 1 << 50}, []int{172, 170, 170}}, // the most there is
		{[]int64{64 << 30, 64 << 30, 1 << 40}, []int{30, 27, 455}}, // no bound for the big
		{slices.Repeat([]int64{3}, 385), slices.Concat(slices.Repeat([]int{3}, 64), slices.Repeat([]int{1}, 320), []int{0})}, // more members than slots
	} {
		v := &dsm.View{}
		for i, b := range x.budgets {
			v.Members = append(v.Members, sized(dsm.NodeID(i+1), b))
		}
		quota := quotas(v)
		for i, want := range x.want {
			if got := quota[dsm.NodeID(i+1)].sum(); got != want {
				t.Errorf("%v: %d slots for member %d, want %d", x.budgets, got, i, want)
				break
			}
		}
		if len(quota) != len(v.Members) {
			t.Errorf("%v: quotas of %d members", x.budgets, len(quota))
		}
	}
}

// TestQuotasMoveLeast has a tie between members of different budgets: the half
// slot goes to who has it, and stays there when the slots have moved.
func TestQuotasMoveLeast(t *testing.T) {
	m := newSized(t, 1<<20, 767<<20)
	if a, b := countPrimary(m.view, nodeA), countPrimary(m.view, nodeB); a != 1 || b != 511 {
		t.Errorf("%d and %d slots", a, b)
	}
	slots := m.view.Slots
	if e := m.configure(m.index+1, func(m dsm.Member) bool { return m.ID == nodeB }); e.view == nil || e.view.Slots != slots {
		t.Error("a new view moves slots again")
	}
}

// TestBalance checks, over random joins and leaves, that every member gets its
// part by its memory and that no move was needless.
func TestBalance(t *testing.T) {
	const cycle = 10238370601459764407 // two copies went from member to member for ever, since it was counted wrongly which were to go
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, x := range []struct {
		name   string
		budget func(*rand.Rand) int64
	}{
		{"equal", func(*rand.Rand) int64 { return 1 << 30 }},
		{"few sizes", func(rng *rand.Rand) int64 { return 1 << (30 + rng.IntN(3)) }},
		{"any size", func(rng *rand.Rand) int64 { return 1 + rng.Int64N(1<<50)>>rng.IntN(40) }},
	} {
		for _, seed := range []uint64{seed, cycle} {
			t.Run(x.name, func(t *testing.T) { balanceAtRandom(t, rand.New(rand.NewPCG(seed, 0)), x.budget) })
		}
	}
}

func balanceAtRandom(t *testing.T, rng *rand.Rand, budget func(*rand.Rand) int64) {
	m := newSized(t, budget(rng))
	next := dsm.NodeID(0x100)
	for range 60 {
		before := *m.view
		staying := 0
		for _, x := range before.Members {
			if !x.Leaving {
				staying++
			}
		}
		if staying == 1 || rng.IntN(2) == 0 && staying < 12 {
			next += dsm.NodeID(rng.IntN(9) + 1)
			m.must(before.Members[0].ID, addMemberOp{sized(next, budget(rng))})
		} else {
			x := before.Members[rng.IntN(len(before.Members))]
			m.must(x.ID, leavingOp{x.ID})
		}
		moved, pending := 0, 0
		for i, h := range before.Slots {
			if m.view.Slots[i].Primary != h.Primary {
				moved++
			}
			if h.Source != 0 {
				pending++
			}
		}
		want := 0
		after := *m.view
		after.Slots = before.Slots // the shares that the new members want of the old slots
		for id, n := range quotas(&after) {
			for class := range n {
				want += max(0, n[class]-primaries(&before)[id][class])
			}
		}
		if moved > want || pending == 0 && moved < want {
			t.Fatalf("%d slots moved, %d had to, %d could not", moved, want, pending)
		}
		if rng.IntN(4) == 0 {
			continue // the next change comes before the slots are handed over
		}
		ready(m)
		for _, x := range m.view.Members {
			if x.Leaving {
				m.must(m.view.Members[0].ID, removeMemberOp{x.ID})
			}
		}
		if err := fair(m.view); err != nil {
			t.Fatal(err)
		}
	}
}

// fair says whether members that all stay have the slots that they should, and
// less than one more or fewer than their exact parts.
func fair(v *dsm.View) error {
	all, slots := sum(v), 0
	for _, x := range v.Members {
		n := primaries(v)[x.ID]
		if q := quotas(v)[x.ID]; n != q || n.sum() != slotsOf(v, x.ID) {
			return fmt.Errorf("node %s has %d slots, want %d", x.ID, n, q)
		}
		slots += n.sum()
		for _, c := range dsm.Classes {
			if d := float64(n[c.Copies-1]) - float64(c.Slots)*float64(x.Budget)/float64(all); d <= -1 || d >= 1 {
				return fmt.Errorf("node %s has %d slots for %d copies, %f more than its part", x.ID, n[c.Copies-1], c.Copies, d)
			}
		}
	}
	if slots != dsm.Slots {
		return fmt.Errorf("%d slots", slots)
	}
	return nil
}

func countPrimary(v *dsm.View, n dsm.NodeID) int {
	c := 0
	for _, h := range v.Slots {
		if h.Primary == n {
			c++
		}
	}
	return c
}

// sum adds up the memory of the members.
func sum(v *dsm.View) (bytes int64) {
	for _, m := range v.Members {
		bytes += m.Budget
	}
	return bytes
}
