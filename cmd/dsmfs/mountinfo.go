package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mountType is the type of a dsmfs mount in /proc/self/mountinfo.
const mountType = "fuse.dsmfs"

// mountEntry is a line of /proc/self/mountinfo.
type mountEntry struct {
	point string
	minor int // of the device: the number of the FUSE connection in fusectl
	typ   string
}

// mounts returns the mounts of this process's namespace; a later one covers an earlier one at the
// same point.
func mounts() ([]mountEntry, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountinfo(string(text)), nil
}

// parseMountinfo reads lines such as
//
//	36 35 0:33 / /mnt/dsm rw,nosuid,nodev shared:5 - fuse.dsmfs dsmfs rw,user_id=0
func parseMountinfo(text string) []mountEntry {
	var all []mountEntry
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		words, fs := strings.Fields(left), strings.Fields(right)
		if !ok || len(words) < 5 || len(fs) < 1 {
			continue
		}
		_, minor, _ := strings.Cut(words[2], ":")
		n, err := strconv.Atoi(minor)
		if err != nil {
			continue
		}
		all = append(all, mountEntry{point: unescapeMount(words[4]), minor: n, typ: fs[0]})
	}
	return all
}

// unescapeMount undoes the octal escapes of blanks and backslashes.
func unescapeMount(s string) string {
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

// topMount returns the mount that is visible at point.
func topMount(all []mountEntry, point string) (mountEntry, bool) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].point == point {
			return all[i], true
		}
	}
	return mountEntry{}, false
}

// resolveMount returns the absolute path of a mount point without touching what is mounted there.
// It follows only the directories above; it follows the path itself only while that is a symbolic
// link on a filesystem that answers.
func resolveMount(path string, all []mountEntry) (string, error) {
	const maxLinks = 40 // as the kernel
	for range maxLinks {
		abs, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		if _, ok := topMount(all, abs); ok {
			return abs, nil
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return "", err
		}
		abs = filepath.Join(dir, filepath.Base(abs))
		if _, ok := topMount(all, abs); ok {
			return abs, nil
		}
		target, err := os.Readlink(abs)
		if err != nil {
			return abs, nil
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return "", errors.New(path + ": too many symbolic links")
}

// findMount returns the dsmfs mount at path, or the only one if path is empty.
func findMount(path string) (mountEntry, error) {
	all, err := mounts()
	if err != nil {
		return mountEntry{}, err
	}
	if path != "" {
		point, err := resolveMount(path, all)
		if err != nil {
			return mountEntry{}, withCode(exitNoMount, err)
		}
		if m, ok := topMount(all, point); ok && m.typ == mountType {
			return m, nil
		}
		if m, _, err := locate(point, all); err == nil {
			return mountEntry{}, fail(exitNoMount, "%s is not a dsmfs mount; it is in the one at %s", point, m.point)
		}
		return mountEntry{}, fail(exitNoMount, "%s is not a dsmfs mount", point)
	}
	var ours []mountEntry
	for _, m := range all {
		if m.typ == mountType {
			ours = append(ours, m)
		}
	}
	switch len(ours) {
	case 0:
		return mountEntry{}, fail(exitNoMount, "there is no dsmfs mount on this machine")
	case 1:
		return ours[0], nil
	}
	points := make([]string, len(ours))
	for i, m := range ours {
		points[i] = m.point
	}
	return mountEntry{}, fail(exitUsage, "which mount? there are %s", strings.Join(points, ", "))
}
