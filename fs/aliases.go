package fs

import (
	"slices"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// aliases remembers where the kernel was last told that each directory is.
//
// The kernel knows a directory at one place only. If another node has moved it, the
// kernel finds that out when it looks up the new name, and moves its own. Between two directories it needs locks
// for that, and only tries them: if any thread of the node has them, the program that looks up gets ESTALE (Linux 6.18). A rename(2)
// to another directory has them itself. Most calls then look up the path once more, but not twice; mkdir(2)
// and its like do not look up the name itself again (K40). So:
//
//   - Before anybody is told of a directory in another one, the kernel is told to forget its old name. That waits for the lock under which
//     the kernel takes in what it was told there, so answers about one directory are never taken in in the other order.
//     A thread for which that takes too long is told ESTALE.
//   - The kernel does not forget a directory that programs use. A thread that looks up again at ESTALE is told the truth, and the child
//     process looks as well, which moves the directory if the thread did not: see walks.
//   - A thread that is looking up again, or may not, is told of a directory with another number. The kernel
//     does not know that one from elsewhere, so there is nothing to move and no ESTALE. A program that works in the directory
//     under the first number stays there, and finds the old place at "..".
//
// How long the first two take decides only whether the third is needed.
//
// A removal by rmdir(2) or rename(2) is by name as well: see removed.
type aliases struct {
	limit time.Duration // aliasLimit, but for tests
	mu    struct {
		lockrank.Mutex
		of  map[nodeID]*alias
		at  map[place]nodeID
		now map[dsm.Ino]nodeID // the number that LOOKUPs tell, where it is not the inode's own
		// past has the directories of which the kernel was told in a place before it was told of something else.
		past map[place][]nodeID
	}
}

// alias is a directory that the kernel knows. All that the kernel was told of it, but may not have taken in, is
// about one directory: at.dir.
type alias struct {
	at place // as the kernel was last told
	// was is where the kernel may still have it, if it could not move it. If it is empty the kernel has it in at.dir.
	// A rename(2) under way may move it by its old name when the kernel was told of something else there; so it has at in it then.
	was []place
	// looked says that the child was told of it there since it was moved.
	looked bool
	// told is how often the kernel was told of it. It says so when it forgets.
	told uint64
	// leave is under way if somebody has found it in another directory than at.dir.
	leave *leaving
	// past are the places in aliases.past that have it, the oldest first.
	past []place
	// removed says that the kernel may take it for removed.
	removed bool
}

// leaving waits until the kernel has taken in all that it was told of a directory in the place where it was.
type leaving struct {
	from  place
	named bool          // the kernel has no other directory at from
	done  chan struct{} // closed at the end
	ok    bool          // set before that
}

func (a *alias) sure() bool { return len(a.was) == 0 }

// doubt says that the kernel is about to be told of another place, and may go on to have the directory in the old one.
func (a *alias) doubt() {
	if !slices.Contains(a.was, a.at) {
		a.was = append(a.was, a.at)
	}
	a.looked = false
}

// place is an entry of a directory that the kernel knows.
type place struct {
	dir  nodeID
	name string
}

// aliasLimit is how long a LOOKUP waits for the kernel to forget. The notice waits for the lock of the
// old directory, which the program that looks up may have itself.
const aliasLimit = 20 * time.Millisecond

// maxWas bounds in how many places the kernel may have a directory.
const maxWas = 8

// maxPast bounds how many places of a directory are remembered: more than it is moved to during one removal.
const maxPast = 64

// maxDepth bounds how deep a directory may be: more than a path can name.
const maxDepth = 2048

func (x *aliases) init() {
	x.mu.Init("fs.aliases")
	x.limit = aliasLimit
	x.mu.of, x.mu.at, x.mu.now = make(map[nodeID]*alias), make(map[place]nodeID), make(map[dsm.Ino]nodeID)
	x.mu.past = make(map[place][]nodeID)
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
	node nodeID
	sure bool
	// leave must end before the kernel may be told. It was not told yet.
	leave *leaving
	begun bool // by this call
}

// tell returns under which number the kernel is told that the directory is at p.
func (x *aliases) tell(ino dsm.Ino, p place, who teller) telling {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.nodeLocked(ino)
	a := x.mu.of[n]
	if a != nil && x.staysLocked(n, p) {
		x.toldLocked(n, p)
		return telling{node: n, sure: true}
	}
	if a != nil && who != theChild && (who == lastTry || len(a.was) >= maxWas || x.withinLocked(p.dir, n)) {
		n, a = x.otherLocked(ino), nil
	}
	if a == nil {
		a = new(alias)
		x.mu.of[n] = a
	} else if a.at.dir == p.dir {
		if !x.freeLocked(n, p) {
			a.doubt()
		}
	} else {
		l, begun := a.leave, false
		if l == nil || l.from != a.at || l.failed() {
			l, begun = &leaving{from: a.at, named: x.mu.at[a.at] == n, done: make(chan struct{})}, true
			a.leave = l
		}
		if !l.over() {
			return telling{node: n, leave: l, begun: begun}
		}
		a.doubt()
	}
	x.toldLocked(n, p)
	a.looked = a.looked || who == theChild
	return telling{node: n, sure: a.sure()}
}

// staysLocked reports whether the kernel can take in that the directory is at p without a lock of another directory.
func (x *aliases) staysLocked(n nodeID, p place) bool {
	a := x.mu.of[n]
	return a.sure() && a.at.dir == p.dir && x.freeLocked(n, p)
}

// freeLocked reports whether the kernel knows no other directory at p.
func (x *aliases) freeLocked(n nodeID, p place) bool {
	m, ok := x.mu.at[p]
	return !ok || m == n
}

// toldLocked says that the kernel is told that the directory is at p. Whoever waits to tell of another directory begins anew.
func (x *aliases) toldLocked(n nodeID, p place) {
	x.vacateLocked(p, n)
	a := x.mu.of[n]
	if x.mu.at[a.at] == n && a.at != p {
		x.passLocked(n, a.at)
		delete(x.mu.at, a.at)
	}
	a.at, a.leave = p, nil
	x.mu.at[p] = n
	a.told++
}

// vacateLocked says that what the kernel is told of p is not another directory than n.
func (x *aliases) vacateLocked(p place, n nodeID) {
	if x.freeLocked(n, p) {
		return
	}
	if a := x.mu.of[x.mu.at[p]]; a != nil {
		a.doubt()
		x.passLocked(x.mu.at[p], p)
	}
	delete(x.mu.at, p)
}

// vacate says that the kernel is told of no directory at p.
func (x *aliases) vacate(p place) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.vacateLocked(p, 0)
}

// over reports whether the kernel has taken in all.
func (l *leaving) over() bool { return l.ended() && l.ok }

func (l *leaving) failed() bool { return l.ended() && !l.ok }

func (l *leaving) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// nodeLocked returns under which number the kernel is told of the directory.
func (x *aliases) nodeLocked(ino dsm.Ino) nodeID {
	n, ok := x.mu.now[ino]
	if !ok {
		n = nodeOf(ino, 0)
	}
	if a := x.mu.of[n]; a != nil && a.removed {
		return x.otherLocked(ino)
	}
	return n
}

// otherLocked returns a number of the directory that the kernel does not know.
func (x *aliases) otherLocked(ino dsm.Ino) nodeID {
	for k := range uint64(maxNodes) {
		if n := nodeOf(ino, k); x.mu.of[n] == nil {
			x.mu.now[ino] = n
			return n
		}
	}
	return nodeOf(ino, 0) // not with less than terabytes of directories in the kernel
}

// withinLocked reports whether dir is, or is in, the directory n as the kernel may have it, which cannot move it there (ELOOP).
func (x *aliases) withinLocked(dir, n nodeID) bool {
	places := []nodeID{dir}
	for range maxDepth {
		if len(places) == 0 {
			return false
		}
		d := places[len(places)-1]
		places = places[:len(places)-1]
		if d == n {
			return true
		}
		if a := x.mu.of[d]; a != nil {
			places = append(places, a.at.dir)
			for _, w := range a.was {
				places = append(places, w.dir)
			}
		}
	}
	return true
}

// settled says that the child has found the directory at p.
func (x *aliases) settled(n nodeID, p place) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if a := x.mu.of[n]; a != nil && a.at == p && a.looked && x.mu.at[p] == n {
		a.was = nil
	}
}

// known returns under which number the kernel is told that the directory is at p, if it knows it in that directory, or
// not at all.
func (x *aliases) known(ino dsm.Ino, p place) (n nodeID, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n = x.nodeLocked(ino)
	if x.mu.of[n] == nil {
		x.mu.of[n] = new(alias)
	} else if !x.staysLocked(n, p) {
		return 0, false
	}
	x.toldLocked(n, p)
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

// inoAt returns the directory of which the kernel was last told at p, 0 if of none.
func (x *aliases) inoAt(p place) dsm.Ino {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n, ok := x.mu.at[p]; ok {
		return inoOf(uint64(n))
	}
	return 0
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
	for len(a.past) > 0 {
		x.unpassLocked(n, a)
	}
	if ino := inoOf(uint64(n)); x.mu.now[ino] == n {
		delete(x.mu.now, ino)
	}
}

// passLocked remembers that the kernel was told of the directory at p, of which it is told something else now.
func (x *aliases) passLocked(n nodeID, p place) {
	a := x.mu.of[n]
	if slices.Contains(a.past, p) {
		return
	}
	if len(a.past) == maxPast {
		x.unpassLocked(n, a)
	}
	a.past = append(a.past, p)
	x.mu.past[p] = append(x.mu.past[p], n)
}

// unpassLocked forgets the oldest such place.
func (x *aliases) unpassLocked(n nodeID, a *alias) {
	p := a.past[0]
	a.past = a.past[1:]
	left := slices.DeleteFunc(x.mu.past[p], func(m nodeID) bool { return m == n })
	if x.mu.past[p] = left; len(left) == 0 {
		delete(x.mu.past, p)
	}
}

// removed says that a call has removed the directory at p. Another node may have moved a first directory away from there, and put a second in its place, while
// the kernel still had the first. The kernel then believes that the first was removed, and finds nothing in it any more (K53). If it is known which one the
// kernel had, the removal is refused once: see victim. If the second was removed all the same, the kernel is told of the first by another number from now on.
// Any directory that the kernel was ever told of at p may be the first, since several threads look up at the same time.
func (x *aliases) removed(p place) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removedLocked(p)
}

func (x *aliases) removedLocked(p place) {
	if a := x.mu.of[x.mu.at[p]]; a != nil {
		a.removed = true
	}
	for _, n := range x.mu.past[p] {
		x.mu.of[n].removed = true
	}
}

// renamed says that the kernel itself has moved what was at from, and what was at to
// there if the two were exchanged.
func (x *aliases) renamed(from, to place, exchanged bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !exchanged {
		x.removedLocked(to)
	}
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

// Forget is called when the kernel drops an inode of which it was told so many times.
func (b *bridge) Forget(node, times uint64) {
	b.aliases.drop(nodeID(node), times)
	b.walIndexes.forget(inoOf(node), times)
	b.versions.forget(node, times)
}
