package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// sum is a size of the sums that are measured.
type sum struct {
	size, times, quick int
	bound              float64
}

// sums are the sums of each way. What a second copy of the file costs has no bound.
var sums = map[string][]sum{
	"accumulate": {{51_000_000, 10, 3, 1.15}, {mib, 100, 10, 0.3}, {page, 300, 30, 0.1}},
	"copied":     {{51_000_000, 10, 3, 1.15}, {mib, 100, 10, 0.3}},
	"store":      {{51_000_000, 10, 3, 1.6}, {mib, 100, 10, 0.5}},
	"copies":     {{51_000_000, 10, 3, 0}, {mib, 100, 10, 0}, {page, 300, 30, 0}},
}

// roundRow measures sums of float32 over programs on four nodes beside Gloo's all_reduce of the same bytes. Each has a node of its own; all share
// the machine's processors.
func roundRow(way string) func(o options) ([]line, error) {
	return func(o options) ([]line, error) {
		var lines []line
		for _, of := range sums[way] {
			more, err := sumRow(way, of, o)
			lines = append(lines, more...)
			if err != nil {
				return lines, err
			}
		}
		return lines, nil
	}
}

// sumNodes is how many nodes take part in a sum.
const sumNodes = 4

func sumCluster() harness.Options {
	return harness.Options{Default: true, Single: true, Nodes: sumNodes, Network: harness.Namespaces, Memory: "1G"}
}

func sumRow(way string, of sum, o options) ([]line, error) {
	how := map[string]string{"accumulate": "accumulate", "copied": "accumulate from memory of its own", "store": "store", "copies": "accumulate, two copies,"}[way]
	times := o.pick(of.times, of.quick)
	l := line{Name: fmt.Sprintf("sum of %d bytes of %d nodes, f32, by %s and round", of.size, sumNodes, how), Measure: "Gloo all_reduce", Unit: "ns", Bound: of.bound}
	return compare(l, sumCluster(), o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		host, _, err := net.SplitHostPort(c.Node(1).Address)
		if err != nil {
			return nil, nil, err
		}
		value, err = summing(c, way, of.size, times, func(n *harness.Node) string { return n.Mount })
		if err == nil {
			yardstick, err = summing(c, "gloo", of.size, times, func(*harness.Node) string { return host })
		}
		return value, yardstick, err
	})
}

// roundFloorRow measures what is left of a sum at one home without daemons, files and Python, and of one with a home at each node without the
// daemons and Python.
func roundFloorRow(o options) ([]line, error) {
	var lines []line
	for _, of := range sums["accumulate"] {
		how, times := "of which one adds", 10*o.pick(of.times, of.quick)
		if of.size > mib {
			how, times = "that each add a part", o.pick(of.times, of.quick)
		}
		l := line{Name: fmt.Sprintf("sum of %d bytes of %d nodes, f32, by C programs %s", of.size, sumNodes, how), Measure: "Gloo all_reduce", Unit: "ns"}
		more, err := compare(l, sumCluster(), o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
			next, err := shared(s)
			if err != nil {
				return nil, nil, err
			}
			host, _, err := net.SplitHostPort(c.Node(1).Address)
			if err != nil {
				return nil, nil, err
			}
			yardstick, err = summing(c, "gloo", of.size, o.pick(of.times, of.quick), func(*harness.Node) string { return host })
			if of.size > mib {
				return func() (float64, error) { return largeSum(c, next(), of.size, times) }, yardstick, err
			}
			return func() (float64, error) { return bareSum(c, host, of.size/4, times) }, yardstick, err
		})
		lines = append(lines, more...)
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// bareSum measures one sum of C programs; in nanoseconds.
func bareSum(c *harness.Cluster, host string, elements, times int) (float64, error) {
	const port = 7452
	home, _, err := start(c.Node(1), programs.bench, "sum-home", port, sumNodes, elements, times)
	if err != nil {
		return 0, err
	}
	var members []*helper
	for _, n := range c.Nodes()[1:] {
		m, _, err := start(n, programs.bench, "sum-member", host, port, elements, times)
		if err != nil {
			return 0, errors.Join(err, endAll(append(members, home)))
		}
		members = append(members, m)
	}
	v, err := home.rest()
	for _, m := range members {
		_, restErr := m.rest()
		err = errors.Join(err, restErr)
	}
	if err == nil && len(v) != 1 {
		err = fmt.Errorf("the home printed %v", v)
	}
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

// summing starts a program on each node. What it returns measures one sum, in nanoseconds: the median of so many.
func summing(c *harness.Cluster, what string, size, times int, where func(*harness.Node) string) (func() (float64, error), error) {
	python, skip := harness.Interpreter()
	if skip != "" {
		return nil, errors.New(skip)
	}
	torch, err := exec.Command("scripts/torch.sh").Output()
	if err != nil {
		return nil, fmt.Errorf("scripts/torch.sh: %w", err)
	}
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	path := "PYTHONPATH=" + filepath.Join(root, "pybind") + string(os.PathListSeparator) + strings.TrimSpace(string(torch))
	var all []*harness.Client
	for i, n := range c.Nodes() {
		all = append(all, n.Program("env", path, python, filepath.Join(root, "bench", "client", "rounds.py"), what, strconv.Itoa(i), strconv.Itoa(len(c.Nodes())), strconv.Itoa(size/4), where(n)))
	}
	run := func(times int) (float64, error) {
		took := make(chan float64, len(all))
		failed := make(chan error, len(all))
		for _, p := range all {
			go func() {
				words, err := p.Do("%d", times)
				v := 0.0
				if err == nil && len(words) == 1 {
					v, err = strconv.ParseFloat(words[0], 64)
				}
				took <- v
				failed <- err
			}()
		}
		most := 0.0
		var errs []error
		for range all {
			most = max(most, <-took)
			errs = append(errs, <-failed)
		}
		return most * 1e9, errors.Join(errs...)
	}
	if _, err := run(3); err != nil { // until connections and memory are there
		return nil, err
	}
	return func() (float64, error) { return run(times) }, nil
}
