package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// factorRow measures an epoch of a matrix factorisation by the programs of two nodes, which add to the same factors and sync each 20,000 samples,
// beside the same programs in plain shared memory. Both end with about the same error, or the row fails.
func factorRow(o options) ([]line, error) {
	const (
		nodes = 2
		bytes = (6040 + 3706) * 100 * 4
	)
	l := line{Name: "matrix factorisation, 6040 x 3706, 10^6 ratings, rank 100, 2 nodes, attached: an epoch", Unit: "ns", Measure: "the same on /dev/shm", Bound: 4}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: nodes, Network: harness.Namespaces, Memory: "256M"}, o.rounds,
		func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
			next, err := shared(s)
			last := make(map[string]float64) // error after the last epoch
			run := func(how string, program func(n *harness.Node) []any) (float64, error) {
				v, off, err := epochs(c, program)
				last[how] = off
				if a, b := last["attached"], last["shared"]; err == nil && b > 0 && a > 1.5*b {
					err = fmt.Errorf("the error is %.4f in the end, and %.4f in plain shared memory", a, b)
				}
				return v, err
			}
			attached := func() (float64, error) {
				file := next()
				path := "/" + filepath.Base(file)
				if _, err := harness.CreateAt(c.Node(1).AttachSocket(), path+"\nmerge sum\ndtype f32\ninterval 0\n", bytes, 0o644, true); err != nil {
					return 0, err
				}
				return run("attached", func(n *harness.Node) []any { return []any{"factor-attached", n.AttachSocket(), path, file} })
			}
			plain := func() (float64, error) {
				file := next()
				return run("shared", func(*harness.Node) []any { return []any{"factor-shared", file + ".factors", file} })
			}
			return attached, plain, err
		})
}

// epochs runs a program on each node, and returns the nanoseconds of an epoch and the error in the last one.
func epochs(c *harness.Cluster, program func(n *harness.Node) []any) (ns, off float64, err error) {
	var all []*helper
	for i, n := range c.Nodes() {
		b, _, err := start(n, programs.bench, append(program(n), i, len(c.Nodes()))...)
		if err != nil {
			return 0, 0, errors.Join(err, endAll(all))
		}
		all = append(all, b)
	}
	for _, b := range all {
		v, restErr := b.rest()
		if restErr == nil && len(v) != 2 {
			restErr = fmt.Errorf("a program printed %v", v)
		}
		if restErr != nil {
			err = errors.Join(err, restErr)
			continue
		}
		ns, off = max(ns, v[0]*1e9), v[1]
	}
	return ns, off, err
}
