package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Memory is what a daemon has in RAM, in bytes.
type Memory struct {
	Private int64 // heap and stacks
	Memfds  int64 // the working and base copies, mapped or not
}

// Memory reads the daemon's memory.
func (n *Node) Memory() Memory {
	n.c.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Daemon()))
	if err != nil {
		n.c.t.Fatalf("%s: %v", n.Name, err)
	}
	return Memory{Private: statusBytes(string(text), "RssAnon:"), Memfds: memfds(n.Daemon())}
}

// memfds adds up what the memory files of a process have allocated. The links of
// /proc/PID/fd are looked at before anything is, as others may lead to a mount.
func memfds(pid int) int64 {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	seen := map[uint64]bool{}
	var total int64
	for _, fd := range fds {
		var st syscall.Stat_t
		if to, err := os.Readlink(fd); err != nil || !strings.HasPrefix(to, "/memfd:") || syscall.Stat(fd, &st) != nil || seen[st.Ino] {
			continue
		}
		seen[st.Ino] = true
		total += st.Blocks * 512
	}
	return total
}

// CPU is the processor time that the daemons and their children have used so far.
func (c *Cluster) CPU() time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	var total time.Duration
	for _, p := range tagged(c.tag) {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid)); err != nil || exe != Binary() {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
		if err != nil {
			continue // it has ended
		}
		words := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, w := range words[11:13] { // utime and stime
			ticks, _ := strconv.ParseInt(w, 10, 64)
			total += time.Duration(ticks) * tick
		}
	}
	return total
}

func statusBytes(status, key string) int64 {
	_, rest, _ := strings.Cut(status, key)
	words := strings.Fields(rest)
	if len(words) == 0 {
		return 0
	}
	kib, _ := strconv.ParseInt(words[0], 10, 64)
	return kib << 10
}

// Received returns the bytes that came into the node's network namespace so far.
func (n *Node) Received() int64 {
	n.c.t.Helper()
	res := n.Run(callLimit, "cat", "/proc/net/dev")
	for line := range strings.Lines(res.Stdout) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "eth0:" {
			v, _ := strconv.ParseInt(words[1], 10, 64)
			return v
		}
	}
	n.c.t.Fatalf("%s: no eth0 in %q", n.Name, res.Stdout)
	return 0
}
