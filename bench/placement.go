package main

import (
	"fmt"
	"strings"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// latencyHomeRow is the latency from the first node to the second by where the home of the file is, and of a file whose home is the third
// node before and after it has moved to the writer by itself.
func latencyHomeRow(o options) ([]line, error) {
	rounds := o.pick(2000, 200)
	var lines []line
	err := act(func(s *stage) error {
		c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: 3})
		n := c.Node(1)
		to := c.Nodes()[1:2]
		at := func(placements ...string) error {
			for _, p := range placements {
				if res := n.CLI("set", n.Mount+"/d", "placement="+p); res.Err != nil {
					return fmt.Errorf("%w: %s", res.Err, res.Stderr)
				}
			}
			return nil
		}
		if res := n.Run(patience, "mkdir", n.Mount+"/d"); res.Err != nil {
			return res.Err
		}
		for _, where := range []struct{ node, what string }{{"n1", "the writer"}, {"n2", "the reader"}, {"n3", "a third node"}} {
			if err := at(where.node); err != nil {
				return err
			}
			calls := 0
			v, _, err := interleave(o.rounds, func() (float64, error) {
				calls++
				return latencyOf(c, to, fmt.Sprintf("d/%s-%d", where.node, calls), rounds)
			}, nil)
			if err != nil {
				return err
			}
			lines = append(lines, line{Name: "home at " + where.what + ": store + msync until another node sees it, p50", Unit: "ns", Value: v})
		}
		const name = "d/moves"
		if _, err := one(n, "store-msync", n.Mount+"/"+name, 1); err != nil {
			return err
		}
		if res := n.CLI("set", n.Mount+"/"+name, "placement=auto"); res.Err != nil {
			return fmt.Errorf("%w: %s", res.Err, res.Stderr)
		}
		before, _, err := interleave(1, func() (float64, error) { return latencyOf(c, to, name, 200) }, nil)
		if err != nil {
			return err
		}
		moved := func() bool {
			res := n.Run(patience, "cat", n.Mount+"/.dsm/areas/"+name+"/stats")
			return strings.Contains(res.Stdout, "home_moves 1\n")
		}
		for k := 0; !moved(); k++ {
			if k == 30 {
				return fmt.Errorf("the file does not move to its writer")
			}
			if _, err := latencyOf(c, to, name, 2000); err != nil {
				return err
			}
		}
		after, _, err := interleave(o.rounds, func() (float64, error) { return latencyOf(c, to, name, rounds) }, nil)
		if err != nil {
			return err
		}
		lines = append(lines,
			line{Name: "home at a third node, while the file is still there", Unit: "ns", Value: before},
			line{Name: "the same, when it has moved to its writer", Unit: "ns", Value: after})
		return nil
	})
	return lines, err
}
