package catalog

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// reservation is how much of the members' memory the files take: the sums of their sizes, in bytes of whole
// pages, and what the members keep of each file, directory and symbolic link besides.
//
// Full files count whole at every member, because its programs may use all of them, and twice: a page that is in use is there as
// its working and as its base copy, and a home needs no third one. Of demand files
// a member needs memory for its part as a home, and for pages that its programs touch. The latter
// can be given back, but without room for some of them no program would make progress. So an eighth
// of what the full files leave stays free for them.
//
// A member's part as a home is counted by its quota of the slots, although it may have other slots
// while some are handed over. Extents hash to slots evenly but not exactly: where a member is home
// of more, that reduces the room for pages.
type reservation struct {
	full   int64
	demand bytesPerClass // by how many copies there are to be
	kept   int64
	// Of full, what backups keep: of files that are spread, by slots, and of those that live at one home, which a backup has whole.
	spread, whole bytesPerClass
}

// bytesPerClass is a number of bytes for each class of slots: at i of areas with i+1 copies.
type bytesPerClass [dsm.MostReplicas]int64

func (b bytesPerClass) plus(o bytesPerClass, sign int64) bytesPerClass {
	for i := range b {
		b[i] += sign * o[i]
	}
	return b
}

// less reports whether any of the numbers is smaller than the other.
func (b bytesPerClass) less(o bytesPerClass) bool {
	for i := range b {
		if b[i] < o[i] {
			return true
		}
	}
	return false
}

// fullCopies is how often a member may have each page of a full file.
const fullCopies = 2

const (
	// inodeCost is what a member keeps of a directory or a symbolic link, linkCost of a further name of a file, and attrCost of an extended attribute besides its name and
	// value. Of a file it is dsm.FileCost.
	inodeCost = 1 << 10
	linkCost  = 1 << 10
	attrCost  = 128
)

// takes returns what a file of that size takes, without what is kept of it.
func takes(x dsm.Spec, size int64) reservation {
	bytes := pagesOf(size) * dsm.PageSize
	if x.Residency == dsm.ResidencyDemand {
		var demand bytesPerClass
		demand[x.Copies()-1] = bytes
		return reservation{demand: demand}
	}
	r := reservation{full: bytes}
	switch class := x.Copies() - 1; {
	case class == 0:
	case x.Together(dsm.ExtentIndex(dsm.Extents(dsm.MaxAreaSize))):
		r.whole[class] = bytes
	default:
		r.spread[class] = bytes
	}
	return r
}

// keeps returns what is kept of an inode besides the pages of a file.
func (in *inode) keeps() (r reservation) {
	switch {
	case in.Kind == dsm.KindFile:
		r.kept = dsm.FileCost
	case in.Kind == dsm.KindSymlink:
		r.kept = inodeCost + in.Size
	case in.Ino != dsm.RootIno: // which is there before anything can be refused
		r.kept = inodeCost
	}
	if in.Kind != dsm.KindDir && in.Nlink > 1 {
		r.kept += int64(in.Nlink-1) * linkCost
	}
	for name, value := range in.xattrs {
		r.kept += attrBytes(name, value)
	}
	return r
}

func attrBytes(name string, value []byte) int64 { return int64(len(name)+len(value)) + attrCost }

// all returns all that an inode takes.
func (in *inode) all() reservation {
	r := in.keeps()
	if in.Kind == dsm.KindFile {
		r = r.plus(takes(in.Spec, in.Size))
	}
	return r
}

func (r reservation) plus(o reservation) reservation {
	return reservation{r.full + o.full, r.demand.plus(o.demand, 1), r.kept + o.kept, r.spread.plus(o.spread, 1), r.whole.plus(o.whole, 1)}
}

func (r reservation) minus(o reservation) reservation {
	return reservation{r.full - o.full, r.demand.plus(o.demand, -1), r.kept - o.kept, r.spread.plus(o.spread, -1), r.whole.plus(o.whole, -1)}
}

// room says for what of all that is reserved the members have memory.
type room uint8

const (
	roomNone      room = iota // a member has too little memory for what it is home of
	roomPrimaries             // one has enough for that, but too little for copies of what others are home of
	roomCopies                // one has enough for that too, but too little for pages on demand
	roomPages                 // there is enough
)

// burden is how much of one member's memory a reservation takes, in bytes.
type burden struct {
	member dsm.Member
	full   int64 // the full files
	kept   int64 // what it keeps of all files besides
	home   int64 // its part of the demand files as a home
	paging int64 // kept free for pages on demand
	copies int64 // what it keeps as a backup
}

// part returns how many of so many bytes are in so many of a class's slots, rounded up.
func part(bytes int64, slots, class int) int64 {
	n, all := int64(slots), int64(dsm.ClassOf(class+1).Slots)
	return bytes/all*n + (bytes%all*n+all-1)/all
}

// copied reports whether there are files of which there are to be more copies than there are members.
func (r reservation) copied(members int) bool {
	for class := members; class < dsm.MostReplicas; class++ {
		if r.demand[class]+r.spread[class]+r.whole[class] > 0 {
			return true
		}
	}
	return false
}

// of returns how much memory a member that is home and backup of so many slots needs for the room.
func (r reservation) of(m dsm.Member, slots, backups perClass, x room) burden {
	c := burden{member: m, full: fullCopies * r.full, kept: r.kept}
	if x >= roomCopies {
		for class, n := range backups {
			c.copies += part(r.demand[class]+r.spread[class], n, class)
			if n > 0 {
				c.copies += r.whole[class] // any member may be the backup
			}
		}
	}
	if r.demand == (bytesPerClass{}) {
		return c
	}
	for class, bytes := range r.demand {
		c.home += part(bytes, slots[class], class)
	}
	if x == roomPages {
		// A seventh of the home part is an eighth of both together. Programs on a member with
		// hardly any slots need pages too.
		c.paging = max((c.home+6)/7, dsm.ExtentSize)
	}
	return c
}

func (c burden) need() int64  { return c.full + c.kept + c.home + c.paging + c.copies }
func (c burden) spare() int64 { return c.member.Budget - c.need() }

// String describes the burden in words.
func (c burden) String() string {
	text := fmt.Sprintf("node %s needs --memory at least %d bytes and offers %d: %d for %d copies of the full files, %d for what it keeps of each file",
		c.member.Name, c.need(), c.member.Budget, c.full, fullCopies, c.kept)
	if c.home > 0 {
		text += fmt.Sprintf(", %d for its part of the demand files", c.home)
	}
	if c.paging > 0 {
		text += fmt.Sprintf(", %d for pages on demand", c.paging)
	}
	if c.copies > 0 {
		text += fmt.Sprintf(", %d for copies as a backup", c.copies)
	}
	return text
}

// tightest returns the burden of the member that has least to spare once the moves of slots in v are
// made, the first one if several are equal. Members that leave do not count, unless all do.
func (r reservation) tightest(v *dsm.View, x room) burden {
	quota := quotas(v)
	backups := backupQuotas(v, quota)
	var tight burden
	for _, m := range v.Members {
		slots, ok := quota[m.ID]
		if c := r.of(m, slots, backups[m.ID], x); ok && (tight.member.ID == 0 || c.spare() < tight.spare()) {
			tight = c
		}
	}
	return tight
}

// room returns for what of all that is reserved the members of v have memory.
func (r reservation) room(v *dsm.View) room {
	for _, x := range []room{roomPages, roomCopies, roomPrimaries} {
		if r.tightest(v, x).spare() >= 0 {
			return x
		}
	}
	return roomNone
}

// roomForCopies reports whether the members can keep copies of what others are home of. If there are no such files, copies of their slots take nothing.
func (r reservation) roomForCopies(v *dsm.View) bool { return !r.copied(1) || r.room(v) >= roomCopies }

// reserve accounts for something that takes now what it takes, and took was before. If that is less, a leaving member may now be able
// to hand over its slots, and others to be backups.
func (s *state) reserve(was, now reservation) {
	before := s.reserved
	s.reserved = before.minus(was).plus(now)
	less := s.reserved.full < before.full || s.reserved.demand.less(before.demand) || s.reserved.kept < before.kept
	if !less {
		return
	}
	if len(stranded(s.view)) > 0 && s.reserved.room(s.view) > roomNone || !before.roomForCopies(s.view) && s.reserved.roomForCopies(s.view) {
		s.reviewed(func(*dsm.View) {})
	}
}

// checkGrowth returns why the file cannot have the size, or nil.
func (s *state) checkGrowth(in *inode, size int64) error {
	if size <= in.Size {
		return nil
	}
	return s.checkRoomFor(takes(in.Spec, in.Size), takes(in.Spec, size), fmt.Sprintf("growing by %d bytes", size-in.Size))
}

// checkRoomFor returns why there is no room for something that takes now instead of was, or nil.
func (s *state) checkRoomFor(was, now reservation, what string) error {
	if was == now {
		return nil
	}
	c := s.reserved.minus(was).plus(now).tightest(s.view, roomPages)
	switch {
	case c.member.ID == 0 || c.spare() >= 0:
		return nil
	case c.home+c.copies == 0:
		return fail(errs.NoSpace, "%s: %s; remove files", what, c)
	}
	return fail(errs.NoSpace, "%s: %s; remove files or add a node", what, c)
}

// checkRoom returns why there is too little memory with m as another member, or nil. A cluster that
// lacks memory already, because a member left, admits every node that does not make it worse: that
// is how it recovers. It may lack memory for more copies of files that are to have more of them than there were members.
func (s *state) checkRoom(m dsm.Member) error {
	if c := s.reserved.of(m, perClass{}, perClass{}, roomPages); c.spare() < 0 {
		return fail(errs.NoSpace, "%s", c)
	}
	least := s.reserved.room(s.view)
	if s.reserved.copied(len(staying(s.view))) {
		least = min(least, roomPrimaries)
	}
	if least == roomNone {
		return nil
	}
	with := func(budget int64) burden {
		v := *s.view
		m.Budget = budget
		v.Members = append(slices.Clone(v.Members), m)
		return s.reserved.tightest(&v, least)
	}
	c := with(m.Budget)
	if c.spare() >= 0 {
		return nil
	}
	if c.member.ID != m.ID {
		return fail(errs.NoSpace, "if it joins, %s", c)
	}
	// A member with more memory gets more slots, so what it needs grows with what it has, by a slot
	// or more each time.
	offer := m.Budget
	for next := c; next.member.ID == m.ID && next.spare() < 0 && next.need() <= maxBudget; next = with(c.need()) {
		c = next
	}
	c.member.Budget = offer
	return fail(errs.NoSpace, "%s", c)
}

// stranded counts, for each leaving member, the slots that stay with it although other members
// stay, because these lack memory for them.
func stranded(v *dsm.View) map[dsm.NodeID]int {
	count := make(map[dsm.NodeID]int)
	for _, m := range v.Members {
		if m.Leaving && !m.Gone {
			count[m.ID] = 0
		}
	}
	if !slices.ContainsFunc(v.Members, func(m dsm.Member) bool { return !m.Leaving }) {
		return nil
	}
	for _, h := range v.Slots {
		if n, leaves := count[h.Primary]; leaves && h.Settled() {
			count[h.Primary] = n + 1
		}
	}
	maps.DeleteFunc(count, func(_ dsm.NodeID, n int) bool { return n == 0 })
	return count
}

// checkLeaving returns why a leaving node cannot hand over its slots, or nil.
func (s *state) checkLeaving(id dsm.NodeID) error {
	if n := stranded(s.view)[id]; n > 0 {
		return fail(errs.NoSpace, "nobody has the memory to take over its %d slots, and what is in them is lost without: %s; remove files or add a node",
			n, s.reserved.tightest(s.view, roomPrimaries))
	}
	if n := rowsOf(s.view, id) - slotsOf(s.view, id); n > 0 && !s.view.Stays(id) && !s.reserved.roomForCopies(s.view) {
		return fail(errs.NoSpace, "nobody has the memory for its copies of %d slots: %s; remove files or add a node", n, s.reserved.tightest(s.view, roomCopies))
	}
	return nil
}

// usage returns reserved and budget such that a full file with the settings of the root may grow by their difference, not at all
// if that is negative. budget is what such files may take at most: a part of the memory of the member that stays and can keep least.
func (s *state) usage() (reserved, budget int64) {
	if len(s.view.Members) == 0 {
		return 0, 0
	}
	root := s.inodes[dsm.RootIno].Spec
	class := root.Copies() - 1
	quota := quotas(s.view)
	backups := backupQuotas(s.view, quota)
	free := int64(0)
	first := true
	for _, m := range s.view.Members {
		slots, ok := quota[m.ID]
		if !ok {
			continue
		}
		n, all := int64(backups[m.ID][class]), int64(dsm.ClassOf(class+1).Slots)
		if n > 0 && takes(root, 1).whole[class] > 0 {
			n = all
		}
		// What a byte takes: fullCopies of it, and n of all such bytes as a backup.
		fits := func(bytes int64) int64 { return bytes * all / (fullCopies*all + n) }
		most, rest := fits(m.Budget), fits(s.reserved.of(m, slots, backups[m.ID], roomPages).spare()-min(n, 1)) // that of all is rounded up
		if first || most < budget {
			budget = most
		}
		if first || rest < free {
			free = rest
		}
		first = false
	}
	if free > 0 {
		free = free / dsm.PageSize * dsm.PageSize
	}
	return budget - free, budget
}
