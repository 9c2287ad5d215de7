package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// createRow measures dsmfs.create of a Python program at a node that does not lead the catalog.
func createRow(o options) ([]line, error) {
	python, skip := harness.Interpreter()
	if skip != "" {
		return nil, errors.New(skip)
	}
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	l := line{Name: "dsmfs.create of 4 KB, Python, 3 nodes, a node that does not lead", Unit: "ns", Measure: "allowed", Bound: 1}
	err = act(func(s *stage) error {
		c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: 3})
		n := c.Node(2)
		p := n.Program("env", "PYTHONPATH="+filepath.Join(root, "pybind"), python, filepath.Join(root, "bench", "client", "create.py"), n.Mount)
		defer p.Close()
		l.Value, _, err = interleave(o.rounds, func() (float64, error) {
			words, err := p.Do("%d", o.pick(200, 20))
			if err != nil {
				return 0, err
			}
			if len(words) != 1 {
				return 0, fmt.Errorf("the program answers %q", words)
			}
			v, err := strconv.ParseFloat(words[0], 64)
			return v * float64(time.Second), err
		}, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.Yardstick = always(5 * time.Millisecond)
	return []line{l.judge()}, nil
}

// always is a yardstick that is a bound itself.
func always(d time.Duration) spread { return spread{float64(d), float64(d), float64(d)} }
