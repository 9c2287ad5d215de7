package hold_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// asMounted starts a node as users have it: without a flag --hold.
func asMounted(t *testing.T) *harness.Node {
	t.Helper()
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	return harness.New(t, harness.Options{Nodes: 1, Memory: "256M", Default: true}).Node(1)
}

// stats returns what a node says of itself, by name.
func stats(c *harness.Client) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(c.Control("stats")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = value
	}
	return all
}

// TestMountOutlivesItsDaemon without any flag: a program that writes, maps and syncs goes on.
func TestMountOutlivesItsDaemon(t *testing.T) {
	n := asMounted(t)
	c := n.Client()
	f, m := c.Create("f", 1<<20)
	m.Store(0, []byte("before"))
	f.Write(8192, []byte("written"))
	attached := n.Attach("/f", true)
	last := 0
	for i := range byte(3) {
		copy(attached.Mem[100:], []byte{100 + i})
		last = killDaemon(t, n, last, 0, syscall.SIGKILL)
		m.Store(4096+int64(i), []byte{'a' + i})
		m.Sync()
		f.Write(int64(8192+100+int(i)), []byte{'A' + i})
		f.Sync()
		if got := f.Read(0, 6); string(got) != "before" {
			t.Errorf("daemon %d: %q", i, got)
		}
	}
	if got := f.Read(4096, 3); string(got) != "abc" {
		t.Errorf("stored to a mapping: %q", got)
	}
	if got := f.Read(8192+100, 3); string(got) != "ABC" {
		t.Errorf("written: %q", got)
	}
	if got := f.Read(8192, 7); string(got) != "written" {
		t.Errorf("written before: %q", got)
	}
	if got := f.Read(100, 1); !bytes.Equal(got, []byte{102}) {
		t.Errorf("stored by a program that has attached: %v", got)
	}
	if s := stats(c); s["outlives_daemon"] != "true" || s["lost_with_daemon_because"] != "" {
		t.Errorf("it says that it outlives its daemon: %q, %q", s["outlives_daemon"], s["lost_with_daemon_because"])
	}
	if res := n.CLI("status", n.Mount); !strings.Contains(res.Stdout, "outlives daemon") {
		t.Errorf("status: %s%s", res.Stdout, res.Stderr)
	}
}

// TestMountHasEverything that one with --hold=off has. Once a program has used what cannot outlive the daemon, the mount is lost with it, and has said so.
func TestMountHasEverything(t *testing.T) {
	type use = func(t *testing.T, n *harness.Node, c *harness.Client) *harness.File
	for what, use := range map[string]use{
		"demand, attached": func(_ *testing.T, n *harness.Node, c *harness.Client) *harness.File {
			c.SetXattr("f", "user.dsm.residency", "demand")
			f := c.Open("f", "r")
			c.Must("truncate %s 8192", c.Path("f"))
			copy(n.Attach("/f", true).Mem, "abc")
			return f
		},
		"direct": func(t *testing.T, _ *harness.Node, c *harness.Client) *harness.File {
			c.SetXattr("f", "user.dsm.access", "direct")
			f := openDirect(t, c, "f")
			f.Write(0, []byte("abc"))
			f.Map(4096).Store(4, []byte("more"))
			f.Sync()
			return f
		},
		"direct, attached before": func(t *testing.T, n *harness.Node, c *harness.Client) *harness.File {
			c.SetXattr("f", "user.dsm.access", "direct")
			c.Must("truncate %s %d", c.Path("f"), 10<<20)
			a, err := n.TryAttach("/f", true)
			if err != nil {
				t.Fatal(err)
			}
			copy(a.Mem, "abc")
			copy(a.Mem[9<<20:], "far")
			if s := stats(c); s["outlives_daemon"] != "true" {
				t.Errorf("no program has it direct yet: %v", s)
			}
			a.Close()
			f := openDirect(t, c, "f")
			if got := f.Read(9<<20, 3); string(got) != "far" {
				t.Errorf("reads %q", got)
			}
			f.Truncate(1 << 20)
			f.Write(1<<20, []byte("longer"))
			f.Sync()
			return f
		},
	} {
		t.Run(what, func(t *testing.T) {
			n := asMounted(t)
			c := n.Client()
			c.Must("close %d", c.Open("f", "rw,creat").FD)
			f := use(t, n, c)
			if got := f.Read(0, 3); string(got) != "abc" {
				t.Errorf("reads %q", got)
			}
			s := stats(c)
			if s["outlives_daemon"] != "false" || s["lost_with_daemon_because"] == "" {
				t.Errorf("it says that it outlives its daemon: %q, %q", s["outlives_daemon"], s["lost_with_daemon_because"])
			}
			log, err := os.ReadFile(n.LogFile())
			if err != nil || !strings.Contains(string(log), "from now on the mount is lost") {
				t.Errorf("the log does not say so (%v):\n%s", err, log)
			}
			killDaemon(t, n, 0, 0, syscall.SIGKILL)
			n.ExpectDead()
			if _, err := c.Do("stat %s", c.Path("g")); err == nil || !strings.Contains(err.Error(), "ENOTCONN") && !strings.Contains(err.Error(), "ECONNABORTED") {
				t.Errorf("stat after that: %v", err)
			}
			n.Start()
			if s := stats(n.Client()); s["outlives_daemon"] != "true" {
				t.Errorf("mounted anew: %v", s)
			}
		})
	}
}

// TestMemberThatEndsWithItsDaemon: the cluster knows it, and takes it for dead as soon as its port is closed. One that another daemon may follow has its whole lease.
func TestMemberThatEndsWithItsDaemon(t *testing.T) {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	c := harness.New(t, harness.Options{Nodes: 3, Memory: "256M", Default: true})
	says := func(n *harness.Node, what string) bool {
		log, err := os.ReadFile(n.LogFile())
		return err == nil && strings.Contains(string(log), what)
	}
	n := c.Node(2)
	here := n.Client()
	here.Must("close %d", here.Open("f", "rw,creat").FD)
	here.SetXattr("f", "user.dsm.access", "direct")
	openDirect(t, here, "f").Write(0, []byte("abc"))
	if !harness.Eventually(limit, func() bool { return says(n, "the cluster knows that no daemon follows") }) {
		t.Fatal("the cluster does not know")
	}
	killDaemon(t, n, 0, 0, syscall.SIGKILL)
	n.ExpectDead()
	if !harness.Eventually(limit, func() bool { return says(c.Node(1), "a member has died") || says(c.Node(3), "a member has died") }) {
		t.Error("the others do not take it for dead")
	}
	there := c.Node(1).Client()
	f := there.Open("g", "rw,creat")
	f.Write(0, []byte("abc"))
	f.Sync()
}

// TestReadersOfADemandFile: a file on demand that programs have only read is on demand afterwards, and so it is when one has stored to it.
func TestReadersOfADemandFile(t *testing.T) {
	n := asMounted(t)
	c := n.Client()
	c.Must("mkdir %s", c.Path("d"))
	c.SetXattr("d", "user.dsm.residency", "demand")
	f := c.Open("d/f", "r,creat")
	c.Must("truncate %s %d", c.Path("d/f"), 3<<20)
	m := f.MapForReading(3 << 20)
	zeroes := func(when string) {
		t.Helper()
		if got := append(f.Read(0, 8), m.Load(2<<20, 8)...); !bytes.Equal(got, make([]byte, 16)) {
			t.Errorf("%s: %v", when, got)
		}
	}
	zeroes("before")
	last := 0
	for i := range 2 {
		if s := stats(c); s["outlives_daemon"] != "true" {
			t.Fatalf("%v", s)
		}
		last = killDaemon(t, n, last, 0, syscall.SIGKILL)
		zeroes(fmt.Sprint("daemon ", i))
	}
	if text := c.Control("areas/d/f/stats"); !strings.Contains(text, "residency demand") {
		t.Errorf("the file is not on demand:\n%s", text)
	}
	w := c.Open("d/f", "rw")
	w.Write(2<<20, []byte("written"))
	w.Sync()
	if got := f.Read(2<<20, 7); string(got) != "written" {
		t.Errorf("reads %q", got)
	}
	killDaemon(t, n, last, 0, syscall.SIGKILL)
	if got := m.Load(2<<20, 7); string(got) != "written" {
		t.Errorf("reads %q", got)
	}
	if text := c.Control("areas/d/f/stats"); !strings.Contains(text, "residency demand") {
		t.Errorf("the file is not on demand:\n%s", text)
	}
}

// TestMountThatLosesItsHolder goes on, and says that no daemon follows.
func TestMountThatLosesItsHolder(t *testing.T) {
	n := asMounted(t)
	c := n.Client()
	daemon := n.Daemon()
	n.Kill()
	if !harness.Eventually(limit, func() bool { return stats(c)["outlives_daemon"] == "false" }) {
		t.Error("it says that it outlives its daemon")
	}
	f := c.Open("f", "rw,creat")
	f.Write(0, []byte("abc"))
	f.Sync()
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do("stat %s", c.Path("g")); err == nil || !strings.Contains(err.Error(), "ENOTCONN") && !strings.Contains(err.Error(), "ECONNABORTED") {
		t.Errorf("stat after that: %v", err)
	}
}

// openDirect opens a file with access=direct. It is served through the page cache until the daemon has seen that all have closed and detached it that had it before.
func openDirect(t *testing.T, c *harness.Client, name string) (f *harness.File) {
	t.Helper()
	if !harness.Eventually(limit, func() bool {
		f = c.Open(name, "rw")
		direct := strings.Contains(c.Control("areas/"+name+"/stats"), "access direct")
		if !direct {
			c.Must("close %d", f.FD)
		}
		return direct
	}) {
		t.Fatal("the file is not direct")
	}
	return f
}

// TestPageCacheOfADirectFile: a file with access=direct that programs have through the page cache, because others have attached it, stays there when another daemon follows.
func TestPageCacheOfADirectFile(t *testing.T) {
	n := asMounted(t)
	c := n.Client()
	c.Must("close %d", c.Open("f", "rw,creat").FD)
	c.SetXattr("f", "user.dsm.access", "direct")
	c.Must("truncate %s 8192", c.Path("f"))
	n.Attach("/f", true)
	f := c.Open("f", "rw")
	m := f.Map(8192)
	m.Store(0, []byte("abc"))
	killDaemon(t, n, 0, 0, syscall.SIGKILL)
	m.Store(3, []byte("def"))
	m.Sync()
	if got := f.Read(0, 6); string(got) != "abcdef" {
		t.Errorf("reads %q", got)
	}
	if text := c.Control("areas/f/stats"); !strings.Contains(text, "access cached") {
		t.Errorf("the page cache has the file, and the daemon says:\n%s", text)
	}
	if s := stats(c); s["outlives_daemon"] != "true" {
		t.Errorf("%v", s)
	}
}

// TestMountThatIsNotHeld says so.
func TestMountThatIsNotHeld(t *testing.T) {
	if skip, _ := harness.Prepare(); skip != "" {
		t.Skip(skip)
	}
	n := harness.New(t, harness.Options{Nodes: 1, Memory: "256M"}).Node(1)
	if s := stats(n.Client()); s["outlives_daemon"] != "false" || s["lost_with_daemon_because"] != "--hold=off" {
		t.Errorf("%v", s)
	}
	n.Kill()
	for _, limit := range []string{"-v 4000000", "-f 1000000"} { // a holder maps more, and its file is longer
		t.Run(limit, func(t *testing.T) {
			n := harness.New(t, harness.Options{Memory: "64M", Default: true}).Declare()
			args := slices.DeleteFunc(n.Arguments(), func(a string) bool { return a == "-f" })
			res := n.Run(time.Minute, "sh", append([]string{"-c", "ulimit " + limit + ` && exec "$@"`, "sh", harness.Binary()}, args...)...)
			if res.Err != nil {
				t.Fatalf("mount: %v: %s", res.Err, res.Stderr)
			}
			if s := stats(n.Client()); s["outlives_daemon"] != "false" || s["lost_with_daemon_because"] == "" {
				t.Errorf("%v", s)
			}
			if maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", n.Daemon())); err != nil || strings.Contains(string(maps), "dsmfs:held") { // it is a lot of address space
				t.Errorf("what is not held is still mapped: %v\n%s", err, maps)
			}
			if res := n.CLI("umount", n.Mount); res.Err != nil {
				t.Errorf("umount: %v: %s", res.Err, res.Stderr)
			}
		})
	}
}
