package coherence

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Report is what the homes of an area know of it.
type Report struct {
	Version     dsm.Version  // newest version that a home has heard of
	Homes       []dsm.NodeID // distinct, sorted
	Subscribers []dsm.NodeID // distinct, sorted
}

// Home is a node that extents of an area live at.
type Home struct {
	Node    dsm.NodeID
	Sources []dsm.NodeID // distinct, sorted: the nodes that are handing some of them over to it
	Backups []dsm.NodeID // distinct, sorted: the nodes that have a copy of some of them, and can take over
	Filling []dsm.NodeID // distinct, sorted: the nodes that are getting a copy of some of them
}

// Homes returns the homes of an area, by their ids, as this node knows them. It asks nobody.
func (n *Node) Homes(id dsm.AreaID) ([]Home, error) {
	a, err := n.area(id)
	if err != nil {
		return nil, err
	}
	var list []Home
	a.step(func() {
		for _, id := range a.homesLocked() {
			h := Home{Node: id}
			for e := range dsm.ExtentIndex(a.coveringLocked()) {
				if row := a.rowLocked(e); row.Primary == id {
					h.addRow(row)
				}
			}
			for _, nodes := range []*[]dsm.NodeID{&h.Sources, &h.Backups, &h.Filling} {
				slices.Sort(*nodes)
				*nodes = slices.Compact(*nodes)
			}
			list = append(list, h)
		}
	})
	return list, nil
}

func (h *Home) addRow(row *dsm.SlotHome) {
	if row.Source != 0 {
		h.Sources = append(h.Sources, row.Source)
	}
	for _, b := range row.Backups {
		switch {
		case b.Node == 0 || b.Node == row.Primary:
		case b.InSync:
			h.Backups = append(h.Backups, b.Node)
		default:
			h.Filling = append(h.Filling, b.Node)
		}
	}
}

// HomeMoves returns how often the area has moved from one home to another, as a whole.
func (a *Area) HomeMoves() uint32 {
	if own := a.node.cfg.View.Current().OwnOf(a.id); own != nil {
		return own.Moves
	}
	return 0
}

// Stat is a named figure.
type Stat struct{ Name, Value string }

type stats struct {
	publishes, publishedBytes, publishesMerged, pushes, forwards, pagesReceived, pagesEvicted, faults, areasMoved, takenOver, scrubbed, differed atomic.Uint64
}

// Stats returns the figures of the data plane since the start, in a fixed order.
func (n *Node) Stats() []Stat {
	u := func(name string, v *atomic.Uint64) Stat { return Stat{name, fmt.Sprint(v.Load())} }
	all := n.all()
	resident, conflicts := int64(0), 0
	for _, a := range all {
		resident += a.ResidentBytes()
		conflicts += a.ConflictCount()
	}
	return append([]Stat{
		{"areas", fmt.Sprint(len(all))},
		{"resident_bytes", fmt.Sprint(resident)},
		u("publishes", &n.stats.publishes),
		u("published_bytes", &n.stats.publishedBytes),
		u("publishes_merged", &n.stats.publishesMerged),
		u("pushes", &n.stats.pushes),
		u("publishes_forwarded", &n.stats.forwards),
		u("pages_received", &n.stats.pagesReceived),
		u("faults", &n.stats.faults),
		u("pages_evicted", &n.stats.pagesEvicted),
		u("areas_moved", &n.stats.areasMoved),
		u("areas_taken_over", &n.stats.takenOver),
		u("copies_compared", &n.stats.scrubbed),
		u("copies_that_differed", &n.stats.differed),
		{"conflicts", fmt.Sprint(conflicts)},
		{"pages_on_demand", fmt.Sprint(n.room.taken.Load())},
	}, n.ages.stats(true)...)
}

// ModTime returns when the bytes here last changed, by a local store or by a publish that is here. Zero if they
// never did.
func (a *Area) ModTime() time.Time {
	t := a.Version().Time()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.replica.lastStore.After(t) {
		return a.mu.replica.lastStore
	}
	return t
}

// ResidentBytes returns the memory that the area's copies take on this node.
func (a *Area) ResidentBytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.mem == nil {
		return 0
	}
	n, err := a.mu.mem.ResidentBytes()
	if err != nil {
		return 0 // fstat of an own memfd does not fail
	}
	return n
}

// blame adds to the error of a deadline which homes have not answered.
func (a *Area) blame(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var slow []string
	note := func(id dsm.NodeID) {
		if s := id.String(); !a.isSelf(id) && !slices.Contains(slow, s) {
			slow = append(slow, s)
		}
	}
	r := &a.mu.replica
	for _, op := range r.acquires {
		for id := range op.pending {
			note(id)
		}
	}
	for _, s := range r.subs {
		note(s.home)
	}
	for _, e := range a.busyExtentsLocked() {
		if x := a.extentLocked(e); int(e) < a.extentsLocked() && (x.publishing() || !x.asked.Empty()) {
			note(a.rowLocked(e).Primary)
		}
	}
	if len(slow) == 0 {
		return err
	}
	slices.Sort(slow)
	return fmt.Errorf("no answer from home %s (is the node alive? see /.dsm/members): %w", strings.Join(slow, ", "), err)
}

func errUnexpected(from dsm.NodeID, msg any) error {
	return &errs.Error{Op: "handle message", Node: from, Kind: errs.Corrupt, Err: fmt.Errorf("unexpected %T", msg)}
}
