package hold_test

import (
	"syscall"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestHeldMembersThatEncrypt: on machines of their own, members prove to each other who they are. The daemon that follows can, before it has heard anything of the cluster; also
// when the keys have changed, and after an upgrade.
func TestHeldMembersThatEncrypt(t *testing.T) {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	nodes := harness.New(t, harness.Options{Nodes: 3, Memory: "256M", Network: harness.Namespaces, Secure: true, Flags: []string{"--hold", "--lease", "10s"}}).Nodes()
	n, other := nodes[1], nodes[0].Client()
	f := n.Client().Open("f", "rw,creat")
	goesOn := func(after string) {
		t.Helper()
		f.Write(0, []byte(after))
		f.Sync()
		if got := other.Open("f", "r").Read(0, int64(len(after))); string(got) != after {
			t.Errorf("another node reads %q after: %s", got, after)
		}
	}
	goesOn("the start")
	covered(t, n)
	killDaemon(t, n, 0, 0, syscall.SIGKILL)
	goesOn("a kill")
	covered(t, n)
	if res := nodes[2].CLI("token", nodes[2].Mount, "--rotate"); res.Err != nil {
		t.Fatalf("rotate the keys: %v: %s", res.Err, res.Stderr)
	}
	goesOn("other keys")
	killDaemon(t, n, 0, 0, syscall.SIGKILL)
	goesOn("another kill")
	covered(t, n)
	if res := n.CLI("upgrade", n.Mount); res.Err != nil {
		t.Errorf("upgrade: %v: %s", res.Err, res.Stderr)
	}
	goesOn("an upgrade")
}
