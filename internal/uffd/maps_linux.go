package uffd

import (
	"bufio"
	"errors"
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
	look := after(file)
	for at := start; at < end; {
		m, err := look(at)
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("nothing is mapped at %#x", at)
		} else if err != nil {
			return err
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
	return nil
}

// after returns a function that finds the mapping at an address, or the next one behind it; ENOENT if there is none. It is called
// with growing addresses.
func after(maps *os.File) func(at uint64) (mapping, error) {
	text := afterInText(maps)
	return func(at uint64) (mapping, error) {
		m, err := query(int(maps.Fd()), at)
		if errors.Is(err, unix.ENOTTY) {
			return text(at)
		}
		return m, err
	}
}

func afterInText(maps *os.File) func(at uint64) (mapping, error) {
	lines := bufio.NewScanner(maps)
	return func(at uint64) (m mapping, err error) {
		for lines.Scan() {
			if m, err = parseMapping(lines.Text()); err != nil || m.end > at {
				return m, err
			}
		}
		if err := lines.Err(); err != nil {
			return m, err
		}
		return m, unix.ENOENT
	}
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

// Maps reports whether the process has mapped the file dev, ino.
func Maps(pid int, dev, ino uint64) (bool, error) {
	return mapsElsewhere(pid, dev, ino, func(string) bool { return true }, nil)
}

// MapsElsewhere reports whether the process has mapped the file dev, ino, shared and writable,
// outside of the ranges [start, end), which must be in order.
func MapsElsewhere(pid int, dev, ino uint64, ranges [][2]uint64) (bool, error) {
	return mapsElsewhere(pid, dev, ino, func(perms string) bool { return len(perms) >= 4 && perms[1] == 'w' && perms[3] == 's' }, ranges)
}

func mapsElsewhere(pid int, dev, ino uint64, counts func(perms string) bool, ranges [][2]uint64) (bool, error) {
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
		if m.dev != dev || m.ino != ino || !counts(m.perms) {
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
