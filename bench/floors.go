package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The floors of rows whose bounds are not met: programs in C in place of the daemons, with the same processes, hops, wake-ups and copies into
// memory, beside the yardstick of the row. What they do is in bench/client/floor.c, floorfuse.c and floorsum.c.

const floorPort = 7454

// pairCluster is a cluster of two nodes, mounted as users do, each in a network namespace.
func pairCluster() harness.Options {
	return harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "256M"}
}

// floor is compare with a cluster of two nodes whose daemons do nothing.
func floor(l line, o options, begin func(s *stage, c *harness.Cluster, host string, next func() string) (value, yardstick func() (float64, error))) ([]line, error) {
	return compare(l, pairCluster(), o.rounds,
		func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
			next, err := shared(s)
			if err != nil {
				return nil, nil, err
			}
			host, _, err := net.SplitHostPort(c.Node(2).Address)
			if err != nil {
				return nil, nil, err
			}
			value, yardstick = begin(s, c, host, next)
			return value, yardstick, nil
		})
}

// program is a verb of the benchmark client at a node.
type program struct {
	on   *harness.Node
	args []any
}

// besides starts programs, each when the one before it is ready, runs the last of all to its end, and returns the number that it prints. Each of the
// others ends when it has nobody to talk to.
func besides(all ...program) (float64, error) {
	v, _, err := besidesAll(all...)
	return v, err
}

// besidesAll is besides, with what the others print.
func besidesAll(all ...program) (v float64, rest [][]float64, err error) {
	var others []*helper
	last := all[len(all)-1]
	for _, p := range all[:len(all)-1] {
		h, _, err := start(p.on, programs.bench, p.args...)
		if err != nil {
			return 0, nil, errors.Join(err, endAll(others))
		}
		others = append(others, h)
	}
	v, err = one(last.on, last.args[0].(string), last.args[1:]...)
	if err != nil {
		return 0, nil, errors.Join(err, endAll(others))
	}
	for _, h := range others {
		more, restErr := h.rest()
		rest = append(rest, more)
		err = errors.Join(err, restErr)
	}
	return v, rest, err
}

func demandFaultFloorRow(o options) ([]line, error) {
	size, n := o.pick(512*mib, 64*mib), o.pick(4000, 400)
	l := line{Name: "remote read fault of 4 KiB, p50, C programs", Unit: "ns", Measure: "TCP 4 KiB request/reply"}
	return floor(l, o, func(_ *stage, c *harness.Cluster, host string, next func() string) (value, yardstick func() (float64, error)) {
		return func() (float64, error) {
			socket := next()
			if err := backed(4 * n * page); err != nil {
				return 0, err
			}
			return besides(
				program{c.Node(2), []any{"fault-home", floorPort, size}},
				program{c.Node(1), []any{"fault-daemon", socket, host, floorPort, n}},
				program{c.Node(1), []any{"fault-program", socket, size, n}})
		}, func() (float64, error) { return tcpRoundTrip(c, o.pick(5000, 500)) }
	})
}

// mounts mounts a filesystem of one file of size bytes at each of two nodes: what is written at the first goes into the page cache of the second.
func mounts(s *stage, c *harness.Cluster, host string, size int) (dirs [2]string, err error) {
	for _, i := range []int{1, 0} { // the second listens
		n, to := c.Node(i+1), []string{host, "-"}[i]
		dirs[i] = filepath.Join(filepath.Dir(n.Mount), "floor")
		if err := os.Mkdir(dirs[i], 0o755); err != nil {
			return dirs, err
		}
		h, _, err := start(n, programs.bench, "floor-mount", dirs[i], size, to, floorPort)
		if err != nil {
			return dirs, err
		}
		s.Cleanup(func() {
			if err := errors.Join(syscall.Unmount(dirs[i], 0), h.end()); err != nil {
				s.Errorf("floor-mount: %v", err)
			}
		})
	}
	return dirs, nil
}

// throughCache measures msync of all of a file until the reader at the other node has seen it; in nanoseconds.
func throughCache(c *harness.Cluster, dirs [2]string, size, round int) (float64, error) {
	reader, _, err := start(c.Node(2), programs.bench, "bulk-reader", filepath.Join(dirs[1], "w"), size, round)
	if err != nil {
		return 0, err
	}
	times, err := numbers(c.Node(1), "bulk-writer", filepath.Join(dirs[0], "w"), size, round)
	if err != nil {
		return 0, errors.Join(err, endAll([]*helper{reader}))
	}
	seen, err := reader.rest()
	if err != nil {
		return 0, err
	}
	return max(times[1], seen[0]) - times[0], nil
}

// cacheFloor is a row of throughCache: the median of so many.
func cacheFloor(l line, size, times int, o options, unit func(ns float64) float64, yardstick func(c *harness.Cluster) (float64, error)) ([]line, error) {
	return floor(l, o, func(s *stage, c *harness.Cluster, host string, _ func() string) (func() (float64, error), func() (float64, error)) {
		dirs, err := mounts(s, c, host, size)
		round := 0
		once := func() (float64, error) {
			round++
			return throughCache(c, dirs, size, round)
		}
		if err == nil {
			_, err = once() // the first allocates on both
		}
		return func() (float64, error) {
			if err != nil {
				return 0, err
			}
			var took []float64
			for range times {
				ns, err := once()
				if err != nil {
					return 0, err
				}
				took = append(took, ns)
			}
			slices.Sort(took)
			return unit(took[len(took)/2]), nil
		}, func() (float64, error) { return yardstick(c) }
	})
}

func mibCacheFloorRow(o options) ([]line, error) {
	l := line{Name: "msync of 1 MiB, until a reader of another node sees it in a mapping, C programs", Unit: "ns", Measure: "the bytes over TCP, and an answer"}
	times := o.pick(15, 3)
	return cacheFloor(l, mib, times, o, func(ns float64) float64 { return ns }, func(c *harness.Cluster) (float64, error) { return tcpBytes(c, mib, 20*times) })
}

func bulkFloorRow(o options) ([]line, error) {
	size := o.pick(128*mib, 16*mib)
	l := line{Name: fmt.Sprintf("publish %d MiB dense A -> B, until B sees all, C programs", size/mib), Unit: "B/s", Measure: "iperf3, one stream", AtLeast: true}
	return cacheFloor(l, size, 1, o, func(ns float64) float64 { return float64(size) / ns * 1e9 }, iperf)
}

// mibFloorRow is mibRow with C programs. They take the same ways with the home at either node.
func mibFloorRow(o options) ([]line, error) {
	rounds := o.pick(300, 30)
	l := line{Name: "1 MiB of an attached program, until a reader of node 2 sees it that spins, C programs", Unit: "ns", Measure: "the bytes over TCP, and an answer"}
	return floor(l, o, func(_ *stage, c *harness.Cluster, host string, next func() string) (value, yardstick func() (float64, error)) {
		return func() (float64, error) {
			file := next()
			return besides(
				program{c.Node(2), []any{"floor-reader", file + ".there", mib, file, rounds}},
				program{c.Node(2), []any{"floor-end", floorPort, file + ".there", mib}},
				program{c.Node(1), []any{"floor-daemon", file + ".socket", file + ".here", mib, host, floorPort}},
				program{c.Node(1), []any{"floor-writer", file + ".socket", file + ".here", mib, file, rounds}})
		}, func() (float64, error) { return tcpBytes(c, mib, rounds) }
	})
}

// publisherFloor measures publishes of so many words in each of so many pages until they are in place at the other node; in nanoseconds.
func publisherFloor(c *harness.Cluster, host, file string, size, pages, words, rounds int) (float64, error) {
	defer func() { _ = errors.Join(os.Remove(file+".there"), os.Remove(file+".here")) }() // memory that the next one needs
	return besides(
		program{c.Node(2), []any{"floor-end", floorPort, file + ".there", size}},
		program{c.Node(1), []any{"floor-daemon", file + ".socket", file + ".here", size, host, floorPort}},
		program{c.Node(1), []any{"floor-publisher", file + ".socket", file + ".here", size, pages, words, rounds}})
}

func attachBulkFloorRow(o options) ([]line, error) {
	size := o.pick(128*mib, 16*mib)
	l := line{Name: fmt.Sprintf("publish %d MiB dense A -> B, attached, until B has all, C programs", size/mib), Unit: "B/s", Measure: "iperf3, one stream", AtLeast: true}
	return floor(l, o, func(_ *stage, c *harness.Cluster, host string, next func() string) (value, yardstick func() (float64, error)) {
		return func() (float64, error) {
			ns, err := publisherFloor(c, host, next(), size, size/page, page/8, 3)
			return float64(size) / ns * 1e9, err
		}, func() (float64, error) { return iperf(c) }
	})
}

func attachScatterFloorRow(o options) ([]line, error) {
	size, pages := o.pick(256*mib, 32*mib), o.pick(4096, 512)
	l := line{Name: fmt.Sprintf("publish %d scattered pages of %d MiB, attached, until acked, C programs", pages, size/mib), Unit: "ns",
		Measure: "the bytes over TCP at iperf3's rate"}
	return floor(l, o, func(_ *stage, c *harness.Cluster, host string, next func() string) (value, yardstick func() (float64, error)) {
		return func() (float64, error) { return publisherFloor(c, host, next(), size, pages, page/8, 5) },
			func() (float64, error) {
				rate, err := iperf(c)
				return float64(pages) * page / rate * 1e9, err
			}
	})
}

func attachSparseFloorRow(o options) ([]line, error) {
	size, pages := o.pick(256*mib, 32*mib), o.pick(8000, 1000)
	l := line{Name: fmt.Sprintf("8 bytes changed in each of %d pages, attached, per page, until acked, C programs", pages), Unit: "ns", Measure: "allowed"}
	return floor(l, o, func(_ *stage, c *harness.Cluster, host string, next func() string) (value, yardstick func() (float64, error)) {
		return func() (float64, error) {
			ns, err := publisherFloor(c, host, next(), size, pages, 1, 5)
			return ns / float64(pages), err
		}, func() (float64, error) { return 2000, nil }
	})
}

// mibVersionFloorRow is mibVersionRow with C programs, of which one compares, and one only copies.
func mibVersionFloorRow(o options) ([]line, error) {
	rounds := o.pick(300, 30)
	var lines []line
	for compared, how := range []string{"that copy all", "that compare"} {
		l := line{Name: "version of 1 MiB, until a reader of the same node has it that spins, C programs " + how, Unit: "ns", Measure: "memory copied twice"}
		more, err := floor(l, o, func(_ *stage, c *harness.Cluster, _ string, next func() string) (value, yardstick func() (float64, error)) {
			n := c.Node(1)
			return func() (float64, error) {
				file := next()
				return besides(
					program{n, []any{"floor-reader", file + ".there", mib, file, rounds}},
					program{n, []any{"floor-versions", file + ".socket", file + ".here", mib, file + ".there", compared}},
					program{n, []any{"floor-writer", file + ".socket", file + ".here", mib, file, rounds}})
			}, func() (float64, error) { return one(n, "copy-twice", mib, rounds) }
		})
		lines = append(lines, more...)
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// attachWorkFloorRow is the processor time of the C programs in the place of daemons for a page, with a reader that sleeps.
func attachWorkFloorRow(o options) ([]line, error) {
	rounds := o.pick(3000, 300)
	l := line{Name: "processor time of both C programs in the place of daemons for 4 KiB, until a reader sees it", Unit: "ns", Measure: "allowed"}
	return floor(l, o, func(_ *stage, c *harness.Cluster, _ string, next func() string) (value, yardstick func() (float64, error)) {
		return func() (float64, error) {
			_, worked, err := bareHops(c, hops{home: 1, how: "wait"}, next(), rounds)
			return worked / float64(rounds), err
		}, func() (float64, error) { return float64(allowedWork), nil }
	})
}

// largeSum measures one sum of size bytes by C programs, each node the home of a part; in nanoseconds.
func largeSum(c *harness.Cluster, file string, size, times int) (float64, error) {
	defer func() {
		for i := range c.Nodes() {
			_ = os.Remove(fmt.Sprintf("%s.%d", file, i)) // memory that the next one needs
		}
	}()
	var hosts []string
	for _, n := range c.Nodes() {
		host, _, err := net.SplitHostPort(n.Address)
		if err != nil {
			return 0, err
		}
		hosts = append(hosts, host)
	}
	var all, clients []*helper
	for _, what := range []string{"daemon", "program"} {
		for i, n := range c.Nodes() {
			socket, memory := fmt.Sprintf("%s.%d.socket", file, i), fmt.Sprintf("%s.%d", file, i)
			args := []any{"sum-daemon", i, strings.Join(hosts, ","), floorPort, socket, memory, size}
			if what == "program" {
				args = []any{"sum-program", socket, memory, size, len(hosts), times}
			}
			h, _, err := start(n, programs.bench, args...)
			if err != nil {
				return 0, errors.Join(err, endAll(all))
			}
			all = append(all, h)
			if what == "program" {
				clients = append(clients, h)
			}
		}
	}
	most := 0.0
	var err error
	for _, h := range clients {
		v, restErr := h.rest()
		err = errors.Join(err, restErr)
		for _, ns := range v {
			most = max(most, ns)
		}
	}
	for _, h := range all[:len(all)-len(clients)] {
		_, restErr := h.rest()
		err = errors.Join(err, restErr)
	}
	return most, err
}
