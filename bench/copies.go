package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The rows of backups: the same measurement with two copies of a file and with one. Nothing else is on the nodes.

func copiesCluster(nodes int, memory string) harness.Options {
	return harness.Options{Default: true, Nodes: nodes, Network: harness.Namespaces, Memory: memory}
}

// withCopies makes a file of which there are so many copies, with the home at the second node, and attaches it at the first. Only calls publish.
func withCopies(c *harness.Cluster, name string, size, copies int) (*harness.Attachment, error) {
	n := c.Node(1)
	settings := fmt.Sprintf("%s\nplacement %s\nreplicas %d\ninterval 0\n", name, c.Node(2).Name, copies)
	if _, err := harness.CreateAt(n.AttachSocket(), settings, int64(size), 0o644, true); err != nil {
		return nil, err
	}
	a := n.Attach(name, true)
	if _, err := publishing(a, func() { fill(a.Mem) }); err != nil {
		return nil, err
	}
	return a, inSync(n, name, copies)
}

// inSync waits until a file has so many copies.
func inSync(n *harness.Node, name string, copies int) error {
	text := ""
	if !harness.Eventually(patience, func() bool {
		text = homeText(n, name)
		return !strings.Contains(text, "filling=") && strings.Contains(text, "backups=") == (copies > 1)
	}) {
		return fmt.Errorf("%s has not %d copies: %q", name, copies, text)
	}
	return nil
}

// homeText is user.dsm.home of a file.
func homeText(n *harness.Node, name string) string {
	b := make([]byte, 4096)
	k, err := unix.Getxattr(filepath.Join(n.Mount, name), "user.dsm.home", b)
	if err != nil {
		return err.Error()
	}
	return string(b[:k])
}

// fill stores to every word.
func fill(b []byte) {
	v := rand.Uint64()
	for i := range words(b) {
		words(b)[i] = v + uint64(i)
	}
}

// both measures a file with two copies, and one with a single copy.
func both(l line, nodes int, memory string, size int, o options, measure func(c *harness.Cluster, a *harness.Attachment) (float64, error)) ([]line, error) {
	l.Measure = "one copy"
	return compare(l, copiesCluster(nodes, memory), o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		var of [2]*harness.Attachment
		for i := range of {
			if of[i], err = withCopies(c, fmt.Sprintf("/w%d", i+1), size, i+1); err != nil {
				return nil, nil, err
			}
		}
		return func() (float64, error) { return measure(c, of[1]) }, func() (float64, error) { return measure(c, of[0]) }, nil
	})
}

// copiesPublishRow measures with three nodes, of which one has the backup, and with two, of which the publisher has it.
func copiesPublishRow(o options) ([]line, error) {
	var all []line
	for _, nodes := range []int{3, 2} {
		lines, err := copiesPublish(nodes, o)
		if all = append(all, lines...); err != nil {
			return all, err
		}
	}
	return all, nil
}

func copiesPublish(nodes int, o options) ([]line, error) {
	times := o.pick(2000, 200)
	l := line{Name: fmt.Sprintf("publish of 4 KiB to a home elsewhere, attached, until acked, two copies, %d nodes", nodes), Unit: "ns", Bound: 1.7}
	return both(l, nodes, "256M", page, o, func(_ *harness.Cluster, a *harness.Attachment) (float64, error) {
		began := time.Now()
		for range times {
			fill(a.Mem)
			if _, err := a.Call(harness.PublishOp); err != nil {
				return 0, err
			}
		}
		return float64(time.Since(began)) / float64(times), nil
	})
}

func copiesBulkRow(o options) ([]line, error) {
	size := o.pick(128*mib, 16*mib)
	l := line{Name: fmt.Sprintf("publish %d MiB dense to a home elsewhere, attached, until acked, two copies", size/mib), Unit: "B/s", Bound: 0.55, AtLeast: true}
	return both(l, 3, "1G", size, o, func(_ *harness.Cluster, a *harness.Attachment) (float64, error) {
		ns, err := publishing(a, func() { fill(a.Mem) })
		return float64(size) / ns * 1e9, err
	})
}

func copiesBytesRow(o options) ([]line, error) {
	size := o.pick(128*mib, 16*mib)
	l := line{Name: fmt.Sprintf("sent by all nodes for publishing %d MiB dense to a home elsewhere, two copies", size/mib), Unit: "B", Bound: 2.1}
	return both(l, 3, "1G", size, o, func(c *harness.Cluster, a *harness.Attachment) (float64, error) {
		before, err := sent(c)
		if err != nil {
			return 0, err
		}
		if _, err := publishing(a, func() { fill(a.Mem) }); err != nil {
			return 0, err
		}
		after, err := sent(c)
		return after - before, err
	})
}

// sent returns the bytes that the nodes have sent.
func sent(c *harness.Cluster) (total float64, err error) {
	for _, n := range c.Nodes() {
		res := n.Run(patience, "sh", "-ec", "awk 'NR > 2 && $1 != \"lo:\" { print $10 }' /proc/net/dev")
		if res.Err != nil {
			return 0, fmt.Errorf("%w: %s", res.Err, res.Stderr)
		}
		all, err := parse(res.Stdout)
		if err != nil {
			return 0, err
		}
		for _, v := range all {
			total += v
		}
	}
	return total, nil
}

// copiesFillRow measures what a program publishes while a backup is filled that was stopped before, and while it is stopped.
func copiesFillRow(o options) ([]line, error) {
	size, part := o.pick(1024*mib, 64*mib), mib
	l := line{Name: fmt.Sprintf("publish 1 MiB again and again while a backup of %d MiB is filled", size/mib), Unit: "B/s", Measure: "there is no backup", Bound: 0.8, AtLeast: true}
	cluster := copiesCluster(3, "4G")
	cluster.Flags = []string{"--lease", "60s"}
	return compare(l, cluster, o.rounds, func(_ *stage, c *harness.Cluster) (value, yardstick func() (float64, error), err error) {
		const name = "/w"
		if _, err := withCopies(c, name, size, 2); err != nil {
			return nil, nil, err
		}
		writer, backup := c.Node(1), c.Node(3)
		if backups, err := named(c, homeText(writer, name)); err != nil {
			return nil, nil, err
		} else if backups == writer.Name {
			writer, backup = backup, writer
		}
		a := writer.Attach(name, true)
		stopped, took := false, time.Second
		stop := func() error {
			if stopped {
				return nil
			}
			backup.Pause()
			stopped = true
			for !strings.Contains(homeText(writer, name), "filling=") {
				if _, err := a.Call(harness.PublishOp); err != nil {
					return err
				}
				a.Mem[0]++
			}
			return nil
		}
		rate := func(over func(began time.Time) bool) (float64, error) {
			bytes, began := 0, time.Now()
			for !over(began) {
				at := rand.IntN(size/part) * part
				fill(a.Mem[at : at+part])
				if _, err := a.Call(harness.PublishOp); err != nil {
					return 0, err
				}
				bytes += part
			}
			return float64(bytes) / time.Since(began).Seconds(), nil
		}
		return func() (float64, error) {
				if err := stop(); err != nil {
					return 0, err
				}
				backup.Resume()
				stopped = false
				asked := time.Now()
				return rate(func(began time.Time) bool {
					if time.Since(asked) < 20*time.Millisecond {
						return false
					}
					asked, took = time.Now(), time.Since(began)
					return strings.Contains(homeText(writer, name), "backups=")
				})
			}, func() (float64, error) {
				if err := stop(); err != nil {
					return 0, err
				}
				return rate(func(began time.Time) bool { return time.Since(began) > took })
			}, nil
	})
}

// named returns the name of the node that has the backup, as user.dsm.home has it.
func named(c *harness.Cluster, home string) (string, error) {
	_, id, _ := strings.Cut(home, "backups=")
	var all []struct{ ID, Name string }
	res := c.Node(1).CLI("members", c.Node(1).Mount, "--output", "json")
	if err := errors.Join(res.Err, json.Unmarshal([]byte(res.Stdout), &all)); err != nil {
		return "", err
	}
	for _, m := range all {
		if m.ID == strings.TrimSpace(id) {
			return m.Name, nil
		}
	}
	return "", fmt.Errorf("no member has the id %q of the backup", id)
}
