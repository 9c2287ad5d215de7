package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leastMemory is enough for one extent as a home and another one that programs use, each in two
// copies.
const leastMemory = 4 << 20

// memoryBound is how much this process may use at most, and what sets that bound.
type memoryBound struct {
	bytes int64
	by    string
	group bool // a control group does: the kernel kills who takes more
}

// leastMargin is what the daemon may take besides --memory, or a quarter of that if it is more: its own records, what is under way, garbage that Go
// has not collected, its child processes, and what the kernel keeps for them.
const leastMargin = 48 << 20

// withMargin returns what a node of that --memory takes at most.
func withMargin(memory int64) int64 { return memory + max(memory/4, leastMargin) }

// fitting returns the largest --memory, in MiB, of a node that may take so much.
func fitting(bytes int64) int64 { return max(min(bytes-leastMargin, bytes/5*4)/mib, 0) }

const (
	// underWayPart is which part of a node's margin pages take that are being sent to other nodes. Their buffers are in Go's heap, which is behind by
	// as much again before it gives back what it had.
	underWayPart = 4
	// idlePart is which part of --memory frames may take that nothing uses (pages.KeepIdle).
	idlePart = 64
	// lingerPart is which part they may take for some seconds (pages.Keep.Linger).
	lingerPart = 16
)

const mib = 1 << 20

// usableMemory returns the smallest bound: that of the machine or of a control group.
func usableMemory() memoryBound {
	best := memoryBound{bytes: 1 << 30, by: "it is not known what this machine has; taken is"}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		best = memoryBound{bytes: int64(info.Totalram) * int64(info.Unit), by: "this machine has"}
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return best
	}
	if n := cgroupLimit("/sys/fs/cgroup", string(text)); n > 0 && n < best.bytes {
		best = memoryBound{n, "the control group of this process may use", true}
	}
	return best
}

// cgroupLimit returns the smallest memory limit of the control groups named in text, a
// /proc/self/cgroup, and of the groups that contain them; 0 if there is none. dir is where the
// control groups are mounted, of version 1 or 2. In a container the paths may be those of the
// machine outside; then the group is the one mounted at the root.
func cgroupLimit(dir, text string) int64 {
	least := int64(0)
	for line := range strings.Lines(text) {
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(words) != 3 {
			continue
		}
		root, file := dir, "memory.max"
		if words[1] != "" {
			root, file = filepath.Join(dir, "memory"), "memory.limit_in_bytes"
		}
		if words[1] != "" && words[1] != "memory" {
			continue
		}
		for group := filepath.Join("/", words[2]); ; group = filepath.Dir(group) {
			text, err := os.ReadFile(filepath.Join(root, group, file))
			n, perr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" means no limit
			if err == nil && perr == nil && n > 0 && (least == 0 || n < least) {
				least = n
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}

// defaultMemory returns half of what this process may use: programs need memory too.
func defaultMemory() byteSize { return defaultFor(usableMemory()) }

func defaultFor(most memoryBound) byteSize {
	return byteSize(max(min(most.bytes/2/mib, fitting(most.bytes)), leastMemory/mib) * mib)
}

// checkMemory refuses values that must be mistakes, and in a control group those with which the kernel would kill the daemon when files take
// all of it. On a whole machine programs need memory too, how much nobody knows.
func checkMemory(m byteSize, most memoryBound) error {
	switch {
	case int64(m) < leastMemory && m < 1<<20:
		return fail(exitUsage, "--memory %s is %d bytes: for %s GiB write %sG", m.String(), int64(m), plainNumber(m), plainNumber(m))
	case int64(m) < leastMemory:
		return fail(exitUsage, "--memory %s is too little: want at least %s", m.String(), formatSize(leastMemory))
	case int64(m) > most.bytes:
		return fail(exitUsage, "--memory %s is more than %s: %s; programs need memory too, so half of that is much", m.String(), most.by, formatSize(most.bytes))
	case most.group && withMargin(int64(m)) > most.bytes:
		return fail(exitUsage, "--memory %s does not fit: a daemon takes up to a quarter more, and 48 MiB more at least, and %s %s; --memory %dM fits",
			m.String(), most.by, formatSize(most.bytes), fitting(most.bytes))
	}
	return nil
}

// plainNumber returns the number without its unit.
func plainNumber(m byteSize) string { return strings.TrimRight(m.String(), "KMGT") }
