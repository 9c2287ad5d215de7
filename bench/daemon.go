package main

import (
	"fmt"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// idleRow measures what three daemons and their children use while nothing happens.
func idleRow(o options) ([]line, error) {
	const areas = 100
	l := line{Name: "3 idle nodes with 100 subscribed areas, CPU", Unit: "%", Measure: "one core", Bound: 0.02}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 3}, min(o.rounds, 3), func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		for _, n := range c.Nodes() {
			if _, err := keepOpen(s, n, areas, page); err != nil {
				return nil, nil, err
			}
		}
		return func() (float64, error) { return idleShare(c, o), nil }, func() (float64, error) { return 100, nil }, nil
	})
}

// idleShare is the part of one core, in percent, that the cluster uses for a while.
func idleShare(c *harness.Cluster, o options) float64 {
	length := time.Duration(o.pick(10, 3)) * time.Second
	before := c.CPU()
	start := time.Now()
	time.Sleep(length) // the measurement: nothing happens
	return 100 * float64(c.CPU()-before) / float64(time.Since(start))
}

// keepOpen opens, maps and touches areas at a node until the row ends, and returns how long that took.
func keepOpen(s *stage, n *harness.Node, areas, size int) (time.Duration, error) {
	h, first, err := start(n, programs.bench, "hold-areas", n.Mount, areas, size)
	if err != nil {
		return 0, err
	}
	s.Cleanup(func() {
		if err := h.end(); err != nil {
			s.Errorf("%s: %v", n.Name, err)
		}
	})
	v, err := parse(first)
	if err != nil {
		return 0, err
	}
	return time.Duration(v[0]), nil
}

// memoryRow measures what memory a daemon takes for an area of S bytes that it has
// written or received completely: its heap and all pages of its memfds.
func memoryRow(o options) ([]line, error) {
	size := o.pick(256*mib, 64*mib)
	const fixed = 100 * mib
	lines := make([]line, 2)
	err := act(func(s *stage) error {
		c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: 2, Memory: "1G"})
		if err := onRequest(c.Node(1), "w", size); err != nil {
			return err
		}
		once := publish(c, "w", size)
		for _, n := range c.Nodes() { // used on both: a client has it open and mapped
			h, _, err := start(n, programs.bench, "hold-file", n.Mount+"/w", size)
			if err != nil {
				return err
			}
			s.Cleanup(func() {
				if err := h.end(); err != nil {
					s.Errorf("%s: %v", n.Name, err)
				}
			})
		}
		values := make([][]float64, 2)
		for range o.rounds {
			if _, err := once(); err != nil {
				return err
			}
			for i, n := range c.Nodes() {
				m := n.Memory()
				values[i] = append(values[i], max(0, float64(m.Private+m.Memfds-fixed)))
			}
		}
		for i, role := range []string{"writer", "subscriber"} {
			lines[i] = line{
				Name: fmt.Sprintf("daemon memory for a held area of %d MiB, less 100 MiB, %s", size/mib, role), Unit: "B",
				Value: spreadOf(values[i]), Yardstick: spread{float64(size), float64(size), float64(size)}, Measure: "its size", Bound: 2.2,
			}.judge()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lines, nil
}
