package integration

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestMountInBackground is the first thing a user does: the command returns when
// the mount is usable, leaves a daemon behind, and umount ends it.
func TestMountInBackground(t *testing.T) {
	for _, options := range []string{"flags", "-o"} {
		t.Run(options, func(t *testing.T) {
			c := cluster(t, harness.Options{})
			n := c.Declare()
			args := []string{"mount", n.Mount, "--listen", n.Address, "--memory", "64M", "--name", "alone", "--state", n.State()}
			if options == "-o" {
				args = []string{"mount", n.Mount, "-o", "listen=" + n.Address + ",memory=64M,name=alone,state=" + n.State()}
			}
			if res := n.CLI(args...); res.Err != nil {
				t.Fatalf("dsmfs %v: %v\n%s%s", args, res.Err, res.Stdout, res.Stderr)
			}
			cl := n.Client()
			f, m := cl.Create("w", 2*page)
			m.Store(page, []byte("hello"))
			m.Sync()
			if got := f.Read(page, 5); string(got) != "hello" {
				t.Errorf("read %q", got)
			}
			if members := report[[]row](t, n, "members"); len(members) != 1 || members[0].text("name") != "alone" {
				t.Errorf("members: %v", members)
			}
			if got := cl.Must("statfs %s", n.Mount)[0]; got != "33554432" {
				t.Errorf("statfs: %s bytes, want half of --memory", got)
			}
			cl.Close()
			if res := n.CLI("umount", n.Mount); res.Err != nil {
				t.Fatalf("umount: %v\n%s%s", res.Err, res.Stdout, res.Stderr)
			}
			if len(harness.Mounts(filepath.Dir(n.Mount))) != 0 {
				t.Errorf("umount returned, and it is still mounted")
			}
		})
	}
}

func TestReports(t *testing.T) {
	c := nodes(t, 3)
	cl := c.Node(2).Client()
	cl.Must("mkdir %s", cl.Path("dir"))
	_, m := cl.Create("dir/w", 3*page)
	m.Sync()
	for i, n := range c.Nodes() {
		members := report[[]row](t, n, "members")
		names := map[string]bool{}
		for _, r := range members {
			names[r.text("name")] = true
			if r.text("id") == "" || r.text("addr") == "" {
				t.Errorf("%s: member without id or address: %v", n.Name, r)
			}
		}
		if len(members) != 3 || !names["n1"] || !names["n2"] || !names["n3"] {
			t.Errorf("%s: members %v", n.Name, members)
		}
		if st := report[row](t, n, "status"); len(st) == 0 {
			t.Errorf("%s: an empty status", n.Name)
		}
		found := false
		for _, r := range report[[]row](t, n, "areas") {
			found = found || strings.TrimPrefix(r.text("path"), "/") == "dir/w"
		}
		if i == 1 && !found {
			t.Errorf("%s: an area that is open there is not in %v", n.Name, report[[]row](t, n, "areas"))
		}
		for _, verb := range []string{"status", "members", "areas"} {
			if res := n.CLI(verb, n.Mount); res.Err != nil || strings.TrimSpace(res.Stdout) == "" {
				t.Errorf("%s: dsmfs %s: %v %q %q", n.Name, verb, res.Err, res.Stdout, res.Stderr)
			}
		}
	}
}

// TestControlFiles reads and writes what is below /.dsm.
func TestControlFiles(t *testing.T) {
	c := nodes(t, 2)
	a, b := c.Node(1).Client(), c.Node(2).Client()
	for _, name := range a.Must("ls %s", c.Node(1).Mount) {
		if name == ".dsm" {
			t.Error("/.dsm shows in readdir")
		}
	}
	_, am := a.Create("w", 2*page)
	_, _ = b.Attach("w", 2*page)
	for _, file := range []string{"version", "config", "members", "stats", "log_level", "areas/w/home", "areas/w/subscribers", "areas/w/version"} {
		if text := a.Control(file); strings.TrimSpace(text) == "" || !strings.HasSuffix(text, "\n") {
			t.Errorf("/.dsm/%s has %q", file, text)
		}
	}
	for file, want := range map[string]string{"mode": "relaxed", "merge": "last", "interval": a.Xattr("w", "user.dsm.interval")} {
		if got := strings.TrimSpace(a.Control("areas/w/" + file)); got != want {
			t.Errorf("areas/w/%s: %q, want %q", file, got, want)
		}
	}
	if err := a.SetControl("areas/w/dtype", "f32"); err != nil {
		t.Errorf("dtype: %v", err)
	}
	if err := a.SetControl("areas/w/merge", "sum"); err != nil {
		t.Errorf("merge: %v", err)
	}
	if got := b.Xattr("w", "user.dsm.merge") + " " + b.Xattr("w", "user.dsm.dtype"); got != "sum f32" {
		t.Errorf("on the other node the area is %q", got)
	}
	before := a.Control("areas/w/version")
	am.Store(0, []byte{1, 2, 3, 4})
	if err := a.SetControl("areas/w/publish", "1"); err != nil {
		t.Errorf("publish: %v", err)
	}
	if after := a.Control("areas/w/version"); after == before {
		t.Errorf("the version is still %q after a publish", after)
	}
	level := a.Control("log_level")
	if err := a.SetControl("log_level", "debug"); err != nil {
		t.Errorf("log_level: %v", err)
	}
	if got := strings.TrimSpace(a.Control("log_level")); got != "debug" {
		t.Errorf("log_level: %q", got)
	}
	if err := a.SetControl("log_level", strings.TrimSpace(level)); err != nil { // what is read can be written
		t.Errorf("log_level: %v", err)
	}
	if listed := a.Must("listxattr %s", a.Path("w")); strings.Contains(strings.Join(listed, " "), "version") {
		t.Errorf("live attributes are listed: %v", listed)
	}
}

// devProcess is a `dsmfs dev` that runs.
type devProcess struct {
	t     *testing.T
	dir   string // with the mounts node1, node2, ...
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

// startDev starts a local cluster of three with further flags, and returns when it is ready.
func startDev(ctx context.Context, t *testing.T, n *harness.Node, flags ...string) *devProcess {
	t.Helper()
	d := &devProcess{t: t, dir: filepath.Join(filepath.Dir(n.Mount), "dev")}
	d.cmd = n.Command(ctx, harness.Binary(), append(append([]string{"dev", "--nodes", "3"}, flags...), d.dir)...)
	in, err := d.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.in, d.lines = in, bufio.NewScanner(out)
	d.await("ready")
	return d
}

// await reads what it prints up to a line with the text.
func (d *devProcess) await(text string) {
	d.t.Helper()
	for d.lines.Scan() {
		if strings.Contains(d.lines.Text(), text) {
			return
		}
	}
	d.t.Fatalf("dsmfs dev ended without %q: %v", text, d.cmd.Wait())
}

// interrupt ends it with Ctrl-C: it says that all went well, and nothing is left behind.
func (d *devProcess) interrupt() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		d.t.Fatal(err)
	}
	for d.lines.Scan() { // until it closes its output
	}
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("dsmfs dev after Ctrl-C: %v", err)
	}
	if left := harness.Mounts(d.dir); len(left) != 0 {
		d.t.Errorf("left behind: %v", left)
	}
}

// TestDev starts the local cluster of three, uses it and ends it with Ctrl-C.
func TestDev(t *testing.T) {
	c := cluster(t, harness.Options{})
	n := c.Declare()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dev := startDev(ctx, t, n)
	for from, to := range map[string]string{"node1": "node3", "node3": "node2"} {
		res := n.Run(limit, "sh", "-c", "echo from "+from+" > "+dev.dir+"/"+from+"/f && cat "+dev.dir+"/"+to+"/f")
		if res.Err != nil || res.Stdout != "from "+from+"\n" {
			t.Errorf("written at %s, read at %s: %q %v %s", from, to, res.Stdout, res.Err, res.Stderr)
		}
	}
	// A program that keeps a file open has it taken away, and delays nothing.
	opener := n.Command(ctx, "sh", "-c", "exec 3<>"+dev.dir+"/node2/f; echo; exec sleep 1000")
	opened, err := opener.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := opener.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = opener.Process.Kill()
		_ = opener.Wait() // killed
	}()
	if !bufio.NewScanner(opened).Scan() {
		t.Error("the program that is to keep a file open does not")
	}
	began := time.Now()
	dev.interrupt()
	if took := time.Since(began); took > 8*time.Second { // 2 s, on a machine with other work
		t.Errorf("the cluster takes %v to end", took)
	}
}

// TestDevAfterKill ends a local cluster of which a node was killed, the first: the others leave, and nothing stays behind.
func TestDevAfterKill(t *testing.T) {
	c := cluster(t, harness.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dev := startDev(ctx, t, c.Declare(), "--orders")
	if _, err := io.WriteString(dev.in, "kill node1\n"); err != nil {
		t.Fatal(err)
	}
	dev.await("killed node1")
	dev.interrupt()
}
