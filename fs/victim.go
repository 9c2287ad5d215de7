package fs

import (
	"syscall"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// victim returns the directory that the kernel takes for removed once a call of the thread has removed what is at p (K53), 0 if that is none.
// The kernel looks the name up under the lock under which it then asks for the removal. So it is what the thread was told last, even if other threads
// have been told of something else since. If the thread did not ask, it is what the kernel was allowed to keep.
//
// This can be wrong: the thread may have asked in an earlier call, or the kernel may not have taken in what it was told. See aliases.removed.
func (b *bridge) victim(tid uint32, p place) dsm.Ino {
	if i, ok := b.lookups.last(tid, p); ok && i.Kind == dsm.KindDir {
		return i.Ino
	}
	return b.aliases.inoAt(p)
}

// remove makes a call that removes what is at p. The call is told which directory the kernel means by that. If the name is another's by now, the kernel is
// told ESTALE, and looks up the path once more. It does that once in a call of a program, and not at all in others: then whatever is there is removed.
func (b *bridge) remove(r *request, p place, call func(victim dsm.Ino) error) fuse.Status {
	err := call(b.victim(r.tid, p))
	if errs.Is(err, errs.Replaced) {
		if !b.retries.has(r.tid) && b.walksTwice(r) {
			b.retries.set(r.tid)
			return fuse.Status(syscall.ESTALE)
		}
		err = call(0)
	}
	b.retries.drop(r.tid)
	return status(err)
}
