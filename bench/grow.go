package main

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// These rows have no bound: they show what things cost as they grow.

// growDirty publishes more and more dirty bytes.
func growDirty(o options) ([]line, error) {
	var lines []line
	err := act(func(s *stage) error {
		c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: 2, Network: harness.Namespaces, Memory: "1G"})
		sizes := []int{1, 10, 100}
		if o.quick {
			sizes = sizes[:2]
		}
		for _, mibs := range sizes {
			file := fmt.Sprintf("w%d", mibs)
			if err := onRequest(c.Node(1), file, mibs*mib); err != nil {
				return err
			}
			once := publish(c, file, mibs*mib)
			if _, err := once(); err != nil {
				return err
			}
			v, _, err := interleave(o.rounds, once, nil)
			if err != nil {
				return err
			}
			lines = append(lines, line{Name: fmt.Sprintf("%d MiB dirty: msync on A until B sees all", mibs), Unit: "ns", Value: v,
				Note: amount(float64(mibs*mib)/v.Median*1e9, "B/s")})
		}
		return nil
	})
	return lines, err
}

// filesPerArea is what the program that uses the areas has open for each.
const filesPerArea = 1

// possible returns how many of so many areas a daemon can have when programs use them, with the open files that these
// may have.
func possible(areas int) (int, error) {
	const others = 1000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	return int(min(uint64(areas), (max(limit.Max, others)-others)/filesPerArea)), nil
}

// growAreas uses more and more areas on two nodes.
func growAreas(o options) ([]line, error) {
	counts := []int{1, 100, 10000}
	if o.quick {
		counts = counts[:2]
	}
	var lines []line
	for _, areas := range counts {
		areas, err := possible(areas)
		if err != nil {
			return lines, err
		}
		err = act(func(s *stage) error {
			c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: 2})
			before := c.Node(1).Memory()
			made, err := keepOpen(s, c.Node(1), areas, page)
			if err != nil {
				return err
			}
			opened, err := keepOpen(s, c.Node(2), areas, page)
			if err != nil {
				return err
			}
			each := func(d time.Duration) float64 { return float64(d) / float64(areas) }
			single := func(name string, ns float64) {
				lines = append(lines, line{Name: fmt.Sprintf("%d areas: %s", areas, name), Unit: "ns", Value: spread{ns, ns, ns}})
			}
			single("create, grow, map and touch one on A", each(made))
			single("open, map and touch one on B", each(opened))
			v, _, err := interleave(o.rounds, func() (float64, error) {
				return one(c.Node(1), "page-latency", c.Node(1).Mount, areas, o.pick(500, 100))
			}, nil)
			if err != nil {
				return err
			}
			lines = append(lines, line{Name: fmt.Sprintf("%d areas: store + msync in one, spread over all", areas), Unit: "ns", Value: v})
			used := idleShare(c, o)
			grown := c.Node(1).Memory().Private - before.Private
			lines = append(lines, line{Name: fmt.Sprintf("%d areas: CPU of 2 idle nodes", areas), Unit: "%", Value: spread{used, used, used},
				Note: fmt.Sprintf("heap +%s on A", amount(float64(max(grown, 0)), "B"))})
			return nil
		})
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// growNodes has more and more nodes that all have to see a publish.
func growNodes(o options) ([]line, error) {
	counts := []int{2, 4, 8}
	if o.quick {
		counts = counts[:2]
	}
	const size = 10 * mib
	var lines []line
	for _, nodes := range counts {
		err := act(func(s *stage) error {
			c := harness.New(s, harness.Options{Default: true, Single: true, Nodes: nodes})
			small, _, err := interleave(o.rounds, latency(c, "small", o.pick(300, 50)), nil)
			if err != nil {
				return err
			}
			if err := onRequest(c.Node(1), "large", size); err != nil {
				return err
			}
			once := publish(c, "large", size)
			if _, err := once(); err != nil {
				return err
			}
			large, _, err := interleave(o.rounds, once, nil)
			if err != nil {
				return err
			}
			lines = append(lines,
				line{Name: fmt.Sprintf("%d nodes: store + msync until all others see it, p50", nodes), Unit: "ns", Value: small},
				line{Name: fmt.Sprintf("%d nodes: 10 MiB dirty until all others see all", nodes), Unit: "ns", Value: large})
			return nil
		})
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}
