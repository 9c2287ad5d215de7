package fs

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// programs are the processes of this node that have an area open for writing. Those that store into
// one memory, the page cache's or the working copy, are counted apart from those with memory of
// their own. Where updates enter memory in sync calls only, the sync of one process brings them in
// between a load and a store of another in the same memory; only the user can prevent that.
//
// Children that inherit a mapping are not seen.
type programs struct {
	mu struct {
		lockrank.Mutex
		shared map[int]int // by process, or by thread where the process is not known yet
		own    map[int]int
		said   string
	}
}

func (p *programs) init() {
	p.mu.Init("fs.programs")
	p.mu.shared, p.mu.own = make(map[int]int), make(map[int]int)
}

// enter counts a handle, or an attachment, through which a process may store; own says that it has
// memory of its own.
func (p *programs) enter(pid int, own bool) { p.add(pid, own, +1) }
func (p *programs) leave(pid int, own bool) { p.add(pid, own, -1) }

func (p *programs) add(pid int, own bool, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.mu.shared
	if own {
		m = p.mu.own
	}
	if m[pid] += n; m[pid] == 0 {
		delete(m, pid)
	}
}

// has reports whether the process stores into memory that it may share.
func (p *programs) has(pid int) bool {
	p.mu.Lock()
	shared := slices.Collect(maps.Keys(p.mu.shared))
	p.mu.Unlock()
	return slices.ContainsFunc(shared, func(other int) bool { return processOf(other) == pid })
}

// owner returns the process of a thread if any process has memory of its own, otherwise 0.
func (p *programs) owner(tid uint32) int {
	p.mu.Lock()
	any := len(p.mu.own) > 0
	p.mu.Unlock()
	if !any {
		return 0
	}
	return processOf(int(tid))
}

// counts returns how many processes share one memory, and how many there are altogether.
func (p *programs) counts() (shared, all int) {
	p.mu.Lock()
	one, own := slices.Collect(maps.Keys(p.mu.shared)), slices.Collect(maps.Keys(p.mu.own))
	p.mu.Unlock()
	seen := make(map[int]bool)
	for _, pid := range own {
		seen[pid] = true
	}
	all = len(seen)
	for _, pid := range one {
		seen[processOf(pid)] = true // a process with memory of its own also has the file open, as under dsmfs run
	}
	return len(seen) - all, len(seen)
}

// sums describes how programs of this node that load, add and store back may lose what others add.
// It returns nothing if they may not, or if that does not concern the area.
func (a *openArea) sums() string {
	spec := a.spec()
	if !spec.Merge.Adds() {
		return ""
	}
	if !spec.AppliesInSync() {
		return "atomic-only: with apply=arrival a load, an add and a store back undo what arrives in between"
	}
	if shared, all := a.programs.counts(); shared > 0 && all > 1 {
		what := "attach them all"
		if spec.Residency == dsm.ResidencyDemand {
			what = "with residency=demand only one may"
		}
		return fmt.Sprintf("undone: %d programs of this node store, %d of them into one memory; %s", all, shared, what)
	}
	return "exact"
}

// warnOfSums logs, once for each way, that sums are not exact.
func (b *bridge) warnOfSums(a *openArea) {
	text := a.sums()
	if text == "" || text == "exact" {
		return
	}
	kind, _, _ := bytes.Cut([]byte(text), []byte(":"))
	p := &a.programs
	p.mu.Lock()
	said := p.mu.said == string(kind)
	p.mu.said = string(kind)
	p.mu.Unlock()
	if !said {
		b.log.Warn("what programs of this node add to an area may be lost", "area", a.id, "sums", text)
	}
}

// processOf returns the process of a thread, or the thread's own number if it is gone.
func processOf(tid int) int {
	if pid, err := strconv.Atoi(statusOf(tid, "Tgid")); err == nil {
		return pid
	}
	return tid
}

// groupsOf returns the supplementary groups of a thread, of which the kernel tells nothing in a request. It returns none if this process does
// not see the thread; then they give no permissions.
func groupsOf(tid int) (list []uint32) {
	for _, word := range strings.Fields(statusOf(tid, "Groups")) {
		if g, err := strconv.ParseUint(word, 10, 32); err == nil {
			list = append(list, uint32(g))
		}
	}
	return list
}

// statusOf returns a line of /proc/TID/status.
func statusOf(tid int, name string) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), "\n"+name+":\t")
	line, _, _ := strings.Cut(rest, "\n")
	return line
}
