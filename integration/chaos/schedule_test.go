package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// kind is a kind of fault.
type kind string

const (
	kill    kind = "kill"    // SIGKILL of a daemon; it is started again under its name
	pause   kind = "pause"   // SIGSTOP, SIGCONT
	halves  kind = "halves"  // the first nodes and the others cannot reach each other
	isolate kind = "isolate" // one node cannot reach any other
	link    kind = "link"    // two nodes cannot reach each other; both reach the third
	oneway  kind = "oneway"  // what one node sends does not arrive at another
	leave   kind = "leave"   // umount, and mount again
	rate    kind = "rate"    // a thin link
	loss    kind = "loss"    // packets are lost
	evict   kind = "evict"   // SIGSTOP for longer than the lease
	part    kind = "part"    // link, for longer than the lease
	squeeze kind = "squeeze" // a file takes nearly all memory
	follow  kind = "follow"  // SIGKILL of a daemon under a holder; another follows
)

// shortLease is --lease where nodes are to be evicted. Other faults of such a round are over before.
const shortLease = 10 * time.Second

// draws say how a fault is drawn: how long it lasts, how much of it there is, and whether it needs a cluster that is whole: one more fault
// beside it could take more voters than a cluster of three can miss.
var draws = map[kind]struct {
	least, most time.Duration
	amounts     []int
	alone       bool
}{
	kill:    {least: 0, most: 4 * time.Second, alone: true},
	pause:   {least: 300 * time.Millisecond, most: 12 * time.Second},
	halves:  {least: time.Second, most: 12 * time.Second},
	isolate: {least: time.Second, most: 12 * time.Second},
	link:    {least: time.Second, most: 12 * time.Second},
	oneway:  {least: time.Second, most: 12 * time.Second},
	leave:   {least: 0, most: 3 * time.Second, alone: true},
	rate:    {least: 2 * time.Second, most: 8 * time.Second, amounts: []int{1, 4, 20}}, // Mbit/s
	loss:    {least: 2 * time.Second, most: 8 * time.Second, amounts: []int{1, 5, 20}}, // percent
	evict:   {least: shortLease + 2*time.Second, most: shortLease + 4*time.Second, alone: true},
	part:    {least: shortLease + 6*time.Second, most: shortLease + 8*time.Second, alone: true},
	squeeze: {least: time.Second, most: 4 * time.Second, alone: true},
	follow:  {least: 2 * time.Second, most: 4 * time.Second, alone: true},
}

// cuts are the faults that Cluster.Heal undoes.
var cuts = []kind{halves, isolate, link, oneway, part}

// fault is one fault of a schedule. Nodes are counted from 1.
type fault struct {
	kind         kind
	node, other  int // other: of link, oneway and part, the second node
	amount       int
	start, lasts time.Duration // since the schedule began
}

func (f fault) end() time.Duration { return f.start + f.lasts }

func (f fault) String() string {
	s := fmt.Sprintf("%5.1f s  %-7s n%d", f.start.Seconds(), f.kind, f.node)
	if f.other > 0 {
		s += fmt.Sprintf(" n%d", f.other)
	}
	if f.amount > 0 {
		s += fmt.Sprintf(" %d", f.amount)
	}
	return s + fmt.Sprintf(" for %.1f s", f.lasts.Seconds())
}

// touches are the nodes that the fault is done to. The others should hardly be delayed.
func (f fault) touches(nodes int) []int {
	switch f.kind {
	case halves:
		var all []int
		for i := 1; i <= nodes/2; i++ {
			all = append(all, i)
		}
		return all
	case link, oneway, part:
		return []int{f.node, f.other}
	}
	return []int{f.node}
}

// schedule draws faults of the kinds for a time. At most two are there at once, and never two of a kind.
func schedule(r *rand.Rand, kinds []kind, nodes int, length time.Duration) []fault {
	evicts := slices.Contains(kinds, evict) || slices.Contains(kinds, part)
	const between = 4 * time.Second
	var all []fault
	if len(kinds) == 0 {
		return nil
	}
	at := time.Second
	for at < length {
		f := fault{kind: kinds[r.IntN(len(kinds))], node: 1 + r.IntN(nodes), start: at}
		d := draws[f.kind]
		// Short ones are as interesting as long ones: the square root of a uniform number would be the other way round.
		u := r.Float64()
		f.lasts = d.least + time.Duration(u*u*float64(d.most-d.least)).Round(100*time.Millisecond)
		if evicts && !d.alone {
			f.lasts = min(f.lasts, shortLease/2)
		}
		if f.kind == link || f.kind == oneway || f.kind == part {
			f.other = 1 + (f.node+r.IntN(nodes-1))%nodes
		}
		if len(d.amounts) > 0 {
			f.amount = d.amounts[r.IntN(len(d.amounts))]
		}
		for i, e := range all {
			if d.alone || draws[e.kind].alone || e.kind == f.kind || i < len(all)-1 {
				f.start = max(f.start, e.end()+200*time.Millisecond)
			}
		}
		all = append(all, f)
		at = f.end() + time.Duration(r.Float64()*float64(between))
		if r.IntN(3) == 0 {
			at = f.start + f.lasts/2 // the next one begins while this one lasts
		}
	}
	return all
}

func describe(all []fault) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "\n    %v", f)
	}
	return b.String()
}

// TestSchedules draws many schedules: what a cluster of three cannot bear never happens at once, and a seed always gives the same.
func TestSchedules(t *testing.T) {
	var kinds []kind
	for k := range draws {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	const nodes, length = 3, time.Minute
	drawn := map[kind]int{}
	for seed := range uint64(500) {
		all := schedule(rand.New(rand.NewPCG(seed, 1)), kinds, nodes, length)
		if got := schedule(rand.New(rand.NewPCG(seed, 1)), kinds, nodes, length); !slices.Equal(all, got) {
			t.Fatalf("seed %d gives two schedules", seed)
		}
		for i, f := range all {
			drawn[f.kind]++
			if f.node < 1 || f.node > nodes || (f.kind == link || f.kind == oneway || f.kind == part) && (f.other < 1 || f.other > nodes || f.other == f.node) {
				t.Errorf("seed %d: %v", seed, f)
			}
			beside := 0
			for j, e := range all[:i] {
				if e.start > f.start {
					t.Errorf("seed %d: %v comes before %v", seed, f, e)
				}
				if e.end() <= f.start {
					continue
				}
				if beside++; draws[e.kind].alone || draws[f.kind].alone || e.kind == f.kind {
					t.Errorf("seed %d: %v while %v lasts (%d)", seed, f, e, j)
				}
			}
			if beside > 1 {
				t.Errorf("seed %d: %v is the third at once", seed, f)
			}
		}
	}
	for _, k := range kinds {
		if drawn[k] < 100 {
			t.Errorf("%s was drawn %d times", k, drawn[k])
		}
	}
}
