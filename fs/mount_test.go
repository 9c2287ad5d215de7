package fs

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"golang.org/x/sys/unix"
)

// verbEnv tells the test binary to be something else than the tests.
const verbEnv = "DSMFS_FS_TEST_VERB"

// noRaceWait keeps a process that was built with -race from sleeping a second
// before it ends.
const noRaceWait = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	switch verb := os.Getenv(verbEnv); verb {
	case "":
		os.Exit(m.Run())
	case "harvest":
		if err := harvest.Main(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "harvest child:", err)
			os.Exit(1)
		}
	case "client":
		clientMain()
	case "daemon":
		daemonMain()
	case "posix":
		os.Exit(m.Run())
	default:
		panic("unknown verb " + verb)
	}
}

// harvestArgv runs the test binary as the harvester's child. A verb of the
// environment would go to clients too.
func harvestArgv() []string {
	return []string{"/usr/bin/env", verbEnv + "=harvest", noRaceWait, os.Args[0]}
}

// fakeInfo is the rest of the daemon.
type fakeInfo struct{ level slog.LevelVar }

func (*fakeInfo) Version() string { return "1.2.3" }
func (*fakeInfo) Members() []control.Member {
	return []control.Member{
		{Member: dsm.Member{ID: 0xa, Name: "one", Addr: "10.0.0.1:7946", Budget: 1 << 30, Voter: true}, State: "alive"},
		{Member: dsm.Member{ID: 0xb, Name: "two", Addr: "10.0.0.2:7946", Budget: 1 << 20, Leaving: true}, State: "suspect"},
	}
}
func (*fakeInfo) Config() []control.Stat {
	return []control.Stat{{Name: "mountpoint", Value: "/mnt"}, {Name: "replicas", Value: "2"}}
}
func (i *fakeInfo) Self() dsm.NodeID         { return 0xa }
func (i *fakeInfo) LogLevel() slog.Level     { return i.level.Level() }
func (i *fakeInfo) SetLogLevel(l slog.Level) { i.level.Set(l) }

func (*fakeInfo) Cluster() []control.Stat                  { return []control.Stat{{Name: "id", Value: "c"}} }
func (*fakeInfo) RecoverCluster(context.Context) error     { return nil }
func (*fakeInfo) Scrub(context.Context) error              { return nil }
func (*fakeInfo) Scrubbed() []control.Stat                 { return []control.Stat{{Name: "passes", Value: "1"}} }
func (*fakeInfo) Tokens(context.Context) ([]string, error) { return nil, nil }
func (*fakeInfo) ChangeTokens(_ context.Context, order string) (string, error) {
	return "token of " + order, nil
}

// logBuffer collects what is logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// fixture is a mount with a data plane and a catalog that tests can look into.
// Its cleanup unmounts without force, which fails if anything was left open, and
// checks that neither the mount nor a process that hangs in the kernel is left.
type fixture struct {
	t     *testing.T
	fs    *FS
	names *fakeNames
	areas *fakeAreas
	info  *fakeInfo
	log   *logBuffer
	mnt   string
	gone  bool // unmounted by the test
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting as the tests do needs root")
	}
}

func mountTest(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	needRoot(t)
	f := &fixture{t: t, names: newFakeNames(), info: &fakeInfo{}, log: &logBuffer{}, mnt: filepath.Join(t.TempDir(), "mnt")}
	f.areas = newFakeAreas(f.names)
	if err := os.Mkdir(f.mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Mountpoint: f.mnt, Names: f.names, Areas: f.areas, Info: f.info, HarvestArgv: harvestArgv(),
		Log: slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})), UnmountTimeout: 3 * time.Second}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if f.fs, err = Mount(cfg); err != nil {
		t.Fatal(err)
	}
	f.mnt = f.fs.Mountpoint()
	f.areas.cache = f.fs
	f.names.changed = func(ino dsm.Ino) { f.fs.AttrChanged(dsm.AreaID(ino)) }
	t.Cleanup(f.cleanup)
	return f
}

func (f *fixture) cleanup() {
	if !f.gone {
		if err := f.fs.Unmount(context.Background(), false); err != nil {
			f.t.Errorf("unmount: %v", err)
			if err := f.fs.Unmount(context.Background(), true); err != nil {
				f.t.Errorf("unmount by force: %v", err)
			}
		}
	}
	if _, ok, err := mountAt(f.mnt); ok || err != nil {
		f.t.Errorf("mount left behind (%v, %v)", ok, err)
		unmount(f.mnt, true)
	}
	if left := hanging(); left != "" {
		f.t.Errorf("processes left in state D: %s", left)
	}
	if f.t.Failed() {
		f.t.Logf("log:\n%s", f.log)
	}
}

// hanging names the processes of this session's test binary that stay in state D. One that waits for a page, or for a disk that is busy, is in it
// for a while.
func hanging() string {
	self, _ := os.Readlink("/proc/self/exe")
	var left []string
	poll(clientTimeout, func() bool {
		left = nil
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, p := range procs {
			exe, _ := os.Readlink(p + "/exe")
			stat, _ := os.ReadFile(p + "/stat")
			if _, rest, ok := strings.Cut(string(stat), ") "); ok && exe == self && rest[0] == 'D' {
				left = append(left, p)
			}
		}
		return left == nil
	})
	return strings.Join(left, " ")
}

func (f *fixture) path(parts ...string) string {
	return filepath.Join(append([]string{f.mnt}, parts...)...)
}

// file makes a file with the client and returns its area, closed: the next open
// is the first one.
func (f *fixture) file(c *client, name string, data []byte) *fakeArea {
	f.t.Helper()
	c.must(clientCall{Op: "writefile", Path: f.path(name), Data: data})
	a := f.areas.area(dsm.AreaID(f.names.inoOf(name)))
	eventually(f.t, "closed", func() bool { return a.state().opens == 0 })
	return a
}

// noInterval keeps the interval loop from publishing the area.
func (f *fixture) noInterval() {
	f.names.mu.Lock()
	defer f.names.mu.Unlock()
	f.names.nodes[dsm.RootIno].Spec.Interval = 0
}

func (f *fixture) wantLog(parts ...string) {
	f.t.Helper()
	for line := range strings.Lines(f.log.String()) {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return
		}
	}
	f.t.Errorf("no line of the log has all of %q", parts)
}

// eventually waits for what nothing announces.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if !poll(clientTimeout, cond) {
		t.Fatalf("%s: still not", what)
	}
}

// poll reports whether a condition came true in time.
func poll(limit time.Duration, cond func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if cond() {
			return true
		}
	}
	return false
}

// daemonMain is a daemon with fakes as a process of its own, to be killed. It
// mounts on its argument, says so, and ends with its input.
func daemonMain() {
	names := newFakeNames()
	areas := newFakeAreas(names)
	cfg := Config{Mountpoint: os.Args[1], Names: names, Areas: areas, Info: &fakeInfo{}, HarvestArgv: harvestArgv(),
		Log: slog.New(slog.DiscardHandler)}
	if os.Getenv("DSMFS_FS_TEST_PANIC") != "" {
		cfg.Info = panicInfo{&fakeInfo{}}
	}
	f, err := Mount(cfg)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	areas.cache = f
	fmt.Println("ready")
	var b [1]byte
	os.Stdin.Read(b[:])
	if err := f.Unmount(context.Background(), false); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

type panicInfo struct{ *fakeInfo }

func (panicInfo) Version() string { panic("invariant broken: test") }

const rw = unix.PROT_READ | unix.PROT_WRITE
