package fs

import (
	"context"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

const blockSize = 512 // what st_blocks counts in

// generation goes with every inode number; numbers are never used twice.
const generation = 1

var modeOf = map[dsm.FileKind]uint32{
	dsm.KindFile:    syscall.S_IFREG,
	dsm.KindDir:     syscall.S_IFDIR,
	dsm.KindSymlink: syscall.S_IFLNK,
}

// attr fills in what stat(2) shows of an inode. For an area that is or was open
// here it also takes note of what the kernel is told.
//
// st_blocks is what has data, on all nodes (see count.go), but never nothing if
// there are bytes: tar -S takes a file without blocks for empty. Of stores of this node that are not counted yet it is at least as
// much as they may take.
func (b *bridge) attr(i dsm.Inode, out *fuse.Attr) {
	*out = fuse.Attr{
		Ino: uint64(i.Ino), Size: uint64(i.Size), Mode: modeOf[i.Kind] | i.Perm&07777, Nlink: i.Nlink,
		Owner: fuse.Owner{Uid: i.UID, Gid: i.GID}, Blksize: dsm.PageSize,
	}
	if i.Ino == dsm.RootIno {
		root := i // so that i stays off the heap
		b.root.Store(&root)
	}
	if i.Kind == dsm.KindDir {
		b.dirs.told(i)
	}
	if i.Kind == dsm.KindFile {
		if i.Size > 0 {
			out.Blocks = max(uint64(i.Pages)*(dsm.PageSize/blockSize), 1)
		}
		if a := b.opens.find(i.Area()); a != nil {
			a.note(i)
			if area := a.current(); area != nil {
				area.KernelTold(i.Size)
				if i.Size > 0 && (a.stored.Load() != a.published.Load() || a.uncounted.Load() || a.entering.Load() > 0) {
					most := (i.Size + dsm.PageSize - 1) &^ (dsm.PageSize - 1)
					out.Blocks = max(out.Blocks, uint64(min(area.ResidentBytes(), most))/blockSize)
				}
			}
			if t := a.modTime(i); t.After(i.Mtime) {
				i.Mtime = t
				if t.After(i.Ctime) {
					i.Ctime = t
				}
			}
		}
	}
	out.SetTimes(&i.Atime, &i.Mtime, &i.Ctime)
}

func (b *bridge) entry(i dsm.Inode, out *fuse.EntryOut) {
	*out = fuse.EntryOut{NodeId: uint64(i.Ino), Generation: generation}
	b.attr(i, &out.Attr)
}

// keep is for how long the kernel may keep what it is told, from when the request began.
type keep struct {
	began        time.Time
	valid, limit time.Duration
}

// keepLimit is how long a request may take for its answer to be kept: less than what
// Names.Keep allows for the way to the program.
const keepLimit = 10 * time.Millisecond

// keep is called before anything is read.
func (b *bridge) keep() keep { return keep{time.Now(), b.cfg.Names.Keep(), b.cfg.keepLimit} }

// left returns what the kernel is told.
func (k keep) left() time.Duration {
	if k.valid == 0 || time.Since(k.began) > k.limit {
		return 0
	}
	return k.valid
}

// keptEntry is entry for an answer that the kernel may keep: of READDIRPLUS, and of directories, or ls -l would send
// several requests for each file. How late the thread that asked reads the answer, and the kernel begins to count,
// nobody can bound; so what is told of a file that somebody looks for is not kept. The attributes of a file that is open here
// it asks for each time: it must never take a size for known that it was told of
// long ago (notifier.tellSize).
func (b *bridge) keptEntry(i dsm.Inode, k keep, out *fuse.EntryOut) {
	b.entry(i, out)
	left := k.left()
	out.SetEntryTimeout(left)
	if !b.isOpen(i) {
		out.SetAttrTimeout(left)
	}
}

// isOpen reports whether programs of this node have the file open.
func (b *bridge) isOpen(i dsm.Inode) bool {
	if i.Kind != dsm.KindFile {
		return false
	}
	a := b.opens.find(i.Area())
	return a != nil && a.handles() > 0
}

func (b *bridge) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	*out = fuse.AttrOut{}
	if c, ok := control.Of(in.NodeId); ok {
		return status(b.controlAttr(r, c, &out.Attr))
	}
	if b.harvest.SeemsChild(r.tid) {
		if i, ok := b.known(inoOf(in.NodeId)); ok {
			b.attr(i, &out.Attr)
			return fuse.OK
		}
	}
	if in.NodeId == uint64(dsm.RootIno) && b.cfg.Names.CutOff() {
		// Each path to a control file begins here, and these are needed most when the others do not answer.
		if i, ok := b.known(dsm.RootIno); ok {
			b.attr(i, &out.Attr)
			return fuse.OK
		}
	}
	a := b.opens.find(dsm.AreaID(inoOf(in.NodeId)))
	if a != nil {
		b.grown(r, a)
	}
	k := b.keep()
	i, err := b.cfg.Names.Getattr(r, inoOf(in.NodeId))
	if err == nil {
		b.longerSoon(r, a, i.Size)
	}
	if errs.Is(err, errs.NotExist) {
		was, ok := b.dirs.removed(inoOf(in.NodeId))
		if !ok {
			was, ok = b.lookups.gone(r.tid, inoOf(in.NodeId))
		}
		if ok {
			b.attr(was, &out.Attr)
			return fuse.OK
		}
	}
	if err != nil {
		return b.walkStatus(r.tid, err)
	}
	if i.Kind == dsm.KindFile { // a directory may be on the way
		b.retries.drop(r.tid)
	}
	// Of a direct area the kernel asks the memfd.
	if a != nil && !a.direct.on.Load() && a.kernelBehind(i) {
		b.notify.tellSize(r, a)
	}
	b.attr(i, &out.Attr)
	if i.Nlink > 0 && i.Kind == dsm.KindDir {
		out.SetTimeout(k.left())
	}
	return fuse.OK
}

// kernelBehind reports whether the kernel may not know yet how long the area is.
func (a *openArea) kernelBehind(i dsm.Inode) bool {
	return i.Size > a.kernelSize.Load() || uint64(i.Gen) > a.kernelGen.Load()
}

// beforeTold returns when the kernel has dropped what a shrink on another node made void, or after sizeLimit. Its answer
// is about to tell the kernel of the size, which then clears the rest of the last page in place: what
// programs have stored there is the change from what the page was given only until then.
func (b *bridge) beforeTold(r *request, i dsm.Inode) {
	if b.unheard(r, i) {
		b.notify.tellSize(r, b.opens.find(i.Area()))
	}
}

// unheard reports whether the file is open and was shrunk, or its rules changed, since the kernel last heard of it.
func (b *bridge) unheard(r *request, i dsm.Inode) bool {
	if i.Ino == 0 || i.Kind != dsm.KindFile {
		return false
	}
	a := b.opens.find(i.Area())
	return a != nil && a.handles() > 0 && !a.direct.on.Load() && uint64(i.Gen) > a.kernelGen.Load() && !b.harvest.IsChild(r.tid)
}

func (b *bridge) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	*out = fuse.AttrOut{}
	if c, ok := control.Of(in.NodeId); ok {
		// A shell opens with O_TRUNC what it redirects to: nothing to truncate here.
		if _, version := c.Version(); version || in.Valid&(fuse.FATTR_MODE|fuse.FATTR_UID|fuse.FATTR_GID) != 0 {
			return fuse.EPERM
		}
		return status(b.controlAttr(r, c, &out.Attr))
	}
	var ch dsm.SetAttr
	if v, ok := in.GetMode(); ok {
		ch.Perm = &v
	}
	if v, ok := in.GetUID(); ok {
		ch.UID = &v
	}
	if v, ok := in.GetGID(); ok {
		ch.GID = &v
	}
	if v, ok := in.GetATime(); ok {
		ch.Atime = &v
	}
	if v, ok := in.GetMTime(); ok {
		ch.Mtime = &v
	}
	if v, ok := in.GetSize(); ok {
		if v > dsm.MaxAreaSize {
			return fuse.Status(syscall.EFBIG)
		}
		size := int64(v)
		ch.Size = &size
		if a := b.opens.find(dsm.AreaID(inoOf(in.NodeId))); a != nil {
			b.grown(r, a) // or it would not be truncated
		}
		if ch.Mtime == nil {
			now := time.Now()
			ch.Mtime = &now
		}
	}
	i, err := b.setAttr(r, inoOf(in.NodeId), ch)
	if err == nil && ch.Size != nil {
		err = b.longer(r, b.opens.find(i.Area()), i.Size)
		b.enterLate(r, i.Ino)
	}
	if errs.Is(err, errs.NotExist) && ch.Size == nil {
		if was, ok := b.dirs.changeRemoved(inoOf(in.NodeId), ch); ok {
			b.attr(was, &out.Attr)
			return fuse.OK
		}
	}
	if err != nil {
		if errs.Is(err, errs.Invalid) || errs.Is(err, errs.Access) {
			b.log.Warn("refused", "area", in.NodeId, "err", err) // an errno does not say what was expected
		}
		return b.walkStatus(r.tid, err)
	}
	b.retries.drop(r.tid)
	if ch.Size == nil {
		b.beforeTold(r, i)
	}
	if a := b.opens.find(i.Area()); a != nil && ch.Size != nil {
		a.kernelSize.Store(i.Size) // the reply tells it, whatever else is under way
		if area := a.current(); area != nil {
			area.KernelShrinks(i.Size) // it writes nothing back until it has truncated its pages too
			a.uncounted.Store(true)
			b.countSoon(a)
		}
	}
	b.attr(i, &out.Attr)
	return fuse.OK
}

// setAttr changes an inode. A time of modification that a program sets is to
// stay: what is stored is published first, or its publish would get a later time.
func (b *bridge) setAttr(r *request, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	a := b.opens.find(dsm.AreaID(ino))
	if a == nil || a.current() == nil || ch.Mtime == nil || ch.Size != nil {
		return b.resize(r, ino, ch)
	}
	stored := a.stored.Load()
	publish := b.publish
	if a.spec().Mode == dsm.ModeVersioned && !b.storesWhole(r, a) {
		publish = b.publishReleased
	}
	if err := publish(r, a); err != nil {
		b.log.Debug("publish before utimens", "area", a.id, "err", err)
	}
	if err := a.takeTiming(r); err != nil { // keepModTime, which has read the time from before, could undo it
		return dsm.Inode{}, err
	}
	defer func() { <-a.timing }()
	i, err := b.cfg.Names.SetAttr(r, ino, ch)
	if err == nil {
		a.timed.Store(stored)
		a.settle(i.Ctime)
	}
	return i, err
}

// resize is SetAttr, tried again if there may be more memory now.
func (b *bridge) resize(r context.Context, ino dsm.Ino, ch dsm.SetAttr) (dsm.Inode, error) {
	if err := b.cfg.Areas.Reclaimed(r, dsm.AreaID(ino)); err != nil {
		return dsm.Inode{}, err
	}
	return b.withRoom(r, func() (dsm.Inode, error) {
		if err := b.checkGrowth(ino, ch); err != nil {
			return dsm.Inode{}, err
		}
		return b.cfg.Names.SetAttr(r, ino, ch)
	})
}

// longer returns when the memory of a file is as long as the file has become. Before that, programs that have attached it still see there
// what they had stored past its end, and what they store there is lost.
func (b *bridge) longer(ctx context.Context, a *openArea, size int64) error {
	if a == nil || a.current() == nil {
		return nil
	}
	err := a.current().Grown(ctx, 0, size)
	if err != nil {
		b.notify.attrChanged(a) // the file is longer all the same, and the kernel does not know
	}
	return err
}

// longerSoon is longer for a stat, which stores nothing: it has no error, and waits no longer than for the kernel.
func (b *bridge) longerSoon(ctx context.Context, a *openArea, size int64) {
	if a == nil || a.current() == nil || !a.current().Growing() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sizeLimit)
	defer cancel()
	if err := a.current().Grown(ctx, 0, size); err != nil {
		b.log.Debug("the memory is not as long as the file", "area", a.id, "err", err)
	}
}

// checkGrowth asks a file that is open on this node whether it may become longer.
func (b *bridge) checkGrowth(ino dsm.Ino, ch dsm.SetAttr) error {
	a := b.opens.find(dsm.AreaID(ino))
	if a == nil || a.current() == nil {
		return nil
	}
	size, _ := a.noted()
	switch {
	case ch.Size != nil:
		size = *ch.Size
	case ch.GrowTo != nil:
		size = *ch.GrowTo
	case ch.GrowBy != nil:
		size += *ch.GrowBy
	default:
		return nil
	}
	return a.current().CheckGrowth(size)
}

func (b *bridge) StatFs(cancel <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	r := b.begin(cancel, in)
	defer r.end()
	reserved, budget, inodes, err := b.cfg.Names.Usage(r)
	if err != nil {
		return status(err)
	}
	free := uint64(max(budget-reserved, 0)) / dsm.PageSize
	*out = fuse.StatfsOut{
		Blocks: uint64(budget) / dsm.PageSize, Bfree: free, Bavail: free,
		Files: inodes + maxInodesFree, Ffree: maxInodesFree,
		Bsize: dsm.PageSize, Frsize: dsm.PageSize, NameLen: maxName,
	}
	return fuse.OK
}

const (
	// maxInodesFree stands for no limit: programs take 0 for full.
	maxInodesFree = 1 << 30
	maxName       = dsm.MaxName
)
