package fs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A client is a process that uses a mount on behalf of a test. The test process,
// which is the daemon, must never touch its own mount itself: it would hang for good.

// clientTimeout ends a call that hangs.
const clientTimeout = 20 * time.Second

type clientCall struct {
	Op   string
	Path string
	To   string // second path, xattr name
	Flag int
	Mode uint32
	FD   int
	Off  int64
	Len  int
	Data []byte
}

type clientReply struct {
	Errno  syscall.Errno
	SIGBUS bool
	Other  string
	N      int64
	Data   []byte
	Names  []string
	Stat   unix.Stat_t
	Statfs unix.Statfs_t
}

// client is the test's end.
type client struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      *json.Encoder
	inPipe  io.Closer
	replies chan clientReply
	exited  chan struct{}
}

// selfCommand is a process that runs main's verb of the test binary.
func selfCommand(verb string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), verbEnv+"="+verb, noRaceWait)
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	return cmd
}

func startClient(t *testing.T) *client {
	t.Helper()
	c := &client{t: t, cmd: selfCommand("client"), replies: make(chan clientReply), exited: make(chan struct{})}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.in, c.inPipe = json.NewEncoder(in), in
	go func() {
		dec := json.NewDecoder(out)
		for {
			var r clientReply
			if dec.Decode(&r) != nil {
				break
			}
			c.replies <- r
		}
		close(c.replies)
		c.cmd.Wait()
		close(c.exited)
	}()
	t.Cleanup(func() { c.stop() })
	return c
}

// stop ends the client at the end of its input, and kills it if that takes long.
func (c *client) stop() {
	c.inPipe.Close()
	go func() {
		for range c.replies {
		}
	}()
	select {
	case <-c.exited:
		return
	case <-time.After(clientTimeout):
		c.t.Errorf("client %d does not end; killing it", c.cmd.Process.Pid)
		c.cmd.Process.Kill()
	}
	select {
	case <-c.exited:
	case <-time.After(clientTimeout):
		c.t.Errorf("client %d cannot be killed", c.cmd.Process.Pid)
	}
}

// start makes a call without waiting for its reply.
func (c *client) start(call clientCall) {
	c.t.Helper()
	if err := c.in.Encode(call); err != nil {
		c.t.Fatal(err)
	}
}

// reply waits for the reply of a started call.
func (c *client) reply() clientReply {
	c.t.Helper()
	select {
	case r, ok := <-c.replies:
		if !ok {
			c.t.Fatal("client died")
		}
		if r.Other != "" {
			c.t.Fatal(r.Other)
		}
		return r
	case <-time.After(clientTimeout):
		c.t.Fatal("client: no reply")
	}
	panic("not reached")
}

func (c *client) call(call clientCall) clientReply {
	c.t.Helper()
	c.start(call)
	return c.reply()
}

// must is call, and the test fails if the call does.
func (c *client) must(call clientCall) clientReply {
	c.t.Helper()
	r := c.call(call)
	if r.Errno != 0 || r.SIGBUS {
		c.t.Fatalf("%s %s %s: %v (SIGBUS %v)", call.Op, call.Path, call.To, r.Errno, r.SIGBUS)
	}
	return r
}

// wantErrno makes a call that is to fail.
func (c *client) wantErrno(want syscall.Errno, call clientCall) {
	c.t.Helper()
	if r := c.call(call); r.Errno != want {
		c.t.Errorf("%s %s %s: errno %v, want %v", call.Op, call.Path, call.To, r.Errno, want)
	}
}

func (c *client) open(path string, flag int) int {
	c.t.Helper()
	return int(c.must(clientCall{Op: "open", Path: path, Flag: flag, Mode: 0o644}).N)
}

// clientMain is the process.
func clientMain() {
	signal.Ignore(syscall.SIGUSR1)
	debug.SetPanicOnFault(true)
	runtime.LockOSThread() // what a read goes on with depends on the thread
	s := clientState{maps: make(map[int][]byte)}
	dec, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var call clientCall
		if err := dec.Decode(&call); err != nil {
			return
		}
		if err := out.Encode(s.do(call)); err != nil {
			return
		}
	}
}

type clientState struct {
	maps  map[int][]byte
	next  int
	stopc chan struct{}
	added chan int64
}

func (s *clientState) do(c clientCall) (r clientReply) {
	defer func() {
		if v := recover(); v != nil {
			var fault interface{ Addr() uintptr }
			if err, ok := v.(error); ok && errors.As(err, &fault) {
				r = clientReply{SIGBUS: true}
				return
			}
			r = clientReply{Other: fmt.Sprint("client: ", v)}
		}
	}()
	err := s.run(c, &r)
	if err != nil && !errors.As(err, &r.Errno) {
		r.Other = err.Error()
	}
	return r
}

func (s *clientState) run(c clientCall, r *clientReply) (err error) {
	switch c.Op {
	case "open":
		fd, err := unix.Open(c.Path, c.Flag|unix.O_CLOEXEC, c.Mode)
		r.N = int64(fd)
		return err
	case "close":
		return unix.Close(c.FD)
	case "fatal": // makes a signal end the program without its runtime
		if c.Flag == int(syscall.SIGKILL) {
			return nil
		}
		var deflt [4]uintptr
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(c.Flag), uintptr(unsafe.Pointer(&deflt[0])), 0, 8, 0, 0); e != 0 {
			return e
		}
		return nil
	case "catch": // so that SIGINT does not end the program
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
		return nil
	case "pread":
		r.Data = make([]byte, c.Len)
		n, err := unix.Pread(c.FD, r.Data, c.Off)
		r.Data = r.Data[:max(n, 0)]
		return err
	case "pwrite":
		n, err := unix.Pwrite(c.FD, c.Data, c.Off)
		r.N = int64(n)
		return err
	case "write":
		n, err := unix.Write(c.FD, c.Data)
		r.N = int64(n)
		return err
	case "fsync":
		return unix.Fsync(c.FD)
	case "fstat":
		return unix.Fstat(c.FD, &r.Stat)
	case "stat":
		return unix.Lstat(c.Path, &r.Stat)
	case "statfs":
		return unix.Statfs(c.Path, &r.Statfs)
	case "truncate":
		return unix.Truncate(c.Path, c.Off)
	case "ftruncate":
		return unix.Ftruncate(c.FD, c.Off)
	case "fallocate":
		return unix.Fallocate(c.FD, uint32(c.Flag), c.Off, int64(c.Len))
	case "seek":
		r.N, err = unix.Seek(c.FD, c.Off, c.Flag)
		return err
	case "mkdir":
		return unix.Mkdir(c.Path, c.Mode)
	case "rmdir":
		return unix.Rmdir(c.Path)
	case "unlink":
		return unix.Unlink(c.Path)
	case "rename":
		return unix.Renameat2(unix.AT_FDCWD, c.Path, unix.AT_FDCWD, c.To, uint(c.Flag))
	case "link":
		return unix.Link(c.Path, c.To)
	case "symlink":
		return unix.Symlink(c.To, c.Path)
	case "mknod":
		return unix.Mknod(c.Path, c.Mode, 0)
	case "chmod":
		return unix.Chmod(c.Path, c.Mode)
	case "chdir":
		return unix.Chdir(c.Path)
	case "utimes":
		ts := unix.NsecToTimespec(c.Off)
		return unix.UtimesNanoAt(unix.AT_FDCWD, c.Path, []unix.Timespec{ts, ts}, 0)
	case "readfile":
		r.Data, err = os.ReadFile(c.Path)
		return err
	case "writefile":
		return os.WriteFile(c.Path, c.Data, 0o644)
	case "readdir":
		d, err := os.Open(c.Path)
		if err != nil {
			return err
		}
		defer d.Close()
		r.Names, err = d.Readdirnames(-1)
		return err
	case "getxattr":
		buf := make([]byte, 4096)
		n, err := unix.Getxattr(c.Path, c.To, buf)
		r.Data = buf[:max(n, 0)]
		return err
	case "setxattr":
		return unix.Setxattr(c.Path, c.To, c.Data, c.Flag)
	case "removexattr":
		return unix.Removexattr(c.Path, c.To)
	case "setfsuid":
		_, err := unix.SetfsuidRetUid(c.Flag)
		return err
	case "listxattr":
		buf := make([]byte, 4096)
		n, err := unix.Listxattr(c.Path, buf)
		r.Names = strings.Split(strings.Trim(string(buf[:max(n, 0)]), "\x00"), "\x00")
		return err
	default:
		return s.memory(c, r)
	}
}

// memory does what has to do with mappings; FD numbers the mapping but for mmap.
func (s *clientState) memory(c clientCall, r *clientReply) error {
	m := s.maps[c.FD]
	switch c.Op {
	case "mmap":
		m, err := unix.Mmap(c.FD, c.Off, c.Len, c.Flag, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		if err := unix.Madvise(m, unix.MADV_RANDOM); err != nil { // a page at a time
			return err
		}
		s.next++
		s.maps[s.next] = m
		r.N = int64(s.next)
	case "munmap":
		delete(s.maps, c.FD)
		return unix.Munmap(m)
	case "store":
		copy(m[c.Off:], c.Data)
	case "load":
		r.Data = append([]byte(nil), m[c.Off:c.Off+int64(c.Len)]...)
	case "msync":
		return unix.Msync(m, unix.MS_SYNC)
	case "spin": // until the bytes are there, for another thread's eyes
		for string(m[c.Off:c.Off+int64(len(c.Data))]) != string(c.Data) {
		}
	case "adders": // threads that add 1 to int64 elements until told to stop
		s.stopc, s.added = make(chan struct{}), make(chan int64)
		words := unsafe.Slice((*int64)(unsafe.Pointer(&m[0])), len(m)/8)
		for range c.Len {
			go func() {
				n := int64(0)
				for i := 0; ; i++ {
					select {
					case <-s.stopc:
						s.added <- n
						return
					default:
					}
					atomic.AddInt64(&words[i*7%len(words)], 1)
					n++
				}
			}()
		}
	case "stopadders":
		close(s.stopc)
		for range c.Len {
			r.N += <-s.added
		}
	default:
		return fmt.Errorf("client: unknown call %q", c.Op)
	}
	return nil
}
