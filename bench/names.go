package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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
// not. Four programs, each in a directory of its own, make as many.
func filesRow(o options) ([]line, error) {
	count, rounds := o.pick(5000, 500), min(o.rounds, 3)
	var lines []line
	err := act(func(s *stage) error {
		c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: 3})
		yard, err := bare(s, c.Node(1))
		if err != nil {
			return err
		}
		round := 0
		fresh := func(n *harness.Node) (dir string, err error) {
			round++
			dir = filepath.Join(n.Mount, fmt.Sprint("d", round))
			if res := n.Run(patience, "mkdir", dir); res.Err != nil {
				return dir, fmt.Errorf("mkdir: %w: %s", res.Err, res.Stderr)
			}
			return dir, nil
		}
		for _, x := range []struct {
			name string
			n    *harness.Node
		}{{"a node that does not lead", c.Node(2)}, {"the leader", c.Node(1)}} {
			for _, size := range []int{0, 100} {
				what := fmt.Sprintf("create one of %d files of %d bytes, 3 nodes, %s", count, size, x.name)
				alone := line{Name: what, Unit: "ns", Measure: "bare FUSE, and one chmod"}
				var used, several []float64
				alone.Value, alone.Yardstick, err = interleave(rounds, func() (float64, error) {
					dir, err := fresh(x.n)
					if err != nil {
						return 0, err
					}
					before := c.CPU()
					each, err := one(x.n, "create-files", dir, "f", count, size)
					used = append(used, float64(c.CPU()-before)/float64(count))
					if err != nil {
						return 0, err
					}
					four, err := atOnce(x.n, fresh, 4, count/4, size)
					several = append(several, four)
					return each, err
				}, func() (float64, error) {
					round++
					made, err := one(c.Node(1), "create-files", yard, fmt.Sprintf("f%d-", round), count, size)
					if err != nil {
						return 0, err
					}
					dir, err := fresh(x.n)
					if err != nil {
						return 0, err
					}
					changed, err := one(x.n, "set-modes", dir, count)
					return made + changed, err
				})
				if err != nil {
					return err
				}
				cores := float64(runtime.NumCPU()) * float64(time.Second) / 3000
				lines = append(lines, alone.judge(),
					line{Name: what + ", four programs", Unit: "ns", Value: spreadOf(several), Yardstick: alone.Value, Measure: "one program"}.judge(),
					line{Name: what + ", processor time of the daemons", Unit: "ns", Value: spreadOf(used),
						Yardstick: spread{cores, cores, cores}, Measure: "all processors, at 3000 a second"}.judge())
			}
		}
		return nil
	})
	return lines, err
}

// listRow lists a directory of many files as ls -l does, at a node that does not lead the catalog.
func listRow(o options) ([]line, error) {
	entries := o.pick(20000, 500)
	l := line{Name: fmt.Sprintf("ls -l of %d entries, for each, a node that does not lead", entries), Unit: "ns", Measure: "the same on /dev/shm"}
	err := act(func(s *stage) error {
		c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: 3})
		n := c.Node(2)
		shm, err := os.MkdirTemp("/dev/shm", "dsmfs-bench-")
		if err != nil {
			return err
		}
		s.Cleanup(func() { _ = os.RemoveAll(shm) })
		for _, dir := range []string{shm, c.Node(1).Mount} {
			if _, err := one(c.Node(1), "create-files", dir, "f", entries, 100); err != nil {
				return err
			}
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
		l.Value, l.Yardstick, err = interleave(o.rounds, list(n.Mount), list(shm))
		return err
	})
	if err != nil {
		return nil, err
	}
	allowed := line{Name: l.Name, Unit: l.Unit, Value: l.Value, Yardstick: always(20 * time.Microsecond), Measure: "allowed", Bound: 1}
	return []line{l.judge(), allowed.judge()}, nil
}

// atOnce has several programs make so many files each at once, each in a directory of its own, and returns what one file took by the clock.
func atOnce(n *harness.Node, fresh func(*harness.Node) (string, error), programs, count, size int) (float64, error) {
	var dirs []string
	for range programs {
		dir, err := fresh(n)
		if err != nil {
			return 0, err
		}
		dirs = append(dirs, dir)
	}
	began := time.Now()
	failed := make(chan error, programs)
	for _, dir := range dirs {
		go func() {
			_, err := one(n, "create-files", dir, "f", count, size)
			failed <- err
		}()
	}
	var err error
	for range programs {
		err = errors.Join(err, <-failed)
	}
	return float64(time.Since(began)) / float64(programs*count), err
}
