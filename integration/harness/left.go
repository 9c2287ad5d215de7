package harness

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// mountOf returns the minor device number of the mount at path, the newest if there
// are several. It never touches the mount.
func mountOf(path string) (minor int, ok bool) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return 0, false
	}
	defer func() { _ = f.Close() }() // only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) > 4 && words[4] == path {
			_, m, _ := strings.Cut(words[2], ":")
			minor, _ = strconv.Atoi(m)
			ok = true
		}
	}
	return minor, ok
}

func mounted(path string) bool {
	_, ok := mountOf(path)
	return ok
}

// Mounts returns the mount points below dir.
func Mounts(dir string) []string {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 4 && strings.HasPrefix(words[4], dir+"/") {
			found = append(found, words[4])
		}
	}
	return found
}

const fuseControl = "/sys/fs/fuse/connections"

// abort ends the kernel's end of a mount: every request ends with ENOTCONN and
// every process that hangs in one goes on.
func abort(mount string) {
	minor, ok := mountOf(mount)
	if !ok {
		return
	}
	file := filepath.Join(fuseControl, strconv.Itoa(minor), "abort")
	if !exists(file) {
		_ = syscall.Mount("fusectl", fuseControl, "fusectl", 0, "") // fails where it is mounted already
	}
	_ = os.WriteFile(file, []byte("1"), 0) // fails if the connection has just gone
}

// process is one line of the list of running processes.
type process struct {
	pid   int
	state string // R, S, D, ...
	args  string
}

func (p process) String() string {
	where, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", p.pid))
	return fmt.Sprintf("%d (%s, %s) %s", p.pid, p.state, where, p.args)
}

// Stop sends a process SIGSTOP and returns when it does nothing any more. On a busy machine some threads run on until another of them has been scheduled, which has the
// signal. One in state D does the rest of its system call when what it waits for is over, and then it stops. That may be when the process goes on: a daemon that tells the
// kernel to drop a page waits for the READ of that page, which it answers itself.
func Stop(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	if !Eventually(callLimit, func() bool { return stopped(pid) }) {
		return fmt.Errorf("process %d does not stop:%s", pid, threadsOf(pid))
	}
	return nil
}

// stopped reports whether none of the threads comes back to the program. When one has stopped, those that wait in the kernel stop before they do.
func stopped(pid int) (one bool) {
	for _, state := range statesOf(pid) {
		switch state {
		case "T":
			one = true
		case "D":
		default:
			return false
		}
	}
	return one
}

// Waiting reports whether a thread of a process waits in the kernel, beyond the reach of signals.
func Waiting(pid int) bool { return slices.Contains(slices.Collect(maps.Values(statesOf(pid))), "D") }

// statesOf returns the states of the threads of a process, by their directories in /proc.
func statesOf(pid int) map[string]string {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	states := make(map[string]string)
	for _, task := range tasks {
		if stat, err := os.ReadFile(filepath.Join(task, "stat")); err == nil { // else it has ended
			states[task] = stateOf(stat)
		}
	}
	return states
}

// threadsOf describes what the threads of a process do that have not stopped.
func threadsOf(pid int) (text string) {
	for task, state := range statesOf(pid) {
		if state == "T" {
			continue
		}
		text += fmt.Sprintf("\nthread %s in state %s", filepath.Base(task), state)
		for _, file := range []string{"wchan", "syscall", "stack"} {
			said, _ := os.ReadFile(filepath.Join(task, file)) // nothing if it has ended
			text += fmt.Sprintf("\n%s: %s", file, bytes.TrimSpace(said))
		}
	}
	return text
}

// stateOf returns the state of a process or thread from its stat file: R, S, D, ...
func stateOf(stat []byte) string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]
}

// tagged returns the processes that carry the tag in their environment, zombies left out.
func tagged(tag string) []process {
	want := []byte(tagVariable + "=" + tag + "\x00")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []process
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || !bytes.Contains(env, want) {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		state := stateOf(stat)
		if state == "Z" {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		args, _ := os.ReadFile(dir + "/cmdline")
		found = append(found, process{pid, state, strings.ReplaceAll(string(args), "\x00", " ")})
	}
	return found
}

// checkNothingLeft is the last step of Close: no mount and no process of the
// cluster may be there any more. What is there is reported and removed.
func (c *Cluster) checkNothingLeft() {
	c.t.Helper()
	for _, m := range Mounts(c.dir) {
		c.t.Errorf("mount %s is left", m)
		abort(m)
		_ = syscall.Unmount(m, syscall.MNT_DETACH)
	}
	const goodbye = 10 * time.Second // a child ends a moment after its parent
	gone := func() bool { return len(tagged(c.tag)) == 0 }
	if Eventually(goodbye, gone) {
		return
	}
	for _, p := range tagged(c.tag) {
		c.t.Errorf("process %v is left", p)
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	Eventually(goodbye, gone) // one in state D stays; it was reported
}

// dumpLogs prints the end of every node's log and output, and of a crash or a
// data race its beginning.
func (c *Cluster) dumpLogs() {
	const lines = 60
	for _, n := range c.nodes {
		for _, file := range []string{n.LogFile(), filepath.Join(n.dir, "out")} {
			text, err := os.ReadFile(file)
			if err != nil || len(text) == 0 {
				continue
			}
			all := strings.SplitAfter(string(text), "\n")
			from := max(0, len(all)-lines)
			if crash := slices.IndexFunc(all, startsCrash); crash >= 0 {
				from = crash
			}
			c.t.Logf("%s, %s from line %d on:\n%s", n.Name, filepath.Base(file), from+1, strings.Join(all[from:min(len(all), from+lines)], ""))
		}
	}
}

func startsCrash(line string) bool {
	return strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") || strings.HasPrefix(line, "WARNING: DATA RACE")
}
