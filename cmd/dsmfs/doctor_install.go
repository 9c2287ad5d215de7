package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/mountinfo"
)

// advise checks things that dsmfs mount does not need, but that people may miss later.
func advise() []finding {
	return []finding{
		kernelFinding(kernelRelease()),
		fusermountFinding(),
		helperFinding("/sbin/mount.dsmfs"),
		descriptorFinding(limitOf(unix.RLIMIT_NOFILE)),
		memlockFinding(limitOf(unix.RLIMIT_MEMLOCK), os.Geteuid() == 0),
		memoryFinding(usableMemory()),
		runningFinding(),
	}
}

// kernelFinding is about the kernel version; the tests run on this version or newer.
func kernelFinding(release string) finding {
	f := finding{what: "Linux 6.1 or later", ok: true, text: release}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || major < 6 || major == 6 && minor < 1 {
		f.ok = false
		f.text = release + ": nobody has tried this kernel; it may work. Upgrade to 6.1 or later"
	}
	return f
}

func fusermountFinding() finding {
	f := finding{what: "fusermount3"}
	path, err := exec.LookPath("fusermount3")
	if err != nil {
		f.text = "not there: users other than root cannot mount; install the package fuse3"
		return f
	}
	f.ok, f.text = true, path+lastWord(", ", firstLine(path, "--version"))
	return f
}

// helperFinding is about the program that mount(8) runs for the type dsmfs.
func helperFinding(path string) finding {
	f := finding{what: "mount.dsmfs"}
	if _, err := os.Stat(path); err != nil {
		f.text = "no " + path + ": mount -t dsmfs and fstab do not work, dsmfs mount does; make install puts it there"
		return f
	}
	f.ok, f.text = true, path
	real, err := os.Readlink(path)
	if err != nil {
		return f // another program, perhaps from a package
	}
	if v := firstLine(real, "version"); !strings.HasPrefix(v, "dsmfs "+programVersion()+" ") {
		f.ok, f.text = false, fmt.Sprintf("%s is %s (%s), this is dsmfs %s; make install makes them the same", path, real, v, programVersion())
	}
	return f
}

// manyDescriptors is enough for some ten thousand large files that programs of a node have open.
const manyDescriptors = 65536

func descriptorFinding(most uint64) finding {
	f := finding{what: "open files (ulimit -n)", ok: most >= manyDescriptors, text: number(most)}
	if !f.ok {
		f.text = fmt.Sprintf("%s: a node keeps a descriptor for each large file that is open, and says EMFILE to who attaches one when it has no more; raise it: ulimit -n %d, in a unit "+
			"LimitNOFILE=%d, for logins in /etc/security/limits.conf", number(most), manyDescriptors, manyDescriptors)
	}
	return f
}

func memlockFinding(most uint64, root bool) finding {
	f := finding{what: "pinning (ulimit -l)", ok: root || most == unix.RLIM_INFINITY, text: "programs may pin the memory of files with user.dsm.access=direct"}
	if !f.ok {
		f.text = fmt.Sprintf("%s kB: programs of this user can pin no more of files with user.dsm.access=direct (cudaHostRegister, RDMA, mlock); "+
			"raise it: ulimit -l unlimited, in a unit LimitMEMLOCK=infinity", number(most/1024))
	}
	return f
}

func memoryFinding(most memoryBound) finding {
	memory := defaultMemory()
	return finding{what: "memory", ok: true, text: fmt.Sprintf("%s %s; --memory is %s unless set", most.by, formatSize(most.bytes), memory.String())}
}

// runningFinding names the mounts whose daemon runs another build than this one.
func runningFinding() finding {
	f := finding{what: "running daemons", ok: true, text: "none"}
	all, err := mountinfo.Read()
	if err != nil {
		f.text = err.Error()
		return f
	}
	self, err := os.Stat(selfPath)
	if err != nil {
		f.text = err.Error()
		return f
	}
	count := 0
	var others, dead []string
	for _, m := range all {
		if m.Type != mountType {
			continue
		}
		pid, _ := daemonOf(m.Point)
		if pid == 0 {
			dead = append(dead, m.Point)
			continue
		}
		count++
		if exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && !os.SameFile(exe, self) {
			others = append(others, fmt.Sprintf("%s (pid %d)", m.Point, pid))
		}
	}
	if count > 0 {
		f.text = fmt.Sprintf("%d, of this program", count)
	}
	if others != nil {
		f.ok = false
		f.text = "of another build than this program: " + strings.Join(others, ", ") + "; unmount and mount again to have this one"
	}
	if dead != nil {
		f.ok = false
		f.text += "; no daemon is found for " + strings.Join(dead, ", ") + ": if it is dead, dsmfs umount removes it"
	}
	return f
}

// limitOf returns the value to which this process may raise a limit.
func limitOf(which int) uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(which, &l); err != nil {
		return unix.RLIM_INFINITY
	}
	return l.Max
}

func number(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

// firstLine returns the first line that a program prints, "" if it does not answer.
func firstLine(name string, args ...string) string {
	const limit = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// lastWord returns the last word of a line that has text before it, "" if there is none.
func lastWord(before, line string) string {
	words := strings.Fields(line)
	if len(words) == 0 {
		return ""
	}
	return before + words[len(words)-1]
}
