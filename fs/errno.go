package fs

import (
	"context"
	"errors"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// errnoOf is the one table from a kind of error to what a program sees. A kind
// with no line here becomes EIO; the test finds it.
var errnoOf = [...]syscall.Errno{
	errs.Other:        syscall.EIO,
	errs.Invalid:      syscall.EINVAL,
	errs.NotExist:     syscall.ENOENT,
	errs.Exist:        syscall.EEXIST,
	errs.NotDir:       syscall.ENOTDIR,
	errs.IsDir:        syscall.EISDIR,
	errs.NotEmpty:     syscall.ENOTEMPTY,
	errs.Permission:   syscall.EPERM,
	errs.Access:       syscall.EACCES,
	errs.NoSpace:      syscall.ENOSPC,
	errs.TooLarge:     syscall.EFBIG,
	errs.NameTooLong:  syscall.ENAMETOOLONG,
	errs.Unsupported:  syscall.EOPNOTSUPP,
	errs.Busy:         syscall.EBUSY,
	errs.NoAttr:       syscall.ENODATA,
	errs.Timeout:      syscall.EIO,
	errs.Unavailable:  syscall.EIO,
	errs.NotLeader:    syscall.EIO,
	errs.StaleEpoch:   syscall.EIO,
	errs.StaleGen:     syscall.EIO,
	errs.Corrupt:      syscall.EIO,
	errs.Closed:       syscall.EIO,
	errs.Interrupted:  syscall.EINTR,
	errs.CrossesDir:   syscall.EINVAL,
	errs.TooManyLinks: syscall.EMLINK,
}

// errno returns what a program sees of err. An error of the operating system
// keeps its number; EINTR is only ever seen by a program that is being killed.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if k := errs.KindOf(err); k != errs.Other {
		if int(k) < len(errnoOf) {
			return errnoOf[k]
		}
		return syscall.EIO
	}
	var sys syscall.Errno
	switch {
	case errors.As(err, &sys):
		return sys
	case errors.Is(err, context.Canceled):
		return syscall.EINTR
	}
	return syscall.EIO
}

// status is errno for the answer to a request.
func status(err error) fuse.Status { return fuse.Status(errno(err)) }

// inodeStatus is status for a request that names an inode rather than a path:
// an inode that is gone is ESTALE, at which the kernel walks the path again.
// So an open that races with a rename over the name finds the new file.
func inodeStatus(err error) fuse.Status {
	if errs.Is(err, errs.NotExist) {
		return fuse.Status(syscall.ESTALE)
	}
	return status(err)
}
