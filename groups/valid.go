package groups

import (
	"fmt"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// fits checks what the steps rely on in a message of another node, which may be broken. It returns what is wrong, or "".
func fits(msg any) string {
	switch m := msg.(type) {
	case *wire.GroupReport:
		return reportFits(m)
	case *wire.GroupState:
		return membersFit(m.Size, m.Members, m.Met)
	}
	return ""
}

func reportFits(r *wire.GroupReport) string {
	last := uint64(0)
	for i := range r.Seats {
		s := &r.Seats[i]
		if s.ID <= last {
			return fmt.Sprintf("program %x comes after %x", s.ID, last)
		}
		last = s.ID
		if s.Size < 1 || s.Size > MaxSize {
			return fmt.Sprintf("a program wants a group of size %d", s.Size)
		}
		if len(s.Adds) > maxAdds {
			return fmt.Sprintf("a program has %d additions without an answer", len(s.Adds))
		}
		for _, a := range s.Adds {
			if a.Counter == "" || len(a.Counter) > maxName {
				return fmt.Sprintf("the name of a counter has %d bytes", len(a.Counter))
			}
		}
	}
	if k := r.Known; k != nil {
		if r.Done > 0 && k.Met == nil {
			return fmt.Sprintf("barrier %d was met by nobody", r.Done)
		}
		return membersFit(k.Size, k.Members, k.Met)
	}
	return ""
}

// membersFit checks the members of a group and who took part in its last barrier; nil is what is not told.
func membersFit(size int, members []wire.GroupMember, met []dsm.NodeID) string {
	if size < 0 || size > MaxSize || members != nil && len(members) != size {
		return fmt.Sprintf("a group of size %d has %d members", size, len(members))
	}
	for i := range members {
		if members[i].From == 0 {
			return fmt.Sprintf("rank %d takes part from barrier 0 on", i)
		}
	}
	if met != nil && len(met) != size {
		return fmt.Sprintf("a barrier of %d ranks in a group of size %d", len(met), size)
	}
	return ""
}
