package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The rows of encryption: the same measurement on a cluster that encrypts and on one that does not.

// machines is two nodes on machines of their own.
func machines(memory string, secure bool) harness.Options {
	return harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: memory, Secure: secure}
}

func tlsBulkRow(o options) ([]line, error) {
	size := o.pick(128*mib, 16*mib)
	l := line{Name: fmt.Sprintf("publish %d MiB dense A -> B, attached, until B has all, encrypted", size/mib), Unit: "B/s", Measure: "not encrypted", Bound: 0.67, AtLeast: true}
	return compare(l, machines("1G", true), o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		a, b, err := attached(c, size)
		if err != nil {
			return nil, nil, err
		}
		x, y, err := attached(harness.New(s, machines("1G", false)), size)
		return func() (float64, error) { return dense(a, b) }, func() (float64, error) { return dense(x, y) }, err
	})
}

// tlsWorkRow is tlsBulkRow in time of processors, which says the same where others use the machine.
func tlsWorkRow(o options) ([]line, error) {
	size := o.pick(128*mib, 16*mib)
	l := line{Name: fmt.Sprintf("processor time of both daemons for publishing %d MiB dense, attached, encrypted, per KiB", size/mib), Unit: "ns", Measure: "not encrypted", Bound: 1.5}
	begin := func(c *harness.Cluster) (func() (float64, error), error) {
		a, b, err := attached(c, size)
		return func() (float64, error) {
			before := c.CPU()
			_, err := dense(a, b)
			return float64(c.CPU()-before) / float64(size) * 1024, err
		}, err
	}
	return compare(l, machines("1G", true), o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		if value, err = begin(c); err == nil {
			yardstick, err = begin(harness.New(s, machines("1G", false)))
		}
		return value, yardstick, err
	})
}

// tlsMost is what encryption may add to a publish.
const tlsMost = 15 * time.Microsecond

func tlsPublishRow(o options) ([]line, error) {
	times := o.pick(4000, 400)
	l := line{Name: "publish of 4 KiB to a home elsewhere, attached, until acked, encrypted", Unit: "ns", Measure: fmt.Sprintf("not encrypted, and %v", tlsMost), Bound: 1}
	begin := func(c *harness.Cluster) (func() (float64, error), error) {
		n := c.Node(1)
		if _, err := harness.CreateAt(n.AttachSocket(), "/w\nplacement "+c.Node(2).Name+"\ninterval 0\n", page, 0o644, true); err != nil {
			return nil, err
		}
		a := n.Attach("/w", true)
		return func() (float64, error) {
			began := time.Now()
			for range times {
				v := rand.Uint64()
				for i := range words(a.Mem) {
					words(a.Mem)[i] = v + uint64(i)
				}
				if _, err := a.Call(harness.PublishOp); err != nil {
					return 0, err
				}
			}
			return float64(time.Since(began)) / float64(times), nil
		}, nil
	}
	return compare(l, machines("256M", true), o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		plain := func() (float64, error) { return 0, nil }
		if value, err = begin(c); err == nil {
			plain, err = begin(harness.New(s, machines("256M", false)))
		}
		return value, func() (float64, error) {
			ns, err := plain()
			return ns + float64(tlsMost), err
		}, err
	})
}
