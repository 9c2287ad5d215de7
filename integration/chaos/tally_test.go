package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// tally adds up what all rounds showed.
type tally struct {
	waited   map[kind][]time.Duration // for each fault the longest time that a program elsewhere waited
	injected map[kind]int
	results  map[string]map[string]int
	recovery []time.Duration
	peak     int64
}

func newTally() *tally {
	return &tally{waited: map[kind][]time.Duration{}, injected: map[kind]int{}, results: map[string]map[string]int{}}
}

// pauses finds, for each fault that was there alone, the operation that waited longest on a node that it was not done to. What waits when
// the next fault begins says nothing about this one.
func (t *tally) pauses(events []event, ops []operation) {
	for i, e := range events {
		until := e.ended + int64(5*time.Second) // what a fault delays may be done after its end
		alone := true
		for j, o := range events {
			if i != j && o.began < e.ended && e.began < o.ended+int64(time.Second) {
				alone = false
			}
			if o.began >= e.ended {
				until = min(until, o.began)
			}
		}
		if !alone {
			continue
		}
		touched := e.touches(size)
		longest := time.Duration(0)
		for _, o := range ops {
			if o.End >= e.began && o.Call <= e.ended && !slices.Contains(touched, o.Node) {
				longest = max(longest, time.Duration(min(o.End, until)-max(o.Call, e.began)))
			}
		}
		t.waited[e.kind] = append(t.waited[e.kind], longest)
	}
}

// patience is how much longer than a lease a node waits for one that it does not reach, on a machine that is busy, before one of the two is put out.
const patience = 4 * time.Second

// overdue tells which programs waited longer than the cluster takes to put out one of two nodes that are apart, on another node than that.
func (p plan) overdue(events []event, ops []operation) (errs []string) {
	for _, e := range events {
		for _, o := range ops {
			if e.out != 0 && o.Node != e.out && o.Call < e.ended && time.Duration(o.End-max(o.Call, e.began)) > p.lease+patience {
				errs = append(errs, fmt.Sprintf("n%d is put out (%v), and n%d waits: %v", e.out, e.fault, o.Node, o))
			}
		}
	}
	return errs
}

func (t *tally) counted(workload string, results map[string]int) {
	if t.results[workload] == nil {
		t.results[workload] = map[string]int{}
	}
	for k, n := range results {
		t.results[workload][k] += n
	}
}

func (t *tally) recovered(events []event, after time.Duration, peak int64) {
	for _, e := range events {
		t.injected[e.kind]++
	}
	t.recovery, t.peak = append(t.recovery, after), max(t.peak, peak)
}

func (t *tally) String() string {
	var b strings.Builder
	row := func(what string, all []time.Duration) {
		slices.Sort(all)
		if len(all) > 0 {
			fmt.Fprintf(&b, "  %-24s %4d times, p50 %6.2f s, max %6.2f s\n", what, len(all), all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
		}
	}
	b.WriteString("longest wait of a program on a node that the fault was not done to, of each workload by itself:\n")
	for _, k := range slices.Sorted(maps.Keys(t.waited)) {
		row(string(k), t.waited[k])
	}
	b.WriteString("  faults injected:")
	for _, k := range slices.Sorted(maps.Keys(t.injected)) {
		fmt.Fprintf(&b, " %s %d", k, t.injected[k])
	}
	b.WriteByte('\n')
	row("until all works again", t.recovery)
	fmt.Fprintf(&b, "most memory of a daemon: %d MiB\n", t.peak>>20)
	for _, w := range slices.Sorted(maps.Keys(t.results)) {
		r := t.results[w]
		fmt.Fprintf(&b, "  %-9s %6d operations done, %d refused, %d of unknown outcome\n", w, r[ok], r[refused], r[unknown])
	}
	return b.String()
}
