package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// exitJoin is the exit code of a node that no cluster takes.
const exitJoin = 6

// secure starts n nodes on machines of their own, which join by the token.
func secure(t *testing.T, n int) *harness.Cluster {
	t.Helper()
	return cluster(t, harness.Options{Nodes: n, Network: harness.Namespaces, Secure: true})
}

// refused starts a node that its cluster must not take, and wants to read why.
func refused(t *testing.T, n *harness.Node, text string, flags ...string) {
	t.Helper()
	args := append([]string{"mount", filepath.Join(t.TempDir(), "m"), "-f", "--listen", n.Address, "--memory", "64M",
		"--state", t.TempDir(), "--log-file", filepath.Join(t.TempDir(), "log")}, flags...)
	if res := n.CLI(args...); res.Code != exitJoin || !strings.Contains(res.Stderr, text) {
		t.Errorf("mount %v: code %d, %q; want code %d and %q", flags, res.Code, res.Stderr, exitJoin, text)
	}
}

// TestClusterByToken: nodes on other machines join by the token, through any node, work, leave, die and come back.
// Others stay outside.
func TestClusterByToken(t *testing.T) {
	c := secure(t, 2)
	third := c.Declare()
	third.Via = c.Node(2) // it does not lead
	third.Start()
	all := clients(c)
	const size = 8 << 20
	all[0].SetXattr(".", "user.dsm.placement", "spread")
	_, first := all[0].Create("w", size)
	first.Fill(0, size, 5)
	first.Sync()
	maps := attachAll(all[1:], "w", size)
	for i, m := range maps {
		if at := m.Check(0, size, 5); at >= 0 {
			t.Fatalf("node %d: byte %d differs", i+2, at)
		}
	}
	maps[1].Store(3<<20, []byte("from the third"))
	maps[1].Sync()
	first.Await(3<<20, []byte("from the third"), limit)
	if s := configured(t, c.Node(1), "insecure"); s != "false" {
		t.Errorf("insecure is %q", s)
	}

	outside := c.Declare()
	token := c.Node(1).Token()
	peer := c.Node(1).Address
	wrong := token[:len(token)-4] + "AAAA"
	refused(t, outside, "does not know the token", "--join", peer, "--token", wrong)
	refused(t, outside, "this cluster encrypts", "--join", peer, "--insecure")
	other := cluster(t, harness.Options{Nodes: 1, Network: harness.Namespaces, Secure: true})
	refused(t, outside, "another cluster", "--join", peer, "--token", other.Node(1).Token())
	brief := c.Node(2).Token("--ttl", "1s")
	expired := harness.Eventually(limit, func() bool { return !strings.Contains(all[0].Control("token"), brief) })
	if !expired {
		t.Error("a token does not expire")
	}
	refused(t, outside, "has expired", "--join", peer, "--token", brief)
	outside.Start()
	outside.Stop()

	// A new token: the nodes that are there go on, and join again when they die; the old one is worth nothing.
	fresh := c.Node(2).Token("--rotate")
	refused(t, outside, "before a --rotate", "--join", peer, "--token", token)
	if got := c.Node(1).Token(); got != fresh {
		t.Errorf("one node has the token %s, another %s", got, fresh)
	}
	maps[0].Store(5<<20, []byte("after"))
	maps[0].Sync()
	first.Await(5<<20, []byte("after"), limit)
	all[2].Kill()
	third.Kill()
	third.Start()
	if got := strings.TrimSpace(sh(t, third, "cat %s/.dsm/token", third.Mount)); !strings.HasPrefix(got, fresh+" ") {
		t.Errorf("the node that came back has %q", got)
	}
	outside.Start() // by the new token
}

// configured returns a line of the control file config.
func configured(t *testing.T, n *harness.Node, key string) string {
	t.Helper()
	for line := range strings.Lines(sh(t, n, "cat %s/.dsm/config", n.Mount)) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), " "); k == key {
			return v
		}
	}
	return ""
}

// TestTokenOnLoopback: on one machine the nodes of one user need no token, a token works, and only the owner of the mount sees it.
func TestTokenOnLoopback(t *testing.T) {
	c := nodes(t, 2)
	n := c.Declare()
	n.Flags = []string{"--token", c.Node(1).Token()}
	n.Start()
	for _, text := range []string{"token", "members"} {
		if info := sh(t, n, "stat -c %%a %s/.dsm/%s", n.Mount, text); strings.TrimSpace(info) != map[string]string{"token": "600", "members": "444"}[text] {
			t.Errorf("the mode of %s is %s", text, info)
		}
	}
}

// TestTokensMadeAtOnce: each dsmfs token prints the token that it has had made, and no other's.
func TestTokensMadeAtOnce(t *testing.T) {
	c := nodes(t, 2)
	const each = 6
	made := make(chan string)
	for i := range 2 * each {
		go func() { made <- c.Node(1+i%2).CLI("token", c.Node(1+i%2).Mount, "--ttl", "1h").Stdout }()
	}
	seen := make(map[string]bool)
	for range 2 * each {
		token := strings.TrimSpace(<-made)
		if token == "" || seen[token] {
			t.Errorf("%q is printed, and to another as well: %v", token, seen[token])
		}
		seen[token] = true
	}
}

// TestEvictedNodeJoinsAgain cuts a node off until the others have given it up. When it reaches them again it is told so, and joins again by
// its certificate.
func TestEvictedNodeJoinsAgain(t *testing.T) {
	long(t)
	c := cluster(t, harness.Options{Nodes: 3, Network: harness.Namespaces, Secure: true, Flags: []string{"--lease", "2s", "--fault-timeout", "3s"}})
	cut := c.Node(3)
	before := c.Node(1).Token()
	c.Partition([]*harness.Node{c.Node(1), c.Node(2)}, []*harness.Node{cut})
	evicted := harness.Eventually(limit, func() bool { return len(report[[]row](t, c.Node(1), "members")) == 2 })
	if !evicted {
		t.Fatal("a node that is cut off stays a member")
	}
	c.Heal()
	told := harness.Eventually(limit, func() bool {
		text, err := os.ReadFile(cut.LogFile())
		return err == nil && strings.Contains(string(text), "this node was evicted from the cluster")
	})
	if !told {
		t.Error("the node does not learn that it was evicted")
	}
	if c.Node(2).Token() != before {
		t.Error("the token has changed by itself")
	}
	member(t, c.Node(1), cut.Name)
	if !harness.Eventually(limit, func() bool { return cut.Run(limit, "mkdir", cut.Mount+"/again").Err == nil }) {
		t.Error("a node that has joined again makes no directory")
	}
}
