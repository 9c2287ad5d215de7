package fs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mountEntry is a line of /proc/self/mountinfo. Reading it asks no filesystem
// anything, so that a mount which hangs does not hang who looks.
type mountEntry struct {
	device     string // major:minor
	mountpoint string
	kind       string // fuse.dsmfs
}

// mountAt returns the topmost mount on path, which has no symlinks.
func mountAt(path string) (mountEntry, bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mountEntry{}, false, err
	}
	return parseMountinfo(text, path)
}

func parseMountinfo(text []byte, path string) (found mountEntry, ok bool, err error) {
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		sep := 0
		for i, f := range fields {
			if f == "-" {
				sep = i
				break
			}
		}
		if sep < 6 || len(fields) < sep+2 {
			return found, false, fmt.Errorf("mountinfo: cannot read %q", line)
		}
		if m := unescape(fields[4]); m == path {
			found, ok = mountEntry{device: fields[2], mountpoint: m, kind: fields[sep+1]}, true
		}
	}
	return found, ok, nil
}

// unescape undoes the octal escapes of blanks and backslashes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// resolve makes a mount point absolute and free of symlinks without asking what is
// mounted on it.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if abs == "/" {
		return abs, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	if _, ok, err := mountAt(abs); ok || err != nil {
		return abs, err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	return abs, nil // whoever uses it says what is wrong with it
}
