package integration

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

var filesFlag = flag.Int("files", 4000, "small files that TestManySmallFiles makes")

// TestManySmallFiles: a node with the common limit of 1024 descriptors has any number of small files, which another
// node reads, and gives their memory back when they are removed.
func TestManySmallFiles(t *testing.T) {
	const small = 100
	files := *filesFlag
	c := cluster(t, harness.Options{Nodes: 2, Memory: "2G"})
	one, two := c.Node(1), c.Node(2)
	for _, n := range c.Nodes() {
		if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024}, nil); err != nil {
			t.Fatal(err)
		}
	}
	run := func(n *harness.Node, what, script string) {
		t.Helper()
		began := time.Now()
		all := fmt.Sprintf(`set -e
			cd %q
			fail() { echo "$1" >&2; exit 1; }
			%s`, n.Mount, script)
		if res := n.Run(time.Duration(files)*10*time.Millisecond+limit, "bash", "-c", all); res.Err != nil {
			t.Fatalf("%s: %v\n%s", what, res.Err, res.Stderr)
		}
		t.Logf("%s: %d us a file", what, time.Since(began).Microseconds()/int64(files))
	}
	before := []harness.Memory{one.Memory(), two.Memory()}
	controls := clients(c)
	taken := func() (copies int64) {
		for _, cl := range controls {
			copies += statOf(t, cl, "resident_bytes")
		}
		return copies
	}
	report := func(when string) {
		for i, n := range c.Nodes() {
			m := n.Memory()
			t.Logf("%s: %s has %d bytes a file more, and %d of copies in all", when, n.Name, (m.Private+m.Memfds-before[i].Private-before[i].Memfds)/int64(files),
				statOf(t, controls[i], "resident_bytes"))
		}
	}
	run(one, "make", fmt.Sprintf(`for ((i = 0; i < %d; i++)); do
			((i %% 1000)) || mkdir d$((i / 1000))
			printf '%%0%dd' $i >d$((i / 1000))/$i
		done`, files, small))
	report("made")
	check := `for ((i = %d; i < %d; i += %d)); do
			x= && read -rN 200 x <d$((i / 1000))/$i || true
			printf -v want '%%0%dd' $i
			[ "$x" = "$want" ] || fail "file $i has '$x'"
		done`
	run(one, "read", fmt.Sprintf(check, 0, files, 1, small))
	run(two, "read a hundredth on the other node", fmt.Sprintf(check, 7, files, 100, small))
	report("read")
	run(one, "remove", `rm -r d*`)
	if !harness.Eventually(limit, func() bool { return taken() == 0 }) {
		t.Errorf("%d bytes of removed files are not given back", taken())
	}
	report("removed")
}

// statOf returns a figure of the node.
func statOf(t *testing.T, cl *harness.Client, key string) (n int64) {
	t.Helper()
	_, rest, ok := strings.Cut("\n"+cl.Control("stats"), "\n"+key+" ")
	if _, err := fmt.Sscan(rest, &n); !ok || err != nil {
		t.Fatalf("no %s in the figures of the node (%v)", key, err)
	}
	return n
}
