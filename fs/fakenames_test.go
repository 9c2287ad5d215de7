package fs

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// fakeNames is a catalog of one node in memory.
type fakeNames struct {
	mu      sync.Mutex
	next    dsm.Ino
	rev     dsm.Generation
	nodes   map[dsm.Ino]*fakeInode
	budget  int64
	calls   map[string]int
	fail    map[string]error // by method, until deleted
	changed func(dsm.Ino)    // called with mu free, after a size changed elsewhere
	resized func(dsm.Ino)    // called with mu free, after any change
	kept    atomic.Int64     // what Keep returns
	cutOff  atomic.Bool      // what CutOff returns
}

type fakeInode struct {
	dsm.Inode
	entries map[string]dsm.Ino
	xattrs  map[string][]byte
	claimed bool
}

func (n *fakeNames) CreateTemp(ctx context.Context, dir dsm.Ino, i dsm.Inode, settings ...dsm.Setting) (dsm.Inode, error) {
	const name = "\x00temporary"
	i.Kind = dsm.KindFile
	if _, err := n.Create(ctx, dir, name, i, true, settings...); err != nil {
		return i, err
	}
	if err := n.Unlink(ctx, dir, name); err != nil {
		return i, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[n.next].Inode, nil
}

func (n *fakeNames) Link(_ context.Context, ino, dir dsm.Ino, name string) (dsm.Inode, error) {
	defer n.mu.Unlock()
	if err := n.lock("Link"); err != nil {
		return dsm.Inode{}, err
	}
	d, err := n.dir(dir)
	if err != nil {
		return dsm.Inode{}, err
	}
	i, err := n.get(ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	if _, taken := d.entries[name]; taken {
		return dsm.Inode{}, errs.E(errs.Exist, "fake", "")
	}
	i.Nlink++
	d.entries[name] = ino
	return i.Inode, nil
}

// Keep returns what a test says; without it nothing is kept, for tests change the fake behind
// the kernel's back.
func (n *fakeNames) CutOff() bool { return n.cutOff.Load() }

func (n *fakeNames) Keep() time.Duration { return time.Duration(n.kept.Load()) }

func (n *fakeNames) Stat(_ context.Context, dir dsm.Ino, entries []dsm.DirEntry) ([]dsm.Inode, error) {
	defer n.mu.Unlock()
	if err := n.lock("Stat"); err != nil {
		return nil, err
	}
	d, err := n.dir(dir)
	if err != nil {
		return nil, err
	}
	inodes := make([]dsm.Inode, len(entries))
	for i, e := range entries {
		if ino, ok := d.entries[e.Name]; ok && ino == e.Ino {
			inodes[i] = n.nodes[ino].Inode
		}
	}
	return inodes, nil
}

func newFakeNames() *fakeNames {
	now := time.Now()
	n := &fakeNames{next: dsm.RootIno, nodes: make(map[dsm.Ino]*fakeInode), budget: 1 << 30, calls: make(map[string]int), fail: make(map[string]error)}
	n.nodes[dsm.RootIno] = &fakeInode{Inode: dsm.Inode{Ino: dsm.RootIno, Kind: dsm.KindDir, Perm: 0o777, Nlink: 2,
		Atime: now, Mtime: now, Ctime: now, Spec: dsm.DefaultSpec()}, entries: make(map[string]dsm.Ino), xattrs: make(map[string][]byte)}
	return n
}

// lock begins a call: it counts it and returns the error it is to fail with.
func (n *fakeNames) lock(op string) error {
	n.mu.Lock()
	n.calls[op]++
	return n.fail[op]
}

func (n *fakeNames) count(op string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls[op]
}

// claimed tells whether the node claims the file.
func (n *fakeNames) claimed(ino dsm.Ino) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.nodes[ino]
	return i != nil && i.claimed
}

func (n *fakeNames) failWith(op string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail[op] = err
}

func (n *fakeNames) setBudget(budget int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.budget = budget
}

func (n *fakeNames) get(ino dsm.Ino) (*fakeInode, error) {
	if i := n.nodes[ino]; i != nil {
		return i, nil
	}
	return nil, errs.E(errs.NotExist, "fake", "")
}

func (n *fakeNames) dir(ino dsm.Ino) (*fakeInode, error) {
	i, err := n.get(ino)
	if err == nil && i.Kind != dsm.KindDir {
		err = errs.E(errs.NotDir, "fake", "")
	}
	return i, err
}

func (n *fakeNames) child(dir dsm.Ino, name string) (*fakeInode, *fakeInode, error) {
	d, err := n.dir(dir)
	if err != nil {
		return nil, nil, err
	}
	ino, ok := d.entries[name]
	if !ok {
		return d, nil, errs.E(errs.NotExist, "fake", "")
	}
	return d, n.nodes[ino], nil
}

func (n *fakeNames) touch(i *fakeInode) { i.Mtime = time.Now(); i.Ctime = i.Mtime }

// drop removes an inode that has neither name nor claim.
func (n *fakeNames) drop(i *fakeInode) {
	if i.Nlink == 0 && !i.claimed {
		delete(n.nodes, i.Ino)
	}
}

func (n *fakeNames) LookupKnown(dir dsm.Ino, name string) (dsm.Inode, error) {
	return n.Lookup(context.Background(), dir, name)
}

func (n *fakeNames) GetattrKnown(ino dsm.Ino) (dsm.Inode, error) {
	return n.Getattr(context.Background(), ino)
}

func (n *fakeNames) Lookup(_ context.Context, dir dsm.Ino, name string) (dsm.Inode, error) {
	defer n.mu.Unlock()
	if err := n.lock("Lookup"); err != nil {
		return dsm.Inode{}, err
	}
	_, i, err := n.child(dir, name)
	if err != nil {
		return dsm.Inode{}, err
	}
	return i.Inode, nil
}

func (n *fakeNames) Getattr(_ context.Context, ino dsm.Ino) (dsm.Inode, error) {
	defer n.mu.Unlock()
	if err := n.lock("Getattr"); err != nil {
		return dsm.Inode{}, err
	}
	i, err := n.get(ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	return i.Inode, nil
}

func (n *fakeNames) ReadDir(_ context.Context, dir dsm.Ino) ([]dsm.DirEntry, error) {
	defer n.mu.Unlock()
	if err := n.lock("ReadDir"); err != nil {
		return nil, err
	}
	d, err := n.dir(dir)
	if err != nil {
		return nil, err
	}
	var out []dsm.DirEntry
	for _, name := range slices.Sorted(maps.Keys(d.entries)) {
		ino := d.entries[name]
		out = append(out, dsm.DirEntry{Name: name, Ino: ino, Kind: n.nodes[ino].Kind})
	}
	return out, nil
}

func (n *fakeNames) Create(_ context.Context, dir dsm.Ino, name string, in dsm.Inode, claim bool, settings ...dsm.Setting) (dsm.Inode, error) {
	defer n.mu.Unlock()
	if err := n.lock("Create"); err != nil {
		return dsm.Inode{}, err
	}
	d, i, err := n.child(dir, name)
	if i != nil {
		return dsm.Inode{}, errs.E(errs.Exist, "fake", "")
	}
	if d == nil {
		return dsm.Inode{}, err
	}
	if d.Nlink == 0 {
		return dsm.Inode{}, errs.E(errs.NotExist, "fake", "")
	}
	if n.reserved()+in.Size > n.budget {
		return dsm.Inode{}, errs.E(errs.NoSpace, "fake", "")
	}
	in.Spec = d.Spec
	for _, x := range settings {
		if in.Spec, err = fakeSpec(in.Spec, x.Key, x.Value); err != nil {
			return dsm.Inode{}, err
		}
	}
	n.next++
	n.rev++
	i = &fakeInode{Inode: in, claimed: claim, entries: make(map[string]dsm.Ino), xattrs: make(map[string][]byte)}
	i.Ino, i.Nlink, i.Gen, i.Rev = n.next, 1, n.rev, n.rev
	n.touch(i)
	i.Atime = i.Mtime
	if i.Kind == dsm.KindDir {
		i.Nlink = 2
		d.Nlink++
	}
	n.touch(d)
	n.nodes[i.Ino], d.entries[name] = i, i.Ino
	return i.Inode, nil
}

func (n *fakeNames) remove(dir dsm.Ino, name string, isDir bool) error {
	d, i, err := n.child(dir, name)
	switch {
	case err != nil:
		return err
	case isDir && i.Kind != dsm.KindDir:
		return errs.E(errs.NotDir, "fake", "")
	case !isDir && i.Kind == dsm.KindDir:
		return errs.E(errs.IsDir, "fake", "")
	case len(i.entries) > 0:
		return errs.E(errs.NotEmpty, "fake", "")
	}
	delete(d.entries, name)
	if isDir {
		d.Nlink--
	}
	if i.Kind == dsm.KindDir {
		i.Nlink = 1
	}
	i.Nlink--
	i.Ctime = time.Now()
	n.touch(d)
	n.drop(i)
	return nil
}

func (n *fakeNames) Unlink(_ context.Context, dir dsm.Ino, name string) error {
	defer n.mu.Unlock()
	if err := n.lock("Unlink"); err != nil {
		return err
	}
	return n.remove(dir, name, false)
}

func (n *fakeNames) Rmdir(_ context.Context, dir dsm.Ino, name string, is dsm.Ino) error {
	defer n.mu.Unlock()
	if err := n.lock("Rmdir"); err != nil {
		return err
	}
	if _, i, err := n.child(dir, name); err == nil && len(i.entries) == 0 && is != 0 && i.Ino != is {
		return errs.E(errs.Replaced, "fake", "")
	}
	return n.remove(dir, name, true)
}

func (n *fakeNames) Rename(_ context.Context, dir dsm.Ino, name string, newDir dsm.Ino, newName string, how dsm.RenameHow, overIno dsm.Ino) error {
	defer n.mu.Unlock()
	if err := n.lock("Rename"); err != nil {
		return err
	}
	from, i, err := n.child(dir, name)
	if err != nil {
		return err
	}
	to, over, err := n.child(newDir, newName)
	if to == nil {
		return err
	}
	switch {
	case how == dsm.RenameExchange && over == nil:
		return errs.E(errs.NotExist, "fake", "")
	case how == dsm.RenameNoReplace && over != nil:
		return errs.E(errs.Exist, "fake", "")
	case how == dsm.RenameExchange:
		from.entries[name], to.entries[newName] = over.Ino, i.Ino
		return nil
	case overIno != 0 && (over == nil || over.Ino != overIno && len(over.entries) == 0):
		return errs.E(errs.Replaced, "fake", "")
	case over != nil:
		if err := n.remove(newDir, newName, i.Kind == dsm.KindDir); err != nil {
			return err
		}
	}
	delete(from.entries, name)
	to.entries[newName] = i.Ino
	if i.Kind == dsm.KindDir {
		from.Nlink--
		to.Nlink++
	}
	return nil
}

func (n *fakeNames) reserved() (sum int64) {
	for _, i := range n.nodes {
		sum += i.Size
	}
	return sum
}

func (n *fakeNames) SetAttr(_ context.Context, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	i, err := n.setAttr(ino, ch)
	if err == nil && n.resized != nil {
		n.resized(ino)
	}
	return i, err
}

func (n *fakeNames) setAttr(ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	defer n.mu.Unlock()
	if err := n.lock("SetAttr"); err != nil {
		return dsm.Inode{}, err
	}
	i, err := n.get(ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	if ch.GrowTo != nil && *ch.GrowTo > i.Size {
		ch.Size = ch.GrowTo
	}
	if ch.GrowBy != nil {
		size := i.Size + *ch.GrowBy
		ch.Size = &size
	}
	if ch.Size != nil && *ch.Size != i.Size {
		if n.reserved()+*ch.Size-i.Size > n.budget {
			return dsm.Inode{}, errs.E(errs.NoSpace, "fake", "")
		}
		n.rev++
		i.Rev = n.rev
		if *ch.Size < i.Size {
			i.Gen = n.rev
		}
		i.Size = *ch.Size
		n.touch(i)
	}
	for p, v := range map[*uint32]*uint32{&i.Perm: ch.Perm, &i.UID: ch.UID, &i.GID: ch.GID} {
		if v != nil {
			*p = *v
		}
	}
	i.Pages = min(i.Pages, (i.Size+dsm.PageSize-1)/dsm.PageSize)
	for p, v := range map[*time.Time]*time.Time{&i.Atime: ch.Atime, &i.Mtime: ch.Mtime} {
		if v != nil {
			*p = *v
		}
	}
	i.Ctime = time.Now()
	return i.Inode, nil
}

// resizeElsewhere is a truncate on another node.
func (n *fakeNames) resizeElsewhere(ino dsm.Ino, size int64) {
	if _, err := n.SetAttr(context.Background(), ino, dsm.SetAttr{Size: &size}); err != nil {
		panic(err)
	}
	n.changed(ino)
}

func (n *fakeNames) SetSpec(_ context.Context, ino dsm.Ino, key, value string) (dsm.Inode, error) {
	defer n.mu.Unlock()
	if err := n.lock("SetSpec"); err != nil {
		return dsm.Inode{}, err
	}
	i, err := n.get(ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	if i.Spec, err = fakeSpec(i.Spec, key, value); err != nil {
		return dsm.Inode{}, err
	}
	n.rev++
	i.Rev, i.Gen = n.rev, n.rev
	return i.Inode, nil
}

func fakeSpec(s dsm.Spec, key, value string) (_ dsm.Spec, err error) {
	was := s
	switch key {
	case "mode":
		s.Mode, err = dsm.ParseMode(value)
	case "merge":
		s.Merge, err = dsm.ParseMerge(value)
	case "dtype":
		s.DType, err = dsm.ParseDType(value)
	case "apply":
		s.Apply, err = dsm.ParseApply(value)
	case "interval":
		s.Interval, err = time.ParseDuration(value)
	case "residency":
		s.Residency, err = dsm.ParseResidency(value)
	case "access":
		s.Access, err = dsm.ParseAccess(value)
	default:
		s, err = s.With(key, value)
	}
	if err != nil {
		return was, errs.E(errs.Invalid, "fake", "%w", err)
	}
	return s, nil
}

func (n *fakeNames) GetXattr(_ context.Context, ino dsm.Ino, name string) ([]byte, error) {
	defer n.mu.Unlock()
	if err := n.lock("GetXattr"); err != nil {
		return nil, err
	}
	i, err := n.get(ino)
	if err != nil {
		return nil, err
	}
	if v, ok := i.xattrs[name]; ok {
		return v, nil
	}
	return nil, errs.E(errs.NoAttr, "fake", "")
}

func (n *fakeNames) SetXattr(_ context.Context, ino dsm.Ino, name string, value []byte, how dsm.XattrHow) error {
	defer n.mu.Unlock()
	if err := n.lock("SetXattr"); err != nil {
		return err
	}
	i, err := n.get(ino)
	if err != nil {
		return err
	}
	switch _, ok := i.xattrs[name]; {
	case ok && how == dsm.XattrCreate:
		return errs.E(errs.Exist, "fake", "")
	case !ok && how == dsm.XattrReplace:
		return errs.E(errs.NoAttr, "fake", "")
	}
	i.xattrs[name] = value
	return nil
}

func (n *fakeNames) RemoveXattr(_ context.Context, ino dsm.Ino, name string) error {
	defer n.mu.Unlock()
	if err := n.lock("RemoveXattr"); err != nil {
		return err
	}
	i, err := n.get(ino)
	if err != nil {
		return err
	}
	if _, ok := i.xattrs[name]; !ok {
		return errs.E(errs.NoAttr, "fake", "")
	}
	delete(i.xattrs, name)
	return nil
}

func (n *fakeNames) ListXattr(_ context.Context, ino dsm.Ino) ([]string, error) {
	defer n.mu.Unlock()
	if err := n.lock("ListXattr"); err != nil {
		return nil, err
	}
	i, err := n.get(ino)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(i.xattrs)), nil
}

func (n *fakeNames) Claim(_ context.Context, ino dsm.Ino, _ bool) (dsm.Inode, error) {
	defer n.mu.Unlock()
	if err := n.lock("Claim"); err != nil {
		return dsm.Inode{}, err
	}
	i, err := n.get(ino)
	if err != nil {
		return dsm.Inode{}, err
	}
	i.claimed = true
	return i.Inode, nil
}

func (n *fakeNames) Unclaim(_ context.Context, inos ...dsm.Ino) error {
	defer n.mu.Unlock()
	if err := n.lock("Unclaim"); err != nil {
		return err
	}
	for _, ino := range inos {
		if i, err := n.get(ino); err == nil {
			i.claimed = false
			n.drop(i)
		}
	}
	return nil
}

func (n *fakeNames) CountPages(_ context.Context, counts ...dsm.PageCount) error {
	defer n.mu.Unlock()
	if err := n.lock("CountPages"); err != nil {
		return err
	}
	for _, c := range counts {
		if i, err := n.get(c.Ino); err == nil {
			i.Pages = c.Pages
		}
	}
	return nil
}

func (n *fakeNames) Usage(context.Context) (reserved, budget int64, inodes uint64, err error) {
	defer n.mu.Unlock()
	if err := n.lock("Usage"); err != nil {
		return 0, 0, 0, err
	}
	return n.reserved(), n.budget, uint64(len(n.nodes)), nil
}

// size is how the fake data plane learns sizes: at once.
func (n *fakeNames) size(id dsm.AreaID) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := n.nodes[dsm.Ino(id)]; i != nil {
		return i.Size
	}
	return 0
}

// inoOf returns the number of the file at a path.
func (n *fakeNames) inoOf(path string) dsm.Ino {
	n.mu.Lock()
	defer n.mu.Unlock()
	ino := dsm.RootIno
	for part := range strings.SplitSeq(path, "/") {
		ino = n.nodes[ino].entries[part]
	}
	return ino
}
