package main

import (
	"errors"
	"fmt"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// barrierRow measures barriers of programs that sleep until the last has arrived, each on a node of its own.
func barrierRow(o options) ([]line, error) {
	n := o.pick(3000, 300)
	var lines []line
	for _, of := range []struct {
		size  int
		bound float64
	}{{2, 4}, {4, 8}} {
		err := act(func(s *stage) error {
			c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: of.size, Network: harness.Namespaces})
			group := 0
			l := line{Name: fmt.Sprintf("barrier of %d nodes", of.size), Measure: "TCP 4 KiB request/reply", Unit: "ns", Bound: of.bound}
			var err error
			l.Value, l.Yardstick, err = interleave(o.rounds, func() (float64, error) {
				group++
				name := fmt.Sprintf("group%d-", group)
				if _, err := one(c.Node(1), "create-files", c.Node(1).Mount, name, 1, 0); err != nil {
					return 0, err
				}
				return barriers(c, "/"+name+"0", of.size, n)
			}, func() (float64, error) { return tcpRoundTrip(c, n) })
			lines = append(lines, l.judge())
			return err
		})
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// barriers has a program on each node meet the others n times, and returns the median of one of them.
func barriers(c *harness.Cluster, path string, size, n int) (float64, error) {
	var members []*helper
	var failed error
	for i := range size {
		h, _, err := start(c.Node(i+1), programs.bench, "barriers", c.Node(i+1).Mount, path, size, n)
		if err != nil {
			failed = err
			break
		}
		members = append(members, h)
	}
	median := 0.0
	for _, h := range members {
		if failed != nil {
			failed = errors.Join(failed, h.end())
			continue
		}
		v, err := h.rest()
		if err == nil {
			median = v[0]
		}
		failed = errors.Join(failed, err)
	}
	return median, failed
}
