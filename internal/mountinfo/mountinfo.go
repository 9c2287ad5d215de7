// Package mountinfo reads which mounts this process sees. That asks no filesystem anything, so a mount which hangs does
// not hang who looks. It keeps nothing.
package mountinfo

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Mount is a line of /proc/self/mountinfo.
type Mount struct {
	Device string // major:minor; the minor is the number of a FUSE connection in fusectl
	Point  string
	Type   string // fuse.dsmfs
}

// Read returns the mounts of this process's namespace. A later one covers an earlier one at the same point.
func Read() ([]Mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return Parse(string(text))
}

// Parse reads lines such as
//
//	36 35 0:33 / /mnt/dsm rw,nosuid,nodev shared:5 - fuse.dsmfs dsmfs rw,user_id=0
func Parse(text string) ([]Mount, error) {
	var all []Mount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		words, fs := strings.Fields(left), strings.Fields(right)
		if !ok || len(words) < 6 || len(fs) < 1 {
			return nil, fmt.Errorf("mountinfo: cannot read %q", line)
		}
		all = append(all, Mount{Device: words[2], Point: unescape(words[4]), Type: fs[0]})
	}
	return all, nil
}

// unescape undoes the octal escapes of blanks and backslashes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Top returns the mount that is visible at point, an absolute path without symbolic links.
func Top(all []Mount, point string) (Mount, bool) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Point == point {
			return all[i], true
		}
	}
	return Mount{}, false
}
