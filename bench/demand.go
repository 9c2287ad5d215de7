package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The rows of pages on demand. The first node reads, and has so little memory that nearly
// all is homed at the second, which writes.

// far is a cluster whose first node has only small of memory.
func far(small string) harness.Options {
	return harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "2G", Memories: []string{small}}
}

// backed makes sure that the machine has the memory that a measurement is going to use. A virtual machine's
// host takes back pages that are free for some seconds (free page reporting): the first touch then costs
// 11 us and not 1.2, whoever does it.
func backed(size int) error {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	return unix.Munmap(b)
}

// filled makes an area on demand of size bytes, without an interval, and has the second node
// store into each word its number, and publish that.
func filled(c *harness.Cluster, name string, size int) error {
	n := c.Node(2)
	res := n.Run(patience, "sh", "-ec", fmt.Sprintf(
		"cd %s; : > %s; echo demand > .dsm/areas/%s/residency; echo 0 > .dsm/areas/%s/interval; truncate -s %d %s", n.Mount, name, name, name, size, name))
	if res.Err != nil {
		return fmt.Errorf("%s: %w: %s", name, res.Err, res.Stderr)
	}
	b, err := n.TryAttach("/"+name, true)
	if err != nil {
		return err
	}
	defer b.Close()
	for i := range words(b.Mem) {
		words(b.Mem)[i] = uint64(i)
	}
	_, err = b.Call(harness.PublishOp)
	return err
}

func demandFaultRow(o options) ([]line, error) {
	size, n := o.pick(512*mib, 64*mib), o.pick(4000, 400)
	l := line{Name: "remote read fault of 4 KiB, p50", Unit: "ns", Measure: "TCP 4 KiB request/reply", Bound: 2.5}
	return compare(l, far("96M"), o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		if err := filled(c, "w", size); err != nil {
			return nil, nil, err
		}
		a := c.Node(1).Attach("/w", false)
		rng := rand.New(rand.NewPCG(1, 2))
		pages := rng.Perm(size / page) // each is touched once
		return func() (float64, error) {
			if err := backed(4 * n * page); err != nil { // the pages, and buffers on their way
				return 0, err
			}
			took := make([]time.Duration, 0, n)
			for _, p := range pages[:n] {
				at := p * page / 8
				began := time.Now()
				v := words(a.Mem)[at]
				took = append(took, time.Since(began))
				if v != uint64(at) {
					return 0, fmt.Errorf("word %d is %d", at, v)
				}
			}
			pages = pages[n:]
			slices.Sort(took)
			return float64(took[n/2]), nil
		}, func() (float64, error) { return tcpRoundTrip(c, o.pick(5000, 500)) }, nil
	})
}

func demandScanRow(o options) ([]line, error) {
	size := o.pick(256*mib, 32*mib)
	l := line{Name: fmt.Sprintf("cold sequential read of %d MiB on demand", size/mib), Unit: "B/s", Measure: "iperf3, one stream", Bound: 0.6, AtLeast: true}
	return compare(l, far("768M"), o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		round := 0
		return func() (float64, error) {
			round++
			name := fmt.Sprintf("w%d", round)
			if err := filled(c, name, size); err != nil {
				return 0, err
			}
			a, err := c.Node(1).TryAttach("/"+name, false)
			if err != nil {
				return 0, err
			}
			if err := backed(2 * size); err != nil { // the pages, and buffers on their way
				return 0, err
			}
			v, err := scan(a)
			a.Close()
			if err != nil {
				return 0, err
			}
			return v, gone(c, name) // the next one is to find room, not to make it
		}, func() (float64, error) { return iperf(c) }, nil
	})
}

// gone removes a file and returns when the first node has given its memory back.
func gone(c *harness.Cluster, name string) error {
	n := c.Node(1)
	if res := n.Run(patience, "rm", n.Mount+"/"+name); res.Err != nil {
		return fmt.Errorf("rm: %w: %s", res.Err, res.Stderr)
	}
	if !harness.Eventually(patience, func() bool { return n.Memory().Memfds < mib }) {
		return fmt.Errorf("%d bytes of %s are not given back", n.Memory().Memfds, name)
	}
	return nil
}

// scan loads every word and returns bytes per second.
func scan(a *harness.Attachment) (float64, error) {
	began := time.Now()
	for i, v := range words(a.Mem) {
		if v != uint64(i) {
			return 0, fmt.Errorf("word %d is %d", i, v)
		}
	}
	return float64(len(a.Mem)) / time.Since(began).Seconds(), nil
}

func demandBudgetRow(o options) ([]line, error) {
	size, budget := o.pick(512*mib, 128*mib), o.pick(128*mib, 32*mib)
	l := line{Name: fmt.Sprintf("most memory of areas, %d MiB on demand scanned and read at random", size/mib), Unit: "B", Measure: "--memory", Bound: 1}
	return compare(l, far(fmt.Sprintf("%dM", budget/mib)), min(o.rounds, 3), func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		if err := filled(c, "w", size); err != nil {
			return nil, nil, err
		}
		a := c.Node(1).Attach("/w", false)
		rng := rand.New(rand.NewPCG(3, 4))
		return func() (float64, error) {
			most := c.Node(1).Memory().Memfds
			look := func() { most = max(most, c.Node(1).Memory().Memfds) }
			for i, v := range words(a.Mem) {
				if v != uint64(i) {
					return 0, fmt.Errorf("word %d is %d", i, v)
				}
				if i%(mib) == 0 {
					look()
				}
			}
			for i := range size / page / 4 {
				at := rng.IntN(size / 8)
				if v := words(a.Mem)[at]; v != uint64(at) {
					return 0, fmt.Errorf("word %d is %d", at, v)
				}
				if i%2048 == 0 {
					look()
				}
			}
			return float64(most), nil
		}, func() (float64, error) { return float64(budget), nil }, nil
	})
}
