package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// row is one measurement; it may print several lines.
type row struct {
	name string
	run  func(o options) ([]line, error)
}

// rows are all measurements: first those with a bound, then how things grow.
var rows = []row{
	{"msync", msyncRow},
	{"latency", latencyRow},
	{"latency-home", latencyHomeRow},
	{"bulk", bulkRow},
	{"bulk-floor", bulkFloorRow},
	{"stores", storesRow},
	{"files", filesRow},
	{"list", listRow},
	{"create", createRow},
	{"locks", locksRow},
	{"barrier", barrierRow},
	{"round-accumulate", roundRow("accumulate")},
	{"round-copied", roundRow("copied")},
	{"round-store", roundRow("store")},
	{"round-copies", roundRow("copies")},
	{"round-floor", roundFloorRow},
	{"factor", factorRow},
	{"idle", idleRow},
	{"memory", memoryRow},
	{"attach-latency", attachLatencyRow},
	{"attach-work", attachWorkRow},
	{"attach-work-floor", attachWorkFloorRow},
	{"versioned", versionedRow},
	{"mib", mibRow},
	{"mib-floor", mibFloorRow},
	{"mib-cache", mibCacheRow},
	{"mib-cache-floor", mibCacheFloorRow},
	{"mib-version", mibVersionRow},
	{"mib-version-floor", mibVersionFloorRow},
	{"attach-stores", attachStoresRow},
	{"attach-scatter", attachScatterRow},
	{"attach-scatter-floor", attachScatterFloorRow},
	{"attach-sparse", attachSparseRow},
	{"attach-sparse-floor", attachSparseFloorRow},
	{"attach-half", attachHalfRow},
	{"attach-bulk", attachBulkRow},
	{"attach-bulk-floor", attachBulkFloorRow},
	{"tls-bulk", tlsBulkRow},
	{"tls-work", tlsWorkRow},
	{"tls-publish", tlsPublishRow},
	{"copies-publish", copiesPublishRow},
	{"copies-bulk", copiesBulkRow},
	{"copies-bytes", copiesBytesRow},
	{"copies-fill", copiesFillRow},
	{"direct-stores", directStoresRow},
	{"attach-first", attachFirstRow},
	{"attach-idle", attachIdleRow},
	{"demand-fault", demandFaultRow},
	{"demand-fault-floor", demandFaultFloorRow},
	{"demand-scan", demandScanRow},
	{"demand-budget", demandBudgetRow},
	{"grow-dirty", growDirty},
	{"grow-areas", growAreas},
	{"grow-nodes", growNodes},
}

const (
	mib  = 1 << 20
	page = 4096
)

// compare is the shape of most rows: a cluster, a measurement on it and a yardstick beside it.
func compare(l line, o harness.Options, rounds int, begin func(*stage, *harness.Cluster) (value, yardstick func() (float64, error), err error)) ([]line, error) {
	err := act(func(s *stage) error {
		c := harness.New(s, o)
		value, yardstick, err := begin(s, c)
		if err != nil {
			return err
		}
		l.Value, l.Yardstick, err = interleave(rounds, value, yardstick)
		return err
	})
	if err != nil {
		return nil, err
	}
	return []line{l.judge()}, nil
}

func msyncRow(o options) ([]line, error) {
	l := line{Name: "one page dirtied + msync, one node", Unit: "ns", Measure: "bare FUSE write+fsync", Bound: 3}
	ops := o.pick(3000, 300)
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 1}, o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		n := c.Node(1)
		yard, err := bare(s, n)
		if err != nil {
			return nil, nil, err
		}
		return func() (float64, error) { return one(n, "store-msync", filepath.Join(n.Mount, "w"), ops) },
			func() (float64, error) { return one(n, "write-fsync", filepath.Join(yard, "w"), ops) }, nil
	})
}

// latency measures one store and msync at the first node until spinning readers
// on all others have seen it.
func latency(c *harness.Cluster, file string, rounds int) func() (float64, error) {
	calls := 0
	return func() (float64, error) {
		calls++
		return latencyOf(c, c.Nodes()[1:], fmt.Sprintf("%s%d", file, calls), rounds)
	}
}

// latencyOf is latency of one file, which may be there, to programs of some nodes.
func latencyOf(c *harness.Cluster, nodes []*harness.Node, name string, rounds int) (float64, error) {
	sightings := filepath.Join("/dev/shm", filepath.Base(filepath.Dir(filepath.Dir(c.Node(1).Mount)))+filepath.Base(name))
	if _, err := one(c.Node(1), "store-msync", filepath.Join(c.Node(1).Mount, name), 1); err != nil { // makes the file
		return 0, err
	}
	var readers []*helper
	defer func() {
		for i := range nodes {
			_ = os.Remove(fmt.Sprintf("%s.%d", sightings, i))
		}
	}()
	for i, n := range nodes {
		h, _, err := start(n, programs.bench, "latency-reader", filepath.Join(n.Mount, name), fmt.Sprintf("%s.%d", sightings, i), rounds)
		if err != nil {
			return 0, err
		}
		readers = append(readers, h)
	}
	v, err := one(c.Node(1), "latency-writer", filepath.Join(c.Node(1).Mount, name), rounds, len(readers), sightings)
	if err != nil {
		return 0, err
	}
	for _, h := range readers {
		if _, err := h.rest(); err != nil {
			return 0, err
		}
	}
	return v, nil
}

func latencyRow(o options) ([]line, error) {
	l := line{Name: "store + msync on A -> seen by a spinning reader on B, p50", Unit: "ns", Measure: "TCP 4 KiB request/reply", Bound: 6}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces}, o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		return latency(c, "w", o.pick(2000, 200)), func() (float64, error) { return tcpRoundTrip(c, o.pick(5000, 500)) }, nil
	})
}

func tcpRoundTrip(c *harness.Cluster, n int) (float64, error) {
	const port = 7399
	host, _, err := net.SplitHostPort(c.Node(2).Address)
	if err != nil {
		return 0, err
	}
	h, _, err := start(c.Node(2), programs.bench, "tcp-server", port)
	if err != nil {
		return 0, err
	}
	v, err := one(c.Node(1), "tcp-client", host, port, n)
	if err != nil {
		return 0, err
	}
	_, err = h.rest()
	return v, err
}

// publish measures how long it takes from the msync of size dense new bytes at
// the first node until every other node has seen all of them; in nanoseconds.
func publish(c *harness.Cluster, file string, size int) func() (float64, error) {
	round := 0
	return func() (float64, error) {
		round++
		from := filepath.Join(c.Node(1).Mount, file)
		var readers []*helper
		for _, n := range c.Nodes()[1:] {
			h, _, err := start(n, programs.bench, "bulk-reader", filepath.Join(n.Mount, file), size, round)
			if err != nil {
				return 0, err
			}
			readers = append(readers, h)
		}
		times, err := numbers(c.Node(1), "bulk-writer", from, size, round)
		if err != nil {
			return 0, err
		}
		last := times[1]
		for _, h := range readers {
			seen, err := h.rest()
			if err != nil {
				return 0, err
			}
			last = max(last, seen[0])
		}
		return last - times[0], nil
	}
}

// onRequest makes a file of which only msync publishes.
func onRequest(n *harness.Node, file string, size int) error {
	res := n.Run(patience, "sh", "-ec", fmt.Sprintf("cd %s; truncate -s %d %s; echo 0 > .dsm/areas/%s/interval", n.Mount, size, file, file))
	if res.Err != nil {
		return fmt.Errorf("%s: %w: %s", file, res.Err, res.Stderr)
	}
	return nil
}

func bulkRow(o options) ([]line, error) {
	size := o.pick(128*mib, 16*mib)
	l := line{Name: fmt.Sprintf("publish %d MiB dense A -> B, until B sees all", size/mib), Unit: "B/s", Measure: "iperf3, one stream", Bound: 0.4, AtLeast: true}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "1G"}, o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		if err := onRequest(c.Node(1), "w", size); err != nil {
			return nil, nil, err
		}
		once := publish(c, "w", size)
		if _, err := once(); err != nil { // the first allocates on every node
			return nil, nil, err
		}
		return func() (float64, error) {
			ns, err := once()
			return float64(size) / ns * 1e9, err
		}, func() (float64, error) { return iperf(c) }, nil
	})
}

func iperf(c *harness.Cluster) (float64, error) {
	host, _, err := net.SplitHostPort(c.Node(2).Address)
	if err != nil {
		return 0, err
	}
	h, _, err := start(c.Node(2), "iperf3", "-s", "-1", "--forceflush")
	if err != nil {
		return 0, err
	}
	res := c.Node(1).Run(patience, "iperf3", "-c", host, "-t", "2", "-J")
	var report struct {
		End struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if res.Err != nil {
		return 0, fmt.Errorf("iperf3: %w: %s%s", res.Err, res.Stdout, res.Stderr)
	}
	if err := json.Unmarshal([]byte(res.Stdout), &report); err != nil {
		return 0, err
	}
	for { // it prints a report too
		if _, err := h.lines.ReadString('\n'); err != nil {
			break
		}
	}
	return report.End.Received.BitsPerSecond / 8, h.end()
}

func storesRow(o options) ([]line, error) {
	const size = 16 * mib
	l := line{Name: "repeated stores to a mapped, subscribed area (16 MiB)", Unit: "B/s", Measure: "the same on /dev/shm", Bound: 0.7, AtLeast: true}
	length := o.pick(2000, 300)
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2}, o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		a, b := c.Node(1), c.Node(2)
		area := filepath.Join(a.Mount, "a0")
		shm := filepath.Join("/dev/shm", filepath.Base(filepath.Dir(filepath.Dir(a.Mount))))
		s.Cleanup(func() { _ = os.Remove(shm) }) // absent if nothing was measured
		h, _, err := start(b, programs.bench, "hold-areas", b.Mount, 1, size)
		if err != nil {
			return nil, nil, err
		}
		s.Cleanup(func() {
			if err := h.end(); err != nil {
				s.Errorf("subscriber: %v", err)
			}
		})
		return func() (float64, error) { return one(a, "repeat-stores", area, size, length) },
			func() (float64, error) { return one(a, "repeat-stores", shm, size, length) }, nil
	})
}

func directStoresRow(o options) ([]line, error) {
	size := o.pick(256*mib, 16*mib)
	l := line{Name: fmt.Sprintf("steady stores and loads, plain mmap of a direct file, %d MiB", size/mib), Unit: "B/s", Measure: "the same on /dev/shm", Bound: 0.97, AtLeast: true}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Memory: "2G"}, o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		n := c.Node(1)
		res := n.Run(patience, "sh", "-ec", fmt.Sprintf("cd %s; touch w; echo direct > .dsm/areas/w/access; exec 3<w; grep -x 'access direct' .dsm/areas/w/stats", n.Mount))
		if res.Err != nil {
			return nil, nil, fmt.Errorf("a direct file: %w: %s%s", res.Err, res.Stdout, res.Stderr)
		}
		if err := onRequest(n, "w", size); err != nil {
			return nil, nil, err
		}
		shm := filepath.Join("/dev/shm", filepath.Base(filepath.Dir(filepath.Dir(n.Mount))))
		s.Cleanup(func() { _ = os.Remove(shm) }) // absent if nothing was measured
		const times = 4
		return func() (float64, error) {
				v, err := one(n, "sweep", filepath.Join(n.Mount, "w"), size, times)
				if err == nil { // what it stored is published by then, and the yardstick has the machine to itself
					err = n.Run(patience, "sh", "-c", fmt.Sprintf("until grep -qx 'handles 0' %s/.dsm/areas/w/stats; do sleep .01; done", n.Mount)).Err
				}
				return v, err
			},
			func() (float64, error) { return one(n, "sweep", shm, size, times) }, nil
	})
}
