package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The rows of the memory plane: this process attaches areas itself, so that the
// same loop runs on them and on the yardstick.

// words returns memory as 8-byte words.
func words(b []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
}

// anonymous returns shared memory of /dev/shm; it goes with the stage.
func anonymous(s *stage, name string, size int) ([]byte, error) {
	f, err := os.Create(filepath.Join("/dev/shm", name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the mapping stays
	s.Cleanup(func() { _ = os.Remove(f.Name()) })
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		s.Cleanup(func() { _ = unix.Munmap(b) }) // fails for no mapping of ours
	}
	return b, err
}

// attached makes an area of size bytes and attaches it on both of two nodes, which have all of it when
// it returns. Only calls publish.
func attached(c *harness.Cluster, size int) (a, b *harness.Attachment, err error) {
	if err := onRequest(c.Node(1), "w", size); err != nil {
		return nil, nil, err
	}
	a, b = c.Node(1).Attach("/w", true), c.Node(2).Attach("/w", false)
	for i := range words(a.Mem) {
		words(a.Mem)[i] = uint64(i)
	}
	if _, err = a.Call(harness.PublishOp); err == nil {
		_, err = b.Call(harness.AcquireOp)
	}
	return a, b, err
}

// sweep stores to every word and loads all of them again; bytes per second.
func sweep(b []byte) (float64, error) {
	w := words(b)
	began := time.Now()
	const times = 4
	sum := uint64(0)
	for range times {
		v := rand.Uint64()
		for i := range w {
			w[i] = v
		}
		for i := range w {
			sum += w[i]
		}
		if sum == 1 {
			return 0, fmt.Errorf("the sum of %d words is 1", len(w))
		}
	}
	return 2 * times * float64(len(b)) / time.Since(began).Seconds(), nil
}

func attachStoresRow(o options) ([]line, error) {
	size := o.pick(256*mib, 16*mib)
	l := line{Name: fmt.Sprintf("steady stores and loads, attached, %d MiB", size/mib), Unit: "B/s", Measure: "the same on /dev/shm", Bound: 0.97, AtLeast: true}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Memory: "2G"}, o.rounds, func(s *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		a, _, err := attached(c, size)
		if err != nil {
			return nil, nil, err
		}
		shm, err := anonymous(s, "dsmfs-bench-stores", size)
		if err != nil {
			return nil, nil, err
		}
		_, err = sweep(shm)
		if err == nil {
			_, err = sweep(a.Mem)
		}
		return func() (float64, error) { return sweep(a.Mem) }, func() (float64, error) { return sweep(shm) }, err
	})
}

// touched are pages of an area, in random order of places.
func touched(rng *rand.Rand, pages, of int) []int {
	return rng.Perm(of)[:pages]
}

// publishing measures the publish after change has stored; in nanoseconds.
func publishing(a *harness.Attachment, change func()) (float64, error) {
	change()
	began := time.Now()
	_, err := a.Call(harness.PublishOp)
	return float64(time.Since(began)), err
}

func attachScatterRow(o options) ([]line, error) {
	size, pages := o.pick(256*mib, 32*mib), o.pick(4096, 512)
	l := line{Name: fmt.Sprintf("publish %d scattered pages of %d MiB, attached, until acked", pages, size/mib), Unit: "ns",
		Measure: "the bytes over TCP at iperf3's rate", Bound: 2.5}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "2G"}, o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		a, _, err := attached(c, size)
		if err != nil {
			return nil, nil, err
		}
		rng := rand.New(rand.NewPCG(1, 2))
		return func() (float64, error) {
				return publishing(a, func() {
					for _, p := range touched(rng, pages, size/page) {
						w := words(a.Mem[p*page:][:page])
						for i := range w {
							w[i] = rng.Uint64()
						}
					}
				})
			}, func() (float64, error) {
				rate, err := iperf(c)
				return float64(pages) * page / rate * 1e9, err
			}, nil
	})
}

func attachSparseRow(o options) ([]line, error) {
	size, pages := o.pick(256*mib, 32*mib), o.pick(8000, 1000)
	l := line{Name: fmt.Sprintf("8 bytes changed in each of %d pages, attached, per page, until acked", pages), Unit: "ns",
		Measure: "allowed", Bound: 1}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "2G"}, o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		a, _, err := attached(c, size)
		if err != nil {
			return nil, nil, err
		}
		rng := rand.New(rand.NewPCG(1, 2))
		return func() (float64, error) {
			ns, err := publishing(a, func() {
				for _, p := range touched(rng, pages, size/page) {
					words(a.Mem[p*page:][:page])[rng.IntN(page/8)] = rng.Uint64()
				}
			})
			return ns / float64(pages), err
		}, func() (float64, error) { return 2000, nil }, nil
	})
}

func attachHalfRow(o options) ([]line, error) {
	size, pages := o.pick(256*mib, 32*mib), o.pick(8000, 1000)
	l := line{Name: "every second byte of a page changed, attached, per page, until acked", Unit: "ns", Measure: "all bytes changed", Bound: 1.5}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "2G"}, o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		a, _, err := attached(c, size)
		if err != nil {
			return nil, nil, err
		}
		rng := rand.New(rand.NewPCG(1, 2))
		round := func(mask uint64) func() (float64, error) {
			return func() (float64, error) {
				ns, err := publishing(a, func() {
					for _, p := range touched(rng, pages, size/page) {
						w := words(a.Mem[p*page:][:page])
						for i := range w {
							w[i] ^= mask
						}
					}
				})
				return ns / float64(pages), err
			}
		}
		return round(0x00ff00ff00ff00ff), round(0xffffffffffffffff), nil
	})
}

func attachBulkRow(o options) ([]line, error) {
	size := o.pick(128*mib, 16*mib)
	l := line{Name: fmt.Sprintf("publish %d MiB dense A -> B, attached, until B has all", size/mib), Unit: "B/s", Measure: "iperf3, one stream", Bound: 0.8, AtLeast: true}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "2G"}, o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		a, b, err := attached(c, size)
		if err != nil {
			return nil, nil, err
		}
		return func() (float64, error) { return dense(a, b) }, func() (float64, error) { return iperf(c) }, nil
	})
}

// dense publishes all of an area that is attached at two nodes until the second has it; bytes per second.
func dense(a, b *harness.Attachment) (float64, error) {
	size := len(a.Mem)
	v := rand.Uint64()
	ns, err := publishing(a, func() {
		for i := range words(a.Mem) {
			words(a.Mem)[i] = v + uint64(i)
		}
	})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	_, err = b.Call(harness.AcquireOp)
	ns += float64(time.Since(began))
	if got := words(b.Mem)[size/8-1]; err == nil && got != v+uint64(size/8-1) {
		err = fmt.Errorf("the last word is %#x after an acquire, want %#x", got, v+uint64(size/8-1))
	}
	return float64(size) / ns * 1e9, err
}

// scans returns how many scans STATS counts.
func scans(a *harness.Attachment) (n float64, err error) {
	text, err := a.Stats()
	for l := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(l, "scans "); ok {
			_, err = fmt.Sscan(v, &n)
		}
	}
	return n, err
}

// attachIdleRow measures how often an area is looked at that a program has attached for
// writing but not mapped, while nothing happens.
func attachIdleRow(o options) ([]line, error) {
	l := line{Name: "scans of an area that nobody has mapped for writing, a second", Measure: "allowed: none, shown as 1", Bound: 0.0001}
	return compare(l, harness.Options{Default: true, Single: true, Nodes: 2}, min(o.rounds, 3), func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		res := c.Node(1).Run(patience, "truncate", "-s", "16M", c.Node(1).Mount+"/w")
		if res.Err != nil {
			return nil, nil, fmt.Errorf("%w: %s", res.Err, res.Stderr)
		}
		a := c.Node(1).Attach("/w", true)
		words(a.Mem)[0]++
		if _, err := a.Call(harness.UntrackOp, a.Addr(), uint64(len(a.Mem))); err != nil {
			return nil, nil, err
		}
		return func() (float64, error) {
			before, err := scans(a)
			if err != nil {
				return 0, err
			}
			length := time.Duration(o.pick(5, 2)) * time.Second
			time.Sleep(length) // the measurement: nothing happens
			after, err := scans(a)
			return (after - before) / length.Seconds(), err
		}, func() (float64, error) { return 1, nil }, nil
	})
}
