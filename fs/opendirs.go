package fs

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// openDirs remembers the directories that programs of this node have open. The catalog forgets a
// directory when any node removes it, but a program that has it open may still ask for its
// attributes, as on a local filesystem.
type openDirs struct {
	mu struct {
		lockrank.Mutex
		dirs map[dsm.Ino]*openDir
	}
}

type openDir struct {
	handles int
	inode   dsm.Inode // as the kernel was last told
}

func (d *openDirs) init() {
	d.mu.Init("fs.openDirs")
	d.mu.dirs = make(map[dsm.Ino]*openDir)
}

func (d *openDirs) opened(i dsm.Inode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.mu.dirs[i.Ino]
	if o == nil {
		o = new(openDir)
		d.mu.dirs[i.Ino] = o
	}
	o.handles++
	o.inode = i
}

// told takes note of what the kernel is told of a directory.
func (d *openDirs) told(i dsm.Inode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o := d.mu.dirs[i.Ino]; o != nil && !i.Ctime.Before(o.inode.Ctime) {
		o.inode = i
	}
}

func (d *openDirs) released(ino dsm.Ino) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o := d.mu.dirs[ino]; o != nil {
		if o.handles--; o.handles == 0 {
			delete(d.mu.dirs, ino)
		}
	}
}

// removed returns a directory's inode as it was, if the catalog does not know it any more.
func (d *openDirs) removed(ino dsm.Ino) (i dsm.Inode, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.mu.dirs[ino]
	if o == nil {
		return i, false
	}
	i = o.inode
	i.Nlink = 0
	return i, true
}

// changeRemoved changes such a directory, for the programs of this node that have it open.
func (d *openDirs) changeRemoved(ino dsm.Ino, ch dsm.SetAttr) (i dsm.Inode, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.mu.dirs[ino]
	if o == nil {
		return i, false
	}
	n := &o.inode
	n.Nlink, n.Ctime = 0, time.Now()
	if ch.Perm != nil {
		n.Perm = *ch.Perm & 07777
	}
	if ch.UID != nil {
		n.UID = *ch.UID
	}
	if ch.GID != nil {
		n.GID = *ch.GID
	}
	if ch.Atime != nil {
		n.Atime = *ch.Atime
	}
	if ch.Mtime != nil {
		n.Mtime = *ch.Mtime
	}
	return *n, true
}
