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

// roundRow measures sums of float32 over programs on four nodes beside Gloo's all_reduce of the same bytes. Each has a node of its own; all share
// the machine's processors. What a second copy of the file costs has no bound.
func roundRow(o options) ([]line, error) {
	const nodes = 4
	var lines []line
	for _, of := range []struct {
		how    string
		size   int
		bound  float64
		rounds int
	}{
		{"accumulate", 51_000_000, 1.15, o.pick(10, 3)}, {"accumulate", mib, 0.3, o.pick(100, 10)}, {"accumulate", page, 0.1, o.pick(300, 30)},
		{"store", 51_000_000, 1.6, o.pick(10, 3)}, {"store", mib, 0.5, o.pick(100, 10)},
		{"copies", 51_000_000, 0, o.pick(10, 3)}, {"copies", mib, 0, o.pick(100, 10)}, {"copies", page, 0, o.pick(300, 30)},
	} {
		how := of.how
		if how == "copies" {
			how = "accumulate, two copies,"
		}
		l := line{Name: fmt.Sprintf("sum of %d bytes of %d nodes, f32, by %s and round", of.size, nodes, how), Measure: "Gloo all_reduce", Unit: "ns", Bound: of.bound}
		more, err := compare(l, harness.Options{Single: true, Nodes: nodes, Network: harness.Namespaces, Memory: "1G"}, o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
			host, _, err := net.SplitHostPort(c.Node(1).Address)
			if err != nil {
				return nil, nil, err
			}
			value, err = summing(c, of.how, of.size, of.rounds, func(n *harness.Node) string { return n.Mount })
			if err == nil {
				yardstick, err = summing(c, "gloo", of.size, of.rounds, func(*harness.Node) string { return host })
			}
			return value, yardstick, err
		})
		lines = append(lines, more...)
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
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
