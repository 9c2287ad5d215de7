package fs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/errs"
	"golang.org/x/sys/unix"
)

func TestUnmountPublishesAndWaits(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", make([]byte, 8))
	_, m := f.mapFile(c, "w", 8)
	c.must(clientCall{Op: "store", FD: m, Data: []byte("unsynced")})
	done := make(chan error, 1)
	go func() { done <- f.fs.Unmount(context.Background(), false) }()
	if !a.await(clientTimeout, func() bool { return string(a.published) == "unsynced" }) {
		t.Error("not published")
	}
	c.stop() // lets go of the mount while Unmount tries
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.gone = true
	if _, ok, _ := mountAt(f.mnt); ok {
		t.Error("still mounted")
	}
	select {
	case <-f.fs.Done():
	default:
		t.Error("not done")
	}
}

func TestUnmountBusyAndForce(t *testing.T) {
	f := mountTest(t, func(c *Config) { c.UnmountTimeout = 50 * time.Millisecond })
	c := startClient(t)
	a := f.file(c, "w", make([]byte, 8192))
	fd, m := f.mapFile(c, "w", 8192)
	err := f.fs.Unmount(context.Background(), false)
	if !errs.Is(err, errs.Busy) || !strings.Contains(err.Error(), "--force") {
		t.Fatalf("busy mount: %v", err)
	}
	// It goes on working.
	c.must(clientCall{Op: "store", FD: m, Data: []byte("still")})
	if !a.await(clientTimeout, func() bool { return bytes.HasPrefix(a.published, []byte("still")) }) {
		t.Fatal("not published after a failed unmount")
	}
	// A request that nobody answers does not keep it from ending by force.
	never := make(chan struct{})
	a.mu.Lock()
	a.block = never
	a.mu.Unlock()
	reads := f.fs.b.count.reads.Load()
	c2 := startClient(t)
	_, m2 := f.mapFile(c2, "w", 8192)
	c2.start(clientCall{Op: "load", FD: m2, Off: 4096, Len: 1})
	eventually(t, "the READ is here", func() bool { return f.fs.b.count.reads.Load() > reads })
	if err := f.fs.Unmount(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	f.gone = true
	if r := c2.reply(); !r.SIGBUS {
		t.Errorf("loaded %q", r.Data)
	}
	if r := c.call(clientCall{Op: "pread", FD: fd, Off: 4096, Len: 1}); r.Errno != syscall.ENOTCONN && r.Errno != syscall.EIO {
		t.Errorf("read after unmount by force: %v", r.Errno)
	}
}

// TestUnmountByForceAtOnce: without time left nobody waits for programs.
func TestUnmountByForceAtOnce(t *testing.T) {
	f := mountTest(t, func(c *Config) { c.UnmountTimeout = 10 * clientTimeout })
	c := startClient(t)
	fd := c.open(f.path("w"), unix.O_RDWR|unix.O_CREAT)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error)
	go func() { done <- f.fs.Unmount(ctx, true) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(clientTimeout):
		t.Fatal("it waits for the program")
	}
	f.gone = true
	c.wantErrno(syscall.ENOTCONN, clientCall{Op: "fstat", FD: fd})
}

// TestUnmountedBySomebody: umount(8), also lazily while a program is inside.
func TestUnmountedBySomebody(t *testing.T) {
	f := mountTest(t)
	if err := UnmountPath(f.mnt, false); err != nil {
		t.Fatal(err)
	}
	<-f.fs.Done()
	if err := f.fs.Unmount(context.Background(), false); err != nil {
		t.Error(err)
	}
	f.gone = true

	f = mountTest(t, func(c *Config) { c.UnmountTimeout = 50 * time.Millisecond })
	c := startClient(t)
	f.file(c, "w", []byte("x"))
	c.must(clientCall{Op: "chdir", Path: f.mnt})
	if err := unix.Unmount(f.mnt, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := f.fs.Unmount(context.Background(), false); !errs.Is(err, errs.Busy) {
		t.Errorf("detached with a program inside: %v", err)
	}
	if err := f.fs.Unmount(context.Background(), true); err != nil {
		t.Error(err)
	}
	f.gone = true
}

func TestCheckMountpoint(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		want errs.Kind
		text string
	}{
		{filepath.Join(dir, "missing"), errs.NotExist, "no such directory"},
		{filepath.Join(dir, "missing", "more"), errs.NotExist, "no such directory"},
		{file, errs.NotDir, "not a directory"},
		{"/proc", errs.Busy, "already a mount point"},
	} {
		err := CheckMountpoint(tt.path)
		if !errs.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), tt.path) {
			t.Errorf("%s: %v", tt.path, err)
		}
		if _, err := Mount(Config{Mountpoint: tt.path, Names: newFakeNames(), Areas: newFakeAreas(nil), Info: &fakeInfo{},
			Log: slog.New(slog.DiscardHandler), HarvestArgv: harvestArgv()}); !errs.Is(err, tt.want) {
			t.Errorf("mount on %s: %v", tt.path, err)
		}
	}
	for _, path := range []string{dir, link} {
		if err := CheckMountpoint(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := UnmountPath(dir, false); !errs.Is(err, errs.Invalid) {
		t.Errorf("umount of what is no mount: %v", err)
	}
}

func TestMountTwice(t *testing.T) {
	f := mountTest(t)
	if err := CheckMountpoint(f.mnt); !errs.Is(err, errs.Busy) || !strings.Contains(err.Error(), "fuse.dsmfs") || errors.Is(err, ErrDeadMount) {
		t.Errorf("%v", err)
	}
}

// daemon is a daemon in a process of its own.
func startDaemon(t *testing.T, env ...string) (mnt string, kill func()) {
	t.Helper()
	needRoot(t)
	mnt = filepath.Join(t.TempDir(), "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := selfCommand("daemon", mnt)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Fatalf("daemon says %q, %v", line, err)
	}
	kill = func() {
		cmd.Process.Kill()
		cmd.Wait()
		in.Close()
	}
	t.Cleanup(func() {
		kill()
		if _, ok, _ := mountAt(mnt); ok {
			unmount(mnt, true)
		}
	})
	return mnt, kill
}

// TestDeadMount: K13, after the death of the daemon.
func TestDeadMount(t *testing.T) {
	mnt, kill := startDaemon(t)
	c := startClient(t)
	fd := c.open(filepath.Join(mnt, "w"), unix.O_RDWR|unix.O_CREAT)
	c.must(clientCall{Op: "ftruncate", FD: fd, Off: 8192})
	m := int(c.must(clientCall{Op: "mmap", FD: fd, Len: 8192, Flag: rw}).N)
	c.must(clientCall{Op: "store", FD: m, Data: []byte("x")})
	kill()
	if r := c.call(clientCall{Op: "stat", Path: mnt}); !Dead(r.Errno) {
		t.Errorf("stat: %v", r.Errno)
	}
	c.wantErrno(syscall.ENOTCONN, clientCall{Op: "stat", Path: mnt})
	if r := c.call(clientCall{Op: "load", FD: m, Off: 4096, Len: 1}); !r.SIGBUS {
		t.Error("a page that was not mapped can be loaded")
	}
	err := CheckMountpoint(mnt)
	if !errors.Is(err, ErrDeadMount) || !errs.Is(err, errs.Busy) || !strings.Contains(err.Error(), "--force replaces it") {
		t.Errorf("dead mount: %v", err)
	}
	if err := UnmountPath(mnt, false); !errs.Is(err, errs.Busy) {
		t.Errorf("dead mount in use: %v", err)
	}
	if err := UnmountPath(mnt, true); err != nil {
		t.Error(err)
	}
	if err := CheckMountpoint(mnt); err != nil {
		t.Errorf("after unmounting: %v", err)
	}
}

// TestPanicEndsTheDaemon: K16, a broken invariant is not an EIO.
func TestPanicEndsTheDaemon(t *testing.T) {
	mnt, _ := startDaemon(t, "DSMFS_FS_TEST_PANIC=1")
	c := startClient(t)
	r := c.call(clientCall{Op: "readfile", Path: filepath.Join(mnt, ".dsm", "version")})
	if !Dead(r.Errno) {
		t.Errorf("read: %v", r.Errno)
	}
	eventually(t, "the mount is dead", func() bool { return errors.Is(CheckMountpoint(mnt), ErrDeadMount) })
}

// TestWritebackIsTuned: K4, as root the kernel does not throttle the mount's dirty pages.
func TestWritebackIsTuned(t *testing.T) {
	f := mountTest(t)
	for name, want := range map[string]string{"strict_limit": "0\n", "max_ratio": "100\n"} {
		path := filepath.Join("/sys/class/bdi", f.fs.device, name)
		got, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			t.Skipf("this kernel has no %s", path)
		}
		if err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}
