package groups

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// name is how people know a node.
func name(v *dsm.View, id dsm.NodeID) string {
	if m, ok := v.Member(id); ok && m.Name != "" {
		return m.Name
	}
	return id.String()
}

func names(v *dsm.View, nodes []dsm.NodeID) (list []string) {
	for _, id := range nodes {
		list = append(list, name(v, id))
	}
	return list
}

// places says on which nodes members are.
func places(v *dsm.View, members []wire.GroupMember) string {
	var on []string
	for _, m := range members {
		on = append(on, name(v, m.Node))
	}
	if len(on) == 0 {
		return "nobody"
	}
	return strings.Join(on, " ")
}

// lackingLocked says why a program has got no rank in time.
func (n *Node) lackingLocked(m *Member) error {
	l := m.group
	came := slices.DeleteFunc(slices.Clone(l.came), func(w wire.GroupMember) bool { return w.ID == m.seat.ID })
	switch {
	case l.reign == 0:
		return errs.E(errs.Timeout, "join", "the coordinator of the group, node %s, does not answer", name(n.mu.view, l.coordinator))
	case len(l.silent) > 0:
		return errs.E(errs.Timeout, "join", "nodes that may know of the group do not answer: %s", strings.Join(names(n.mu.view, l.silent), " "))
	case l.generation != 0 && len(l.members) == l.size:
		return errs.E(errs.Timeout, "join", "no rank is free: the %d members are on %s", l.size, places(n.mu.view, l.members))
	}
	if len(l.came) >= maxCame {
		return errs.E(errs.Timeout, "join", "not all %d came in time, but %d or more", m.seat.Size, maxCame)
	}
	return errs.E(errs.Timeout, "join", "%d of %d came in time: this one, and on other ranks' behalf %s; %d lack",
		len(came)+1, m.seat.Size, places(n.mu.view, came), m.seat.Size-len(came)-1)
}

// List describes the groups that this node coordinates, one on each line:
//
//	NUMBER size=4 members=4 round=7 ranks=a,b,c,- awaited=2 since=1.5s
//
// NUMBER is that of the file. A rank that is free is a "-"; awaited are the ranks that have not
// arrived at the next barrier while others wait there. Before a group has members the line ends with those who want to be, and with the
// nodes that have not answered the call, as silent=b,c.
func (n *Node) List() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(n.mu.coordinators)) {
		lines = append(lines, n.lineLocked(n.mu.coordinators[id]))
	}
	return lines
}

func (n *Node) lineLocked(c *coordinator) string {
	if c.generation == 0 {
		var came []wire.GroupMember
		size := 0
		for _, w := range c.waiting() {
			came, size = append(came, wire.GroupMember{Node: w.node}), w.seat.Size
		}
		line := fmt.Sprintf("%d size=%d members=0 waiting=%d on=%s", c.group, size, len(came), commas(n.mu.view, came))
		if len(c.silent) > 0 {
			line += " silent=" + strings.Join(names(n.mu.view, slices.Sorted(maps.Keys(c.silent))), ",")
		}
		return line
	}
	living := 0
	var awaited []string
	for rank, s := range c.at {
		if s != nil {
			living++
			if !c.since.IsZero() && s.Arrived <= c.done {
				awaited = append(awaited, fmt.Sprint(rank))
			}
		}
	}
	line := fmt.Sprintf("%d size=%d members=%d round=%d ranks=%s", c.group, c.size, living, c.done, commas(n.mu.view, c.members))
	if len(awaited) > 0 {
		line += fmt.Sprintf(" awaited=%s since=%.1fs", strings.Join(awaited, ","), n.cfg.Now().Sub(c.since).Seconds())
	}
	return line
}

func commas(v *dsm.View, members []wire.GroupMember) string {
	var on []string
	for _, m := range members {
		if m.Gone {
			on = append(on, "-")
		} else {
			on = append(on, name(v, m.Node))
		}
	}
	return strings.Join(on, ",")
}
