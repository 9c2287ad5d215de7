package uffd

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// A daemon is a process of its own that tracks a client and has a guard: this binary
// again, with the words of its environment as arguments. Descriptor 3 is a socket on which it tells
// what happens, then come the userfaultfd, the process and the memfd.
const (
	daemonEnv = "DSMFS_UFFD_TEST_DAEMON"
	guardEnv  = "DSMFS_UFFD_TEST_GUARD"
)

func guardMain() {
	if err := GuardMain(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startGuard starts the process of a guard; told gets its number.
func startGuard(told func(pid int)) (*os.File, func(), error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "guard"), os.NewFile(uintptr(pair[1]), "guard")
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), daemonEnv+"=", guardEnv+"=1")
	cmd.Stdin, cmd.Stderr = theirs, os.Stderr
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return nil, nil, err
	}
	told(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }()
	return ours, func() { _ = cmd.Process.Kill() }, nil
}

func daemonMain(words string) {
	say := func(args ...any) {
		if err := unix.Sendto(3, []byte(fmt.Sprintln(args...)), unix.MSG_NOSIGNAL, nil); err != nil {
			panic(err)
		}
	}
	var c Config
	_, err := fmt.Sscan(words, &c.Addr, &c.Length, &c.Dev, &c.Ino, &c.Mode)
	if err != nil {
		panic(err)
	}
	c.UFFD, c.PidFD, c.Memfd = 4, 5, 6
	unix.CloseOnExec(3)
	c.Missing = func(off int64) { say("missing", off/int64(pageSize)) }
	r, err := Track(c)
	if err != nil {
		panic(err)
	}
	g := NewGuard(func() (*os.File, func(), error) { return startGuard(func(pid int) { say("guard", pid) }) })
	if err := g.Add(r); err != nil {
		panic(err)
	}
	say("ready")
	buf := make([]byte, 1)
	for {
		n, err := unix.Read(3, buf)
		if n == 0 && err == nil {
			break
		}
		if n == 1 {
			g.Remove(&Range{}) // returns when a guard that was started has got everything
			say("handed")
		}
	}
	// The end of the socket is that of an orderly daemon.
	if err := r.Close(); err != nil {
		panic(err)
	}
	g.Remove(r)
	g.Close()
}

// daemon is the parent's end.
type daemon struct {
	t      testing.TB
	cmd    *exec.Cmd
	socket int
	ended  func()
}

func (a *area) daemon(c *client, mode Mode, addr uint64) *daemon {
	a.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		a.t.Fatal(err)
	}
	d := &daemon{t: a.t, socket: pair[0], cmd: exec.Command("/proc/self/exe")}
	d.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %d %d", daemonEnv, addr, a.size, a.stat.Dev, a.stat.Ino, mode))
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // see newClient
	for _, fd := range []int{pair[1], c.descriptor("uffd", 0), c.pidfd(), a.fd} {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			a.t.Fatal(err)
		}
		f := os.NewFile(uintptr(own), "")
		defer f.Close()
		if fd != a.fd {
			defer unix.Close(fd)
		}
		d.cmd.ExtraFiles = append(d.cmd.ExtraFiles, f)
	}
	if err := d.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	d.ended = sync.OnceFunc(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
		_ = unix.Close(d.socket)
	})
	a.t.Cleanup(d.ended)
	return d
}

// said waits for a message, which begins with the word, and returns its number.
func (d *daemon) said(word string) int {
	d.t.Helper()
	timeout := unix.NsecToTimeval(int64(30 * time.Second))
	if err := unix.SetsockoptTimeval(d.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		d.t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, err = unix.Read(d.socket, buf)
	}
	f := strings.Fields(string(buf[:max(n, 0)]))
	if err != nil || len(f) == 0 || f[0] != word {
		d.t.Fatalf("the daemon said %q, want %q: %v", f, word, err)
	}
	if len(f) == 1 {
		return 0
	}
	v, err := strconv.Atoi(f[1])
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

// openProcess returns a pidfd.
func openProcess(t testing.TB, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func awaitEnd(t testing.TB, pidfd int) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, err = unix.Poll(fds, 30000)
	}
	if n != 1 || err != nil {
		t.Fatal("the process does not end: ", n, err)
	}
}

// TestGuard kills a daemon: threads that wait get SIGBUS, and so does who comes later; what was
// there stays.
func TestGuard(t *testing.T) {
	missingModes(t, func(t *testing.T, mode Mode) {
		const pages = 700
		a := newArea(t, pages)
		f := newFiller(t, a, a.size)
		page := int64(pageSize)
		if _, err := f.Fill(10*page, pattern(0, 4)); err != nil {
			t.Fatal(err)
		}
		c := newClient(t, a.fd)
		addr := c.mmap(a.size, 0)
		d := a.daemon(c, mode, addr)
		guard := openProcess(t, d.said("guard"))
		d.said("ready")
		c.store(addr+10*pageSize, 1)
		c.store(addr+12*pageSize, 3)
		// The mapping is not what it was, and not one.
		c.do("occupy", addr+pages*pageSize, pageSize)
		to := c.do("mmap", 100*pageSize, 0, unix.PROT_NONE, unix.MAP_SHARED)
		c.do("mremap", addr+(pages-100)*pageSize, 100*pageSize, 100*pageSize, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to)
		c.do("mprotect", addr+100*pageSize, 20*pageSize, unix.PROT_READ)
		c.do("touch", addr+20*pageSize, 3, 8, 0)
		c.do("touch", to+50*pageSize, 3, 8, 5)
		seen := map[int]bool{}
		for len(seen) < 2 {
			seen[d.said("missing")] = true
		}
		if !seen[20] || !seen[pages-50] {
			t.Fatal("missing ", seen)
		}
		// A munmap that begins when nobody reads events ends all the same.
		if err := unix.PidfdSendSignal(guard, unix.SIGSTOP, nil, 0); err != nil {
			t.Fatal(err)
		}
		d.ended()
		c.begin("munmap", addr+300*pageSize, 10*pageSize)
		if err := unix.PidfdSendSignal(guard, unix.SIGCONT, nil, 0); err != nil {
			t.Fatal(err)
		}
		if _, _, errno := c.answer(); errno != 0 {
			t.Fatal(errno)
		}
		c.expectTouched(0, 6)
		awaitEnd(t, guard)
		c.do("touch", addr, 300, pageSize, 0)
		c.expectTouched(4, 296)
		c.do("touch", addr+310*pageSize, 290, pageSize, 0)
		c.expectTouched(0, 290)
		c.do("touch", to, 100, pageSize, 1)
		c.expectTouched(0, 100)
		for i := range uint64(4) {
			c.store(addr+(10+i)*pageSize+8, i)
		}
		if v := c.do("load", addr+12*pageSize); v != 3 {
			t.Error("loaded", v)
		}
	})
}

// TestGuardDies: the daemon starts another, which gets all.
func TestGuardDies(t *testing.T) {
	needMissing(t)
	a, c := newProgram(t, 64)
	d := a.daemon(c, Compare, c.addr)
	first := openProcess(t, d.said("guard"))
	d.said("ready")
	c.do("touch", c.at(7), 1, 8, 0)
	d.said("missing")
	if err := unix.PidfdSendSignal(first, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	second := openProcess(t, d.said("guard"))
	if err := unix.Sendto(d.socket, []byte("?"), 0, nil); err != nil {
		t.Fatal(err)
	}
	d.said("handed")
	c.do("touch", c.at(8), 1, 8, 0)
	d.said("missing")
	d.ended()
	c.expectTouched(0, 2)
	awaitEnd(t, second)
	c.do("touch", c.addr, 64, pageSize, 1)
	c.expectTouched(0, 64)
}

// TestGuardGoodbye: a daemon that ends in order ends its guard too.
func TestGuardGoodbye(t *testing.T) {
	needMissing(t)
	a, c := newProgram(t, 64)
	d := a.daemon(c, Compare, c.addr)
	guard := openProcess(t, d.said("guard"))
	d.said("ready")
	if err := unix.Shutdown(d.socket, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, guard)
	c.do("touch", c.addr, 64, pageSize, 1)
	c.expectTouched(0, 64)
}

// TestGuardRemove: what was removed is left alone, and nothing stays open.
func TestGuardRemove(t *testing.T) {
	needMissing(t)
	before := descriptors(t)
	a := newArea(t, 64)
	c := newClient(t, a.fd)
	first, second := c.mmap(a.size, 0), c.mmap(a.size, 0)
	kept := a.demand(c, Compare, first, nil)
	x := a.demand(c, Compare, second, nil)
	open := descriptors(t)
	var sockets [2]int
	ended := make(chan error, 1)
	g := NewGuard(func() (*os.File, func(), error) {
		var err error
		if sockets, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
			return nil, nil, err
		}
		theirs := os.NewFile(uintptr(sockets[1]), "guard")
		go func() {
			err := GuardMain(theirs)
			theirs.Close()
			ended <- err
		}()
		err = unix.SetNonblock(sockets[0], true)
		return os.NewFile(uintptr(sockets[0]), "guard"), func() {}, err
	})
	for _, r := range []*Range{kept.Range, x.Range} {
		if err := g.Add(r); err != nil {
			t.Fatal(err)
		}
		if err := g.Add(r); !errs.Is(err, errs.Exist) {
			t.Error(err)
		}
	}
	if err := g.Add(&Range{}); !errs.Is(err, errs.Invalid) {
		t.Error(err)
	}
	g.Remove(kept.Range)
	g.Remove(kept.Range)
	// Both mappings are of one memory and one memfd, so the guard of one would poison the
	// other too: first only the end in order is tried.
	g.Remove(x.Range)
	if err := unix.Shutdown(sockets[0], unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	c.do("touch", first+3*pageSize, 1, 0, 0)
	c.do("touch", second+4*pageSize, 1, 0, 0)
	for _, m := range []*missing{kept, x} {
		m.put(m.called(), 1)
	}
	c.expectTouched(2, 0)
	g.Close()
	if err := g.Add(kept.Range); !errs.Is(err, errs.Closed) {
		t.Error(err)
	}
	if n := descriptors(t); n != open {
		t.Errorf("%d descriptors, then %d (%d at first)", open, n, before)
	}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	other := NewGuard(func() (*os.File, func(), error) { return nil, nil, os.ErrNotExist })
	defer other.Close()
	if err := other.Add(kept.Range); err == nil {
		t.Error("a closed Range is guarded by no process")
	}
}

// TestGuardMessages gives the guard what it cannot understand.
func TestGuardMessages(t *testing.T) {
	for _, message := range []string{"X", "A", "R1234567", "A123456781234567812345678"} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs := os.NewFile(uintptr(pair[1]), "guard")
		if err := unix.Sendto(pair[0], []byte(message), 0, nil); err != nil {
			t.Fatal(err)
		}
		if err := GuardMain(theirs); !errs.Is(err, errs.Corrupt) {
			t.Errorf("%q: %v", message, err)
		}
		_ = unix.Close(pair[0])
		_ = theirs.Close()
	}
}
