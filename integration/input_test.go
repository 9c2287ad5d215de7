package integration

import (
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// refuses checks that a command fails with a message that says what is wrong:
// every pattern is in it, regardless of case.
func refuses(t *testing.T, res harness.Result, patterns ...string) {
	t.Helper()
	text := res.Stderr + res.Stdout
	if res.Code <= 0 {
		t.Errorf("exit code %d (%v), want a failure; it printed:\n%s", res.Code, res.Err, text)
	}
	for _, p := range patterns {
		if !regexp.MustCompile("(?is)" + p).MatchString(text) {
			t.Errorf("the message does not say %q:\n%s", p, text)
		}
	}
	if strings.Contains(text, "goroutine ") {
		t.Errorf("the message is a crash:\n%s", text)
	}
}

func TestBadMounts(t *testing.T) {
	c := cluster(t, harness.Options{})
	n := c.Declare()
	flags := []string{"--listen", n.Address, "--memory", "64M", "--state", n.State()}
	mount := func(where string, more ...string) harness.Result {
		return n.CLI(append(append([]string{"mount", where}, flags...), more...)...)
	}
	missing := filepath.Join(filepath.Dir(n.Mount), "missing", "mnt")
	file := filepath.Join(filepath.Dir(n.Mount), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refuses(t, mount(missing), "missing", "no such|not exist")
	refuses(t, mount(file), "file", "not a directory")
	refuses(t, mount(n.Mount, "--join", "127.0.0.1:1"), "join", `127\.0\.0\.1:1`, "refused|answer|reach")
	refuses(t, mount(n.Mount, "--memory", "much"), "memory", "much")
	refuses(t, mount(n.Mount, "--memory", "1000T"), "memory", "more than")
	refuses(t, mount(n.Mount, "--memory", "12"), "memory", "12G")
	refuses(t, mount(n.Mount, "--no-such-flag"), "no-such-flag")
	refuses(t, mount(n.Mount, "-o", "colour=blue"), "colour")
	refuses(t, n.CLI("mount"), "usage|mount ?point|MNT")
	refuses(t, n.CLI("frobnicate"), "frobnicate")
	refuses(t, n.CLI("status", n.Mount), "not a dsmfs|not mounted|no dsmfs")
	refuses(t, n.CLI("umount", n.Mount), "not a dsmfs|not mounted|no dsmfs")
}

func TestSecondMounts(t *testing.T) {
	c := nodes(t, 1)
	n, other := c.Node(1), c.Declare()
	second := func(where, state string, more ...string) harness.Result {
		return n.CLI(append([]string{"mount", where, "--listen", other.Address, "--memory", "64M", "--state", state}, more...)...)
	}
	refuses(t, second(n.Mount, other.State()), "busy|already|mounted")
	refuses(t, second(other.Mount, n.State()), "state", "in use|locked|already|another")

	n.Kill()
	refuses(t, second(n.Mount, other.State()), "--force", "dead|not connected|endpoint")
	if res := second(n.Mount, other.State(), "--force"); res.Err != nil {
		t.Fatalf("mount --force on a dead mount: %v\n%s%s", res.Err, res.Stdout, res.Stderr)
	}
	cl := n.Client()
	cl.Open("f", "rw,creat,excl").Close()
	cl.Close()
	if res := n.CLI("umount", n.Mount); res.Err != nil {
		t.Errorf("umount: %v %s", res.Err, res.Stderr)
	}
}

// TestUnprivileged mounts with no /dev/fuse at all and as a user that may not open it.
func TestUnprivileged(t *testing.T) {
	c := cluster(t, harness.Options{})
	n := c.Declare()
	command := harness.Binary() + " mount " + n.Mount + " --listen " + n.Address + " --memory 64M --state " + n.State()
	hide := "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && exec " + command
	refuses(t, n.Run(limit, "unshare", "-m", "sh", "-c", hide), "/dev/fuse", "modprobe|module|kernel|container|device")

	if err := os.Chmod(filepath.Dir(filepath.Dir(n.Mount)), 0o755); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	if err := os.Chown(n.Mount, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(n.Mount, "..", "state")
	if err := os.MkdirAll(state, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(state, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat("/dev/fuse"); err == nil && st.Mode().Perm()&0o006 == 0o006 {
		t.Skip("everybody may open /dev/fuse here")
	}
	refuses(t, n.Run(limit, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", "exec "+command),
		"/dev/fuse", "permission|root")
}

func TestBadAttributes(t *testing.T) {
	c := nodes(t, 1)
	n := c.Node(1)
	cl := n.Client()
	_, _ = cl.Create("w", page)
	for _, bad := range []struct{ key, value, logged string }{
		{"mode", "chaotic", "relaxed"},
		{"merge", "average", "last.*sum"},
		{"dtype", "complex256", "f32"},
		{"apply", "whenever", "arrival.*sync"},
		{"interval", "often", "interval"},
		{"interval", "-5ms", "interval"},
		{"colour", "blue", "colour"},
	} {
		if _, err := cl.Do("setxattr %s user.dsm.%s %s", cl.Path("w"), bad.key, bad.value); err != harness.Failure("EINVAL") && err != harness.Failure("EOPNOTSUPP") {
			t.Errorf("user.dsm.%s = %s: %v, want EINVAL", bad.key, bad.value, err)
		}
		logs(t, n, bad.value, bad.logged)
	}
	for _, bad := range []struct{ file, value, logged string }{
		{"log_level", "shouting", "debug"},
		{"areas/w/merge", "average", "last.*sum"},
		{"areas/w/publish", "yes please", "publish|1"},
		{"areas/w/interval", "often", "interval"},
	} {
		if err := cl.SetControl(bad.file, bad.value); err != harness.Failure("EINVAL") {
			t.Errorf("%q > /.dsm/%s: %v, want EINVAL", bad.value, bad.file, err)
		}
		logs(t, n, strings.Fields(bad.value)[0], bad.logged)
	}
	if _, err := cl.Do("open %s w", cl.Path(".dsm/members")); err == nil {
		t.Error("a file of /.dsm that shows only can be opened for writing")
	}
	cl.Fails("ENOENT", "stat %s", cl.Path(".dsm/areas/absent/mode"))
	if got := cl.Xattr("w", "user.dsm.merge"); got != "last" {
		t.Errorf("a refused value changed the merge rule to %q", got)
	}
}

// TestSizeIsNoMultipleOfElements has half an element at the end: it must not be
// lost, and whole elements keep their sums.
func TestSizeIsNoMultipleOfElements(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	f := all[0].Open("w", "rw,creat,excl")
	all[0].SetXattr("w", "user.dsm.dtype", "i32")
	all[0].SetXattr("w", "user.dsm.merge", "sum")
	if _, err := all[0].Do("ftruncate %d 4098", f.FD); err != nil {
		logs(t, c.Node(1), "4098|multiple|element")
		return // refusing it, with a reason, is fine
	}
	maps := attachAll(all, "w", 4098)
	for _, m := range maps {
		m.Add("i32", 0, 1024, 1, 1)
	}
	maps[0].Store(4096, []byte{7})
	maps[1].Store(4097, []byte{9})
	joinAll(t, maps)
	settle(maps)
	for i, m := range maps {
		if lo, hi := m.Range("i32", 0, 1024); lo != 2 || hi != 2 {
			t.Errorf("node %d: sums from %d to %d, want 2", i+1, lo, hi)
		}
		if got := m.Load(4096, 2); got[0] != 7 || got[1] != 9 {
			t.Errorf("node %d: the bytes after the last element are %v", i+1, got)
		}
	}
}

// logs checks that some line of the node's log matches all patterns.
func logs(t *testing.T, n *harness.Node, patterns ...string) {
	t.Helper()
	found := harness.Eventually(limit, func() bool {
		text, _ := os.ReadFile(n.LogFile())
		for line := range strings.Lines(string(text)) {
			all := true
			for _, p := range patterns {
				all = all && regexp.MustCompile("(?i)"+p).MatchString(line)
			}
			if all {
				return true
			}
		}
		return false
	})
	if !found {
		t.Errorf("%s: no line of the log matches %q", n.Name, patterns)
	}
}

// TestGarbageOnThePort sends what no node would: the cluster goes on, and nobody new is let in.
func TestGarbageOnThePort(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	_, am := a.Create("w", page)
	_, bm := b.Attach("w", page)
	rng := rand.New(rand.NewPCG(seed(t), 1))
	random := make([]byte, 64<<10)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	garbage := [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: dsmfs\r\n\r\n"),
		make([]byte, 4096),
		{0xdd, 0xff, 0xff, 0xff, 0xff}, // msgpack: an array of 2^32-1 elements
		[]byte(strings.Repeat("\x91", 1<<20)),
		random,
		{0xff},
		nil,
	}
	for i, p := range garbage {
		for _, network := range []string{"tcp", "udp"} {
			conn, err := net.Dial(network, c.Node(1).Address)
			if err != nil {
				t.Fatalf("%s: %v", network, err)
			}
			_ = conn.SetDeadline(time.Now().Add(limit))
			if network == "udp" {
				p = p[:min(len(p), 1400)]
			}
			_, _ = conn.Write(p) // it may be closed before the end
			if network == "tcp" {
				_ = conn.(*net.TCPConn).CloseWrite()
				buf := make([]byte, 1<<10)
				for {
					if _, err := conn.Read(buf); err != nil {
						if os.IsTimeout(err) {
							t.Errorf("garbage %d: the connection stays open", i)
						}
						break
					}
				}
			}
			_ = conn.Close()
		}
		mark := []byte{byte(i + 1), 1, 2, 3}
		am.Store(int64(8*i), mark)
		am.Sync()
		bm.Await(int64(8*i), mark, limit)
	}
	if members := report[[]row](t, c.Node(2), "members"); len(members) != 2 {
		t.Errorf("members after the garbage: %v", members)
	}
}
