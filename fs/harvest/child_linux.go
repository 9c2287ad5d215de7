package harvest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs/errno"
)

// Main runs the child process that harvests for a daemon. It reads requests from in and writes
// answers to out until in ends. cmd calls it for the hidden verb in Config.Argv. The child has no
// descriptor of /dev/fuse, so it may block on the mount without blocking anybody else. Its only
// open files of the mount are read-only descriptors of areas that a program may store into.
//
// Everything happens in one goroutine. It waits for input and for the next round at a single place:
// see alarm.
func Main(in, out *os.File) error {
	c := worker{
		began:    time.Now(),
		fds:      make(map[uint64]int),
		reported: make(map[uint64]time.Duration),
	}
	c.schedule.places = make(map[uint64]int)
	defer c.closeAll()
	var err error
	if c.alarm, err = newAlarm(int(in.Fd())); err != nil { // Fd makes reads block
		return err
	}
	defer c.alarm.close()
	requests := bufio.NewReader(in)
	for {
		c.round()
		if requests.Buffered() == 0 {
			if ready, err := c.wait(); err != nil {
				return err
			} else if !ready {
				continue
			}
		}
		q, err := readRequest(requests)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if answer := c.do(q); answer != nil {
			if _, err := out.Write(answer); err != nil {
				return err
			}
		}
	}
}

type worker struct {
	began    time.Time
	dir      string
	fds      map[uint64]int // by inode number
	schedule schedule
	reported map[uint64]time.Duration // when the last error of an area was reported
	alarm    *alarm
}

// reportPause is the least time between two reports of errors for one area.
const reportPause = time.Minute

func (c *worker) now() time.Duration { return time.Since(c.began) }

// wait returns when there is input, or when the next area is due.
func (c *worker) wait() (ready bool, err error) {
	at, ok := c.schedule.next()
	if !ok {
		return c.alarm.wait(never)
	}
	return c.alarm.wait(max(at-c.now(), 0))
}

// round harvests the areas that are due.
func (c *worker) round() {
	began := c.now()
	start := began
	for i := range c.schedule.watches {
		w := &c.schedule.watches[i]
		if !w.isDue(began) {
			continue
		}
		e := c.sync(item{ino: w.ino})
		end := c.now()
		w.harvested(start, end-start)
		if e != 0 {
			c.report(w.ino, e, end)
		}
		start = end
	}
}

// do carries out a request of the daemon and returns the answer, if the request has one.
func (c *worker) do(q request) []byte {
	results := make([]uint32, q.answers())
	switch q.op {
	case opHello:
		c.dir = q.path
		return nil
	case opWatch:
		now := c.now()
		for _, it := range q.items {
			c.schedule.set(it.ino, time.Duration(it.every), now)
		}
		return nil
	case opSync:
		for i, it := range q.items {
			results[i] = uint32(c.sync(it))
		}
	case opStat:
		for i, it := range q.items {
			var st unix.Stat_t
			results[i] = uint32(errno.Of(unix.Stat(c.path(it.ino), &st)))
		}
	case opLook:
		var st unix.Stat_t
		if results[0] = uint32(errno.Of(unix.Lstat(q.path, &st))); results[0] == 0 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			results[0] = uint32(unix.ENOTDIR)
		}
	case opFree:
		for i, it := range q.items {
			results[i] = uint32(errno.Of(free(it)))
		}
	case opClose:
		for _, it := range q.items {
			c.schedule.remove(it.ino)
			c.close(it.ino)
		}
	}
	return appendReply(nil, results)
}

// sync makes the kernel send, as WRITE requests, what programs have stored into their mappings, and
// returns when the daemon has answered these. The system call can block, but it is raw all the
// same: nearly always there is nothing to send, a normal call would cost what alarm describes, and
// no other goroutine of the child has anything to do.
func (c *worker) sync(it item) syscall.Errno {
	fd, ok := c.fds[it.ino]
	if !ok {
		var err error
		if fd, err = unix.Open(c.path(it.ino), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
			return errno.Of(err)
		}
		c.fds[it.ino] = fd
	}
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	for {
		_, _, e := unix.RawSyscall6(unix.SYS_SYNC_FILE_RANGE, uintptr(fd), uintptr(it.off), uintptr(it.n), all, 0, 0)
		if e != unix.EINTR {
			return e
		}
	}
}

// free frees memory of a memfd of the daemon: see Freer.
func free(it item) error {
	open := func(fd uint64) (int, error) {
		return unix.Open(fmt.Sprintf("/proc/%d/fd/%d", it.n, fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	}
	if it.lock != 0 { // first: if the daemon is killed after that, the memfd cannot be opened any more
		lock, err := open(it.lock)
		if err != nil {
			return err
		}
		defer unix.Close(lock)
		l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(it.at), Len: 1}
		if err := unix.FcntlFlock(uintptr(lock), unix.F_OFD_SETLK, &l); err != nil {
			return err
		}
	}
	fd, err := open(it.ino)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(it.off), math.MaxInt64-int64(it.off))
}

// report logs an error of a harvest that nobody waits for.
func (c *worker) report(ino uint64, e syscall.Errno, now time.Duration) {
	if last, ok := c.reported[ino]; ok && now-last < reportPause {
		return
	}
	c.reported[ino] = now
	fmt.Fprintf(os.Stderr, "harvest area %d: %v\n", ino, e)
}

func (c *worker) path(ino uint64) string {
	return filepath.Join(c.dir, strconv.FormatUint(ino, 10))
}

func (c *worker) close(ino uint64) {
	delete(c.reported, ino)
	if fd, ok := c.fds[ino]; ok {
		unix.Close(fd)
		delete(c.fds, ino)
	}
}

func (c *worker) closeAll() {
	for ino := range c.fds {
		c.close(ino)
	}
}
