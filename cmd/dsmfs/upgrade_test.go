package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/hold"
)

// TestOfThisProgram: a daemon that serves counts as upgraded only if it is of the program that asked.
func TestOfThisProgram(t *testing.T) {
	other := exec.Command("cat")
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = other.Wait()
	}()
	for _, c := range []struct {
		text string
		want bool
	}{
		{fmt.Sprintf("pid %d, version 1\n", os.Getpid()), true},
		{fmt.Sprintf("pid %d, version 1\n", other.Process.Pid), false},
		{"pid 0, version 1\n", false},
		{"", false},
	} {
		if got := ofThisProgram(c.text); got != c.want {
			t.Errorf("%q: %v", c.text, got)
		}
	}
}

// inAndOutOfRounds is a process that begins and ends rounds, by turns.
func inAndOutOfRounds() {
	mem, err := hold.Adopt(heldFD)
	if err != nil {
		panic(err)
	}
	for range 3 { // other threads
		go func() {
			for {
				runtime.Gosched()
			}
		}()
	}
	const each = 50 * time.Microsecond
	for parts := uint64(0); ; parts = 1 - parts {
		mem.Area(0).Parts.Store(parts)
		mem.Word(hold.Serving).Store(1)
		for begin := time.Now(); time.Since(begin) < each; {
		}
	}
}

// TestUpgradeBetweenRounds: the daemon is killed while it is in no round, however fast one follows the other.
func TestUpgradeBetweenRounds(t *testing.T) {
	for range 20 {
		mem, err := hold.Create()
		must := musts(t)
		must(err)
		mem.Word(hold.Mounted).Store(1)
		mem.Word(hold.Others).Store(1)
		mem.Word(hold.AreasUsed).Store(1)
		mem.Area(0).ID.Store(1)
		must(mem.SetText(hold.State, t.TempDir()))
		must(os.WriteFile(filepath.Join(mem.Text(hold.State), upgradeFile), fmt.Appendf(nil, "%d %s", hold.Format, selfPath), 0o600))
		file, err := duplicate(mem.FD(), "held")
		must(err)
		cmd := exec.Command(selfPath)
		cmd.Env = append(os.Environ(), actVariable+"=rounds")
		cmd.ExtraFiles = []*os.File{file}
		must(cmd.Start())
		must(file.Close())
		for mem.Word(hold.Serving).Load() == 0 {
			runtime.Gosched()
		}
		h := &keeper{mem: mem, cmd: cmd}
		u := h.askedFor()
		if u == nil {
			text, _ := os.ReadFile(filepath.Join(mem.Text(hold.State), upgradedFile))
			t.Errorf("no upgrade: %s", text)
		} else {
			must(u.program.Close())
		}
		must(cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		if mem.InRound() != 0 {
			t.Fatal("killed in a round")
		}
		must(mem.Close())
	}
}

// stopAndHang is a holder that has stopped its daemon, of which it writes the number, and has not killed it.
func stopAndHang() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	mem, err := hold.Create()
	must(err)
	device, err := os.Open(os.DevNull)
	must(err)
	must(os.Setenv(actVariable, "hang"))
	h := &keeper{mem: mem, device: int(device.Fd()), shelf: hold.NewShelf()}
	must(h.start("", nil))
	mem.Word(hold.Mounted).Store(1)
	for !h.stop() {
		runtime.Gosched()
	}
	fmt.Println(h.cmd.Process.Pid)
	select {}
}

// TestHolderIsKilledInAnUpgrade: a daemon that it has stopped goes on, whoever its parent is then. If that is of the same session, the kernel does nothing by itself.
func TestHolderIsKilledInAnUpgrade(t *testing.T) {
	must := musts(t)
	must(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() { must(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) }()
	holder := exec.Command(selfPath)
	holder.Env = append(os.Environ(), actVariable+"=stops")
	out, err := holder.StdoutPipe()
	must(err)
	must(holder.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	must(err)
	if !isStopped(pid) {
		t.Error("the daemon is not stopped")
	}
	must(holder.Process.Kill())
	_ = holder.Wait() // it was killed
	for deadline := time.Now().Add(10 * time.Second); isStopped(pid); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Error("the daemon stays stopped")
			break
		}
	}
	must(unix.Kill(pid, unix.SIGKILL))
	_, err = unix.Wait4(pid, nil, 0, nil)
	must(err)
}

// TestUpgradeInARoundWithoutEnd: who asks for an upgrade is told of which file it is, and what helps.
func TestUpgradeInARoundWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := hold.Create()
		must := musts(t)
		must(err)
		mem.Word(hold.Mounted).Store(1)
		mem.Word(hold.Others).Store(1)
		mem.Word(hold.AreasUsed).Store(1)
		mem.Area(0).ID.Store(77)
		mem.Area(0).Parts.Store(1)
		must(mem.SetText(hold.Point, "/mnt/dsm"))
		reason := (&keeper{mem: mem}).halt()
		for _, words := range []string{"find /mnt/dsm -inum 77", "try again when it has", "remove the file"} {
			if !strings.Contains(reason, words) {
				t.Errorf("%q does not say %q", reason, words)
			}
		}
		must(mem.Close())
	})
}

// TestUpgradedProgramStays: the program that was upgraded to can be started again however long afterwards, and so can the one before as long as it may have to go on.
func TestUpgradedProgramStays(t *testing.T) {
	must := musts(t)
	h := &keeper{}
	asked := func(text string) *upgrade {
		path := filepath.Join(t.TempDir(), "dsmfs")
		must(os.WriteFile(path, []byte(text), 0o600))
		u := &upgrade{to: filepath.Join(t.TempDir(), upgradedFile)}
		must(u.open(path))
		must(os.Remove(path))
		u.follow(h)
		return u
	}
	is := func(want string) {
		t.Helper()
		for range 2 { // what nothing refers to is closed meanwhile
			collected := make(chan struct{})
			runtime.SetFinalizer(&struct{ s string }{want}, func(any) { close(collected) })
			runtime.GC()
			<-collected
		}
		if text, err := os.ReadFile(h.binary()); err != nil || string(text) != want {
			t.Errorf("the program is %q, %v; want %q", text, err, want)
		}
	}
	if h.binary() != selfPath {
		t.Errorf("the first program is %s", h.binary())
	}
	asked("first").done()
	is("first")
	next := asked("second")
	is("second")
	next.failed(h, "it does not serve")
	is("first")
	next = asked("third")
	first := next.from
	next.done()
	is("third")
	if err := first.Close(); err == nil {
		t.Error("the program before is still open")
	}
	must(h.program.Close())
}

// TestUpgradeOfADaemonThatDoesNotSay: whether another daemon could follow is not known before the one that serves has said it. If that has ended the holder knows.
func TestUpgradeOfADaemonThatDoesNotSay(t *testing.T) {
	point, dir := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(point, ".dsm"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(point, ".dsm", "cluster"), 0o600); err != nil { // who opens it waits
		t.Fatal(err)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for pid, refused := range map[int]bool{os.Getpid(): true, ended.Process.Pid: false} {
		if err := os.WriteFile(filepath.Join(dir, servingFile), fmt.Appendf(nil, "pid %d, version 1", pid), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := followable(point, dir); (err != nil) != refused {
			t.Errorf("the daemon lives: %v: %v", refused, err)
		}
	}
}
