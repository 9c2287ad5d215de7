// Package errno maps errors to the error numbers that programs see.
package errno

import (
	"context"
	"errors"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// table maps kinds of errors to error numbers. A kind without a line here becomes EIO, and a test
// reports it.
var table = [...]syscall.Errno{
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
	errs.WouldBlock:   syscall.EAGAIN,
	errs.Deadlock:     syscall.EDEADLK,
	errs.Dropped:      syscall.ESTALE,
	errs.NotFinite:    syscall.ERANGE,
	errs.Evicted:      syscall.EIO,
	errs.Replaced:     syscall.ESTALE,
}

// Of returns the error number that a program sees for err. An error of the operating system keeps
// its number. A program sees EINTR only when it is being killed or has been interrupted.
func Of(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if k := errs.KindOf(err); k != errs.Other {
		if int(k) < len(table) {
			return table[k]
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
