package integration

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestHomeWithoutDescriptors: a home that has no descriptors left takes publishes of another node all the same, and programs
// of its node read them.
func TestHomeWithoutDescriptors(t *testing.T) {
	c := nodes(t, 2)
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
	defer func() {
		if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &was, nil); err != nil { // or it could not unmount
			t.Error(err)
		}
	}()
	for off := int64(0); off < size; off += 1 << 18 {
		m.Store(off, []byte("there"))
	}
	f.Sync()
	if got := string(n.Client().Open(name, "r").Read(size-1<<18, 5)); got != "there" {
		t.Errorf("the home has %q", got)
	}
}
