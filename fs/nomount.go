package fs

import (
	"context"
	"errors"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// serveAttachOnly is Mount without a mount.
func serveAttachOnly(cfg Config) (*FS, error) {
	if cfg.AttachSocket == "" {
		return nil, errs.E(errs.Invalid, "mount", "neither a mount point nor a socket to attach at")
	}
	f := &FS{b: newBridge(cfg), served: make(chan struct{})}
	var err error
	if f.attach, err = f.b.newAttach(); err != nil {
		return nil, errors.Join(err, f.Unmount(context.Background(), true))
	}
	f.attach.Serve()
	return f, nil
}

// noKernel takes the place of the kernel's page cache where nothing is mounted, or not yet: it has no inodes.
type noKernel struct{}

func (noKernel) InodeNotify(uint64, int64, int64) fuse.Status { return fuse.ENOENT }
func (noKernel) EntryNotify(uint64, string) fuse.Status       { return fuse.OK }

func (noKernel) InodeNotifyStoreCache(uint64, int64, []byte) fuse.Status { return fuse.ENOENT }
