package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/fs/errno"
)

// status is the answer to a request that ended with err.
func status(err error) fuse.Status { return fuse.Status(errno.Of(err)) }
