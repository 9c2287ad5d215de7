package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// cgroups is where control groups of memory can be made, of version 1 or 2.
type cgroups struct {
	root string
	v2   bool
}

// findCgroups returns where control groups of memory can be made. The groups of tests are made at the top: a group of version 2 that has processes
// of its own, as that of this process, can have no groups below it.
func findCgroups() (cgroups, error) {
	const v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
	if exists(filepath.Join(v1, "memory.limit_in_bytes")) || exists(filepath.Join(v1, "tasks")) {
		return cgroups{root: v1}, nil
	}
	text, err := os.ReadFile(filepath.Join(v2, "cgroup.controllers"))
	if err != nil {
		return cgroups{}, fmt.Errorf("no control groups: %w", err)
	}
	if !strings.Contains(" "+string(text), " memory") {
		return cgroups{}, errors.New("no control groups of memory")
	}
	if err := os.WriteFile(filepath.Join(v2, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		return cgroups{}, fmt.Errorf("control groups cannot bound memory: %w", err)
	}
	return cgroups{root: v2, v2: true}, nil
}

// NoCgroups says why the memory of a node cannot be bounded here; it is empty if it can.
func NoCgroups() string {
	all, err := findCgroups()
	if err == nil {
		probe := filepath.Join(all.root, fmt.Sprintf("dsmfs-probe-%d", os.Getpid()))
		if err = os.Mkdir(probe, 0o755); err == nil {
			err = os.Remove(probe)
		}
	}
	if err != nil {
		return "control groups cannot be made: " + err.Error()
	}
	return ""
}

// cgroup is the control group of a node: its daemon and the programs that run there.
type cgroup struct {
	cgroups
	dir      string
	removed  chan struct{} // closed when it is being removed
	watching sync.WaitGroup
	mu       struct {
		sync.Mutex
		most Usage
	}
}

// newCgroup makes the group. Its processes may take limit bytes together, or the kernel kills one of them.
func newCgroup(name string, limit int64) (*cgroup, error) {
	all, err := findCgroups()
	if err != nil {
		return nil, err
	}
	g := &cgroup{cgroups: all, dir: filepath.Join(all.root, name), removed: make(chan struct{})}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	file := "memory.limit_in_bytes"
	if g.v2 {
		file = "memory.max"
	}
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		return nil, err
	}
	g.watching.Go(g.watch)
	return g, nil
}

// enter changes a command so that it runs in the group.
func (g *cgroup) enter(name string, args []string) (string, []string) {
	script := `echo $$ >"$0" && exec "$@"`
	return "sh", append([]string{"-c", script, filepath.Join(g.dir, "cgroup.procs"), name}, args...)
}

// remove removes the group, which has no process any more.
func (g *cgroup) remove() error {
	close(g.removed)
	g.watching.Wait()
	return os.Remove(g.dir)
}

// watchEach is how often a group is looked at. What it had in between is not seen; the kernel keeps only the highest of all that it has charged.
const watchEach = 50 * time.Millisecond

// watch remembers when the group had most that the kernel could not take back.
func (g *cgroup) watch() {
	tick := time.NewTicker(watchEach)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-g.removed:
			return
		}
		if u, err := g.usage(); err == nil {
			g.mu.Lock()
			if u.Unreclaimable() > g.mu.most.Unreclaimable() {
				g.mu.most = u
			}
			g.mu.Unlock()
		}
	}
}

// Usage is what the processes of a control group take, in bytes.
type Usage struct {
	Anon   int64 // of programs, Go's heap among it
	Shmem  int64 // memfds
	Kernel int64 // page tables, sockets, inodes
	Dirty  int64 // pages of files that must be written first
	Clean  int64 // those that the kernel can drop
}

// Unreclaimable returns the bytes that the kernel cannot take back.
func (u Usage) Unreclaimable() int64 { return u.Anon + u.Shmem + u.Kernel }

func (u Usage) String() string {
	m := func(n int64) float64 { return float64(n) / (1 << 20) }
	return fmt.Sprintf("%.1f MiB cannot be taken back (anonymous %.1f, memfds %.1f, kernel %.1f); pages of files: dirty %.1f, clean %.1f",
		m(u.Unreclaimable()), m(u.Anon), m(u.Shmem), m(u.Kernel), m(u.Dirty), m(u.Clean))
}

// usage returns what the group has now.
func (g *cgroup) usage() (u Usage, err error) {
	read := func(file, key string) (n int64) {
		if err == nil {
			n, err = g.number(file, key)
		}
		return n
	}
	if g.v2 {
		u = Usage{Anon: read("memory.stat", "anon "), Shmem: read("memory.stat", "shmem "), Kernel: read("memory.stat", "kernel ") + read("memory.stat", "sock "),
			Dirty: read("memory.stat", "file_dirty ") + read("memory.stat", "file_writeback ")}
		u.Clean = read("memory.stat", "file ") - u.Shmem - u.Dirty
		return u, err
	}
	u = Usage{Anon: read("memory.stat", "rss "), Shmem: read("memory.stat", "shmem "), Kernel: read("memory.kmem.usage_in_bytes", ""),
		Dirty: read("memory.stat", "dirty ") + read("memory.stat", "writeback ")}
	u.Clean = read("memory.stat", "cache ") - u.Shmem - u.Dirty
	return u, err
}

// number reads the number behind a key in a file of the group.
func (g *cgroup) number(file, key string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut("\n"+string(text), "\n"+key)
	v, err := strconv.ParseInt(strings.TrimSpace(strings.SplitN(strings.TrimLeft(rest, " "), "\n", 2)[0]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %q: %w", file, key, err)
	}
	return v, nil
}

// Charge is what the kernel says of a node's control group, in bytes.
type Charge struct {
	Now, Peak int64
	Most      Usage // when most was taken, as far as that was seen
	Killed    int64 // processes that the kernel has killed for lack of memory
}

// Charge reads the node's control group. Options.Limit has made one.
func (n *Node) Charge() Charge {
	n.c.t.Helper()
	c, err := n.group.charge()
	if err != nil {
		n.c.t.Fatalf("%s: %v", n.Name, err)
	}
	return c
}

func (g *cgroup) charge() (c Charge, err error) {
	files := [...][2]string{{"memory.usage_in_bytes", ""}, {"memory.max_usage_in_bytes", ""}, {"memory.oom_control", "oom_kill "}}
	if g.v2 {
		files = [...][2]string{{"memory.current", ""}, {"memory.peak", ""}, {"memory.events", "oom_kill "}}
	}
	for i, at := range [...]*int64{&c.Now, &c.Peak, &c.Killed} {
		if *at, err = g.number(files[i][0], files[i][1]); err != nil {
			return c, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c.Most = g.mu.most
	return c, nil
}

// why says what of a group may have ended its processes.
func (g *cgroup) why() string {
	if g == nil {
		return ""
	}
	c, err := g.charge()
	if err != nil {
		return fmt.Sprintf(" (control group: %v)", err)
	}
	return fmt.Sprintf(" (the kernel has killed %d processes of its control group for lack of memory; at most %v)", c.Killed, c.Most)
}
