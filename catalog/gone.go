package catalog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// A member whose process has ended without leaving, or that is evicted, is marked as gone. Its name and address are free
// at once, its locks and claims are dropped, and it can make no change any more. Where a backup
// has what it was the home of, that takes over in the same step (backups.go). The rest is lost, except for slots that were being handed over to it: their
// former home may still have them (handoverFailedOp). Those slots stay with it as long as a file has bytes in them: it may come back with them, if it was only cut off. Until then such bytes cannot be read (EIO), and never
// read as zero; the file can be removed or truncated. No file gets more bytes there (detour). When none has bytes in its slots any more, the slots go to other members, which loses nothing, and the
// member is forgotten.
//
// It must be certain that the process has ended, or that it is fenced (fence.go): it might still have unpublished stores, act as a home,
// and become reachable again. It is certain that it has ended if another process has the address. For all else the leader waits for signs of life, and
// evicts a node that gives none (evict.go): one that does not answer may be on the other side of a partition.

// present returns the members that are not gone.
func present(v *dsm.View) []dsm.Member {
	return slices.DeleteFunc(slices.Clone(v.Members), func(m dsm.Member) bool { return m.Gone })
}

func (o goneOp) apply(s *state, st step) (dsm.Inode, error) {
	m, ok := s.view.Member(o.Node)
	if !ok || m.Gone || m.Inc != o.Inc || o.Node == st.node {
		return dsm.Inode{}, nil
	}
	if o.Term != 0 && o.Term != s.term {
		return dsm.Inode{}, fail(errs.Unavailable, "decided in term %d, and this is term %d", o.Term, s.term)
	}
	s.keepEvicted(m, st.index)
	s.reviewed(func(v *dsm.View) {
		for i := range v.Members {
			if v.Members[i].ID == o.Node {
				v.Members[i].Gone, v.Members[i].Leaving = true, true
			}
		}
		bereave(v, o.Node)
		depart(v, st, o.Node, m.Key, true)
	})
	s.release(o.Node)
	return settleOp{}.apply(s, st)
}

// settleOp forgets those gone members in whose slots no file has bytes.
func (settleOp) apply(s *state, _ step) (dsm.Inode, error) {
	free := s.settled()
	if len(free) == 0 {
		return dsm.Inode{}, nil
	}
	s.reviewed(func(v *dsm.View) {
		v.Members = slices.DeleteFunc(v.Members, func(m dsm.Member) bool { return slices.Contains(free, m.ID) })
		quota, count := quotas(v), primaries(v)
		for i := range v.Slots {
			h := &v.Slots[i]
			if slices.Contains(free, h.Primary) {
				class := dsm.CopiesOf(dsm.Slot(i)) - 1
				to := neediest(v, quota, count, class)
				if to == 0 {
					to = present(v)[0].ID
				}
				count.add(to, class, 1)
				*h = dsm.SlotHome{Primary: to, Epoch: v.Epoch}
			}
			if slices.Contains(free, h.Source) {
				h.ArrivedEmpty()
			}
		}
		for i := range v.Own {
			h := &v.Own[i]
			if slices.Contains(free, h.Primary) {
				h.SlotHome = dsm.SlotHome{Primary: v.Row(s.shares(h.Area)).Primary, Epoch: v.Epoch}
			}
			if slices.Contains(free, h.Source) {
				h.ArrivedEmpty()
			}
		}
	})
	return dsm.Inode{}, nil
}

// settled returns the gone members in whose slots no file has bytes.
func (s *state) settled() (free []dsm.NodeID) {
	data := make(map[dsm.NodeID]bool) // gone members, and whether a file has bytes in their slots
	for _, m := range s.view.Members {
		if m.Gone {
			data[m.ID] = false
		}
	}
	if len(data) == 0 || len(data) == len(s.view.Members) {
		return nil
	}
	for _, in := range s.inodes {
		if in.Kind != dsm.KindFile {
			continue
		}
		for e := range in.Spec.CoveringExtents(in.Size) {
			h := s.view.Row(s.view.SlotOf(in.Area(), in.Spec, dsm.ExtentIndex(e)))
			for _, n := range []dsm.NodeID{h.Primary, h.Source} {
				if _, gone := data[n]; gone {
					data[n] = true
				}
			}
		}
	}
	for _, n := range sortedKeys(data) {
		if !data[n] {
			free = append(free, n)
		}
	}
	return free
}

// detour has a file that grows get extents where nothing can be stored in other slots: see dsm.Detours. A slot of its own in which it has no bytes begins anew.
func (s *state) detour(st step, in *inode, size int64) {
	in.Spec.Detours = s.view.Detours(in.Area(), in.Spec, in.Size, size)
	if own := s.view.OwnOf(in.Area()); in.Size == 0 && own != nil && own.Homeless(s.view) {
		s.reviewed(func(v *dsm.View) {
			v.Place(in.Area(), dsm.SlotHome{Primary: ownHome(v, in, st.node), Epoch: v.Epoch})
		})
	}
}

// look returns what a member answers; nil if it does not, and then whether its machine says that its process has ended. It takes no longer than attempt/2: for one that is
// stopped the kernel takes the connection.
func (c *Catalog) look(ctx context.Context, m dsm.Member) (p *wire.Probed, ended bool) {
	ctx, cancel := context.WithTimeout(ctx, attempt/2)
	defer cancel()
	for try := range 3 {
		p, err := c.probe(ctx, m.ID, m.Addr)
		switch {
		case err == nil:
			return p, false
		case errors.Is(err, syscall.ECONNREFUSED):
			return nil, true
		}
		if !c.pause(ctx, c.life, try) { // the failure may be that of an old connection
			break
		}
	}
	return nil, false
}

// followed reports whether another daemon may follow that of a member, if it was killed.
func followed(m dsm.Member) bool { return m.Held && !m.Leaving }

// awaitFate waits for those of the members that seem to have ended, until they answer, or the cluster has marked them as gone. That nobody listens at an address
// proves nothing to who is not the leader: it may be that only this node does not reach a member that is well. So the leader decides (evict.go), and a member that it
// has not evicted after two leases lives. One whose daemon may be followed is waited for also if it does not answer, and until it is back.
func (c *Catalog) awaitFate(ctx context.Context, members []dsm.Member) {
	ctx, cancel := context.WithTimeout(ctx, 2*c.Current().Lease)
	defer cancel()
	var waits sync.WaitGroup
	for _, m := range members {
		if m.ID == c.self.ID {
			continue
		}
		waits.Go(func() {
			for try := 0; ; try++ {
				p, ended := c.look(ctx, m)
				away := ended || followed(m) && (p == nil || p.Away)
				if is, member := c.Current().Member(m.ID); !away || !member || is.Gone || is.Inc != m.Inc || !c.pause(ctx, c.life, try) {
					return
				}
			}
		})
	}
	waits.Wait()
}
