package uffd

import (
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/errs"
)

// TestEndOfTheProcess: all that was mapped is suspect exactly once, however it ended.
func TestEndOfTheProcess(t *testing.T) {
	ends := map[string]func(c *client){
		"exit": func(c *client) { c.begin("exit") },
		"kill": func(c *client) { _ = c.cmd.Process.Kill() },
		"kill while storing": func(c *client) {
			_ = c.cmd.Process.Kill()
		},
		"kill while stopped": func(c *client) {
			_ = c.cmd.Process.Signal(syscall.SIGSTOP)
			_ = c.cmd.Process.Kill()
		},
	}
	modes(t, func(t *testing.T, mode Mode) {
		for name, end := range ends {
			t.Run(name, func(t *testing.T) {
				a, c := newProgram(t, 64)
				r := a.trackAt(c, mode, c.addr, a.size, 0)
				c.do("munmap", c.at(60), 4*pageSize)
				if name == "kill while storing" {
					c.do("spin", c.addr, 60*pageSize, 2, 1, 0)
				}
				end(c)
				<-r.Gone()
				s := scan(t, r)
				if got := sorted(s.Suspect); got != "[0+60][60+4]" {
					t.Errorf("suspect %s", got)
				}
				expect(t, r, "", "")
			})
		}
	})
}

// TestScanWhileDying scans all the time while the process is killed: there is no moment in
// which its pages are gone and nobody says so.
func TestScanWhileDying(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		for range 20 {
			a, c := newProgram(t, 512)
			r := a.trackAt(c, mode, c.addr, a.size, 0)
			c.store(c.at(5), 77)
			_ = c.cmd.Process.Kill()
			found, suspect := false, ""
			for suspect == "" {
				s := scan(t, r)
				suspect += text(s.Suspect)
				if !found && !covers(append(s.Written, s.Suspect...), 5) {
					t.Fatal("the first scan after a store did not find it")
				}
				found = true
			}
			if suspect != "[0+512]" {
				t.Error("suspect ", suspect)
			}
			<-r.Gone()
			c.ended()
		}
	})
}

// TestExec ends the memory and not the process.
func TestExec(t *testing.T) {
	trackModes(t, 64, func(t *testing.T, c *client, r *Range) {
		c.exec()
		if c.cmd.ProcessState != nil {
			t.Fatal("the client ended")
		}
		expect(t, r, "", "[0+64]")
		expect(t, r, "", "")
		<-r.Gone()
	})
}

// TestStopped scans a process that is stopped.
func TestStopped(t *testing.T) {
	trackModes(t, 64, func(t *testing.T, c *client, r *Range) {
		c.store(c.at(7), 1)
		if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(c.cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatal(err, status)
		}
		expect(t, r, "[7+1]", "")
		if err := r.Disarm(); err != nil {
			t.Fatal(err)
		}
		if err := r.Arm(); err != nil {
			t.Fatal(err)
		}
		expect(t, r, "", "[0+64]")
		if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		c.store(c.at(8), 1)
		expect(t, r, "[8+1]", "")
	})
}

// TestCloseWhileStoring leaves no thread of the process waiting.
func TestCloseWhileStoring(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		a, c := newProgram(t, 512)
		for i := range 20 {
			r := a.trackAt(c, mode, c.addr, a.size, 0)
			c.do("spin", c.addr, a.size, 4, i, 1)
			var s Stores
			for range i {
				if err := r.Scan(&s); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
			c.do("rest")
			for _, err := range []error{r.Scan(&s), r.Arm(), r.Disarm()} {
				if !errs.Is(err, errs.Closed) {
					t.Error(err)
				}
			}
		}
		// A munmap has nobody to wait for.
		c.do("munmap", c.addr, a.size)
	})
}

// TestCloseAndUnmap races the end of the tracking with munmap, and with other scans.
func TestCloseAndUnmap(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		a := newArea(t, 512)
		c := newClient(t, a.fd)
		for range 50 {
			addr := c.mmap(a.size, 0)
			r := a.trackAt(c, mode, addr, a.size, 0)
			c.begin("munmap", addr, a.size)
			var scans sync.WaitGroup
			for range 2 {
				scans.Go(func() {
					var s Stores
					for r.Scan(&s) == nil {
					}
				})
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if _, _, errno := c.answer(); errno != 0 {
				t.Fatal(errno)
			}
			scans.Wait()
		}
	})
}

// TestUnmapIsTaken: when munmap has returned, the next scan knows it, whatever the
// goroutine that reads events is doing.
func TestUnmapIsTaken(t *testing.T) {
	trackModes(t, 512, func(t *testing.T, c *client, r *Range) {
		for i := range uint64(512) {
			c.store(c.at(i), 1)
			c.do("munmap", c.at(i), pageSize)
			s := scan(t, r)
			if text(s.Suspect) != pagesOf(int64(i), 1) {
				t.Fatalf("munmap of page %d: suspect %s", i, text(s.Suspect))
			}
		}
	})
}

// TestUnregistered is a program that kept a copy of its userfaultfd and undoes
// the registration: the caller is told and compares everything from then on.
func TestUnregistered(t *testing.T) {
	trackModes(t, 64, func(t *testing.T, c *client, r *Range) {
		c.store(c.addr, 1)
		if err := unregister(r.uffd, c.addr, uint64(r.length)); err != nil {
			t.Fatal(err)
		}
		c.store(c.at(1), 1)
		for range 2 {
			s := scan(t, r)
			if !covers(s.Suspect, 0) || !covers(s.Suspect, 63) || r.Failure() == nil {
				t.Error(text(s.Suspect), r.Failure())
			}
		}
		c.ended()
		expectFailedEnd(t, r)
	})
}

// expectFailedEnd: the end of a process whose tracking has failed is its end all the same.
func expectFailedEnd(t *testing.T, r *Range) {
	t.Helper()
	<-r.Gone()
	var s Stores
	for i := range 2 {
		s.Reset()
		if err := r.Scan(&s); err != nil {
			t.Fatal(err)
		}
		if (len(s.Suspect) > 0) != (i == 0) {
			t.Error("scan ", i, " after the end: ", text(s.Suspect))
		}
	}
}

// TestGoneOfClosed: closing is not the end of the process.
func TestGoneOfClosed(t *testing.T) {
	a, c := newProgram(t, 8)
	mode, err := Choose(Probe(), "")
	if err != nil || mode == Compare {
		t.Skip(mode, err)
	}
	r := a.trackAt(c, mode, c.addr, a.size, 0)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	c.ended()
	select {
	case <-r.Gone():
		t.Error("gone after close")
	default:
	}
}

// TestBlockingDescriptor is a program that kept a copy and clears O_NONBLOCK, which
// is a flag of the file that both have. No read waits for it.
func TestBlockingDescriptor(t *testing.T) {
	trackModes(t, 64, func(t *testing.T, c *client, r *Range) {
		if _, err := unix.Preadv2(r.uffd, [][]byte{make([]byte, 32)}, -1, unix.RWF_NOWAIT); err == unix.EOPNOTSUPP {
			t.Skip("no RWF_NOWAIT for userfaultfd before Linux 6.10")
		}
		if err := unix.SetNonblock(r.uffd, false); err != nil {
			t.Fatal(err)
		}
		expect(t, r, "", "")
		c.begin("munmap", c.addr, pageSize)
		// Who reads the event may be this scan or the goroutine.
		for suspect := ""; suspect == ""; {
			s := scan(t, r)
			suspect = text(s.Suspect)
		}
		c.answer()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
