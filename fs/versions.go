package fs

import (
	"context"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// versions are the files /.dsm/areas/PATH/versions/NUMBER that the kernel knows. Each is an inode of its own, whose bytes never change:
// the kernel keeps their pages, and programs map them. A version stays readable while it is open or mapped, since RELEASE comes after
// the last munmap; this node keeps the area open for so long.
type versions struct {
	b      *bridge
	warned recently[versionKey, struct{}]
	mu     struct {
		lockrank.Mutex
		last   uint64 // number of a file, never used twice
		byArea map[versionKey]uint64
		files  map[uint64]*versionFile
	}
}

type versionKey struct {
	area    dsm.AreaID
	version dsm.Version
}

// versionFile is one that the kernel has been told of.
type versionFile struct {
	versionKey
	size int64
	area dsm.Inode // for its owner and mode
	told uint64    // how often the kernel was told of it: it says so when it forgets
}

// versionHandle is an open versionFile. The version is pinned.
type versionHandle struct {
	area    *openArea
	version dsm.Version
}

func (*versionHandle) isHandle() {}

func (x *versions) init(b *bridge) {
	x.b = b
	x.mu.Init("fs.versions")
	x.warned.init(time.Second)
	x.mu.byArea, x.mu.files = make(map[versionKey]uint64), make(map[uint64]*versionFile)
}

// begin has the numbers of files begin after last: an earlier daemon has given out those up to there.
func (x *versions) begin(last uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.last = last
}

// with calls do with the area of an inode, which it opens if no program of this node has it open.
func (x *versions) with(ctx context.Context, ino dsm.Ino, do func(Area) error) error {
	if a := x.b.opens.find(dsm.AreaID(ino)); a != nil && a.handles() > 0 {
		return do(a.current())
	}
	a, err := x.b.opens.attach(ctx, ino, false, nil)
	if err != nil {
		return err
	}
	defer x.b.opens.detach(a, false)
	return do(a.current())
}

// list returns the versions that can be read here, the oldest first; none of an area of another mode.
func (x *versions) list(ctx context.Context, ino dsm.Ino) (list []VersionInfo, err error) {
	i, err := x.b.cfg.Names.Getattr(ctx, ino)
	if err != nil || i.Spec.Mode != dsm.ModeVersioned {
		return nil, err
	}
	err = x.with(ctx, ino, func(a Area) error {
		list = a.Versions()
		return nil
	})
	return list, err
}

// lookup finds the file of a version. errs.NotExist if the newest is older; errs.Dropped if it is not kept, or if there has never been one of
// a number that is less than the newest's.
func (x *versions) lookup(ctx context.Context, ino dsm.Ino, name string, out *fuse.EntryOut) error {
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != name {
		return errNotHere
	}
	i, err := x.b.cfg.Names.Getattr(ctx, ino)
	if err != nil {
		return err
	}
	if i.Spec.Mode != dsm.ModeVersioned {
		return errNotHere
	}
	var v VersionInfo
	err = x.with(ctx, ino, func(a Area) error {
		var err error
		if v, err = a.PinVersion(dsm.Version(n)); err == nil {
			a.UnpinVersion(v.Version)
			return nil
		}
		if list := a.Versions(); len(list) == 0 || dsm.Version(n) > list[len(list)-1].Version {
			return errNotHere
		}
		return err
	})
	if err != nil {
		x.warn(versionKey{dsm.AreaID(ino), dsm.Version(n)}, err)
		return err
	}
	node := control.VersionFile(x.tell(i, v)).ID()
	*out = fuse.EntryOut{NodeId: node, Generation: generation}
	out.SetAttrTimeout(nameTimeout) // none of it changes but the mode, of which the next lookup tells
	return x.attr(node, &out.Attr)
}

// tell returns the number of a version's file, of which the kernel is about to be told.
func (x *versions) tell(i dsm.Inode, v VersionInfo) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := versionKey{i.Area(), v.Version}
	n := x.mu.byArea[key]
	if n == 0 {
		x.mu.last++
		n = x.mu.last
		x.mu.byArea[key], x.mu.files[n] = n, &versionFile{versionKey: key, size: v.Size}
	}
	f := x.mu.files[n]
	f.area = i
	f.told++
	return n
}

// forget says that the kernel has forgotten what it was told of a node, so many times.
func (x *versions) forget(node, times uint64) {
	n, ok := versionOf(node)
	if !ok {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.mu.files[n]
	if f == nil {
		return
	}
	if f.told -= min(times, f.told); f.told == 0 {
		delete(x.mu.files, n)
		delete(x.mu.byArea, f.versionKey)
	}
}

// versionOf returns the number of a version's file; ok is false if the node is something else.
func versionOf(node uint64) (n uint64, ok bool) {
	c, ok := control.Of(node)
	if !ok {
		return 0, false
	}
	return c.Version()
}

func (x *versions) find(node uint64) (f versionFile, err error) {
	n, _ := versionOf(node)
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.mu.files[n]; p != nil {
		return *p, nil
	}
	return f, errNotHere
}

// attr fills in what stat(2) shows: its times are when the version was made.
func (x *versions) attr(node uint64, out *fuse.Attr) error {
	f, err := x.find(node)
	if err != nil {
		return err
	}
	*out = fuse.Attr{
		Ino: node, Size: uint64(f.size), Blocks: uint64(f.size+blockSize-1) / blockSize, Mode: syscall.S_IFREG | f.area.Perm&0o444, Nlink: 1,
		Owner: fuse.Owner{Uid: f.area.UID, Gid: f.area.GID}, Blksize: dsm.PageSize,
	}
	at := f.version.Time()
	out.SetTimes(&at, &at, &at)
	return nil
}

// open pins the version.
func (x *versions) open(ctx context.Context, in *fuse.OpenIn, out *fuse.OpenOut) error {
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return errs.E(errs.Access, "open", "a version does not change")
	}
	f, err := x.find(in.NodeId)
	if err != nil {
		return err
	}
	a, err := x.b.opens.attach(ctx, dsm.Ino(f.versionKey.area), false, nil)
	if err != nil {
		return err
	}
	if _, err := a.current().PinVersion(f.version); err != nil {
		x.b.opens.detach(a, false)
		x.warn(f.versionKey, err)
		return err
	}
	out.Fh, out.OpenFlags = x.b.handles.add(&versionHandle{a, f.version}), fuse.FOPEN_KEEP_CACHE|fuse.FOPEN_NOFLUSH
	return nil
}

// warn says which versions are kept. At ESTALE the kernel asks once more.
func (x *versions) warn(v versionKey, err error) {
	if _, before := x.warned.get(v); before || !errs.Is(err, errs.Dropped) {
		return
	}
	x.warned.put(v, struct{}{})
	x.b.log.Warn("open a version", "area", v.area, "err", err)
}

// release unpins it. The kernel does not wait for it.
func (x *versions) release(h *versionHandle) {
	h.area.current().UnpinVersion(h.version)
	x.b.releases.run(func() { x.b.opens.detach(h.area, false) })
}
