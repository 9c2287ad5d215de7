package uffd

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProbe prints what works here, and compares it with what is known of Linux
// with everything in it: this machine may have less, but not contradict itself.
func TestProbe(t *testing.T) {
	f := Probe()
	for name, x := range map[string]Feature{
		"Async": f.Async, "Dropped": f.Dropped, "Tables": f.Tables, "Sync": f.Sync, "Poison": f.Poison,
		"Missing": f.Missing, "Unmap": f.Unmap, "Remove": f.Remove, "Kernel": f.Kernel, "Swap": f.Swap,
	} {
		t.Logf("%-8s %-5v %s", name, x.OK, x.Reason)
		if !x.OK && x.Reason == "" && name != "Swap" {
			t.Errorf("%s: no, and no reason", name)
		}
	}
	if f.Async.OK && !(f.Sync.OK && f.Unmap.OK) || f.Dropped.OK && !f.Async.OK || f.Tables.OK && !f.Dropped.OK {
		t.Errorf("%+v", f)
	}
	if again := Probe(); again != f {
		t.Errorf("first %+v, then %+v", f, again)
	}
}

// TestProbeLeavesNothing: no descriptor stays open.
func TestProbeLeavesNothing(t *testing.T) {
	before := descriptors(t)
	probe()
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestProbeFails: whatever step of it fails, what does not work has a reason, and no descriptor stays open.
func TestProbeFails(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	next, err := unix.MemfdCreate("next", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	closeFD(next)
	before, full := descriptors(t), probe()
	for room := range 6 { // a memory, its page table, a userfaultfd, and what the runtime has open
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next + room), Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		f := probe()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		t.Logf("room for %d: %+v", room, f)
		for _, x := range []struct{ before, now Feature }{{full.Async, f.Async}, {full.Sync, f.Sync}, {full.Missing, f.Missing}, {full.Poison, f.Poison}} {
			if x.now.OK && (!x.before.OK || room == 0) || !x.now.OK && x.now.Reason == "" {
				t.Errorf("room for %d: %+v", room, f)
				break
			}
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestTrackLeavesNothing, neither when it succeeds nor when it fails.
func TestTrackLeavesNothing(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		a := newArea(t, 8)
		c := newClient(t, a.fd)
		addr, pidfd := c.mmap(a.size, 0), c.pidfd()
		// The poller of the runtime opens descriptors of its own once.
		before := 0
		for i := range 4 {
			for _, ino := range []uint64{a.stat.Ino, 0} {
				r, err := Track(Config{
					UFFD: c.descriptor("uffd", 0), PidFD: pidfd, Addr: addr, Length: uint64(a.size),
					Dev: a.stat.Dev, Ino: ino, Mode: mode,
				})
				if (err == nil) != (ino != 0) {
					t.Fatal(err)
				}
				if err == nil {
					err = r.Close()
				}
				if ino != 0 && err != nil {
					t.Fatal(err)
				}
			}
			switch n := descriptors(t); {
			case i == 0:
				before = n
			case n != before:
				t.Errorf("%d descriptors, then %d", before, n)
			}
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestPeerPidFD(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(pair[0])
	defer closeFD(pair[1])
	fd, err := PeerPidFD(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	if pid, err := pidOf(fd); err != nil || pid != os.Getpid() {
		t.Error(pid, err, "want", os.Getpid())
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("the descriptor survives exec: ", flags, err)
	}
	if _, err := PeerPidFD(fd); err == nil {
		t.Error("a pidfd has a peer")
	}
}
