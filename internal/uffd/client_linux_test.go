package uffd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The clients are processes of their own: this binary again, which obeys lines that come
// over a socket. Descriptor 3 is the socket, 4 the memfd.
const clientEnv = "DSMFS_UFFD_TEST_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(clientEnv) != "" {
		clientMain()
		return
	}
	if words := os.Getenv(daemonEnv); words != "" {
		daemonMain(words)
		return
	}
	if os.Getenv(guardEnv) != "" {
		guardMain()
		return
	}
	os.Exit(m.Run())
}

// clientState is what a client has mapped and what its threads do.
type clientState struct {
	uffd    int
	stop    atomic.Bool
	writers sync.WaitGroup

	touching              sync.WaitGroup
	touched, faulted, sum atomic.Uint64
}

func clientMain() {
	unix.CloseOnExec(3) // so that the parent sees an exec
	// A thread that waits in a page fault keeps its place in the scheduler, and can
	// not be stopped for a garbage collection.
	runtime.GOMAXPROCS(256)
	debug.SetGCPercent(-1)
	var s clientState
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(3, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		s.uffd = -1
		f := strings.Fields(string(buf[:n]))
		args := make([]uint64, len(f)+8)
		for i, a := range f[1:] {
			if args[i], err = strconv.ParseUint(a, 0, 64); err != nil {
				panic(err)
			}
		}
		value, errno := s.obey(f[0], args)
		var rights []byte
		if s.uffd >= 0 {
			rights = unix.UnixRights(s.uffd)
		}
		if err := unix.Sendmsg(3, fmt.Appendf(nil, "%d %d", value, errno), rights, nil, 0); err != nil {
			panic(err)
		}
		if s.uffd >= 0 {
			_ = unix.Close(s.uffd)
		}
	}
}

func word(addr uint64) *atomic.Uint64 {
	// Through a pointer to the integer, as the address is of no Go object.
	return (*atomic.Uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&addr)))
}

// obey does one command and returns its value.
func (s *clientState) obey(name string, a []uint64) (uint64, syscall.Errno) {
	call := func(trap, a1, a2, a3, a4, a5, a6 uint64) (uint64, syscall.Errno) {
		v, _, errno := unix.Syscall6(uintptr(trap), uintptr(a1), uintptr(a2), uintptr(a3), uintptr(a4), uintptr(a5), uintptr(a6))
		return uint64(v), errno
	}
	switch name {
	case "mmap": // length offset prot flags
		return call(unix.SYS_MMAP, 0, a[0], a[2], a[3], 4, a[1])
	case "mmapfixed": // addr length
		return call(unix.SYS_MMAP, a[0], a[1], unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED, ^uint64(0), 0)
	case "occupy": // addr length: whatever is there stays
		v, errno := call(unix.SYS_MMAP, a[0], a[1], unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uint64(0), 0)
		if errno == unix.EEXIST {
			errno = 0
		}
		return v, errno
	case "munmap": // addr length
		return call(unix.SYS_MUNMAP, a[0], a[1], 0, 0, 0, 0)
	case "mprotect": // addr length prot
		return call(unix.SYS_MPROTECT, a[0], a[1], a[2], 0, 0, 0)
	case "mremap": // addr length newlength flags newaddr
		return call(unix.SYS_MREMAP, a[0], a[1], a[2], a[3], a[4], 0)
	case "madvise": // addr length advice
		return call(unix.SYS_MADVISE, a[0], a[1], a[2], 0, 0, 0)
	case "uffd": // flags, 1 to do the handshake
		fd, errno := call(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|a[0], 0, 0, 0, 0, 0)
		if errno == 0 {
			s.uffd = int(fd)
			if a[1] == 1 {
				if _, err := handshake(s.uffd, 0); err != nil {
					return 0, err.(syscall.Errno)
				}
			}
		}
		return fd, errno
	case "memfd": // sends it as if it were a userfaultfd
		fd, err := unix.Dup(4)
		s.uffd = fd
		if err != nil {
			return 0, err.(syscall.Errno)
		}
	case "store": // addr length step value
		for at := a[0]; at < a[0]+a[1]; at += a[2] {
			word(at).Store(a[3])
		}
	case "load": // addr
		return word(a[0]).Load(), 0
	case "touch": // addr count step value: threads that each load, or store the value if it is not 0
		for i := range a[1] {
			s.touching.Go(func() { s.touch(a[0]+i*a[2], a[3]) })
		}
	case "touched": // waits for them: how many did it, how many got SIGBUS
		s.touching.Wait()
		return s.faulted.Swap(0)<<32 | s.touched.Swap(0), 0
	case "roam": // addr length threads seed: loads, and stores beside, until "rest"
		s.stop.Store(false)
		for i := range a[2] {
			s.writers.Go(func() { s.roam(a[0], a[1], a[3]+i) })
		}
	case "latencies": // addr count step: the median of touching each in turn, in ns
		times := make([]time.Duration, a[1])
		for i := range times {
			begin := time.Now()
			word(a[0] + uint64(i)*a[2]).Load()
			times[i] = time.Since(begin)
		}
		slices.Sort(times)
		return uint64(times[len(times)/2]), 0
	case "sum": // of what they loaded
		return s.sum.Swap(0), 0
	case "sysread": // addr length: the kernel stores
		return call(unix.SYS_PREAD64, a[2], a[0], a[1], 0, 0, 0)
	case "open": // /dev/zero
		fd, err := unix.Open("/dev/zero", unix.O_RDONLY, 0)
		if err != nil {
			return 0, err.(syscall.Errno)
		}
		return uint64(fd), 0
	case "spin": // addr length threads seed dropping: stores until "rest"
		s.stop.Store(false)
		for i := range a[2] {
			s.writers.Go(func() { s.spin(a[0], a[1], a[3]+i, a[4] != 0 && i == 0) })
		}
	case "rest":
		s.stop.Store(true)
		s.writers.Wait()
	case "exit":
		os.Exit(0)
	case "exec":
		path := []byte("/bin/sleep\x00")
		argv := []*byte{&path[0], &[]byte("600\x00")[0], nil}
		return call(unix.SYS_EXECVE, uint64(uintptr(unsafe.Pointer(&path[0]))), uint64(uintptr(unsafe.Pointer(&argv[0]))), 0, 0, 0, 0)
	default:
		panic("client: " + name)
	}
	return 0, 0
}

// touch counts how it went.
func (s *clientState) touch(addr, value uint64) {
	runtime.LockOSThread()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			s.faulted.Add(1)
		}
	}()
	if value != 0 {
		word(addr).Store(value)
	} else {
		s.sum.Add(word(addr).Load())
	}
	s.touched.Add(1)
}

// roam counts pages of which the first word is not their number plus one. It touches one at least, however late the thread begins.
func (s *clientState) roam(addr, length, seed uint64) {
	runtime.LockOSThread()
	random := rand.New(rand.NewPCG(seed, 1))
	for first := true; first || !s.stop.Load(); first = false {
		page := random.Uint64N(length / pageSize)
		if random.IntN(4) == 0 {
			word(addr + page*pageSize + 8).Store(seed)
		}
		if v := word(addr + page*pageSize).Load(); v != page+1 {
			s.sum.Add(1)
		}
		s.touched.Add(1)
	}
}

// spin stores at random: mostly to few pages, sometimes anywhere.
func (s *clientState) spin(addr, length, seed uint64, dropping bool) {
	runtime.LockOSThread()
	random := rand.New(rand.NewPCG(seed, 1))
	pages := length / pageSize
	hot := random.Uint64N(pages)
	for !s.stop.Load() {
		page := (hot + random.Uint64N(8)) % pages
		if random.Uint64N(4) == 0 {
			page = random.Uint64N(pages)
		}
		word(addr + page*pageSize + 8*random.Uint64N(pageSize/8)).Store(random.Uint64())
		switch n := random.Uint64N(4000); {
		case n == 0:
			hot = random.Uint64N(pages)
		case dropping && n < 20:
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(addr+page*pageSize), uintptr(pageSize), unix.MADV_DONTNEED)
		case dropping && n == 20: // whole page tables too
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(addr), uintptr(length), unix.MADV_DONTNEED)
		}
	}
}

// client is the parent's end.
type client struct {
	t      testing.TB
	cmd    *exec.Cmd
	socket int
	ended  func() // kills if need be and waits
	// Of area.program: an area and where all of it is mapped.
	area *area
	addr uint64
}

func newClient(t testing.TB, memfd int) *client {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	mem, err := unix.FcntlInt(uintptr(memfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	memFile := os.NewFile(uintptr(mem), "memfd")
	c := &client{t: t, socket: pair[0], cmd: exec.Command("/proc/self/exe")}
	// A signal ends a wait in a page fault, and the thread begins another. So the runtime of the
	// client sends itself none; see disturb.
	c.cmd.Env = append(os.Environ(), clientEnv+"=1", "GODEBUG=asyncpreemptoff=1")
	c.cmd.ExtraFiles = []*os.File{theirs, memFile}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The death signal is that of the thread, which must not end before the test.
	runtime.LockOSThread()
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	_ = memFile.Close()
	c.ended = sync.OnceFunc(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		_ = unix.Close(c.socket)
	})
	t.Cleanup(c.ended)
	return c
}

// begin sends a command without waiting for the answer.
func (c *client) begin(name string, args ...any) {
	c.t.Helper()
	line := fmt.Sprintln(append([]any{name}, args...)...)
	if err := unix.Sendto(c.socket, []byte(line), 0, nil); err != nil {
		c.t.Fatal(name, err)
	}
}

// answer waits for the answer to a command: its value, and a descriptor or -1.
func (c *client) answer() (value uint64, fd int, errno syscall.Errno) {
	c.t.Helper()
	buf, oob := make([]byte, 256), make([]byte, 64)
	timeout := unix.NsecToTimeval(int64(30 * time.Second))
	if err := unix.SetsockoptTimeval(c.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		c.t.Fatal(err)
	}
	n, oobn, err := 0, 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, oobn, _, _, err = unix.Recvmsg(c.socket, buf, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil || n == 0 {
		c.t.Fatal("the client does not answer: ", n, err)
	}
	if _, err := fmt.Sscan(string(buf[:n]), &value, (*uintptr)(&errno)); err != nil {
		c.t.Fatal(err)
	}
	fd = -1
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) > 0 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) > 0 {
			fd = fds[0]
		}
	}
	return value, fd, errno
}

// do runs a command, which must succeed.
func (c *client) do(name string, args ...any) uint64 {
	c.t.Helper()
	c.begin(name, args...)
	v, _, errno := c.answer()
	if errno != 0 {
		c.t.Fatal(name, args, errno)
	}
	return v
}

// descriptor runs a command that sends one.
func (c *client) descriptor(name string, args ...any) int {
	c.t.Helper()
	c.begin(name, args...)
	_, fd, errno := c.answer()
	if errno != 0 || fd < 0 {
		c.t.Fatal(name, args, errno)
	}
	return fd
}

// mmap maps a part of the memfd, shared and writable.
func (c *client) mmap(length, off int64) uint64 {
	c.t.Helper()
	return c.do("mmap", length, off, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// at is the address of a page of the area.
func (c *client) at(page uint64) uint64 { return c.addr + page*pageSize }

// exec ends the memory and not the process. It closes the socket, as exit does.
func (c *client) exec() {
	c.t.Helper()
	c.begin("exec")
	if n, err := unix.Read(c.socket, make([]byte, 64)); err != nil || n != 0 {
		c.t.Fatal("the client answers: ", n, err)
	}
}

// expectTouched waits for the threads that touch.
func (c *client) expectTouched(done, faulted uint64) {
	c.t.Helper()
	if v := c.do("touched"); v != faulted<<32|done {
		c.t.Errorf("%d touched and %d got SIGBUS, want %d and %d", v&0xffffffff, v>>32, done, faulted)
	}
}

// expectSum: what the threads that touch have loaded since the last call.
func (c *client) expectSum(want uint64) {
	c.t.Helper()
	if v := c.do("sum"); v != want {
		c.t.Errorf("they loaded %d, want %d", v, want)
	}
}

func (c *client) expectWord(addr, want uint64) {
	c.t.Helper()
	if v := c.do("load", addr); v != want {
		c.t.Errorf("loaded %d, want %d", v, want)
	}
}

func (c *client) store(addr uint64, value uint64) {
	c.t.Helper()
	c.do("store", addr, 8, 8, value)
}

// disturb sends a signal to every thread.
func (c *client) disturb() {
	c.t.Helper()
	pid := c.cmd.Process.Pid
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err == nil {
			err = unix.Tgkill(pid, tid, unix.SIGURG)
		}
		if err != nil && err != unix.ESRCH {
			c.t.Fatal(err)
		}
	}
}

func (c *client) pidfd() int {
	c.t.Helper()
	fd, err := unix.PidfdOpen(c.cmd.Process.Pid, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
