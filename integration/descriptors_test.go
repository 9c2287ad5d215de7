package integration

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestHomeWithoutDescriptors: a home that has no descriptors left takes no publish of another node, says why, and lives. The
// publish is over when it has some again.
func TestHomeWithoutDescriptors(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 2, Flags: []string{"--fault-timeout", "1s"}})
	n := c.Node(1)
	var was unix.Rlimit
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if was.Cur+1 < was.Max {
		t.Errorf("the daemon may have %d descriptors, and could raise that to %d", was.Cur, was.Max)
	}
	publisher := c.Node(2).Client()
	name, _, size := homedAway(t, n, publisher, "n2")
	f := publisher.Open(name, "rw")
	m := f.Map(size)
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	for off := int64(0); off < size; off += 1 << 18 {
		m.Store(off, []byte("there"))
	}
	_, err := publisher.Do("fsync %d", f.FD)
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	if !n.Running() {
		t.Fatal("the home has died")
	}
	var failure harness.Failure
	if !errors.As(err, &failure) {
		t.Errorf("fsync to a home without descriptors: %v, want EIO", err)
	}
	if !harness.Eventually(limit, func() bool { _, err := publisher.Do("fsync %d", f.FD); return err == nil }) {
		t.Error("the publish is not taken when there are descriptors again")
	}
	if got := string(n.Client().Open(name, "r").Read(size-1<<18, 5)); got != "there" {
		t.Errorf("the home has %q", got)
	}
	if text, err := os.ReadFile(n.LogFile()); err != nil || !strings.Contains(string(text), "RLIMIT_NOFILE") {
		t.Errorf("the log does not name the limit (%v):\n%s", err, text)
	}
}
