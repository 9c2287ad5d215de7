package catalog

import (
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// assign brings the backups of all rows to where they should be. Each row gets as many as its areas want copies besides the home, as far
// as there are members that stay. They follow the members' memory, as far as they can: no member keeps two copies of a slot. Few change: a backup in sync
// stays, unless it leaves the cluster or keeps too many copies. Then its copy is dropped when another backup is in sync. If all members leave, nothing changes.
//
// A slot that is being handed over keeps its backups, except those that leave and are not in sync. A slot is left alone if its home has died, or
// has just taken over. Without room nobody becomes a backup, also not a home that begins to hand its slot over.
//
// Nobody becomes a backup of a home that it does not reach (dsm.View.Apart). Where such a one is being filled, another member takes its place, if one has memory for
// it: more than its quota, too, for one of the two may soon be put out, and what only that has goes with it. Whoever is in sync stays. Shares are evened out when
// all members reach each other again.
//
// copies says how many copies there are to be of a slot, reserved what is in the slots. The result depends on nothing else.
func assign(v *dsm.View, copies func(dsm.Slot) int, reserved reservation) {
	stay := staying(v)
	if len(stay) == 0 {
		return
	}
	var pools [dsm.MostReplicas + 1]pool // of the classes; that at 0 is of the slots that areas have to themselves
	for slot, row := range v.Rows() {
		n := copies(slot)
		if n == 1 && row.Backups[0].Node == 0 || v.IsGone(row.Holder()) || v.IsGone(row.Primary) {
			continue
		}
		p := &pools[n]
		if slot >= dsm.Slots {
			p = &pools[0]
		}
		others := len(stay)
		if v.Stays(row.Primary) {
			others--
		}
		p.rows = append(p.rows, pooled{row, min(n-1, others)})
	}
	room, homes := reserved.roomForCopies(v), primaries(v)
	spare := func(m dsm.Member, wants int) bool {
		var backups perClass
		for class := range backups {
			backups[class] = pools[class+1].have[m.ID]
		}
		backups[wants]++
		return reserved.of(m, homes[m.ID], backups, roomCopies).spare() >= 0
	}
	for i := range pools {
		if p := &pools[i]; len(p.rows) > 0 {
			p.v, p.stay, p.spare = v, stay, spare
			p.count()
		}
	}
	for i := range pools {
		if p := &pools[i]; len(p.rows) > 0 {
			p.assign(room)
		}
	}
}

// pool is rows whose backups are shared out together.
type pool struct {
	v     *dsm.View
	stay  []dsm.Member
	rows  []pooled
	quota map[dsm.NodeID]int // how many backups each member should be
	have  map[dsm.NodeID]int // and how many it is, or will be when what is being filled is in sync
	// spare reports whether a member has memory for one more backup, of a slot that should have so many.
	spare func(m dsm.Member, wants int) bool
}

// pooled is a row, and how many backups it should have.
type pooled struct {
	*dsm.SlotHome
	wants int
}

func (p *pool) assign(room bool) {
	moving := false
	for _, r := range p.rows {
		if r.Source != 0 {
			moving = true
			r.SlotHome.KeepBackups(func(b dsm.Backup) bool {
				return (b.InSync || p.v.Stays(b.Node)) && (room || b.Node != r.Source || r.Epoch != p.v.Epoch)
			})
			continue
		}
		if r.wants > 0 && !r.Settled() {
			continue // its home reports on them
		}
		p.trim(r)
		if room {
			p.fill(r)
		}
	}
	if moving || !room || len(p.v.Apart) > 0 {
		return
	}
	for _, r := range p.rows {
		p.shift(r)
	}
	for p.exchange() {
	}
}

// count sets quota and have.
func (p *pool) count() {
	p.have, p.quota = make(map[dsm.NodeID]int), make(map[dsm.NodeID]int)
	primaries, total := make(map[dsm.NodeID]int), 0
	rows := 0
	for _, r := range p.rows {
		if total += r.wants; r.wants > 0 {
			rows++
			primaries[r.Primary]++
		}
		p.add(r, 1)
	}
	most := func(n dsm.NodeID) int { return rows - primaries[n] }
	for i, n := range apportion(p.stay, total, most, func(n dsm.NodeID) int { return p.have[n] }) {
		p.quota[p.stay[i].ID] = n
	}
}

// add adds so much to have for each backup of the row that is to stay.
func (p *pool) add(r pooled, n int) {
	synced, _, filling := p.sort(r)
	kept := slices.Concat(filling, synced) // one that is being filled replaces one in sync
	for _, b := range kept[:min(len(kept), r.wants)] {
		p.have[b.Node] += n
	}
}

// sort returns the backups of a row by kind: those in sync that stay, those in sync that leave, and those that are being filled and stay,
// of which those that the home reaches come first.
func (p *pool) sort(r pooled) (synced, leaving, filling []dsm.Backup) {
	for _, b := range r.Backups {
		switch {
		case b.Node == 0 || b.Node == r.Primary:
		case b.InSync && p.v.Stays(b.Node):
			synced = append(synced, b)
		case b.InSync:
			leaving = append(leaving, b)
		case p.v.Stays(b.Node):
			filling = append(filling, b)
		}
	}
	slices.SortStableFunc(filling, func(a, b dsm.Backup) int {
		return trueFirst(p.v.Reaches(r.Primary, a.Node), p.v.Reaches(r.Primary, b.Node))
	})
	return synced, leaving, filling
}

// trim drops the backups of a row that it needs no more.
func (p *pool) trim(r pooled) {
	p.add(r, -1)
	defer p.add(r, 1)
	synced, leaving, filling := p.sort(r)
	for len(synced) > r.wants {
		i := 0
		for j, b := range synced {
			if p.lack(b.Node) < p.lack(synced[i].Node) {
				i = j
			}
		}
		synced = slices.Delete(synced, i, i+1)
	}
	if len(synced) >= r.wants {
		leaving = nil
	}
	if r.wants == 0 {
		filling = nil
	} else {
		filling = filling[:min(len(filling), max(r.wants-len(synced), 1))] // one in place of another
	}
	r.set(synced, leaving, filling)
}

// set enters the backups of a row. Those in sync that go when others are filled are behind these, so that add counts the right ones also when the others are in sync, and nobody has gone.
func (r pooled) set(synced, leaving, filling []dsm.Backup) {
	stays := min(max(r.wants-len(filling), 0), len(synced))
	r.Backups = [dsm.MostBackups]dsm.Backup{}
	copy(r.Backups[:], slices.Concat(synced[:stays], filling, synced[stays:], leaving))
}

// fill has a row get the backups that it lacks.
func (p *pool) fill(r pooled) {
	synced, leaving, filling := p.sort(r)
	for i, b := range filling {
		if len(synced) >= r.wants || p.v.Reaches(r.Primary, b.Node) {
			continue
		}
		if to := p.neediest(r); to != 0 {
			p.have[b.Node]--
			p.have[to]++
			filling[i] = dsm.Backup{Node: to, Since: p.v.Epoch}
			r.set(synced, leaving, filling)
		}
	}
	for len(synced)+len(filling) < r.wants {
		if len(synced)+len(leaving)+len(filling) == dsm.MostBackups {
			if len(leaving) == 0 || len(synced)+len(leaving) <= r.wants {
				return // until what is being filled is in sync
			}
			leaving = leaving[:len(leaving)-1]
		}
		to := p.neediest(r)
		if to == 0 {
			return
		}
		p.have[to]++
		filling = append(filling, dsm.Backup{Node: to, Since: p.v.Epoch})
		r.set(synced, leaving, filling)
	}
}

// shift has a member that is too few backups become one of the row in place of one that is too many.
func (p *pool) shift(r pooled) {
	for _, b := range p.complete(r) {
		to := p.neediest(r)
		if p.lack(b.Node) < 0 && to != 0 && p.lack(to) > 0 {
			p.replace(r, b.Node, to)
			return
		}
	}
}

// exchange has the member that is the fewest backups for its share become one in place of a third, and that one in place of the member that is too many: for
// where it can replace that one nowhere, since it is the home, or a backup already. It reports whether there was a way.
func (p *pool) exchange() bool {
	var few, many dsm.NodeID
	for _, m := range p.stay {
		if p.lack(m.ID) > p.lack(few) {
			few = m.ID
		}
		if p.lack(m.ID) < p.lack(many) {
			many = m.ID
		}
	}
	if few == 0 || many == 0 {
		return false
	}
	gets := make(map[dsm.NodeID]pooled) // rows in which few can take the place of a third
	for _, r := range p.rows {
		if r.Primary == few || r.BackupOf(few) >= 0 {
			continue
		}
		for _, b := range p.complete(r) {
			if _, found := gets[b.Node]; !found {
				gets[b.Node] = r
			}
		}
	}
	for _, r := range p.rows { // in which the third can take the place of many
		if r.BackupOf(many) < 0 || !slices.ContainsFunc(p.complete(r), func(b dsm.Backup) bool { return b.Node == many }) {
			continue
		}
		for _, third := range p.stay {
			row, found := gets[third.ID]
			if found && third.ID != many && third.ID != r.Primary && r.BackupOf(third.ID) < 0 {
				p.replace(row, third.ID, few)
				p.replace(r, many, third.ID)
				return true
			}
		}
	}
	return false
}

// complete returns the backups of a row that has those it is to have, all in sync; none of another.
func (p *pool) complete(r pooled) []dsm.Backup {
	synced, leaving, filling := p.sort(r)
	if !r.Settled() || len(synced) != r.wants || len(leaving)+len(filling) > 0 {
		return nil
	}
	return synced
}

// replace has a member be filled as a backup of a row that is complete, in place of another.
func (p *pool) replace(r pooled, is, to dsm.NodeID) {
	synced := p.complete(r)
	p.have[is]--
	p.have[to]++
	i := slices.IndexFunc(synced, func(b dsm.Backup) bool { return b.Node == is })
	goes := synced[i]
	synced = append(slices.Delete(synced, i, i+1), goes) // the last counts no more: see add
	r.set(synced, nil, []dsm.Backup{{Node: to, Since: p.v.Epoch}})
}

// lack returns how many more backups the member should be.
func (p *pool) lack(n dsm.NodeID) int { return p.quota[n] - p.have[n] }

// neediest returns the member that should be a backup of the row: of those that can be one, it is the one that is furthest below its quota; 0: there is none.
func (p *pool) neediest(r pooled) dsm.NodeID {
	var id dsm.NodeID
	for _, m := range p.stay {
		if m.ID != r.Primary && r.BackupOf(m.ID) < 0 && (id == 0 || p.lack(m.ID) > p.lack(id)) && p.takes(m, r) {
			id = m.ID
		}
	}
	return id
}

// takes reports whether a member can become a backup of the row: the home reaches it, and where some do not reach each other it has memory for what would be others'.
func (p *pool) takes(m dsm.Member, r pooled) bool {
	return len(p.v.Apart) == 0 || p.v.Reaches(r.Primary, m.ID) && (p.lack(m.ID) > 0 || p.spare(m, r.wants))
}

// trueFirst compares two values of which true comes first.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
