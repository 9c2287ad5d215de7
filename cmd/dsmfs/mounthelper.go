package main

import (
	"fmt"
	"slices"
)

// mountHelperVerb is mount.dsmfs, which mount(8) calls as mount.dsmfs SRC MNT [-sfnv] [-o OPTIONS]
// [-t TYPE]. SRC is a node to join, or a word without meaning such as dsmfs or none.
func mountHelperVerb(p *program, args []string) error {
	f := p.flags("mount")
	lists := f.StringArrayP("options", "o", nil, "")
	f.BoolP("sloppy", "s", false, "")
	fake := f.BoolP("fake", "f", false, "")
	f.BoolP("no-mtab", "n", false, "")
	f.BoolP("verbose", "v", false, "")
	f.StringP("types", "t", "", "")
	if err := parse(f, args, 2, 2, "SRC MNT [-o OPTIONS]"); err != nil {
		return err
	}
	rest := []string{f.Arg(1)}
	if src := f.Arg(0); !slices.Contains([]string{"dsmfs", "none", "dsm"}, src) {
		rest = append(rest, "--join", src)
	}
	for _, l := range *lists {
		rest = append(rest, "-o", l)
	}
	c, err := parseMount(p, rest)
	if err != nil || *fake {
		return err
	}
	if isMounted(c.point) {
		fmt.Fprintf(p.err, "dsmfs: %s is mounted already\n", c.point)
		return nil
	}
	return mountVerb(p, rest)
}

// isMounted reports whether a dsmfs with a living daemon is mounted at the path. mount --all calls
// the helper for every line of fstab whose source differs from the mount's, and a dsmfs mount has
// the names of cluster and node as its source.
func isMounted(path string) bool {
	m, err := findMount(path)
	if err != nil {
		return false
	}
	pid, _ := daemonOf(m.Point)
	return pid != 0
}
