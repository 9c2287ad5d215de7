package fs

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// aliases remembers under which name the kernel was last told of each directory.
//
// The kernel knows a directory under one name only. If another node has moved it, the
// kernel finds that out when it looks up the new name, and moves its own; but within a rename(2)
// it cannot, because it holds the locks for that, and the program gets ESTALE (Linux 6.18). So
// before a LOOKUP tells of a directory in a new place, the kernel is told to forget the old. It does not forget a
// directory that programs use: that one is moved by walks.
type aliases struct {
	mu struct {
		lockrank.Mutex
		of map[dsm.Ino]place
		at map[place]dsm.Ino
	}
}

// place is an entry of a directory.
type place struct {
	dir  dsm.Ino
	name string
}

// aliasLimit is how long a LOOKUP waits for the kernel to forget. The notice waits for the lock of the
// old directory, which the program that looks up may hold itself: then it goes through when
// rename(2), after the first ESTALE, lets go of its locks to try again.
const aliasLimit = 20 * time.Millisecond

// maxDepth bounds how deep a directory may be: more than a path can name.
const maxDepth = 2048

func (x *aliases) init() {
	x.mu.Init("fs.aliases")
	x.mu.of, x.mu.at = make(map[dsm.Ino]place), make(map[place]dsm.Ino)
}

// put records where the directory is. moved says that it was known elsewhere, and named that the kernel still
// knows it by that name, old.
func (x *aliases) put(ino dsm.Ino, p place) (old place, moved, named bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, known := x.mu.of[ino]
	if known && old == p {
		return old, false, true
	}
	named = known && x.mu.at[old] == ino
	x.dropLocked(ino)
	x.mu.of[ino], x.mu.at[p] = p, ino
	return old, known, named
}

// listed records where a directory is of which a listing tells, and which stays.
func (x *aliases) listed(i dsm.Inode, p place) {
	if i.Kind == dsm.KindDir {
		x.put(i.Ino, p)
	}
}

// path returns the path from the root under which the kernel knows what is at p.
func (x *aliases) path(p place) (path string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	path = p.name
	for range maxDepth {
		if p.dir == dsm.RootIno {
			return path, true
		}
		if p, ok = x.mu.of[p.dir]; !ok {
			return "", false
		}
		path = p.name + "/" + path
	}
	return "", false
}

// has reports whether the kernel knows a directory at p.
func (x *aliases) has(p place) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.mu.at[p]
	return ok
}

// stays reports whether the kernel knows the directory at p, or not at all.
func (x *aliases) stays(ino dsm.Ino, p place) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, known := x.mu.of[ino]
	return !known || old == p
}

// drop says that the kernel has forgotten the directory.
func (x *aliases) drop(ino dsm.Ino) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropLocked(ino)
}

func (x *aliases) dropLocked(ino dsm.Ino) {
	if p, known := x.mu.of[ino]; known {
		delete(x.mu.of, ino)
		if x.mu.at[p] == ino {
			delete(x.mu.at, p)
		}
	}
}

// renamed says that the kernel itself has moved what was at from, and what was at to
// there if the two were exchanged.
func (x *aliases) renamed(from, to place, exchanged bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a, isDir := x.mu.at[from]
	b, isDir2 := x.mu.at[to]
	if isDir {
		x.dropLocked(a)
	}
	if isDir2 {
		x.dropLocked(b)
	}
	if isDir {
		x.mu.of[a], x.mu.at[to] = to, a
	}
	if isDir2 && exchanged {
		x.mu.of[b], x.mu.at[from] = from, b
	}
}

// toldOf is called before the kernel is told that the inode is at p.
func (b *bridge) toldOf(r *request, i dsm.Inode, p place) {
	if i.Kind != dsm.KindDir {
		b.walIndexes.told(i, p)
		return
	}
	old, moved, named := b.aliases.put(i.Ino, p)
	if !moved {
		return
	}
	forgotten := make(chan struct{})
	child := b.harvest.IsChild(r.tid) // it holds no locks, and cannot look while it does
	walked := func() {}
	if !child {
		walked = b.walks.begin(r.tid)
	}
	b.background.run(func() {
		defer walked()
		if named {
			b.notify.forget(old)
		}
		close(forgotten)
		if !child {
			b.walk(p)
		}
	})
	limit := time.NewTimer(aliasLimit)
	defer limit.Stop()
	select {
	case <-forgotten:
	case <-limit.C:
	case <-r.Done():
	}
}

// Forget is called when the kernel drops an inode.
func (b *bridge) Forget(node, _ uint64) {
	b.aliases.drop(dsm.Ino(node))
	b.walIndexes.forget(dsm.Ino(node))
}
