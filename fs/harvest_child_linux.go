package fs

import (
	"errors"
	"io"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// HarvestMain is the child process that harvests for a daemon: it reads
// requests from r and answers on w until r ends. cmd calls it for the
// hidden verb of Config.HarvestArgv. The child has no descriptor of /dev/fuse, so
// it may block on the mount without anyone else blocking; what it holds of the
// mount are read-only descriptors of areas that a program may store into.
func HarvestMain(r io.Reader, w io.Writer) error {
	c := harvestChild{fds: make(map[uint64]int)}
	defer c.closeAll()
	for {
		q, err := readHarvestRequest(r)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case q.op == harvestHello:
			c.mount = q.mount
			continue
		}
		results := make([]harvestResult, len(q.items))
		for i, it := range q.items {
			if q.op == harvestClose {
				c.close(it.ino)
				continue
			}
			start := time.Now()
			results[i].errno = uint32(c.sync(it))
			results[i].nanoseconds = uint64(time.Since(start))
		}
		if _, err := w.Write(appendHarvestReply(nil, results)); err != nil {
			return err
		}
	}
}

type harvestChild struct {
	mount string
	fds   map[uint64]int // by inode number
}

// sync makes the kernel send what programs have stored into their mappings as
// WRITE requests, and returns when these are answered.
func (c *harvestChild) sync(it harvestItem) syscall.Errno {
	fd, ok := c.fds[it.ino]
	if !ok {
		var err error
		if fd, err = unix.Open(c.path(it.ino), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
			return errno(err)
		}
		c.fds[it.ino] = fd
	}
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	for {
		err := unix.SyncFileRange(fd, int64(it.off), int64(it.n), all)
		if !errors.Is(err, unix.EINTR) {
			return errno(err)
		}
	}
}

func (c *harvestChild) path(ino uint64) string {
	return filepath.Join(c.mount, controlName, inoDirName, strconv.FormatUint(ino, 10))
}

func (c *harvestChild) close(ino uint64) {
	if fd, ok := c.fds[ino]; ok {
		unix.Close(fd)
		delete(c.fds, ino)
	}
}

func (c *harvestChild) closeAll() {
	for ino := range c.fds {
		c.close(ino)
	}
}
