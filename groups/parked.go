package groups

import (
	"cmp"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// parked is a message that was made under a newer view than this node has. Nobody sends it again, so it is kept until the view comes. It is a
// state: a newer one of the same key replaces it, which bounds how many there are.
type parked struct {
	at  uint64 // the place among all that came
	msg any
}

type parkedKey struct {
	from  dsm.NodeID
	group dsm.AreaID
	kind  parkedKind
}

// parkedKind separates what does not say all that the other does.
type parkedKind int

const (
	parkedReport parkedKind = iota
	parkedKnown             // a report that answers a call
	parkedCall
)

// parkLocked keeps a message until a view comes.
func (n *Node) parkLocked(from dsm.NodeID, group dsm.AreaID, msg any) {
	kind := parkedCall
	if r, ok := msg.(*wire.GroupReport); ok {
		kind = parkedReport
		if r.Known != nil {
			kind = parkedKnown
		}
	}
	n.mu.parks++
	n.mu.parked[parkedKey{from, group, kind}] = parked{n.mu.parks, msg}
}

// unparkLocked returns the messages that wait, in the order in which they came; to is the sender.
func (n *Node) unparkLocked() []message {
	keys := slices.SortedFunc(maps.Keys(n.mu.parked), func(a, b parkedKey) int { return cmp.Compare(n.mu.parked[a].at, n.mu.parked[b].at) })
	list := make([]message, len(keys))
	for i, k := range keys {
		list[i] = message{k.from, n.mu.parked[k].msg}
	}
	clear(n.mu.parked)
	return list
}
