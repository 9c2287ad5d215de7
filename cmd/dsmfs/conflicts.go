package main

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/dsmfs/dsmfs/coherence"
	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/transport"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// The node that finds conflicts keeps them in its memory, and for the daemon that follows; nobody else does. They are listed by asking every member each time, and so need no state that
// could be wrong after a death: with a node its conflicts are gone. A node that has not answered in listLimit is named, and so is a member that is marked
// as gone, which may be cut off and come back. First every node is asked for a page, all at once; then, one node after the other, for the rest.

// mostListed is about how many bytes of conflicts are listed, of all nodes together. It is as much as one node may keep, so the first node that has any is
// always listed as a whole. The others follow when these have been cleared.
const (
	mostListed = 16 << 20
	listedCost = 128 // of a conflict besides its bytes
)

// asking makes a request of a member.
type asking func(ctx context.Context, m dsm.Member, req any) (any, error)

// finder is a node that may keep conflicts of an area, and what it has said so far.
type finder struct {
	member dsm.Member
	control.KeptConflicts
	next  wire.ListConflicts // what to ask it
	bytes int                // that it has sent
}

// listConflicts asks the members of the cluster for the conflicts of an area.
func listConflicts(ctx context.Context, members []dsm.Member, id dsm.AreaID, ask asking) []control.KeptConflicts {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	var all []*finder
	var asked sync.WaitGroup
	for _, m := range members {
		if m.Gone && slices.ContainsFunc(members, func(o dsm.Member) bool { return !o.Gone && o.Addr == m.Addr }) {
			continue // another process has the address, so this one has ended
		}
		k := &finder{member: m, KeptConflicts: control.KeptConflicts{Node: m.Name, Silent: m.Gone}, next: wire.ListConflicts{Area: id}}
		all = append(all, k)
		if !m.Gone {
			asked.Go(func() { k.ask(ctx, ask) })
		}
	}
	asked.Wait()
	room := mostListed
	for _, k := range all {
		room -= k.bytes
	}
	list := make([]control.KeptConflicts, len(all))
	for i, k := range all {
		for room += k.bytes; k.More && !k.Silent && k.bytes < room; {
			k.ask(ctx, ask)
		}
		room -= k.bytes
		k.dropPart()
		list[i] = k.KeptConflicts
	}
	slices.SortFunc(list, func(a, b control.KeptConflicts) int { return strings.Compare(a.Node, b.Node) })
	return list
}

// ask asks for a page.
func (k *finder) ask(ctx context.Context, ask asking) {
	reply, err := ask(ctx, k.member, &k.next)
	m, ok := reply.(*wire.ConflictsListed)
	k.Silent = err != nil || !ok || !k.take(m)
}

// take adds the answer to next. It returns false if that is not one.
func (k *finder) take(m *wire.ConflictsListed) bool {
	if k.next.Skip > 0 && (len(m.List) == 0 || m.List[0].Number != k.next.From) {
		k.dropPart() // somebody has cleared it
	}
	before := k.bytes
	for i, x := range m.List {
		if x.Number < k.next.From || x.Number+1 <= 1 || x.Rest < 0 || x.Rest > 0 && (i < len(m.List)-1 || len(x.Kept) == 0) {
			return false
		}
		last := len(k.List) - 1
		if k.next.Skip == 0 {
			k.List = append(k.List, control.Conflict{Number: x.Number})
			last++
		}
		c := &k.List[last]
		c.Time, c.Off, c.Kept, c.Taken = x.Time, x.Off, append(c.Kept, x.Kept...), x.Taken
		k.bytes += len(x.Kept) + listedCost
		k.next.From, k.next.Skip = x.Number, int64(len(c.Kept))
		if x.Rest == 0 {
			k.next.From, k.next.Skip = x.Number+1, 0
		}
	}
	k.Lost, k.More = m.Lost, m.More
	return !k.More || k.bytes > before
}

// dropPart drops a conflict of which only a part has come.
func (k *finder) dropPart() {
	if k.next.Skip > 0 {
		k.List = k.List[:len(k.List)-1]
		k.next.Skip = 0
	}
}

// clearConflicts has a node, or with 0 all that are not gone, drop conflicts.
func clearConflicts(ctx context.Context, members []dsm.Member, node dsm.NodeID, req *wire.ClearConflicts, ask asking) error {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	var mu sync.Mutex
	var silent []string
	var asked sync.WaitGroup
	for _, m := range members {
		if node == 0 && m.Gone || node != 0 && m.ID != node {
			continue
		}
		asked.Go(func() {
			reply, err := ask(ctx, m, req)
			if _, ok := reply.(*wire.ConflictsCleared); err != nil || !ok {
				mu.Lock()
				defer mu.Unlock()
				silent = append(silent, m.Name)
			}
		})
	}
	asked.Wait()
	if len(silent) > 0 {
		slices.Sort(silent)
		return errs.E(errs.Timeout, "clear conflicts", "nodes that have not answered, and may keep theirs: %s", strings.Join(silent, " "))
	}
	return nil
}

// answerConflicts answers a request about the conflicts that this node keeps.
func answerConflicts(data *coherence.Node, req any) (reply any, ok bool) {
	switch m := req.(type) {
	case *wire.ListConflicts:
		return data.ListConflicts(m), true
	case *wire.ClearConflicts:
		data.ClearConflicts(m.Area, m.UpTo)
		return &wire.ConflictsCleared{}, true
	}
	return nil, false
}

// ask is asking.
func (n *node) ask(ctx context.Context, m dsm.Member, req any) (any, error) {
	if m.ID == n.self.ID {
		reply, _ := answerConflicts(n.data, req)
		return reply, nil
	}
	return n.net.Call(ctx, transport.NodeAddr(m.ID, m.Addr), req)
}

// finders returns the members; this one is not gone.
func (n *node) finders() []dsm.Member {
	members := slices.Clone(n.cats.Current().Members)
	for i := range members {
		if members[i].ID == n.self.ID {
			members[i].Gone = false
		}
	}
	return members
}

// Conflicts implements fs.Areas.
func (a areas) Conflicts(ctx context.Context, id dsm.AreaID) []control.KeptConflicts {
	return listConflicts(ctx, a.n.finders(), id, a.n.ask)
}

// ClearConflicts implements fs.Areas.
func (a areas) ClearConflicts(ctx context.Context, id dsm.AreaID, node dsm.NodeID, upTo uint64) error {
	return clearConflicts(ctx, a.n.finders(), node, &wire.ClearConflicts{Area: id, UpTo: upTo}, a.n.ask)
}
