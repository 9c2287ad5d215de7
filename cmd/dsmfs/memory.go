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
}

// usableMemory returns the smallest bound: that of the machine or of a control group.
func usableMemory() memoryBound {
	best := memoryBound{1 << 30, "it is not known what this machine has; taken is"}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		best = memoryBound{int64(info.Totalram) * int64(info.Unit), "this machine has"}
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return best
	}
	if n := cgroupLimit("/sys/fs/cgroup", string(text)); n > 0 && n < best.bytes {
		best = memoryBound{n, "the control group of this process may use"}
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

// defaultMemory returns a quarter of what this process may use: an area takes twice its size, and
// programs need memory too.
func defaultMemory() byteSize {
	const mib = 1 << 20
	return byteSize(max(usableMemory().bytes/4/mib, 64) * mib)
}

// checkMemory refuses values that must be mistakes. A value below the machine's memory may still be
// too large, because full files take up to twice their size and programs need memory too.
func checkMemory(m byteSize, most memoryBound) error {
	switch {
	case int64(m) < leastMemory && m < 1<<20:
		return fail(exitUsage, "--memory %s is %d bytes: for %s GiB write %sG", m.String(), int64(m), plainNumber(m), plainNumber(m))
	case int64(m) < leastMemory:
		return fail(exitUsage, "--memory %s is too little: want at least %s", m.String(), formatSize(leastMemory))
	case int64(m) > most.bytes:
		return fail(exitUsage, "--memory %s is more than %s: %s; full files take up to twice their size, so half of that is much", m.String(), most.by, formatSize(most.bytes))
	}
	return nil
}

// plainNumber returns the number without its unit.
func plainNumber(m byteSize) string { return strings.TrimRight(m.String(), "KMGT") }
