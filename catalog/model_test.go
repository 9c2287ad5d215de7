package catalog

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// model is the namespace as a flat relation. It keeps no counters and no
// parents: links, reachability and reserved bytes are counted when asked for.
type model struct {
	kinds   map[dsm.Ino]dsm.FileKind
	sizes   map[dsm.Ino]int64
	demand  map[dsm.Ino]bool // of residency demand
	names   map[place]dsm.Ino
	removed map[dsm.Ino]bool // has no name any more, or not yet
	temp    map[dsm.Ino]bool // not yet
	claims  map[claimOf]bool
	next    dsm.Ino
}

type place struct {
	dir  dsm.Ino
	name string
}

type claimOf struct {
	node dsm.NodeID
	ino  dsm.Ino
}

func newModel() *model {
	return &model{
		kinds: map[dsm.Ino]dsm.FileKind{dsm.RootIno: dsm.KindDir}, sizes: make(map[dsm.Ino]int64), demand: make(map[dsm.Ino]bool),
		names: make(map[place]dsm.Ino), removed: make(map[dsm.Ino]bool), temp: make(map[dsm.Ino]bool), claims: make(map[claimOf]bool), next: dsm.RootIno + 1,
	}
}

func (m *model) claimed(ino dsm.Ino) bool {
	for h := range m.claims {
		if h.ino == ino {
			return true
		}
	}
	return false
}

// exists reports whether there is an inode.
func (m *model) exists(ino dsm.Ino) bool {
	return m.kinds[ino] != 0 && (!m.removed[ino] || m.claimed(ino))
}

func (m *model) links(ino dsm.Ino) uint32 {
	if m.removed[ino] {
		return 0
	}
	if m.kinds[ino] != dsm.KindDir {
		return m.count(ino)
	}
	n := uint32(2)
	for p, child := range m.names {
		if p.dir == ino && m.kinds[child] == dsm.KindDir {
			n++
		}
	}
	return n
}

// count returns how many names the inode has.
func (m *model) count(ino dsm.Ino) (n uint32) {
	for _, named := range m.names {
		if named == ino {
			n++
		}
	}
	return n
}

func (m *model) empty(dir dsm.Ino) bool {
	for p := range m.names {
		if p.dir == dir {
			return false
		}
	}
	return true
}

// under reports whether ino is dir or below it.
func (m *model) under(dir, ino dsm.Ino) bool {
	if ino == dir {
		return true
	}
	for p, child := range m.names {
		if child == ino {
			return m.under(dir, p.dir)
		}
	}
	return false
}

func (m *model) dir(ino dsm.Ino, alive bool) errs.Kind {
	switch {
	case !m.exists(ino):
		return errs.NotExist
	case m.kinds[ino] != dsm.KindDir:
		return errs.NotDir
	case alive && m.removed[ino]:
		return errs.NotExist
	}
	return 0
}

func (m *model) remove(p place) {
	ino := m.names[p]
	delete(m.names, p)
	m.removed[ino] = m.count(ino) == 0
}

// do returns the kind of the error, 0 if there is none.
func (m *model) do(n dsm.NodeID, o op) errs.Kind {
	switch o := o.(type) {
	case createOp:
		p := place{o.Dir, o.Name}
		if k := m.dir(o.Dir, true); k != 0 {
			return k
		}
		if m.names[p] != 0 {
			return errs.Exist
		}
		if o.Temp && (o.Kind != dsm.KindFile || !o.Claim) {
			return errs.Invalid
		}
		demand := m.demand[o.Dir]
		for _, x := range o.Settings {
			demand = x.Value == "demand"
		}
		m.kinds[m.next], m.names[p], m.demand[m.next] = o.Kind, m.next, demand
		if o.Kind == dsm.KindFile && o.Size > 0 {
			m.sizes[m.next] = o.Size
		}
		if !m.fits() {
			delete(m.sizes, m.next)
			delete(m.kinds, m.next)
			delete(m.names, p)
			delete(m.demand, m.next)
			return errs.NoSpace
		}
		if o.Claim {
			m.claims[claimOf{n, m.next}] = true
		}
		if o.Temp {
			delete(m.names, p)
			m.removed[m.next], m.temp[m.next] = true, true
		}
		m.next++
	case linkOp:
		p := place{o.Dir, o.Name}
		if !m.exists(o.Ino) {
			return errs.NotExist
		}
		if k := m.dir(o.Dir, true); k != 0 {
			return k
		}
		switch {
		case m.names[p] != 0:
			return errs.Exist
		case m.kinds[o.Ino] == dsm.KindDir:
			return errs.Permission
		case m.removed[o.Ino] && !m.temp[o.Ino]:
			return errs.NotExist
		}
		before := m.reserved()
		m.names[p] = o.Ino
		if m.reserved() != before && !m.fits() {
			delete(m.names, p)
			return errs.NoSpace
		}
		delete(m.removed, o.Ino)
		delete(m.temp, o.Ino)
	case unlinkOp:
		p := place{o.Dir, o.Name}
		if k := m.dir(o.Dir, false); k != 0 {
			return k
		}
		switch m.kinds[m.names[p]] {
		case 0:
			return errs.NotExist
		case dsm.KindDir:
			return errs.IsDir
		}
		m.remove(p)
	case rmdirOp:
		p := place{o.Dir, o.Name}
		if k := m.dir(o.Dir, false); k != 0 {
			return k
		}
		switch k := m.kinds[m.names[p]]; {
		case k == 0:
			return errs.NotExist
		case k != dsm.KindDir:
			return errs.NotDir
		case !m.empty(m.names[p]):
			return errs.NotEmpty
		case o.Is != 0 && o.Is != m.names[p]:
			return errs.Replaced
		}
		m.remove(p)
	case renameOp:
		return m.rename(o)
	case setAttrOp:
		switch {
		case !m.exists(o.Ino):
			return errs.NotExist
		case m.kinds[o.Ino] == dsm.KindDir:
			return errs.IsDir
		case m.kinds[o.Ino] == dsm.KindSymlink:
			return errs.Invalid
		}
		before := m.sizes[o.Ino]
		m.sizes[o.Ino] = *o.Size
		if *o.Size > before && !m.fits() {
			m.sizes[o.Ino] = before
			return errs.NoSpace
		}
	case setSpecOp:
		demand := o.Value == "demand"
		switch {
		case !m.exists(o.Ino):
			return errs.NotExist
		case m.kinds[o.Ino] == dsm.KindSymlink:
			return errs.Unsupported
		case m.demand[o.Ino] != demand && m.sizes[o.Ino] > 0:
			return errs.Busy
		}
		m.demand[o.Ino] = demand
	case claimOp:
		if !m.exists(o.Ino) {
			return errs.NotExist
		}
		m.claims[claimOf{n, o.Ino}] = true
	case unclaimOp:
		for _, ino := range o.Inos {
			delete(m.claims, claimOf{n, ino})
			if m.kinds[ino] != 0 && !m.exists(ino) {
				delete(m.kinds, ino)
			}
		}
	}
	return 0
}

func (m *model) rename(o renameOp) errs.Kind {
	from, to := place{o.Dir, o.Name}, place{o.NewDir, o.NewName}
	if k := m.dir(o.Dir, false); k != 0 {
		return k
	}
	if k := m.dir(o.NewDir, true); k != 0 {
		return k
	}
	src, dst := m.names[from], m.names[to]
	isDir := func(i dsm.Ino) bool { return m.kinds[i] == dsm.KindDir }
	swap := o.How == dsm.RenameExchange
	switch {
	case src == 0 || swap && dst == 0:
		return errs.NotExist
	case dst != 0 && o.How == dsm.RenameNoReplace:
		return errs.Exist
	case src == dst:
		return 0
	case isDir(src) && m.under(src, o.NewDir) || swap && isDir(dst) && m.under(dst, o.Dir):
		return errs.CrossesDir
	case swap:
		m.names[from], m.names[to] = dst, src
		return 0
	case dst != 0 && isDir(src) && !isDir(dst):
		return errs.NotDir
	case dst != 0 && !isDir(src) && isDir(dst):
		return errs.IsDir
	case isDir(dst) && !m.empty(dst):
		return errs.NotEmpty
	case o.Over != 0 && o.Over != dst:
		return errs.Replaced
	case dst != 0:
		m.remove(to)
	}
	m.names[to] = src
	delete(m.names, from)
	return 0
}

const modelBudget = 1 << 30 // of member

func (m *model) reserved() (r reservation) {
	for ino, n := range m.sizes {
		n = (n + dsm.PageSize - 1) / dsm.PageSize * dsm.PageSize
		switch {
		case !m.exists(ino):
		case m.demand[ino]:
			r.demand[0] += n
		default:
			r.full += n
		}
	}
	for ino, kind := range m.kinds {
		switch {
		case !m.exists(ino) || ino == dsm.RootIno:
		case kind == dsm.KindFile:
			r.kept += dsm.FileCost
		case kind == dsm.KindSymlink:
			r.kept += inodeCost + int64(len("t"))
		default:
			r.kept += inodeCost
		}
		if n := m.count(ino); kind != dsm.KindDir && m.exists(ino) && n > 1 {
			r.kept += int64(n-1) * linkCost
		}
	}
	return r
}

// fits reports whether each of three members of modelBudget has room for its files: of the 64 slots of their class one has 22.
func (m *model) fits() bool {
	r := m.reserved()
	left := modelBudget - 2*r.full - r.kept
	if r.demand == (bytesPerClass{}) {
		return left >= 0
	}
	pages := left - (r.demand[0]*22+63)/64
	return pages >= dsm.ExtentSize && pages*8 >= left
}

// differs says how s is not what the model says, or "".
func (m *model) differs(s *state) string {
	count := 0
	for ino, kind := range m.kinds {
		if !m.exists(ino) {
			continue
		}
		count++
		in := s.inodes[ino]
		if in == nil || in.Kind != kind || in.Nlink != m.links(ino) || kind == dsm.KindFile && in.Size != m.sizes[ino] {
			return fmt.Sprintf("inode %d: kind %d, %d links, %d bytes, want them of %+v", ino, kind, m.links(ino), m.sizes[ino], in)
		}
	}
	if count != len(s.inodes) {
		return fmt.Sprintf("%d inodes, want %d", len(s.inodes), count)
	}
	entries := 0
	for _, d := range s.inodes {
		entries += len(d.entries)
		for name, ino := range d.entries {
			if m.names[place{d.Ino, name}] != ino {
				return fmt.Sprintf("%q in %d is %d, want %d", name, d.Ino, ino, m.names[place{d.Ino, name}])
			}
		}
	}
	if entries != len(m.names) || s.reserved != m.reserved() {
		return fmt.Sprintf("%d entries and %+v bytes, want %d and %+v", entries, s.reserved, len(m.names), m.reserved())
	}
	return ""
}

// randomOp draws an operation on few names and inodes, so that they meet.
func randomOp(rng *rand.Rand, last dsm.Ino) op {
	ino := func() dsm.Ino {
		if rng.IntN(3) == 0 {
			return dsm.RootIno
		}
		return dsm.Ino(1 + rng.Uint64N(uint64(last)))
	}
	meant := func() dsm.Ino {
		if rng.IntN(2) == 0 {
			return 0
		}
		return ino()
	}
	name := func() string { return string(rune('a' + rng.IntN(5))) }
	residency := func() string { return []string{"full", "demand"}[rng.IntN(2)] }
	switch rng.IntN(16) {
	case 12, 13:
		return linkOp{ino(), ino(), name()}
	case 14:
		return createOp{Dir: ino(), Temp: true, Kind: dsm.KindFile, Claim: rng.IntN(4) != 0, Size: rng.Int64N(modelBudget)}
	case 0, 1, 2:
		kind := dsm.FileKind(1 + rng.IntN(3))
		o := createOp{Dir: ino(), Name: name(), Kind: kind, Claim: rng.IntN(3) == 0}
		switch kind {
		case dsm.KindSymlink:
			o.Target = "t"
		case dsm.KindFile:
			if rng.IntN(2) == 0 {
				o.Size = rng.Int64N(modelBudget)
			}
			if rng.IntN(2) == 0 {
				o.Settings = []dsm.Setting{{Key: "residency", Value: residency()}}
			}
		}
		return o
	case 3:
		return unlinkOp{ino(), name()}
	case 4:
		return rmdirOp{ino(), name(), meant()}
	case 5, 6, 7:
		return renameOp{ino(), name(), ino(), name(), dsm.RenameHow(rng.IntN(3)), meant()}
	case 8, 9:
		return setAttrOp{ino(), dsm.SetAttr{Size: ptr(rng.Int64N(modelBudget))}}
	case 10:
		return claimOp{Ino: ino()}
	case 11:
		return setSpecOp{ino(), "residency", residency()}
	}
	return unclaimOp{[]dsm.Ino{ino(), ino()}}
}

// TestAgainstModel makes random changes by three nodes and compares everything
// after each.
func TestAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(20) {
		compareWithModel(t, rand.New(rand.NewPCG(seed, round)), 400)
	}
}

func FuzzAgainstModel(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { compareWithModel(t, rand.New(rand.NewPCG(a, b)), 150) })
}

func compareWithModel(t *testing.T, rng *rand.Rand, steps int) {
	t.Helper()
	m, want := newMachine(t), newModel()
	m.must(nodeA, addMemberOp{member(nodeB)})
	m.must(nodeA, addMemberOp{member(nodeC)})
	nodes := []dsm.NodeID{nodeA, nodeB, nodeC}
	for range steps {
		n, o := nodes[rng.IntN(3)], randomOp(rng, want.next)
		k := want.do(n, o)
		if _, err := m.do(n, o); (k != 0 || err != nil) && !errs.Is(err, k) {
			t.Fatalf("%T %+v: %v, want %v", o, o, err, k)
		}
		if d := want.differs(m.state); d != "" {
			t.Fatalf("after %T %+v: %s", o, o, d)
		}
	}
}
