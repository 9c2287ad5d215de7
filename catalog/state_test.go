package catalog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/locks"
)

// machine drives a state as the log would.
type machine struct {
	testing.TB
	*state
	index uint64
	reqs  map[dsm.NodeID]uint64
	now   int64
	last  outcome
	yield locks.Yield // of every command
}

const (
	nodeA dsm.NodeID = 0xa
	nodeB dsm.NodeID = 0xb
	nodeC dsm.NodeID = 0xc
)

func member(id dsm.NodeID) dsm.Member {
	return dsm.Member{ID: id, Name: fmt.Sprintf("n%x", uint64(id)), Addr: fmt.Sprintf("10.0.0.%d:1", uint64(id)), Budget: 1 << 30}
}

// sized is a member with so many bytes of memory.
func sized(id dsm.NodeID, budget int64) dsm.Member {
	m := member(id)
	m.Budget = budget
	return m
}

// newMachine returns a state with node A as its only member.
func newMachine(t testing.TB) *machine { return newSized(t, 1<<30) }

// newSized returns a state with members A, B, C... of the budgets, and their slots.
func newSized(t testing.TB, budgets ...int64) *machine {
	t.Helper()
	m := &machine{TB: t, state: newState(), reqs: make(map[dsm.NodeID]uint64), now: 1e18}
	m.must(nodeA, bootstrapOp{Cluster: 1, Member: sized(nodeA, budgets[0]), RootPerm: 0o755})
	m.must(nodeA, setSpecOp{dsm.RootIno, "replicas", "1"}) // backups have tests of their own
	for i, b := range budgets[1:] {
		m.must(nodeA, addMemberOp{sized(nodeB+dsm.NodeID(i), b)})
	}
	ready(m)
	return m
}

// do applies o as a command of node n.
func (m *machine) do(n dsm.NodeID, o op) (dsm.Inode, error) {
	m.Helper()
	m.reqs[n]++
	return m.send(command{Node: n, Req: m.reqs[n], Low: m.reqs[n], Now: m.now, Yield: m.yield}, o)
}

func (m *machine) send(c command, o op) (dsm.Inode, error) {
	m.Helper()
	b, err := c.encode(o)
	if err != nil {
		m.Fatal(err)
	}
	m.index++
	m.now += int64(time.Millisecond)
	m.last, err = m.apply(m.index, b)
	if err != nil {
		m.Fatalf("%+v: %v", o, err)
	}
	if err := m.check(); err != nil {
		m.Fatalf("after %T %+v: %v", o, o, err)
	}
	return m.last.result.Inode, m.last.result.err("")
}

func (m *machine) must(n dsm.NodeID, o op) dsm.Inode {
	m.Helper()
	in, err := m.do(n, o)
	if err != nil {
		m.Fatalf("%T %+v: %v", o, o, err)
	}
	return in
}

// fails checks the kind and that the text says all of words.
func (m *machine) fails(k errs.Kind, o op, words ...string) {
	m.Helper()
	before := m.image()
	_, err := m.do(nodeA, o)
	if !errs.Is(err, k) {
		m.Fatalf("%T %+v: %v, want %v", o, o, err, k)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			m.Errorf("%T %+v: %q does not say %q", o, o, err, w)
		}
	}
	after := m.image()
	before.Applied, before.Sessions, after.Sessions, after.Applied = 0, nil, nil, 0
	if a, b := mustEncode(m, before), mustEncode(m, after); string(a) != string(b) {
		m.Errorf("%T %+v failed and changed the state", o, o)
	}
}

func mustEncode(t testing.TB, img *image) []byte {
	t.Helper()
	b, err := img.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (m *machine) file(name string) dsm.Inode {
	m.Helper()
	return m.must(nodeA, createOp{Dir: dsm.RootIno, Name: name, Kind: dsm.KindFile, Perm: 0o644})
}

func (m *machine) mkdir(dir dsm.Ino, name string) dsm.Ino {
	m.Helper()
	return m.must(nodeA, createOp{Dir: dir, Name: name, Kind: dsm.KindDir, Perm: 0o755}).Ino
}

// at returns the inode, which must exist.
func (m *machine) at(ino dsm.Ino) dsm.Inode {
	m.Helper()
	in, err := m.get(ino)
	if err != nil {
		m.Fatal(err)
	}
	return in.Inode
}

func ptr[T any](v T) *T { return &v }

func TestCreate(t *testing.T) {
	m := newMachine(t)
	long := strings.Repeat("x", 255)
	in := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: long, Kind: dsm.KindFile, Perm: 0o104755, UID: 7, GID: 8})
	if in.Perm != 0o4755 || in.UID != 7 || in.GID != 8 || in.Nlink != 1 || in.Size != 0 || in.Spec != m.at(dsm.RootIno).Spec {
		t.Errorf("created %+v", in)
	}
	if in.Rev != dsm.Generation(m.index) || in.Gen != in.Rev {
		t.Errorf("generation %d, revision %d of a file made at %d", in.Gen, in.Rev, m.index)
	}
	root := m.at(dsm.RootIno)
	if !root.Mtime.Equal(in.Ctime) || root.Nlink != 2 {
		t.Errorf("root after create: %+v, file %+v", root, in)
	}
	m.fails(errs.Exist, createOp{Dir: dsm.RootIno, Name: long, Kind: dsm.KindFile})
	m.fails(errs.Exist, createOp{Dir: dsm.RootIno, Name: long, Kind: dsm.KindDir})
	m.fails(errs.NameTooLong, createOp{Dir: dsm.RootIno, Name: long + "x", Kind: dsm.KindFile})
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b"} {
		m.fails(errs.Invalid, createOp{Dir: dsm.RootIno, Name: name, Kind: dsm.KindFile})
	}
	m.fails(errs.NotExist, createOp{Dir: 99, Name: "a", Kind: dsm.KindFile})
	m.fails(errs.NotDir, createOp{Dir: in.Ino, Name: "a", Kind: dsm.KindFile})
	m.fails(errs.Unsupported, createOp{Dir: dsm.RootIno, Name: "a", Kind: 9})
	m.fails(errs.Unsupported, createOp{Dir: dsm.RootIno, Name: "a"})

	link := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "l", Kind: dsm.KindSymlink, Target: "../x", Perm: 0o600})
	if link.Size != 4 || link.Target != "../x" || link.Perm != 0o777 {
		t.Errorf("symlink %+v", link)
	}
	whole := createOp{Dir: dsm.RootIno, Name: "w", Kind: dsm.KindFile, Size: 24, Settings: []dsm.Setting{{Key: "merge", Value: "sum"}, {Key: "dtype", Value: "i64"}}}
	for kind, change := range map[errs.Kind]func(o *createOp){
		errs.Invalid:  func(o *createOp) { o.Size = 20 }, // not of whole elements
		errs.TooLarge: func(o *createOp) { o.Size = dsm.MaxAreaSize + 8 },
		errs.NoSpace:  func(o *createOp) { o.Size = dsm.MaxAreaSize },
		errs.Exist:    func(o *createOp) { o.Name = long },
	} {
		bad := whole
		change(&bad)
		m.fails(kind, bad)
	}
	for _, x := range []dsm.Setting{{Key: "colour", Value: "red"}, {Key: "merge", Value: "red"}} {
		bad := whole
		bad.Settings = []dsm.Setting{x}
		m.fails(errs.Invalid, bad)
	}
	if w := m.must(nodeA, whole); w.Size != 24 || w.Spec.Merge != dsm.MergeSum || w.Layout.DType != dsm.DTypeI64 || m.reserved.full != dsm.PageSize {
		t.Errorf("made whole: %+v; %+v reserved", w, m.reserved)
	}

	headed := createOp{Dir: dsm.RootIno, Temp: true, Claim: true, Kind: dsm.KindFile, Size: 24, Layout: dsm.Layout{DType: dsm.DTypeF64, DataOffset: 16}}
	for name, change := range map[string]func(o *createOp){
		"past the end":  func(o *createOp) { o.Layout.DataOffset = 32 },
		"before it":     func(o *createOp) { o.Layout.DataOffset = -8 },
		"in an element": func(o *createOp) { o.Layout.DataOffset = 12 },
		"unknown type":  func(o *createOp) { o.Layout.DType = dsm.DTypeU64 + 1 },
	} {
		bad := headed
		change(&bad)
		if _, err := m.do(nodeA, bad); !errs.Is(err, errs.Invalid) {
			t.Errorf("layout %s: %v", name, err)
		}
	}
	if h := m.must(nodeA, headed); h.Layout != headed.Layout || h.Spec.DType != dsm.DTypeAuto {
		t.Errorf("made with a header: %+v", h)
	}
	headed.Settings = []dsm.Setting{{Key: "dtype", Value: "i32"}}
	if h := m.must(nodeA, headed); h.Layout != (dsm.Layout{DType: dsm.DTypeI32}) {
		t.Errorf("made with a type of its own: %+v", h)
	}

	m.fails(errs.NotExist, createOp{Dir: dsm.RootIno, Name: "m", Kind: dsm.KindSymlink})
	m.fails(errs.NameTooLong, createOp{Dir: dsm.RootIno, Name: "m", Kind: dsm.KindSymlink, Target: strings.Repeat("x", 4096)})

	d := m.mkdir(dsm.RootIno, "d")
	if m.at(d).Nlink != 2 || m.at(dsm.RootIno).Nlink != 3 {
		t.Errorf("links: %d of the directory, %d of the root", m.at(d).Nlink, m.at(dsm.RootIno).Nlink)
	}
	m.must(nodeA, rmdirOp{Dir: dsm.RootIno, Name: "d"})
	if m.at(dsm.RootIno).Nlink != 2 {
		t.Errorf("%d links of the root", m.at(dsm.RootIno).Nlink)
	}
	if next := m.file("z"); next.Ino <= d {
		t.Errorf("inode number %d after %d", next.Ino, d)
	}
}

func TestSetgidDirectory(t *testing.T) {
	m := newMachine(t)
	d := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "d", Kind: dsm.KindDir, Perm: 0o2775, GID: 50}).Ino
	f := m.must(nodeA, createOp{Dir: d, Name: "f", Kind: dsm.KindFile, Perm: 0o644, GID: 9})
	sub := m.must(nodeA, createOp{Dir: d, Name: "s", Kind: dsm.KindDir, Perm: 0o755, GID: 9})
	if f.GID != 50 || f.Perm != 0o644 || sub.GID != 50 || sub.Perm != 0o2755 {
		t.Errorf("file %o group %d, directory %o group %d", f.Perm, f.GID, sub.Perm, sub.GID)
	}
}

func TestUnlinkAndClaims(t *testing.T) {
	m := newMachine(t)
	m.must(nodeA, addMemberOp{member(nodeB)})
	f := m.file("f")
	m.fails(errs.NotExist, unlinkOp{dsm.RootIno, "g"})
	m.fails(errs.NotDir, rmdirOp{Dir: dsm.RootIno, Name: "f"})
	m.mkdir(dsm.RootIno, "d")
	m.fails(errs.IsDir, unlinkOp{dsm.RootIno, "d"})

	m.must(nodeA, claimOp{Ino: f.Ino})
	m.must(nodeA, claimOp{Ino: f.Ino}) // claims do not nest
	m.must(nodeB, claimOp{Ino: f.Ino})
	m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: ptr(int64(100))}})
	m.must(nodeA, unlinkOp{dsm.RootIno, "f"})
	if in := m.at(f.Ino); in.Nlink != 0 || len(m.last.effects.removed) != 0 || m.reserved.full != dsm.PageSize {
		t.Errorf("unlinked and claimed: %+v, reserved %+v", in, m.reserved)
	}
	m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: ptr(int64(50))}}) // as through an open file
	m.must(nodeA, unclaimOp{[]dsm.Ino{f.Ino}})
	m.must(nodeA, unclaimOp{[]dsm.Ino{f.Ino}})
	m.at(f.Ino)
	m.must(nodeB, unclaimOp{[]dsm.Ino{f.Ino}})
	m.fails(errs.NotExist, claimOp{Ino: f.Ino})
	if m.reserved.full != 0 {
		t.Errorf("%+v bytes reserved", m.reserved)
	}
	m.must(nodeB, unclaimOp{[]dsm.Ino{f.Ino}})

	g := m.must(nodeB, createOp{Dir: dsm.RootIno, Name: "g", Kind: dsm.KindFile, Claim: true})
	m.must(nodeA, unlinkOp{dsm.RootIno, "g"})
	m.at(g.Ino)
	m.must(nodeB, unclaimOp{[]dsm.Ino{g.Ino}})
	if got := m.last.effects.removed; len(got) != 1 || got[0] != g.Ino {
		t.Errorf("removed %v, want %d", got, g.Ino)
	}

	d := m.mkdir(dsm.RootIno, "e")
	m.must(nodeA, claimOp{Ino: d})
	m.must(nodeA, rmdirOp{Dir: dsm.RootIno, Name: "e"})
	m.fails(errs.NotExist, createOp{Dir: d, Name: "x", Kind: dsm.KindFile})
	m.fails(errs.NotExist, renameOp{Dir: dsm.RootIno, Name: "d", NewDir: d, NewName: "x"})
	if in, err := m.dir(d); err != nil || len(m.list(in)) != 0 {
		t.Errorf("list of a removed directory: %v", err)
	}
	m.must(nodeA, unclaimOp{[]dsm.Ino{d}})
	if len(m.last.effects.removed) != 0 {
		t.Error("a directory was reported as an area")
	}
}

func TestRmdirNotEmpty(t *testing.T) {
	m := newMachine(t)
	d := m.mkdir(dsm.RootIno, "d")
	m.must(nodeA, createOp{Dir: d, Name: "f", Kind: dsm.KindFile})
	m.fails(errs.NotEmpty, rmdirOp{Dir: dsm.RootIno, Name: "d"})
	m.must(nodeA, unlinkOp{d, "f"})
	m.must(nodeA, rmdirOp{Dir: dsm.RootIno, Name: "d"})
	m.fails(errs.NotExist, rmdirOp{Dir: dsm.RootIno, Name: "d"})
}

func TestRename(t *testing.T) {
	root := dsm.RootIno
	tests := []struct {
		name     string
		from, to string // paths in the tree below
		how      dsm.RenameHow
		want     errs.Kind // 0: it works
		after    string    // what is at to, if it works
	}{
		{"file", "f", "n", 0, 0, "f"},
		{"over a file", "f", "g", 0, 0, "f"},
		{"over a symlink", "f", "l", 0, 0, "f"},
		{"file over directory", "f", "e", 0, errs.IsDir, ""},
		{"directory over file", "d", "f", 0, errs.NotDir, ""},
		{"directory over empty one", "d", "e", 0, 0, "d"},
		{"directory over full one", "e", "d", 0, errs.NotEmpty, ""},
		{"directory into itself", "d", "d/x", 0, errs.CrossesDir, ""},
		{"directory into its child", "d", "d/s/x", 0, errs.CrossesDir, ""},
		{"directory over its child", "d", "d/s", 0, errs.CrossesDir, ""},
		{"directory over its parent", "d/s", "d", 0, errs.NotEmpty, ""},
		{"to itself", "f", "f", 0, 0, "f"},
		{"directory to itself", "d", "d", 0, 0, "d"},
		{"nothing", "x", "y", 0, errs.NotExist, ""},
		{"out of a directory", "d/f", "n", 0, 0, "d/f"},
		{"subdirectory out", "d/s", "n", 0, 0, "d/s"},
		{"bad new name", "f", "..", 0, errs.Invalid, ""},
		{"no replace, free", "f", "n", dsm.RenameNoReplace, 0, "f"},
		{"no replace, taken", "f", "g", dsm.RenameNoReplace, errs.Exist, ""},
		{"no replace, itself", "f", "f", dsm.RenameNoReplace, errs.Exist, ""},
		{"exchange files", "f", "g", dsm.RenameExchange, 0, "f"},
		{"exchange file and directory", "f", "d/s", dsm.RenameExchange, 0, "f"},
		{"exchange with nothing", "f", "n", dsm.RenameExchange, errs.NotExist, ""},
		{"exchange with a child", "d", "d/s", dsm.RenameExchange, errs.CrossesDir, ""},
		{"exchange with the parent", "d/s", "d", dsm.RenameExchange, errs.CrossesDir, ""},
		{"exchange itself", "f", "f", dsm.RenameExchange, 0, "f"},
		{"unknown flag", "f", "n", 9, errs.Invalid, ""},
	}
	for _, x := range tests {
		t.Run(x.name, func(t *testing.T) {
			m := newMachine(t)
			at := map[string]dsm.Ino{"": root}
			at["d"] = m.mkdir(root, "d")
			at["e"] = m.mkdir(root, "e")
			at["d/s"] = m.mkdir(at["d"], "s")
			at["f"] = m.file("f").Ino
			at["g"] = m.file("g").Ino
			at["l"] = m.must(nodeA, createOp{Dir: root, Name: "l", Kind: dsm.KindSymlink, Target: "f"}).Ino
			at["d/f"] = m.must(nodeA, createOp{Dir: at["d"], Name: "f", Kind: dsm.KindFile}).Ino
			split := func(path string) (dsm.Ino, string) {
				i := strings.LastIndex(path, "/")
				return at[path[:max(i, 0)]], path[i+1:]
			}
			o := renameOp{How: x.how}
			o.Dir, o.Name = split(x.from)
			o.NewDir, o.NewName = split(x.to)
			if x.want != 0 {
				m.fails(x.want, o)
				return
			}
			replaced := at[x.to]
			before := m.at(at[x.from])
			m.must(nodeA, o)
			if got := m.inodes[o.NewDir].entries[o.NewName]; got != at[x.after] {
				t.Errorf("inode %d is there, want %d", got, at[x.after])
			}
			old, there := m.inodes[o.Dir].entries[o.Name]
			switch {
			case x.from == x.to:
				if !m.at(at[x.from]).Ctime.Equal(before.Ctime) {
					t.Error("renaming to itself changed the inode")
				}
			case x.how == dsm.RenameExchange:
				if old != replaced {
					t.Errorf("inode %d is at the old name, want %d", old, replaced)
				}
			default:
				if there {
					t.Error("the old name is still there")
				}
				if m.inodes[replaced] != nil {
					t.Error("the replaced inode is still there")
				}
				if !m.at(at[x.from]).Ctime.After(before.Ctime) || !m.at(o.Dir).Mtime.Equal(m.at(o.NewDir).Mtime) {
					t.Error("times")
				}
			}
		})
	}
}

// TestRemoveAnother: who removes a directory by its name can say which one that is.
func TestRemoveAnother(t *testing.T) {
	m := newMachine(t)
	root := dsm.RootIno
	d, e, full := m.mkdir(root, "d"), m.mkdir(root, "e"), m.mkdir(root, "full")
	m.mkdir(full, "x")
	m.fails(errs.Replaced, rmdirOp{root, "d", e})
	m.fails(errs.NotEmpty, rmdirOp{root, "full", e})
	m.fails(errs.NotExist, rmdirOp{root, "none", e})
	over := func(newName string, over dsm.Ino) renameOp {
		return renameOp{Dir: root, Name: "full", NewDir: root, NewName: newName, Over: over}
	}
	m.fails(errs.Replaced, over("d", e))
	m.fails(errs.Replaced, over("none", e))
	if m.inodes[root].entries["d"] != d || m.inodes[root].entries["full"] != full {
		t.Error("what was refused has changed names")
	}
	m.must(nodeA, rmdirOp{root, "d", d})
	m.must(nodeA, over("e", e))
	if m.inodes[e] != nil || m.inodes[root].entries["e"] != full {
		t.Error("the directory was not replaced")
	}
}

func TestTimesNeverGoBack(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	m.now -= int64(time.Hour) // a proposer whose clock is late
	after := m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: ptr(int64(1))}})
	if after.Ctime.Before(f.Ctime) || after.Mtime.Before(f.Mtime) {
		t.Errorf("times went back from %v to %v", f.Ctime, after.Ctime)
	}
	past := time.Unix(1000, 5)
	set := m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Mtime: &past, Atime: &past}})
	if !set.Mtime.Equal(past) || !set.Atime.Equal(past) || set.Ctime.Before(f.Ctime) {
		t.Errorf("utimens: %+v", set)
	}
}

func TestSize(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	size := func(n int64) setAttrOp { return setAttrOp{f.Ino, dsm.SetAttr{Size: &n}} }
	grow := func(n int64) setAttrOp { return setAttrOp{f.Ino, dsm.SetAttr{GrowTo: &n}} }

	in := m.must(nodeA, size(1000))
	if in.Size != 1000 || in.Rev != dsm.Generation(m.index) || in.Gen != f.Gen || !in.Mtime.After(f.Mtime) {
		t.Errorf("grown: %+v", in)
	}
	if e := m.last.effects.changed; len(e) != 1 || e[0].before.Size != 0 || e[0].after.Size != 1000 {
		t.Errorf("effects %+v", e)
	}
	if same := m.must(nodeA, grow(500)); same != in {
		t.Errorf("growing to less changed %+v to %+v", in, same)
	}
	if in = m.must(nodeA, grow(2000)); in.Size != 2000 || in.Gen != f.Gen {
		t.Errorf("grown: %+v", in)
	}
	if in = m.must(nodeA, size(10)); in.Size != 10 || in.Gen != dsm.Generation(m.index) || in.Rev != in.Gen || m.reserved.full != dsm.PageSize {
		t.Errorf("shrunk: %+v, reserved %+v", in, m.reserved)
	}
	rev := in.Rev
	if in = m.must(nodeA, size(10)); in.Rev != rev || !in.Mtime.Equal(in.Ctime) {
		t.Errorf("truncated to the same size: %+v", in)
	}
	m.fails(errs.Invalid, size(-1))
	m.fails(errs.Invalid, grow(-1))
	m.fails(errs.TooLarge, size(dsm.MaxAreaSize+1))
	m.fails(errs.TooLarge, grow(dsm.MaxAreaSize+1))
	m.fails(errs.NotExist, setAttrOp{99, dsm.SetAttr{Size: ptr(int64(1))}})
	m.fails(errs.IsDir, setAttrOp{dsm.RootIno, dsm.SetAttr{Size: ptr(int64(1))}})
	l := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "l", Kind: dsm.KindSymlink, Target: "x"})
	m.fails(errs.Invalid, setAttrOp{l.Ino, dsm.SetAttr{Size: ptr(int64(1))}})
}

// TestCounts: what is counted of a file is entered, but not more than its size has room for, and is no change of it.
func TestCounts(t *testing.T) {
	m := newMachine(t)
	f := m.file("f")
	f = m.must(nodeA, setAttrOp{f.Ino, dsm.SetAttr{Size: ptr(int64(3 * dsm.PageSize))}})
	d := m.mkdir(dsm.RootIno, "d")
	m.must(nodeA, countOp{[]dsm.PageCount{{Ino: f.Ino + 100, Pages: 1}, {Ino: d, Pages: 1}, {Ino: f.Ino, Pages: 2}}})
	if in := m.at(f.Ino); in.Pages != 2 || in.Rev != f.Rev || !in.Ctime.Equal(f.Ctime) || m.at(d).Pages != 0 {
		t.Errorf("counted: %+v, was %+v; directory %+v", in, f, m.at(d))
	}
	m.must(nodeA, countOp{[]dsm.PageCount{{Ino: f.Ino, Pages: 9}}})
	if in := m.at(f.Ino); in.Pages != 3 {
		t.Errorf("counted before it became shorter: %+v", in)
	}
}

func TestBudget(t *testing.T) {
	m := newMachine(t)
	f, g := m.file("f"), m.file("g")
	size := func(in dsm.Inode, n int64) setAttrOp { return setAttrOp{in.Ino, dsm.SetAttr{Size: &n}} }
	const page, kept = dsm.PageSize, 2 * dsm.FileCost
	most := int64(1<<30-kept) / 2 / page // pages of files, in two copies
	m.must(nodeA, size(f, (most-1)*page-100))
	m.must(nodeA, size(g, 100))
	m.must(nodeA, size(g, page))
	m.fails(errs.NoSpace, size(g, page+1), "growing by 1 bytes", fmt.Sprint("--memory at least ", 2*(most+1)*page+kept), "offers 1073741824",
		fmt.Sprint(2*(most+1)*page, " for 2 copies of the full files"), fmt.Sprint(kept, " for what it keeps"), "remove files")
	m.fails(errs.NoSpace, setAttrOp{g.Ino, dsm.SetAttr{GrowTo: ptr(int64(page + 1))}})

	small := member(nodeB)
	small.Budget = 2*most*page + kept - 1
	m.fails(errs.NoSpace, addMemberOp{small}, fmt.Sprint("--memory at least ", small.Budget+1), fmt.Sprint("offers ", small.Budget))
	m.must(nodeA, size(f, page))
	small.Budget = 4*page + kept
	m.must(nodeA, addMemberOp{small})
	m.fails(errs.NoSpace, size(g, page+1), "node nb", fmt.Sprint("at least ", 6*page+kept), fmt.Sprint("offers ", small.Budget))
	m.must(nodeA, size(g, page-1))
	m.must(nodeA, unlinkOp{dsm.RootIno, "f"})
	m.must(nodeA, size(g, 2*page+dsm.FileCost/2/page*page))
}

func TestChown(t *testing.T) {
	tests := []struct {
		kind        dsm.FileKind
		perm, after uint32
		also        *uint32
	}{
		{dsm.KindFile, 0o6755, 0o755, nil},
		{dsm.KindFile, 0o6745, 0o2745, nil}, // setgid without group execution means something else
		{dsm.KindFile, 0o4755, 0o4711, ptr(uint32(0o4711))},
		{dsm.KindDir, 0o6755, 0o6755, nil},
	}
	for _, x := range tests {
		m := newMachine(t)
		in := m.must(nodeA, createOp{Dir: dsm.RootIno, Name: "x", Kind: x.kind, Perm: x.perm})
		in = m.must(nodeA, setAttrOp{in.Ino, dsm.SetAttr{UID: ptr(uint32(5)), Perm: x.also}})
		if in.Perm != x.after || in.UID != 5 || in.GID != 0 {
			t.Errorf("%o became %o after chown, want %o", x.perm, in.Perm, x.after)
		}
	}
}
