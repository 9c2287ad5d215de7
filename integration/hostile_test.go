package integration

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestAttachedProgramCutsTheMemory: programs that have attached cut the memory of their areas and seal it. Their daemon
// lives, all that was published is there, and they and others go on.
func TestAttachedProgramCutsTheMemory(t *testing.T) {
	for name, settings := range map[string]string{"plain": "", "own": "merge sum\ndtype i32\n", "demand": "residency demand\n"} {
		t.Run(name, func(t *testing.T) { cutsTheMemory(t, settings) })
	}
}

func cutsTheMemory(t *testing.T, settings string) {
	c := nodes(t, 2)
	n := c.Node(1)
	const size = 64*page + 100
	for _, path := range []string{"/w", "/other"} {
		if _, err := harness.CreateAt(n.AttachSocket(), path+"\n"+settings, size, 0o644, true); err != nil {
			t.Fatal(err)
		}
	}
	a, other, far := n.Attach("/w", true), n.Attach("/other", true), c.Node(2).Attach("/w", true)
	stored := bytes.Repeat([]byte{1, 2, 3, 0}, size/4)
	copy(a.Mem, stored)
	ok(t, "sync")(a.Call(harness.SyncOp))
	fd, err := a.Memfd("/w")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE); err != unix.EPERM {
		t.Errorf("seals are added: %v", err)
	}
	for _, end := range []int64{0, 3*page + 7} {
		if err := unix.Ftruncate(fd, end); err != nil {
			t.Fatal(err)
		}
		ok(t, "sync of what was cut")(a.Call(harness.SyncOp))
		if !is(fd, stored) {
			t.Errorf("after a cut to %d bytes other bytes are there", end)
		}
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	ok(t, "acquire")(far.Call(harness.AcquireOp))
	far.Mem[4] += 9
	ok(t, "publish elsewhere")(far.Call(harness.SyncOp))
	ok(t, "sync of what was cut")(a.Call(harness.SyncOp))
	stored[4] += 9
	if !is(fd, stored) {
		t.Error("a publish of another node is not there after a cut")
	}
	other.Mem[0] = 1
	ok(t, "sync of another area")(other.Call(harness.SyncOp))
	if !n.Running() {
		t.Error("the daemon has died")
	}
}

// is reports whether a memfd has the bytes: looking at a mapping of one that is cut would end the test.
func is(fd int, want []byte) bool {
	got := make([]byte, len(want))
	n, err := unix.Pread(fd, got, 0)
	return err == nil && bytes.Equal(got[:n], want)
}
