package coherence

import (
	"cmp"
	"context"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// scrub compares what this node has as a home with what its backups in sync have, extent by extent: memory may lie, and so may a program. A home
// sends the checksum of an extent behind the changes that it has told the backup of. A backup that has just that version compares, and any other says that
// it was skipped; so nothing is delayed, and what moves, shrinks or is published to meanwhile makes no false alarm. Where they differ the home's bytes
// win, since these are what everybody has seen: the backup gets all of the extent again.
type scrub struct {
	turn chan struct{} // capacity 1: one pass at a time
	mu   struct {
		lockrank.Mutex
		lastID  uint64
		waiting map[uint64]chan *wire.Checked
		last    Scrubbed
	}
}

// Scrubbed is what a pass of the scrub has found.
type Scrubbed struct {
	Passes   int // before it, and this one
	Same     int // extents of backups
	Skipped  int // likewise: they changed meanwhile, or the backup did not answer
	Differed int // likewise: they have been sent anew
	Bytes    int64
	Ended    time.Time
}

const (
	// scrubRate is how many bytes a second a pass compares that nobody waits for: a few thousandths of a processor at both ends.
	scrubRate = 32 << 20
	// scrubPause is the least time between two extents of such a pass. There may be many small files.
	scrubPause = 5 * time.Millisecond
	// scrubPatience is how long a pass waits for a backup. The session may have broken.
	scrubPatience = 5 * time.Second
)

func (s *scrub) init() {
	s.turn = make(chan struct{}, 1)
	s.mu.Init("coherence.scrub")
	s.mu.waiting = make(map[uint64]chan *wire.Checked)
}

// LastScrub returns what the last pass has found.
func (n *Node) LastScrub() Scrubbed {
	n.scrub.mu.Lock()
	defer n.scrub.mu.Unlock()
	return n.scrub.mu.last
}

// Scrub compares all that this node is the home of with its backups, once, and returns what it has found. It takes its time, unless now is set: somebody waits.
func (n *Node) Scrub(ctx context.Context, now bool) (Scrubbed, error) {
	s := &n.scrub
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return Scrubbed{}, ctx.Err()
	}
	defer func() { <-s.turn }()
	var found Scrubbed
	areas := n.all()
	slices.SortFunc(areas, func(a, b *Area) int { return cmp.Compare(a.id, b.id) })
	for _, a := range areas {
		var list []dsm.ExtentIndex
		a.step(func() {
			if a.mu.backed {
				list = slices.Sorted(maps.Keys(a.mu.home.extents))
			}
		})
		for _, e := range list {
			bytes, err := s.compare(ctx, a, e, &found)
			if err != nil {
				return found, err
			}
			if !now && bytes >= 0 {
				select {
				case <-time.After(scrubPause + time.Duration(bytes)*time.Second/scrubRate):
				case <-ctx.Done():
					return found, ctx.Err()
				}
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found.Passes, found.Ended = s.mu.last.Passes+1, n.cfg.Now()
	s.mu.last = found
	return found, nil
}

// compare compares an extent with what its backups have of it. It returns how many bytes it has, or -1 if nobody was asked.
func (s *scrub) compare(ctx context.Context, a *Area, e dsm.ExtentIndex, found *Scrubbed) (bytes int64, err error) {
	answers := make(chan *wire.Checked, dsm.MostBackups)
	s.mu.Lock()
	first := s.mu.lastID + 1
	s.mu.lastID += dsm.MostBackups
	for i := range uint64(dsm.MostBackups) {
		s.mu.waiting[first+i] = answers
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range uint64(dsm.MostBackups) {
			delete(s.mu.waiting, first+i)
		}
	}()
	asked, skipped := 0, 0
	bytes = -1
	a.step(func() { asked, skipped, bytes = a.askBackupsLocked(e, first) })
	found.Skipped += skipped
	patience := time.After(scrubPatience)
	for left := asked; left > 0; left-- {
		select {
		case m := <-answers:
			switch m.Result {
			case wire.CheckSame:
				found.Same++
				found.Bytes += bytes
			case wire.CheckDiffers:
				found.Differed++
			default:
				found.Skipped++
			}
		case <-patience:
			found.Skipped += left
			return bytes, ctx.Err()
		case <-ctx.Done():
			return bytes, ctx.Err()
		}
	}
	return bytes, nil
}

func (s *scrub) answered(m *wire.Checked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.mu.waiting[m.ID]; c != nil {
		select {
		case c <- m:
		default: // a backup that answers what it was not asked
		}
	}
}

// askBackupsLocked asks the backups in sync of an extent what they have of it. It skips those that have not been sent all that has changed there.
func (a *Area) askBackupsLocked(e dsm.ExtentIndex, id uint64) (asked, skipped int, bytes int64) {
	x, row := a.mu.home.extents[e], a.rowLocked(e)
	if x == nil || int(e) >= a.extentsLocked() || !a.isSelf(row.Primary) || row.Source != 0 || a.mu.mute || a.dueLocked() {
		return 0, 0, -1
	}
	version := x.version
	if w := &a.mu.whole; a.versionedLocked() {
		newest, ok := a.newestLocked()
		if version = newest.Version; !ok || w.taking || w.shrunk || w.coming.Version > 0 {
			return 0, 1, -1
		}
	}
	var sum uint64
	for _, b := range row.Backups {
		if b.Node == 0 || !b.InSync || b.Former {
			continue
		}
		if to := a.backupLocked(b.Node); to != nil && to.lacks(e, a.versionedLocked()) {
			skipped++
			continue
		}
		if asked == 0 {
			sum, bytes = a.sumLocked(e, &x.data, a.mu.mem.Home)
		}
		a.sendLocked(b.Node, &wire.Check{Stamp: a.stampLocked(), ID: id + uint64(asked), Extent: e, Version: version, Sum: sum})
		asked++
	}
	return asked, skipped, bytes
}

// lacks reports whether a backup was not sent all that has changed in an extent, or in the area.
func (b *backup) lacks(e dsm.ExtentIndex, any bool) bool {
	for _, q := range []*batch{&b.due, &b.fill, &b.changed, &b.later} {
		if q.of[e] != nil || any && !q.empty() {
			return true
		}
	}
	return false
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumLocked returns a checksum of those pages that are not all zero, and how many bytes they have.
func (a *Area) sumLocked(e dsm.ExtentIndex, which *dsm.PageSet, look func(dsm.PageIndex) []byte) (sum uint64, bytes int64) {
	crc := uint32(0)
	for i := range which.All() {
		p := page(e, i)
		if !a.inAreaLocked(e, i) {
			continue
		}
		b := look(p)
		if isZero(b) {
			continue
		}
		crc = crc32.Update(crc, castagnoli, binary.LittleEndian.AppendUint32(nil, uint32(i)))
		crc = crc32.Update(crc, castagnoli, b)
		bytes += int64(len(b))
	}
	return uint64(crc) | uint64(bytes/dsm.PageSize)<<32, bytes
}

// checkAsBackupLocked answers a Check.
func (a *Area) checkAsBackupLocked(from dsm.NodeID, m *wire.Check) {
	r := &wire.Checked{Stamp: a.stampLocked(), ID: m.ID, Extent: m.Extent}
	if a.hasJustLocked(from, m) {
		r.Result, r.Home = wire.CheckSame, m.Sum
		var pages dsm.PageSet
		if x := a.mu.standby.extents[m.Extent]; x != nil {
			for i := range x.pages {
				pages.Add(i)
			}
		}
		if r.Sum, _ = a.sumLocked(m.Extent, &pages, a.mu.standby.store.Look); r.Sum != m.Sum {
			r.Result = wire.CheckDiffers
			a.node.cfg.Log.Error("a copy that this node keeps differs from its home", "area", a.id, "extent", m.Extent, "version", m.Version, "home", from, "sum", r.Sum, "want", m.Sum)
		}
	}
	a.sendLocked(from, r)
}

// hasJustLocked reports whether this node, as a backup in sync, has just what its home had when it sent the Check.
func (a *Area) hasJustLocked(from dsm.NodeID, m *wire.Check) bool {
	row, s := a.rowLocked(m.Extent), a.mu.standby
	i := row.BackupOf(a.node.cfg.Self)
	switch {
	case i < 0 || !row.Backups[i].InSync || row.Backups[i].Former || row.Source != 0 || !a.fromHomeLocked(from, m.Epoch, m.Extent):
	case s == nil || m.Gen != a.mu.ino.Gen:
	case a.versionedLocked():
		return s.whole.Version == m.Version && len(s.staged) == 0 && !s.broken && !s.shrunk
	case s.extents[m.Extent] != nil:
		return s.extents[m.Extent].version == m.Version
	}
	return false
}

// checkedLocked handles the answer to a Check. If the backup has other bytes, it gets all of the extent, or of a versioned area, anew.
func (a *Area) checkedLocked(from dsm.NodeID, m *wire.Checked) {
	n := a.node
	a.mu.arrived = append(a.mu.arrived, func() { n.scrub.answered(m) })
	n.stats.scrubbed.Add(1)
	if m.Result != wire.CheckDiffers {
		return
	}
	n.stats.differed.Add(1)
	n.cfg.Log.Error("a copy differs from its home: it is made anew", "area", a.id, "extent", m.Extent, "node", from, "sum", m.Sum, "home_sum", m.Home)
	told, waits := a.backupForLocked(from, m.Extent)
	if !told || a.mu.home.extents[m.Extent] == nil || a.dueLocked() {
		return
	}
	c := a.copiesLocked()
	c.index++
	if a.versionedLocked() {
		a.copyAllLocked(c.backup(from), update{index: c.index, waits: waits})
	} else {
		a.copyDueLocked(c.backup(from), &update{extent: m.Extent, index: c.index, waits: waits})
	}
	a.pumpCopiesLocked(from)
}
