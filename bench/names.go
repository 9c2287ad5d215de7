package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// bare mounts the yardstick beside the mount of a node until the row ends.
func bare(s *stage, n *harness.Node) (mount string, err error) {
	mount = filepath.Join(filepath.Dir(n.Mount), "bare")
	if err := os.Mkdir(mount, 0o755); err != nil {
		return "", err
	}
	h, _, err := start(n, programs.barefuse, mount)
	if err != nil {
		return "", err
	}
	s.Cleanup(func() {
		if err := syscall.Unmount(mount, 0); err != nil {
			s.Errorf("unmount the bare FUSE: %v", err)
		}
		if err := h.end(); err != nil {
			s.Errorf("bare FUSE: %v", err)
		}
	})
	return mount, nil
}

// filesRow makes many files in one directory, each after the other, at the node that leads the catalog and at one that does
// not, and lists them at the latter as ls -l does.
func filesRow(o options) ([]line, error) {
	count, entries, rounds := o.pick(5000, 500), o.pick(20000, 500), min(o.rounds, 3)
	var lines []line
	err := act(func(s *stage) error {
		c := harness.New(s, harness.Options{Nodes: 3})
		yard, err := bare(s, c.Node(1))
		if err != nil {
			return err
		}
		round := 0
		filled := func(n *harness.Node, count, size int) (dir string, each float64, err error) {
			round++
			dir = filepath.Join(n.Mount, fmt.Sprint("d", round))
			if res := n.Run(patience, "mkdir", dir); res.Err != nil {
				return dir, 0, fmt.Errorf("mkdir: %w: %s", res.Err, res.Stderr)
			}
			each, err = one(n, "create-files", dir, "f", count, size)
			return dir, each, err
		}
		create := func(n *harness.Node, size int) func() (float64, error) {
			return func() (float64, error) {
				_, each, err := filled(n, count, size)
				return each, err
			}
		}
		for _, x := range []struct {
			name string
			n    *harness.Node
		}{{"a node that does not lead", c.Node(2)}, {"the leader", c.Node(1)}} {
			for _, size := range []int{0, 100} {
				l := line{Name: fmt.Sprintf("create one of %d files of %d bytes, 3 nodes, %s", count, size, x.name), Unit: "ns", Measure: "bare FUSE"}
				l.Value, l.Yardstick, err = interleave(rounds, create(x.n, size), func() (float64, error) {
					round++
					return one(c.Node(1), "create-files", yard, fmt.Sprintf("f%d-", round), count, size)
				})
				if err != nil {
					return err
				}
				lines = append(lines, l.judge())
			}
		}
		n := c.Node(2)
		shm, err := os.MkdirTemp("/dev/shm", "dsmfs-bench-")
		if err != nil {
			return err
		}
		s.Cleanup(func() { _ = os.RemoveAll(shm) })
		if _, err := one(n, "create-files", shm, "f", entries, 100); err != nil {
			return err
		}
		listed, _, err := filled(c.Node(1), entries, 100)
		if err != nil {
			return err
		}
		list := func(dir string) func() (float64, error) {
			return func() (float64, error) {
				began := time.Now()
				res := n.Run(patience, "sh", "-c", `exec ls -l "$0" >/dev/null`, dir)
				if res.Err != nil {
					return 0, fmt.Errorf("ls: %w: %s", res.Err, res.Stderr)
				}
				return float64(time.Since(began)) / float64(entries), nil
			}
		}
		l := line{Name: fmt.Sprintf("ls -l of %d entries, for each, a node that does not lead", entries), Unit: "ns", Measure: "the same on /dev/shm"}
		l.Value, l.Yardstick, err = interleave(rounds, list(filepath.Join(n.Mount, filepath.Base(listed))), list(shm))
		lines = append(lines, l.judge())
		return err
	})
	return lines, err
}
