// Command barefuse is the yardstick of the benchmarks: the least that any FUSE
// filesystem does. Its files take every WRITE and FSYNC at once and keep nothing
// but their size; what is left is the cost of the kernel and of go-fuse.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

type root struct{ fs.Inode }

type file struct {
	fs.Inode
	size atomic.Uint64
}

var (
	_ fs.NodeCreater   = (*root)(nil)
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeSetattrer = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
)

func (r *root) Create(ctx context.Context, name string, _ uint32, mode uint32, _ *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	child := r.NewInode(ctx, &file{}, fs.StableAttr{Mode: syscall.S_IFREG})
	r.AddChild(name, child, true)
	return child, nil, fuse.FOPEN_KEEP_CACHE, 0
}

func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_KEEP_CACHE, 0
}

func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = 0o644, f.size.Load()
	return 0
}

func (f *file) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		f.size.Store(size)
	}
	out.Mode, out.Size = 0o644, f.size.Load()
	return 0
}

func (f *file) Read(_ context.Context, _ fs.FileHandle, dest []byte, _ int64) (fuse.ReadResult, syscall.Errno) {
	clear(dest)
	return fuse.ReadResultData(dest), 0
}

func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if end := uint64(off) + uint64(len(data)); end > f.size.Load() {
		f.size.Store(end)
	}
	return uint32(len(data)), 0
}

func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return 0 }

func main() {
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "barefuse:", err)
		os.Exit(1)
	}
}

func serve(mount string) error {
	server, err := fs.Mount(mount, &root{}, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true, Name: "barefuse", MaxWrite: 1 << 20}})
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	fmt.Println("ready")
	go func() {
		<-stop
		_ = server.Unmount() // fails while a client is in it; the benchmark's harness sees that
	}()
	server.Wait()
	return nil
}
