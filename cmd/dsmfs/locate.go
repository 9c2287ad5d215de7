package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsmfs/dsmfs/internal/mountinfo"
)

// locate returns the dsmfs mount that contains a path, and the path within it, "." for the mount
// itself. It follows the path, including symbolic links, as far as the mount, and touches nothing
// in the mount.
func locate(path string, all []mountinfo.Mount) (m mountinfo.Mount, inside string, err error) {
	const maxLinks = 40 // as the kernel
	abs, err := filepath.Abs(path)
	if err != nil {
		return m, "", err
	}
	links, at, todo := 0, "/", components(abs)
	for {
		if m, ok := mountinfo.Top(all, at); ok && m.Type == mountType {
			if rest := filepath.Join(".", filepath.Join(todo...)); rest != ".." && !strings.HasPrefix(rest, "../") {
				return m, rest, nil
			}
		}
		if len(todo) == 0 {
			return m, "", fail(exitNoMount, "%s is in no dsmfs mount", path)
		}
		next := filepath.Join(at, todo[0])
		todo = todo[1:]
		if m, ok := mountinfo.Top(all, next); ok && m.Type == mountType {
			at = next
			continue
		}
		info, err := os.Lstat(next)
		if err != nil {
			return m, "", withCode(exitNoMount, err)
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return m, "", fail(exitNoMount, "%s: %w", path, errors.New("too many symbolic links"))
		}
		target, err := os.Readlink(next)
		if err != nil {
			return m, "", withCode(exitNoMount, err)
		}
		todo = append(components(target), todo...)
		if filepath.IsAbs(target) {
			at = "/"
		}
	}
}

// components returns the names of a path; ".." may be among them.
func components(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}

// findPath returns the dsmfs mount that contains the path, and the path within it. For an empty
// path it returns the only mount there is.
func findPath(path string) (m mountinfo.Mount, inside string, err error) {
	if path == "" {
		m, err = findMount("")
		return m, ".", err
	}
	all, err := mountinfo.Read()
	if err != nil {
		return m, "", err
	}
	return locate(path, all)
}
