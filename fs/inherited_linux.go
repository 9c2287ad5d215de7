package fs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"golang.org/x/sys/unix"
)

// closedByChild reports whether a thread closes what its process has from the one that has opened a versioned file, and may be storing to it: a child that ends, or execs, closes all that it has inherited. If the
// first process has closed a descriptor of the handle, and has no other and no mapping, the child may have been given it.
func (b *bridge) closedByChild(h *fileHandle, tid int) bool {
	if !h.write || h.area.spec().Mode != dsm.ModeVersioned || tid == 0 {
		return false
	}
	if tid == h.program || processOf(tid) == processOf(h.program) {
		h.given.Store(true)
		return false
	}
	if h.given.Load() { // np.memmap, and a shell that redirects to the file, close one of two descriptors at once
		return b.mayStore(h.program, dsm.Ino(h.area.id))
	}
	return statusOf(h.program, "Tgid") != ""
}

// mayStore reports whether a process has a mapping of a file of the mount, or a descriptor, by which it may store. It asks only the kernel, of what it
// knows already.
func (b *bridge) mayStore(pid int, ino dsm.Ino) bool {
	var major, minor uint32
	if _, err := fmt.Sscanf(b.device, "%d:%d", &major, &minor); err != nil {
		return false
	}
	proc := "/proc/" + strconv.Itoa(pid)
	if f, err := os.Open(proc + "/maps"); err == nil {
		defer func() { _ = f.Close() }() // nothing was written to it
		device, inode := fmt.Sprintf("%02x:%02x", major, minor), strconv.FormatUint(uint64(ino), 10)
		for s := bufio.NewScanner(f); s.Scan(); {
			// Address, permissions, offset, device, inode, path.
			if w := strings.Fields(s.Text()); len(w) >= 5 && w[3] == device && w[4] == inode && w[1][1] == 'w' && w[1][3] == 's' {
				return true
			}
		}
	}
	names, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return false
	}
	for _, d := range names {
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, proc+"/fd/"+d.Name(), unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st) != nil ||
			st.Ino != uint64(ino) || st.Dev_major != major || st.Dev_minor != minor {
			continue
		}
		text, err := os.ReadFile(proc + "/fdinfo/" + d.Name())
		if err != nil {
			continue
		}
		_, rest, _ := bytes.Cut(text, []byte("flags:\t"))
		word, _, _ := bytes.Cut(rest, []byte("\n"))
		if flags, err := strconv.ParseUint(string(word), 8, 64); err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY {
			return true
		}
	}
	return false
}
