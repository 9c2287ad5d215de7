package coherence

import (
	"context"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// handing is a handover under way: the extents not acked, by message id.
type handing struct {
	slots []dsm.Slot
	epoch dsm.Epoch
	under map[uint64]dsm.ExtentIndex
}

// moveSlots commits a view in which some slots of the area get another home, or in
// which handovers that are complete are over.
func (s *sim) moveSlots() {
	v := *s.lastView()
	v.Epoch++
	changed := false
	for e := range dsm.ExtentIndex(dsm.Extents(s.lastInode().Size)) {
		sl := dsm.SlotOf(simArea, e)
		row := &v.Slots[sl]
		switch {
		case row.Source != 0:
			if dsm.Epoch(s.nodes[row.Primary-1].node.received[sl].Load()) == row.Epoch {
				row.Source = 0
				changed = true
			}
		case s.rng.IntN(3) == 0:
			to := dsm.NodeID(s.rng.IntN(len(s.nodes)) + 1)
			if to != row.Primary {
				*row = dsm.SlotHome{Primary: to, Source: row.Primary, Epoch: v.Epoch}
				changed = true
			}
		}
	}
	if changed {
		s.log = append(s.log, entry{nil, &v})
	}
}

// handOver starts, or starts over, what a node has to hand over.
func (n *simNode) handOver() {
	for _, to := range n.sim.nodes {
		h := &n.node.handovers
		h.mu.Lock()
		slots := h.pendingLocked(n.view, to.id)
		h.mu.Unlock()
		if len(slots) == 0 || n.handing[to.id] != nil {
			continue
		}
		g := &handing{slots: slots, epoch: n.view.Epoch, under: make(map[uint64]dsm.ExtentIndex)}
		n.handing[to.id] = g
		if a := n.node.known(simArea); a != nil {
			var list []dsm.ExtentIndex
			a.step(func() {
				for e := range a.mu.home.extents {
					if slices.Contains(slots, dsm.SlotOf(simArea, e)) {
						list = append(list, e)
					}
				}
			})
			slices.Sort(list)
			for _, e := range list {
				n.handExtent(to, g, e)
			}
		}
		n.endHandover(to, g)
	}
}

func (n *simNode) handExtent(to *simNode, g *handing, e dsm.ExtentIndex) {
	n.sim.lastID++
	if n.node.known(simArea).handOver(to.id, e, n.sim.lastID) {
		g.under[n.sim.lastID] = e
	}
}

func (n *simNode) endHandover(to *simNode, g *handing) {
	if len(g.under) > 0 {
		return
	}
	delete(n.handing, to.id)
	for _, sl := range g.slots {
		n.node.handovers.mu.sent[sl] = n.view.Slots[sl].Epoch
	}
	n.Send(to.id, &wire.HandoverDone{Epoch: g.epoch, Slots: g.slots}, nil, false)
}

func (n *simNode) handedOver(to *simNode, ack *wire.HandoverAck) {
	g := n.handing[to.id]
	if g == nil {
		return
	}
	e, ok := g.under[ack.ID]
	if !ok {
		return
	}
	delete(g.under, ack.ID)
	if ack.Stale {
		_ = n.WaitApplied(context.Background(), ack.Rev, 0)
		n.handExtent(to, g, e)
	}
	n.endHandover(to, g)
}
