package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dsmfs/dsmfs/fs"
	"github.com/dsmfs/dsmfs/groups"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/transport"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// programGroups is the groups of programs as fs needs them.
type programGroups struct{ n *node }

var _ fs.Groups = programGroups{}

// homeOf is groups.Config.Home: it goes by the view alone, so that all nodes choose alike. It is the home of the file's first extent if the
// file has as many copies as most have.
func homeOf(v *dsm.View, group dsm.AreaID) dsm.NodeID {
	if own := v.OwnOf(group); own != nil {
		return own.Primary
	}
	return v.Slots[dsm.SlotOf(group, 0)].Primary
}

// Join implements fs.Groups.
func (g programGroups) Join(ctx context.Context, group dsm.AreaID, size int) (*groups.Member, error) {
	return g.n.groups.Join(ctx, group, size)
}

// listLimit is how long a node has time to say which groups it coordinates.
const listLimit = 2 * time.Second

// List implements fs.Groups: it asks all nodes. One that does not answer is left out.
func (g programGroups) List(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	lines := g.n.groups.List()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, m := range g.n.cats.Current().Members {
		if m.ID == g.n.self.ID || m.Gone {
			continue
		}
		asked.Go(func() {
			r, err := g.n.net.Call(ctx, transport.NodeAddr(m.ID, m.Addr), &wire.GroupList{})
			if listed, ok := r.(*wire.GroupListed); err == nil && ok {
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, listed.Lines...)
			}
		})
	}
	asked.Wait()
	slices.Sort(lines)
	return lines
}
