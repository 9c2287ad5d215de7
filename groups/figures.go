package groups

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// clocks has histograms of the ticks of this node's programs: how far ahead of the slowest they
// were, and how long they waited for it.
type clocks struct {
	mu struct {
		lockrank.Mutex
		ahead  [len(aheadBounds) + 1]uint64
		waited [len(waitBounds) + 1]uint64
	}
}

var (
	aheadBounds = [...]uint64{0, 1, 2, 4, 8, 16, 32}
	waitBounds  = [...]time.Duration{
		100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second,
	}
)

func (c *clocks) note(k Clock) {
	i, j := 0, 0
	for i < len(aheadBounds) && k.Ahead > aheadBounds[i] {
		i++
	}
	for j < len(waitBounds) && k.Waited > waitBounds[j] {
		j++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ahead[i]++
	c.mu.waited[j]++
}

// Stat is a named figure.
type Stat struct{ Name, Value string }

// Stats returns figures since the start, in a fixed order. Each of a histogram counts what is at
// most the bound in its name, and above the one before.
func (n *Node) Stats() []Stat {
	n.mu.Lock()
	members := 0
	for _, l := range n.mu.locals {
		members += len(l.seats)
	}
	stats := []Stat{{"group_members", strconv.Itoa(members)}, {"groups_coordinated", strconv.Itoa(len(n.mu.coordinators))}}
	n.mu.Unlock()
	add := func(name string, v uint64) { stats = append(stats, Stat{name, strconv.FormatUint(v, 10)}) }
	n.clocks.mu.Lock()
	defer n.clocks.mu.Unlock()
	for i, b := range aheadBounds {
		add(fmt.Sprintf("group_ticks_ahead_%d", b), n.clocks.mu.ahead[i])
	}
	add("group_ticks_ahead_more", n.clocks.mu.ahead[len(aheadBounds)])
	for i, b := range waitBounds {
		add("group_ticks_waited_"+b.String(), n.clocks.mu.waited[i])
	}
	add("group_ticks_waited_more", n.clocks.mu.waited[len(waitBounds)])
	return stats
}
