package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// locksRow measures lock and unlock at a node that does not lead the catalog: of a file whose locks are delegated to the node,
// of files that it has not locked before, with and without bytes, of files that another node has open or has locked, and of one
// that two nodes have open and lock in turn, seldom and all the time.
func locksRow(o options) ([]line, error) {
	ops, count := o.pick(20000, 500), o.pick(500, 50)
	var lines []line
	err := act(func(s *stage) error {
		c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: 3, Network: harness.Namespaces})
		at, n := c.Node(1), c.Node(2)
		shm, err := os.MkdirTemp("/dev/shm", "dsmfs-bench-")
		if err != nil {
			return err
		}
		s.Cleanup(func() { _ = os.RemoveAll(shm) })
		add := func(l line, value, yardstick func() (float64, error)) error {
			l.Unit = "ns"
			if l.Value, l.Yardstick, err = interleave(o.rounds, value, yardstick); err == nil {
				lines = append(lines, l.judge())
			}
			return err
		}
		for _, kind := range []string{"fcntl", "flock"} {
			if err := add(line{Name: kind + " lock + unlock, delegated", Measure: "the same on /dev/shm"},
				func() (float64, error) { return one(n, "lock-unlock", filepath.Join(n.Mount, kind), kind, ops) },
				func() (float64, error) { return one(n, "lock-unlock", filepath.Join(shm, kind), kind, ops) }); err != nil {
				return err
			}
		}
		tcp := func() (float64, error) { return tcpRoundTrip(c, o.pick(5000, 500)) }
		round := 0
		for _, size := range []int{0, page} {
			l := line{Name: fmt.Sprintf("first lock of a file of %d bytes + unlock, a node that does not lead", size), Measure: "TCP 4 KiB request/reply", Bound: 4}
			if err := add(l, func() (float64, error) {
				round++
				prefix := fmt.Sprintf("f%d-", round)
				if _, err := one(at, "create-files", at.Mount, prefix, count, size); err != nil {
					return 0, err
				}
				return one(n, "lock-first", n.Mount, prefix, count)
			}, tcp); err != nil {
				return err
			}
		}
		for had, what := range []string{"has open", "locked last"} {
			l := line{Name: "first lock of a file that another node " + what + " + unlock", Measure: "TCP 4 KiB request/reply", Bound: 4}
			if err := add(l, func() (float64, error) {
				round++
				prefix := fmt.Sprintf("k%d-", round)
				keeper, _, err := start(c.Node(3), programs.bench, "lock-keep", c.Node(3).Mount, prefix, count, had)
				if err != nil {
					return 0, err
				}
				v, err := one(n, "lock-first", n.Mount, prefix, count)
				return v, errors.Join(err, keeper.end())
			}, tcp); err != nil {
				return err
			}
		}
		if err := add(line{Name: "lock of a file that both have open and the other locked last + unlock", Measure: "TCP 4 KiB request/reply", Bound: 4},
			func() (float64, error) {
				round++
				prefix := fmt.Sprintf("b%d-", round)
				mine, _, err := start(n, programs.bench, "lock-opened", n.Mount, prefix, count)
				if err != nil {
					return 0, err
				}
				keeper, _, err := start(c.Node(3), programs.bench, "lock-keep", c.Node(3).Mount, prefix, count, 1)
				if err != nil {
					return 0, errors.Join(err, mine.end())
				}
				v, err := mine.afterInput()
				if err = errors.Join(err, keeper.end()); err != nil {
					return 0, err
				}
				return v[0], nil
			}, tcp); err != nil {
			return err
		}
		return add(line{Name: "two nodes hand a file to each other and back, by its lock", Measure: "TCP 4 KiB request/reply"},
			func() (float64, error) {
				round++
				name, turns := fmt.Sprintf("turns%d", round), o.pick(300, 30)
				other, _, err := start(at, programs.bench, "lock-turns", filepath.Join(at.Mount, name), "b", turns)
				if err != nil {
					return 0, err
				}
				mine, _, err := start(n, programs.bench, "lock-turns", filepath.Join(n.Mount, name), "a", turns)
				if err != nil {
					return 0, errors.Join(err, other.end())
				}
				v, err := mine.rest()
				if _, e := other.rest(); err != nil || e != nil {
					return 0, errors.Join(err, e)
				}
				return v[0], nil
			}, tcp)
	})
	return lines, err
}
