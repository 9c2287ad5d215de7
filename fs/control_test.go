package fs

import (
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
)

func TestControlFiles(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	c.must(clientCall{Op: "mkdir", Path: f.path("d"), Mode: 0o755})
	f.file(c, "d/w", []byte("x"))
	c.must(clientCall{Op: "symlink", Path: f.path("d", "s"), To: "w"})
	read := func(path string) string {
		t.Helper()
		return string(c.must(clientCall{Op: "readfile", Path: f.path(".dsm", path)}).Data)
	}
	list := func(parts ...string) []string {
		t.Helper()
		names := c.must(clientCall{Op: "readdir", Path: f.path(parts...)}).Names
		slices.Sort(names)
		return names
	}

	if got := list("."); !slices.Equal(got, []string{"d"}) {
		t.Errorf("the root lists %q; .dsm is hidden", got)
	}
	if got, want := list(".dsm"), []string{"areas", "attach", "cluster", "config", "groups", "log_level", "members", "scrub", "stats", "token", "version"}; !slices.Equal(got, want) {
		t.Errorf(".dsm lists %q, want %q", got, want)
	}
	if got := list(".dsm", "areas", "d"); !slices.Equal(got, []string{"w"}) {
		t.Errorf("areas/d lists %q", got)
	}
	if got, want := list(".dsm", "areas", "d", "w"), []string{"access", "acquire", "apply", "conflicts", "dtype", "group", "history", "home", "interval", "locks", "merge", "mode", "on_nonfinite",
		"owner", "placement", "publish", "replicas", "residency", "retain", "staleness", "stats", "subscribers", "version", "versions"}; !slices.Equal(got, want) {
		t.Errorf("areas/d/w lists %q, want %q", got, want)
	}

	for file, want := range map[string]string{
		"version": "1.2.3\n",
		"config":  "mountpoint /mnt\nreplicas 2\n",
		"members": "000000000000000a name=one addr=10.0.0.1:7946 state=alive voter=1 leaving=0 budget=1073741824\n" +
			"000000000000000b name=two addr=10.0.0.2:7946 state=suspect voter=0 leaving=1 budget=1048576\n",
		"log_level":                "info\n",
		"areas/d/w/mode":           "relaxed\n",
		"areas/d/w/merge":          "last\n",
		"areas/d/w/dtype":          "auto\n",
		"areas/d/w/apply":          "auto\n",
		"areas/d/w/interval":       "100ms\n",
		"areas/d/w/version":        "4711\n",
		"areas/d/w/home":           "000000000000000a\n000000000000000b source=000000000000000c,000000000000000d backups=000000000000000e filling=000000000000000a,000000000000000f\n",
		"areas/d/w/subscribers":    "000000000000000c\n",
		"areas/../areas/d/w/merge": "last\n",
	} {
		if got := read(file); got != want {
			t.Errorf("%s reads %q, want %q", file, got, want)
		}
	}
	if got := read("stats"); !strings.HasSuffix(got, "publishes 3\npushes 4\n") || !strings.HasPrefix(got, "open_areas 0\n") {
		t.Errorf("stats reads %q", got)
	}

	// What can be written is written as it is read, by echo and without newline.
	for file, value := range map[string]string{"log_level": "warn\n", "areas/d/w/merge": "sum", "areas/d/w/dtype": "i64\n",
		"areas/d/w/interval": "1s\n", "areas/d/w/apply": "arrival\n", "areas/d/w/mode": "relaxed\n"} {
		c.must(clientCall{Op: "writefile", Path: f.path(".dsm", file), Data: []byte(value)})
		if got := read(file); strings.TrimSpace(got) != strings.TrimSpace(value) {
			t.Errorf("%s reads %q after %q was written", file, got, value)
		}
	}
	if f.info.LogLevel() != slog.LevelWarn {
		t.Errorf("level %v", f.info.LogLevel())
	}
	c.must(clientCall{Op: "writefile", Path: f.path(".dsm", "log_level"), Data: []byte("debug")})
	c.must(clientCall{Op: "writefile", Path: f.path(".dsm", "scrub"), Data: []byte("now\n")})
	if got := read("scrub"); got != "passes 1\n" {
		t.Errorf("scrub reads %q", got)
	}
}

func TestControlErrors(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "w", []byte("x"))
	write := func(file, value string) clientCall {
		return clientCall{Op: "writefile", Path: f.path(".dsm", file), Data: []byte(value)}
	}
	for _, tt := range []struct {
		file, value string
		want        syscall.Errno
		log         string
	}{
		{"scrub", "later\n", syscall.EINVAL, "want now"},
		{"log_level", "loud\n", syscall.EINVAL, "want debug, info, warn or error"},
		{"areas/w/merge", "median\n", syscall.EINVAL, "want one of last sum"},
		{"areas/w/dtype", "f33\n", syscall.EINVAL, "want one of auto f64"},
		{"areas/w/mode", "strict\n", syscall.EINVAL, "want one of relaxed"},
		{"areas/w/apply", "\n", syscall.EINVAL, "want one of auto arrival sync"},
		{"areas/w/interval", "soon\n", syscall.EINVAL, "soon"},
		{"areas/w/publish", "yes\n", syscall.EINVAL, "want 1"},
		{"areas/w/acquire", "1\n1\n", syscall.EINVAL, "want 1"},
		{"areas/w/merge", strings.Repeat("x", 5000), syscall.EINVAL, "want one short value"},
		{"version", "2", syscall.EACCES, ""},
		{"areas/w/home", "a", syscall.EACCES, ""},
		{"areas/v/merge", "sum", syscall.ENOENT, ""},
		{"nothing", "x", syscall.EPERM, ""},
		{"areas/w/nothing", "x", syscall.EPERM, ""},
	} {
		c.wantErrno(tt.want, write(tt.file, tt.value))
		if tt.log != "" {
			f.wantLog("level=WARN", "file="+tt.file[strings.LastIndex(tt.file, "/")+1:], tt.log)
		}
	}
	c.wantErrno(syscall.EACCES, clientCall{Op: "readfile", Path: f.path(".dsm", "areas", "w", "publish")})
	dir := f.path(".dsm")
	c.wantErrno(syscall.EPERM, clientCall{Op: "mkdir", Path: f.path(".dsm", "x"), Mode: 0o755})
	c.wantErrno(syscall.EPERM, clientCall{Op: "rmdir", Path: dir})
	c.wantErrno(syscall.EPERM, clientCall{Op: "rename", Path: dir, To: f.path("x")})
	c.wantErrno(syscall.EEXIST, clientCall{Op: "mkdir", Path: dir, Mode: 0o755})
	c.wantErrno(syscall.EPERM, clientCall{Op: "rename", Path: f.path("w"), To: f.path(".dsm", "version")})
	c.wantErrno(syscall.EPERM, clientCall{Op: "chmod", Path: f.path(".dsm", "version"), Mode: 0o666})
	// The harvester's way to an inode is nobody else's.
	c.wantErrno(syscall.ENOENT, clientCall{Op: "stat", Path: f.path(".dsm", "ino", "2")})
}

// TestControlPermissions follow the file's.
func TestControlPermissions(t *testing.T) {
	f := mountTest(t)
	c := startClient(t)
	f.file(c, "w", []byte("x"))
	mode := func(file string) uint32 {
		return c.must(clientCall{Op: "stat", Path: f.path(".dsm", "areas", "w", file)}).Stat.Mode
	}
	for _, tt := range []struct{ perm, dir, merge, home, publish uint32 }{
		{0o644, 0o755, 0o644, 0o444, 0o200},
		{0o600, 0o500, 0o600, 0o400, 0o200},
		{0o222, 0o111, 0o222, 0o000, 0o222},
	} {
		c.must(clientCall{Op: "chmod", Path: f.path("w"), Mode: tt.perm})
		if got, want := mode("."), syscall.S_IFDIR|tt.dir; got != want && tt.perm != 0o644 {
			t.Errorf("%o: directory %o, want %o", tt.perm, got, want)
		}
		for file, want := range map[string]uint32{"merge": tt.merge, "home": tt.home, "publish": tt.publish} {
			if got := mode(file); got != syscall.S_IFREG|want {
				t.Errorf("%o: %s has %o, want %o", tt.perm, file, got, want)
			}
		}
	}
}

// TestPublishAndAcquireFiles: echo 1 > publish finds stores to mappings too.
func TestPublishAndAcquireFiles(t *testing.T) {
	f := mountTest(t)
	f.noInterval()
	c := startClient(t)
	a := f.file(c, "w", make([]byte, 8))
	control := func(name string) {
		t.Helper()
		c.must(clientCall{Op: "writefile", Path: f.path(".dsm", "areas", "w", name), Data: []byte("1\n")})
	}
	control("publish") // not open: nothing to do
	control("acquire")
	if a.state().acquires != 0 {
		t.Error("an area that is not open was acquired")
	}
	_, m := f.mapFile(c, "w", 8)
	c.must(clientCall{Op: "store", FD: m, Data: []byte("stored")})
	control("publish")
	if got := a.state().published; got != "stored\x00\x00" {
		t.Errorf("published %q", got)
	}
	control("acquire")
	if n := a.state().acquires; n != 1 {
		t.Errorf("%d acquires", n)
	}
}

// TestConflictsOfOtherNodes: an order names a node, is for this one if it does not, and for all with no number.
func TestConflictsOfOtherNodes(t *testing.T) {
	areas := &fakeAreas{conflicts: []control.KeptConflicts{{Node: "two", List: []control.Conflict{{Number: 3, Time: time.Unix(5, 0), Kept: []byte{1}}}}}}
	b := newBridge(Config{Areas: areas, Info: new(fakeInfo), Names: newFakeNames(), Log: slog.New(slog.DiscardHandler)})
	ino, err := b.cfg.Names.Create(t.Context(), dsm.RootIno, "w", dsm.Inode{Kind: dsm.KindFile, Perm: 0o666}, true)
	if err != nil {
		t.Fatal(err)
	}
	node := control.Root
	for _, name := range []string{"areas", "w", "conflicts"} {
		if node, err = b.control.Lookup(t.Context(), node, name); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := readControl(t.Context(), b, node), "two/3 time=5.000000 offset=0 length=1 kept=01\n"; got != want {
		t.Errorf("it reads %q, want %q", got, want)
	}
	h, err := b.control.Open(node, syscall.O_WRONLY, dsm.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for order, want := range map[string]string{"clear two/3": "11/3", "clear here/2": "10/2", "clear 2\n": "10/2", "clear": "0/0", "clear three/1": "", "clear two": ""} {
		areas.cleared = nil
		if err := h.Write(t.Context(), []byte(order)); (err == nil) != (want != "") || strings.Join(areas.cleared, " ") != want {
			t.Errorf("%q clears %q of area %d, %v; want %q", order, areas.cleared, ino.Ino, err, want)
		}
	}
}
