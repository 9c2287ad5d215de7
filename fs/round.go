package fs

import (
	"context"

	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/dsm"
)

// contribute hands what was stored to the area before to the homes, as this node's part in a round.
func (b *bridge) contribute(ctx context.Context, a *openArea, id dsm.RoundID) error {
	stored := a.stored.Load()
	a.publishing.Add(1)
	defer a.publishing.Add(-1)
	b.grown(ctx, a)
	if err := a.current().Contribute(ctx, id); err != nil {
		return err
	}
	b.countSoon(a) // as in publishBy
	a.reached(stored)
	return nil
}

// mountedArea is an area of a program that takes part in rounds, and has the area by the kernel's page cache only. What is not open on
// this node was published when it was closed.
type mountedArea struct {
	b  *bridge
	id dsm.AreaID
}

func (m mountedArea) open() *openArea {
	if a := m.b.opens.find(m.id); a != nil && a.handles() > 0 {
		return a
	}
	return nil
}

// Contribute implements groups.Area.
func (m mountedArea) Contribute(ctx context.Context, id dsm.RoundID) error {
	a := m.open()
	if a == nil {
		return nil
	}
	if a.live.Load() > 0 && a.kernelPages.Load() {
		if err := m.b.harvest.Sync(ctx, []harvest.Target{{Area: a}})[0]; err != nil {
			return err
		}
	}
	return m.b.contribute(ctx, a, id)
}

// FinishRound implements groups.Area.
func (m mountedArea) FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int) error {
	if a := m.open(); a != nil {
		return a.current().FinishRound(ctx, id, nodes, writers, true)
	}
	return nil
}

// AbandonRound implements groups.Area.
func (m mountedArea) AbandonRound(id dsm.RoundID) {
	if a := m.b.opens.find(m.id); a != nil && a.current() != nil { // the program may have closed it
		a.current().AbandonRound(id)
	}
}
