package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsmfs/dsmfs/internal/mountinfo"
)

// mountType is the type of a dsmfs mount in /proc/self/mountinfo.
const mountType = "fuse.dsmfs"

// resolveMount returns the absolute path of a mount point without touching what is mounted there.
// It follows only the directories above; it follows the path itself only while that is a symbolic
// link on a filesystem that answers.
func resolveMount(path string, all []mountinfo.Mount) (string, error) {
	const maxLinks = 40 // as the kernel
	for range maxLinks {
		abs, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		if _, ok := mountinfo.Top(all, abs); ok {
			return abs, nil
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return "", err
		}
		abs = filepath.Join(dir, filepath.Base(abs))
		if _, ok := mountinfo.Top(all, abs); ok {
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
func findMount(path string) (mountinfo.Mount, error) {
	all, err := mountinfo.Read()
	if err != nil {
		return mountinfo.Mount{}, err
	}
	if path != "" {
		point, err := resolveMount(path, all)
		if err != nil {
			return mountinfo.Mount{}, withCode(exitNoMount, err)
		}
		if m, ok := mountinfo.Top(all, point); ok && m.Type == mountType {
			return m, nil
		}
		if m, _, err := locate(point, all); err == nil {
			return mountinfo.Mount{}, fail(exitNoMount, "%s is not a dsmfs mount; it is in the one at %s", point, m.Point)
		}
		return mountinfo.Mount{}, fail(exitNoMount, "%s is not a dsmfs mount", point)
	}
	var ours []mountinfo.Mount
	for _, m := range all {
		if m.Type == mountType {
			ours = append(ours, m)
		}
	}
	switch len(ours) {
	case 0:
		return mountinfo.Mount{}, fail(exitNoMount, "there is no dsmfs mount on this machine")
	case 1:
		return ours[0], nil
	}
	points := make([]string, len(ours))
	for i, m := range ours {
		points[i] = m.Point
	}
	return mountinfo.Mount{}, fail(exitUsage, "which mount? there are %s", strings.Join(points, ", "))
}
