package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/fs/errno"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// status is the answer to a request that ended with err.
func status(err error) fuse.Status { return fuse.Status(errno.Of(err)) }

// inodeStatus is status for a request that names an inode instead of a path: if the inode is gone
// the answer is ESTALE, which makes the kernel walk the path again. So an open that races with a
// rename over the name finds the new file.
func inodeStatus(err error) fuse.Status {
	if errs.Is(err, errs.NotExist) {
		return fuse.Status(syscall.ESTALE)
	}
	return status(err)
}
