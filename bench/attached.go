package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The rows of small publishes of attached programs. The yardstick is programs in C that pass a page on in the same hops, wait for each other, and do
// nothing else: from a program to a process beside it, from there to the next node, and into the memory of the reader.

// hops is one such row.
type hops struct {
	home  int    // the node that is the home; the writer is on the first, the reader on the second
	how   string // the reader spins, waits for a version in the header page, or reads the file
	bound float64
	size  int  // of the area; 0: a page
	local bool // the reader is on the first node, too
}

func attachLatencyRow(o options) ([]line, error) {
	rounds := o.pick(3000, 300)
	var lines []line
	for _, h := range []hops{
		{home: 1, how: "spin", bound: 2.8}, {home: 2, how: "spin", bound: 2.8}, {home: 3, how: "spin", bound: 3},
		{home: 1, how: "wait", bound: 1.8}, {home: 2, how: "wait", bound: 1.8}, {home: 3, how: "wait", bound: 1.8},
		{home: 1, how: "read", bound: 3}, {home: 2, how: "read", bound: 3},
	} {
		reader := map[string]string{"spin": "spins", "wait": "sleeps", "read": "calls read(2)"}[h.how]
		l := line{
			Name: fmt.Sprintf("4 KiB of an attached program, home at node %d, until a reader of node 2 sees it that %s", h.home, reader),
			Unit: "ns", Measure: "C programs, the same hops", Bound: h.bound,
		}
		more, err := hopsRow(l, h, 3, "", rounds, o)
		lines = append(lines, more...)
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// hopsRow measures publishes of an area on so many nodes beside bareHops.
func hopsRow(l line, h hops, nodes int, settings string, rounds int, o options) ([]line, error) {
	return compare(l, harness.Options{Default: true, Single: true, Nodes: nodes, Network: harness.Namespaces, Memory: "256M"}, o.rounds,
		func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
			next, err := shared(s)
			return func() (float64, error) { return publishHops(c, h, next(), settings, rounds) },
				func() (float64, error) {
					v, _, err := bareHops(c, h, next(), rounds)
					return v, err
				}, err
		})
}

// publishHops measures publishes of all of an area, with settings instead of the home if there are any. file is the prefix of what the programs use
// besides, and of the area's name.
func publishHops(c *harness.Cluster, h hops, file, settings string, rounds int) (float64, error) {
	writer, reader := c.Node(1), c.Node(2)
	if h.local {
		reader = writer
	}
	path := "/" + filepath.Base(file) + h.how
	if settings == "" {
		settings = "placement " + c.Node(h.home).Name + "\n"
	}
	text := path + "\n" + settings + "interval 0\n"
	if _, err := harness.CreateAt(writer.AttachSocket(), text, max(int64(h.size), page), 0o644, true); err != nil {
		return 0, err
	}
	args := []any{"attached-reader", reader.AttachSocket(), path, file, rounds, h.how}
	if h.how == "read" {
		args = []any{"read-reader", reader.Mount + path, file, rounds}
	}
	r, _, err := start(reader, programs.bench, args...)
	if err != nil {
		return 0, err
	}
	v, err := one(writer, "attached-writer", writer.AttachSocket(), path, file, rounds)
	if err != nil {
		return 0, errors.Join(err, r.end())
	}
	_, err = r.rest()
	return v, err
}

// bareHops is publishHops with programs in C in place of the daemons. worked is the processor time of these, in nanoseconds.
func bareHops(c *harness.Cluster, h hops, file string, rounds int) (v, worked float64, err error) {
	const port = 7451
	host := func(n *harness.Node) string {
		addr, _, splitErr := net.SplitHostPort(n.Address)
		err = errors.Join(err, splitErr)
		return addr
	}
	writer, reader := c.Node(1), c.Node(2)
	last := []any{"hop-reader", file + ".there", file, rounds, h.how}
	if h.how == "read" {
		last = []any{"read-reader", file + ".there", file, rounds}
	}
	chain := []program{{reader, last}, {reader, []any{"hop-end", port, file + ".there"}}}
	next := host(reader)
	if h.home == 3 {
		chain = append(chain, program{c.Node(3), []any{"hop-forward", port, next, port}})
		next = host(c.Node(3))
	}
	chain = append(chain, program{writer, []any{"hop-relay", file + ".socket", file + ".here", next, port}},
		program{writer, []any{"hop-writer", file + ".socket", file + ".here", file, rounds}})
	if err != nil {
		return 0, 0, err
	}
	v, rest, err := besidesAll(chain...)
	for _, numbers := range rest {
		for _, ns := range numbers {
			worked += ns
		}
	}
	return v, worked, err
}

// endAll ends programs that nobody talks to any more.
func endAll(all []*helper) (err error) {
	for _, b := range all {
		b.cancel()
		err = errors.Join(err, b.end())
	}
	return err
}

// versionedRow measures versions of a versioned area, until a reader has them that sleeps.
func versionedRow(o options) ([]line, error) {
	rounds := o.pick(1000, 100)
	l := line{Name: "version of 4 KiB, until a reader of another node has it that sleeps", Unit: "ns", Measure: "C programs, the same hops", Bound: 3.5}
	return hopsRow(l, hops{home: 1, how: "wait"}, 2, "mode versioned\n", rounds, o)
}

// allowedWork is what both daemons may take for a small publish.
const allowedWork = 60 * time.Microsecond

// attachWorkRow measures the processor time of both daemons for a small publish, with a reader that sleeps.
func attachWorkRow(o options) ([]line, error) {
	rounds := o.pick(3000, 300)
	l := line{Name: "processor time of both daemons for 4 KiB of an attached program, until a reader sees it", Unit: "ns", Measure: "allowed", Bound: 1}
	return compare(l, pairCluster(), o.rounds,
		func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
			next, err := shared(s)
			return func() (float64, error) {
				before := c.CPU()
				_, err := publishHops(c, hops{home: 1, how: "wait"}, next(), "", rounds)
				return float64(c.CPU()-before) / float64(rounds), err
			}, func() (float64, error) { return float64(allowedWork), nil }, err
		})
}

// shared returns a function that names a new file in memory that programs on all nodes share. The files go with the stage.
func shared(s *stage) (next func() string, err error) {
	dir, err := os.MkdirTemp("/dev/shm", "dsmfs-bench-")
	s.Cleanup(func() { _ = os.RemoveAll(dir) }) // what is left is seen in /dev/shm
	calls := 0
	return func() string {
		calls++
		return filepath.Join(dir, strconv.Itoa(calls))
	}, err
}
