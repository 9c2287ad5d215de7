package fs

import (
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// aliases remembers where the kernel was last told that each directory is.
//
// The kernel knows a directory at one place only. If another node has moved it, the
// kernel finds that out when it looks up the new name, and moves its own. But it only tries the locks
// for that: if any thread of the node has them, the program that looks up gets ESTALE (Linux 6.18). A rename(2)
// to another directory has them itself. The kernel then looks up the path once more, but not twice. So:
//
//   - Before a LOOKUP tells of a directory in a new place, the kernel is told to forget the old.
//   - It does not forget a directory that programs use. The first time a thread finds that one, it is told the truth, and the child
//     process looks as well, which moves the directory if the thread did not: see walks.
//   - A thread that finds it again in the same call is told of a directory with another number. The kernel
//     does not know that one from elsewhere, so there is nothing to move and no ESTALE. A program that works in the directory
//     under the first number stays there, and finds the old place at "..".
//
// How long the first two take decides only whether the third is needed.
//
// What this does not see: two threads may take in their answers in the other order than they were given them, if
// the directory is moved in between. The kernel then has it in the older place, and the daemon takes the newer for sure.
type aliases struct {
	mu struct {
		lockrank.Mutex
		of  map[nodeID]*alias
		at  map[place]nodeID
		now map[dsm.Ino]nodeID // the number that LOOKUPs tell, where it is not the inode's own
	}
}

// alias is a directory that the kernel knows.
type alias struct {
	at place // as the kernel was last told
	// sure says that the kernel has it there. Otherwise it may have it still where it was told before.
	sure bool
	// looked says that the child was told of it there since it is not sure.
	looked bool
	// told is how often the kernel was told of it. It says so when it forgets.
	told uint64
}

// place is an entry of a directory that the kernel knows.
type place struct {
	dir  nodeID
	name string
}

// aliasLimit is how long a LOOKUP waits for the kernel to forget. The notice waits for the lock of the
// old directory, which the program that looks up may hold itself.
const aliasLimit = 20 * time.Millisecond

// maxDepth bounds how deep a directory may be: more than a path can name.
const maxDepth = 2048

func (x *aliases) init() {
	x.mu.Init("fs.aliases")
	x.mu.of, x.mu.at, x.mu.now = make(map[nodeID]*alias), make(map[place]nodeID), make(map[dsm.Ino]nodeID)
}

// teller is who is told of a directory.
type teller uint8

const (
	firstTry teller = iota // a thread that the kernel lets try once more
	lastTry                // one that it does not
	theChild               // the child process
)

// telling is what tell found.
type telling struct {
	node  nodeID
	sure  bool
	old   place // where the kernel knows the directory, if named
	named bool
}

// tell returns under which number the kernel is told that the directory is at p.
func (x *aliases) tell(ino dsm.Ino, p place, who teller) telling {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := telling{node: x.nodeLocked(ino)}
	a := x.mu.of[t.node]
	if a != nil && !(a.sure && a.at == p) && who != theChild && (who == lastTry || x.withinLocked(p, t.node)) {
		t.node, a = x.otherLocked(ino), nil
	}
	if a == nil {
		a = &alias{at: p, sure: true}
		x.mu.of[t.node], x.mu.at[p] = a, t.node
	}
	a.told++
	if a.at != p {
		t.old, t.named = a.at, x.mu.at[a.at] == t.node
		if t.named {
			delete(x.mu.at, a.at)
		}
		a.at, a.sure, a.looked = p, false, false
		x.mu.at[p] = t.node
	}
	a.looked = a.looked || who == theChild
	t.sure = a.sure
	return t
}

func (x *aliases) nodeLocked(ino dsm.Ino) nodeID {
	if n, ok := x.mu.now[ino]; ok {
		return n
	}
	return nodeOf(ino, 0)
}

// otherLocked returns a number of the directory that the kernel does not know.
func (x *aliases) otherLocked(ino dsm.Ino) nodeID {
	for k := range uint64(maxNodes) {
		if n := nodeOf(ino, k); x.mu.of[n] == nil {
			x.mu.now[ino] = n
			return n
		}
	}
	return x.nodeLocked(ino) // not with less than terabytes of directories in the kernel
}

// withinLocked reports whether p is in the directory as the kernel has it, which cannot move it there (ELOOP).
func (x *aliases) withinLocked(p place, n nodeID) bool {
	for range maxDepth {
		if p.dir == n {
			return true
		}
		a := x.mu.of[p.dir]
		if a == nil {
			return false
		}
		p = a.at
	}
	return true
}

// settled says that the child has found the directory at p.
func (x *aliases) settled(n nodeID, p place) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if a := x.mu.of[n]; a != nil && a.at == p && a.looked {
		a.sure = true
	}
}

// known returns under which number the kernel is told that the directory is at p, if it knows it there, or
// not at all.
func (x *aliases) known(ino dsm.Ino, p place) (n nodeID, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n = x.nodeLocked(ino)
	a := x.mu.of[n]
	switch {
	case a == nil:
		x.mu.of[n], x.mu.at[p] = &alias{at: p, sure: true, told: 1}, n
	case a.sure && a.at == p:
		a.told++
	default:
		return 0, false
	}
	return n, true
}

// path returns the path from the root under which the kernel knows what is at p.
func (x *aliases) path(p place) (path string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	path = p.name
	for range maxDepth {
		if p.dir == rootNode {
			return path, true
		}
		a := x.mu.of[p.dir]
		if a == nil {
			return "", false
		}
		p = a.at
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

// drop says that the kernel has forgotten what it was told of the directory, so many times.
func (x *aliases) drop(n nodeID, times uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a := x.mu.of[n]
	if a == nil {
		return
	}
	if a.told -= min(times, a.told); a.told > 0 {
		return // it has been told once more meanwhile
	}
	delete(x.mu.of, n)
	if x.mu.at[a.at] == n {
		delete(x.mu.at, a.at)
	}
	if ino := inoOf(uint64(n)); x.mu.now[ino] == n {
		delete(x.mu.now, ino)
	}
}

// renamed says that the kernel itself has moved what was at from, and what was at to
// there if the two were exchanged.
func (x *aliases) renamed(from, to place, exchanged bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a, isDir := x.mu.at[from]
	b, isDir2 := x.mu.at[to]
	delete(x.mu.at, from)
	delete(x.mu.at, to)
	if isDir {
		x.mu.of[a].at, x.mu.at[to] = to, a
	}
	if isDir2 && exchanged {
		x.mu.of[b].at, x.mu.at[from] = from, b
	}
}

// toldOf is called before the kernel is told that the inode is at p. It returns under which number.
func (b *bridge) toldOf(r *request, i dsm.Inode, p place) nodeID {
	if i.Kind != dsm.KindDir {
		b.walIndexes.told(i, p)
		return nodeID(i.Ino)
	}
	if n, ok := b.aliases.known(i.Ino, p); ok {
		return n
	}
	who := firstTry
	switch {
	case b.harvest.IsChild(r.tid): // it holds no locks, and cannot look while it does
		who = theChild
	case r.tid == 0 || b.retries.get(r.tid).moved: // or nobody knows
		who = lastTry
	}
	t := b.aliases.tell(i.Ino, p, who)
	if t.sure {
		return t.node
	}
	forgotten := make(chan struct{})
	walked := func() {}
	if who != theChild {
		b.retries.set(r.tid, func(t *retry) { t.moved = true })
		walked = b.walks.begin(r.tid)
	}
	b.background.run(func() {
		defer walked()
		if t.named {
			b.notify.forget(t.old)
		}
		close(forgotten)
		if who != theChild {
			b.walk(t.node, p)
		}
	})
	limit := time.NewTimer(aliasLimit)
	defer limit.Stop()
	select {
	case <-forgotten:
	case <-limit.C:
	case <-r.Done():
	}
	return t.node
}

// Forget is called when the kernel drops an inode of which it was told so many times.
func (b *bridge) Forget(node, times uint64) {
	b.aliases.drop(nodeID(node), times)
	b.walIndexes.forget(inoOf(node), times)
}
