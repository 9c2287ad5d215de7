package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	dir string
}

// newCgroup makes the group. Its processes may take limit bytes together, or the kernel kills one of them.
func newCgroup(name string, limit int64) (*cgroup, error) {
	all, err := findCgroups()
	if err != nil {
		return nil, err
	}
	g := &cgroup{all, filepath.Join(all.root, name)}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	file := "memory.limit_in_bytes"
	if g.v2 {
		file = "memory.max"
	}
	return g, os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.FormatInt(limit, 10)), 0)
}

// enter changes a command so that it runs in the group.
func (g *cgroup) enter(name string, args []string) (string, []string) {
	script := `echo $$ >"$0" && exec "$@"`
	return "sh", append([]string{"-c", script, filepath.Join(g.dir, "cgroup.procs"), name}, args...)
}

// remove removes the group, which has no process any more.
func (g *cgroup) remove() error { return os.Remove(g.dir) }

// Charge is what the kernel says of a node's control group, in bytes.
type Charge struct {
	Now, Peak int64
	Killed    int64 // processes that the kernel has killed for lack of memory
}

// Charge reads the node's control group. Options.Limit has made one.
func (n *Node) Charge() (c Charge) {
	n.c.t.Helper()
	g := n.group
	read := func(file, key string) int64 {
		text, err := os.ReadFile(filepath.Join(g.dir, file))
		if err != nil {
			n.c.t.Fatalf("%s: %v", n.Name, err)
		}
		_, rest, _ := strings.Cut("\n"+string(text), "\n"+key)
		v, err := strconv.ParseInt(strings.TrimSpace(strings.SplitN(strings.TrimLeft(rest, " "), "\n", 2)[0]), 10, 64)
		if err != nil {
			n.c.t.Fatalf("%s: %s %q: %v", n.Name, file, key, err)
		}
		return v
	}
	if g.v2 {
		return Charge{read("memory.current", ""), read("memory.peak", ""), read("memory.events", "oom_kill ")}
	}
	return Charge{read("memory.usage_in_bytes", ""), read("memory.max_usage_in_bytes", ""), read("memory.oom_control", "oom_kill ")}
}
