package main

import (
	"fmt"
	"net"
	"slices"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The rows of publishes of a megabyte.

// mibRow measures publishes of a megabyte of an attached program, until a reader that spins sees the last word.
func mibRow(o options) ([]line, error) {
	rounds := o.pick(300, 30)
	var lines []line
	for _, home := range []int{1, 2} {
		h := hops{home: home, how: "spin", bound: 1.8, size: mib}
		l := line{Name: fmt.Sprintf("1 MiB of an attached program, home at node %d, until a reader of node 2 sees it that spins", home), Unit: "ns", Measure: "the bytes over TCP, and an answer", Bound: h.bound}
		more, err := compare(l, pairCluster(), o.rounds,
			func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
				next, err := shared(s)
				return func() (float64, error) { return publishHops(c, h, next(), "", rounds) },
					func() (float64, error) { return tcpBytes(c, mib, rounds) }, err
			})
		lines = append(lines, more...)
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// mibCacheRow measures publishes of a megabyte through a mapping of the mount, until a reader that maps for reading sees all.
func mibCacheRow(o options) ([]line, error) {
	rounds := o.pick(15, 3)
	l := line{Name: "msync of 1 MiB, until a reader of another node sees it in a mapping", Unit: "ns", Measure: "the bytes over TCP, and an answer", Bound: 3.5}
	return compare(l, pairCluster(), o.rounds,
		func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
			if err := onRequest(c.Node(1), "w", mib); err != nil {
				return nil, nil, err
			}
			once := publish(c, "w", mib)
			if _, err := once(); err != nil { // the first allocates on every node
				return nil, nil, err
			}
			return func() (float64, error) {
				var took []float64
				for range rounds {
					ns, err := once()
					if err != nil {
						return 0, err
					}
					took = append(took, ns)
				}
				slices.Sort(took)
				return took[len(took)/2], nil
			}, func() (float64, error) { return tcpBytes(c, mib, 20*rounds) }, nil
		})
}

// mibVersionRow measures versions of a megabyte until a reader of the same node has them that spins.
func mibVersionRow(o options) ([]line, error) {
	rounds := o.pick(300, 30)
	l := line{Name: "version of 1 MiB, until a reader of the same node has it that spins", Unit: "ns", Measure: "memory copied twice", Bound: 4}
	return compare(l, pairCluster(), o.rounds,
		func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
			next, err := shared(s)
			return func() (float64, error) {
					return publishHops(c, hops{home: 1, how: "spin", size: mib, local: true}, next(), "mode versioned\n", rounds)
				},
				func() (float64, error) { return one(c.Node(1), "copy-twice", mib, rounds) }, err
		})
}

// tcpBytes measures how long so many bytes and an answer take from the first node to the second.
func tcpBytes(c *harness.Cluster, size, rounds int) (float64, error) {
	const port = 7453
	host, _, err := net.SplitHostPort(c.Node(2).Address)
	if err != nil {
		return 0, err
	}
	sink, _, err := start(c.Node(2), programs.bench, "tcp-sink", port, size)
	if err != nil {
		return 0, err
	}
	v, err := one(c.Node(1), "tcp-source", host, port, size, rounds)
	if err != nil {
		return 0, err
	}
	_, err = sink.rest()
	return v, err
}
