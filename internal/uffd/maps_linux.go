package uffd

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end uint64
	perms      string // "rw-s"
	off        uint64
	dev        uint64
	ino        uint64
}

// parseMapping reads "7f00-7f01 rw-s 00000000 00:01 1024  /memfd:x (deleted)".
func parseMapping(line string) (m mapping, err error) {
	f := strings.Fields(line)
	if len(f) < 5 {
		return m, fmt.Errorf("maps line %q", line)
	}
	number := func(s string, base int) (v uint64) {
		if err == nil {
			v, err = strconv.ParseUint(s, base, 64)
		}
		return v
	}
	from, to, _ := strings.Cut(f[0], "-")
	major, minor, _ := strings.Cut(f[3], ":")
	m = mapping{
		start: number(from, 16), end: number(to, 16), perms: f[1], off: number(f[2], 16),
		dev: unix.Mkdev(uint32(number(major, 16)), uint32(number(minor, 16))), ino: number(f[4], 10),
	}
	return m, err
}

// shows returns nil if [start, end) of the process is a mapping of the file dev, ino from offset
// off on, shared and writable unless readOnly. Otherwise the error says what is there.
func shows(pid int, start, end uint64, off int64, dev, ino uint64, readOnly bool) error {
	file, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	defer file.Close()
	at := start
	for lines := bufio.NewScanner(file); at < end; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return err
			}
			break
		}
		m, err := parseMapping(lines.Text())
		if err != nil {
			return err
		}
		if m.end <= at {
			continue
		}
		switch {
		case m.start > at:
			return fmt.Errorf("nothing is mapped at %#x", at)
		case m.dev != dev || m.ino != ino:
			return fmt.Errorf("at %#x another file is mapped", at)
		case len(m.perms) < 4 || !readOnly && (m.perms[1] != 'w' || m.perms[3] != 's'):
			return fmt.Errorf("at %#x the mapping is %s: want shared and writable", at, m.perms)
		case m.off+(at-m.start) != uint64(off)+(at-start):
			return fmt.Errorf("at %#x offset %d of the area is mapped, not %d", at, m.off+(at-m.start), uint64(off)+(at-start))
		}
		at = m.end
	}
	if at < end {
		return fmt.Errorf("nothing is mapped at %#x", at)
	}
	return nil
}

// mapped lists where the process has mapped the file dev, ino.
func mapped(pid int, dev, ino uint64) (pieces []piece, err error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		m, err := parseMapping(lines.Text())
		if err != nil {
			return nil, err
		}
		if m.dev == dev && m.ino == ino {
			pieces = append(pieces, piece{m.start, m.end, int64(m.off)})
		}
	}
	return pieces, lines.Err()
}

// MapsElsewhere reports whether the process has mapped the file dev, ino, shared and writable,
// outside of the ranges [start, end), which must be in order.
func MapsElsewhere(pid int, dev, ino uint64, ranges [][2]uint64) (bool, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		m, err := parseMapping(lines.Text())
		if err != nil {
			return false, err
		}
		if m.dev != dev || m.ino != ino || len(m.perms) < 4 || m.perms[1] != 'w' || m.perms[3] != 's' {
			continue
		}
		at := m.start
		for _, r := range ranges {
			if r[0] <= at && at < r[1] {
				at = r[1]
			}
		}
		if at < m.end {
			return true, nil
		}
	}
	return false, lines.Err()
}
