package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestSettings sets and reads the settings of files and directories on two nodes, by the verbs alone.
func TestSettings(t *testing.T) {
	c := nodes(t, 2)
	n, other := c.Node(1), c.Node(2)
	at := func(n *harness.Node, parts ...string) string {
		return filepath.Join(append([]string{n.Mount}, parts...)...)
	}
	get := func(n *harness.Node, want string, args ...string) {
		t.Helper()
		res := n.CLI(append([]string{"get"}, args...)...)
		if res.Err != nil || strings.TrimSpace(res.Stdout) != want {
			t.Errorf("get %q: %q, %v %s; want %q", args, res.Stdout, res.Err, res.Stderr, want)
		}
	}
	ok := func(args ...string) {
		t.Helper()
		done(t, strings.Join(args, " "), n.CLI(args...))
	}
	const defaults = "mode=relaxed\nmerge=last\ndtype=auto\napply=auto\ninterval=100ms\nresidency=full\naccess=cached\nlocks=meet\nplacement=auto\nstaleness=none\nretain=2\nreplicas=2\non_nonfinite=count"

	done(t, "mkdir", n.Run(limit, "mkdir", at(n, "model"), at(n, "plain")))
	get(n, defaults, at(n, "model"))
	ok("set", at(n, "model"), "merge=sum", "user.dsm.interval=20ms")
	done(t, "touch", n.Run(limit, "touch", at(n, "model", "w"), at(n, "plain", "p")))
	get(other, "sum", at(other, "model", "w"), "merge")
	get(other, "merge=sum\ninterval=20ms", at(other, "model", "w"), "merge", "interval")
	get(other, "last", at(other, "plain", "p"), "user.dsm.merge")
	res := other.CLI("get", at(other, "model"), "--output", "json")
	var values map[string]string
	if err := json.Unmarshal([]byte(res.Stdout), &values); err != nil || values["merge"] != "sum" || len(values) != 13 {
		t.Errorf("as JSON: %q, %v", res.Stdout, err)
	}

	// What is removed is that of the directory around it, and of the root what new clusters have.
	ok("set", n.Mount, "interval=1s")
	ok("unset", at(n, "model"), "merge", "interval")
	get(n, "merge=last\ninterval=1s", at(n, "model"), "merge", "interval")
	ok("set", at(n, "model", "w"), "merge=")
	get(n, "last", at(n, "model", "w"), "merge")
	ok("unset", n.Mount, "interval")
	get(n, defaults, n.Mount)

	// Errors are in words, and leave all as it was.
	refuses(t, n.CLI("set", at(n, "model"), "interval=5s", "merge=median"), `merge=median: unknown merge rule "median": want one of last sum mean min max`)
	get(n, "1s", at(n, "model"), "interval")
	refuses(t, n.CLI("set", at(n, "model"), "interval=soon"), "want milliseconds or a duration such as 250ms")
	refuses(t, n.CLI("set", at(n, "model"), "colour=red"), "unknown setting .colour.: want one of mode merge")
	refuses(t, n.CLI("set", at(n, "model"), "residency=demand", "access=direct"), "access direct is for areas of residency full")
	done(t, "write", n.Run(limit, "sh", "-c", "printf 0123456789 > "+at(n, "plain", "p")))
	refuses(t, n.CLI("set", at(n, "plain", "p"), "residency=demand"), "residency of a file of 10 bytes is full and fixed while the file is not empty: truncate it to 0")
	refuses(t, n.CLI("set", at(n, "plain", "p"), "dtype=f32"), "10 bytes is no multiple of the 4 bytes of a f32 element")
	refuses(t, n.CLI("get", at(n, "plain"), "version"), "only files have")
	refuses(t, n.CLI("get", at(n, "none")), "no such file")
	refuses(t, n.CLI("get", "/proc"), "/proc is in no dsmfs mount")
	done(t, "chmod", n.Run(limit, "chmod", "755", n.Mount))
	done(t, "chmod", n.Run(limit, "chmod", "755", filepath.Dir(n.Mount), filepath.Dir(filepath.Dir(n.Mount))))
	refuses(t, n.Run(limit, "setpriv", "--reuid=65534", "--clear-groups", harness.Binary(), "set", at(n, "plain", "p"), "merge=sum"), "the right to write")
	if v := n.CLI("get", at(n, "plain", "p"), "version"); v.Err != nil || len(strings.TrimSpace(v.Stdout)) < 10 {
		t.Errorf("version: %q, %v", v.Stdout, v.Err)
	}
}

// TestPathsInAMount: the verbs that look at a mount take any path in it, also by a link.
func TestPathsInAMount(t *testing.T) {
	c := nodes(t, 1)
	n := c.Node(1)
	dir, file := filepath.Join(n.Mount, "a", "b"), filepath.Join(n.Mount, "a", "b", "f")
	done(t, "mkdir", n.Run(limit, "mkdir", "-p", dir))
	done(t, "touch", n.Run(limit, "touch", file, filepath.Join(n.Mount, "g")))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{n.Mount, dir, file, link} {
		for _, verb := range []string{"status", "members"} {
			if res := n.CLI(verb, path); res.Err != nil || !strings.Contains(res.Stdout, n.Name) {
				t.Errorf("%s %s: %v\n%s%s", verb, path, res.Err, res.Stdout, res.Stderr)
			}
		}
	}
	for path, want := range map[string]string{n.Mount: "a/b/f g", dir: "a/b/f", file: "a/b/f", link: "a/b/f"} {
		var got []string
		var rows []row
		res := n.CLI("areas", path, "--output", "json")
		if err := json.Unmarshal([]byte(res.Stdout), &rows); err != nil {
			t.Errorf("areas %s: %v %s", path, err, res.Stderr)
		}
		for _, r := range rows {
			got = append(got, r.text("path"))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("areas %s: %q, want %s", path, got, want)
		}
	}
	refuses(t, n.CLI("umount", dir), "not a dsmfs mount")
	refuses(t, n.CLI("areas", filepath.Join(n.Mount, "none")), "no such file")
}

// TestTextWhereSumsAre: in a directory with a rule that needs a type a file without one cannot be shared. That is said by the write(2), not only
// by close, which shells do not look at; and the log says what to do.
func TestTextWhereSumsAre(t *testing.T) {
	c := nodes(t, 2)
	n, other := c.Node(1), c.Node(2)
	sums := filepath.Join(n.Mount, "sums")
	done(t, "mkdir", n.Run(limit, "mkdir", sums))
	done(t, "set", n.CLI("set", sums, "merge=sum"))
	for _, to := range []string{">", ">>"} {
		refuses(t, n.Run(limit, "sh", "-c", "echo hi "+to+" "+filepath.Join(sums, "x")), "I/O error|invalid argument")
	}
	all := clients(c)
	if st := all[1].Stat("sums/x"); st.Size != 0 {
		t.Errorf("the file has %d bytes", st.Size)
	}
	log, err := os.ReadFile(n.LogFile())
	if err != nil || strings.Count(string(log), "set user.dsm.dtype of the file") != 1 {
		t.Errorf("%v; the log:\n%s", err, log)
	}
	done(t, "set", n.CLI("set", filepath.Join(sums, "x"), "merge=last"))
	done(t, "write", n.Run(limit, "sh", "-c", "echo hi > "+filepath.Join(sums, "x")))
	if got := other.Run(limit, "cat", filepath.Join(other.Mount, "sums", "x")); got.Stdout != "hi\n" {
		t.Errorf("with merge=last: %q, %v", got.Stdout, got.Err)
	}

	// Stores to a mapping cannot be refused. They are published when there is a type.
	_, m := all[0].Create("sums/mapped", page)
	_, there := all[1].Attach("sums/mapped", page)
	m.Store(0, []byte{7})
	if err := m.TrySync(); err != harness.Failure("EINVAL") {
		t.Errorf("msync of what has no type: %v, want EINVAL", err)
	}
	done(t, "set", n.CLI("set", filepath.Join(sums, "mapped"), "dtype=u8"))
	m.Sync()
	there.Sync()
	if got := there.Load(0, 1); got[0] != 7 {
		t.Errorf("the other node has %d", got[0])
	}
}
