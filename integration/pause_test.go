package integration

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

var pauses = flag.Int("pauses", 1, "how often TestNamesGoOn and TestNamesWithoutMajority have each fault")

// spread describes durations.
func spread(d []time.Duration) string {
	slices.Sort(d)
	return fmt.Sprintf("p50 %v, max %v of %d", d[len(d)/2].Round(10*time.Millisecond), d[len(d)-1].Round(10*time.Millisecond), len(d))
}

// TestNamesGoOn kills, stops or cuts off one of three nodes, which leads the catalog or not, while programs of the others make directories:
// none fails. It prints the longest that one took, and when the node counted as gone.
func TestNamesGoOn(t *testing.T) {
	for _, x := range []struct {
		fault string
		do    func(c *harness.Cluster, n *harness.Node)
	}{
		{"killed", func(_ *harness.Cluster, n *harness.Node) { n.Kill() }},
		{"stopped", func(_ *harness.Cluster, n *harness.Node) { n.Pause() }},
		{"cut off", func(c *harness.Cluster, n *harness.Node) {
			c.Partition([]*harness.Node{n}, slices.DeleteFunc(c.Nodes(), func(o *harness.Node) bool { return o == n }))
		}},
	} {
		for _, who := range []string{"a member", "the leader"} {
			t.Run(who+" is "+x.fault, func(t *testing.T) {
				var paused, gone []time.Duration
				for range *pauses {
					p, g := goOn(t, who == "the leader", x.do)
					paused, gone = append(paused, p), append(gone, g)
				}
				t.Logf("%s is %s: longest mkdir: %s; gone after: %s", who, x.fault, spread(paused), spread(gone))
			})
		}
	}
}

// goOn has one fault.
func goOn(t *testing.T, leads bool, fault func(*harness.Cluster, *harness.Node)) (pause, gone time.Duration) {
	c := cluster(t, harness.Options{Nodes: 3, Network: harness.Namespaces})
	defer c.Close()
	first := leader(t, c)
	others := slices.DeleteFunc(c.Nodes(), func(n *harness.Node) bool { return n == first })
	victim := first
	if !leads {
		victim, others = others[0], []*harness.Node{first, others[1]}
	}
	stop := make(chan struct{})
	type outcome struct {
		longest time.Duration
		err     error
	}
	done := make(chan outcome, len(others))
	for _, n := range others {
		cl := n.Client()
		go func() {
			var o outcome
			for i := 0; o.err == nil; i++ {
				select {
				case <-stop:
					done <- o
					return
				default:
				}
				began := time.Now()
				_, o.err = cl.Do("mkdir %s", cl.Path(fmt.Sprintf("%s-%d", n.Name, i)))
				o.longest = max(o.longest, time.Since(began))
			}
			done <- o
		}()
	}
	began := time.Now()
	fault(c, victim)
	evicted(t, others[0], victim.Name)
	gone = time.Since(began)
	close(stop)
	for range others {
		o := <-done
		if o.err != nil {
			t.Error("mkdir: ", o.err)
		}
		pause = max(pause, o.longest)
	}
	return pause, gone
}

// TestNamesWithoutMajority kills two of three nodes: what changes or asks names on the third fails, and the next one works as
// soon as it does anywhere. It prints how long each waits.
func TestNamesWithoutMajority(t *testing.T) {
	const limit = "2s"
	took := make(map[string][]time.Duration)
	for range *pauses {
		c := cluster(t, harness.Options{Nodes: 3, Flags: []string{"--fault-timeout", limit}})
		cl := c.Node(1).Client()
		cl.Create("f", page)
		c.Node(2).Kill()
		c.Node(3).Kill()
		for _, op := range []string{"mkdir %s/d", "stat %s/f", "open %s/g rw,creat", "open %s/f rw", "rename %s/f %[1]s/h", "unlink %s/f"} {
			began := time.Now()
			_, err := cl.Do(op, c.Node(1).Mount)
			if err == nil {
				t.Errorf("%s succeeds without a majority", op)
			}
			took[op] = append(took[op], time.Since(began))
		}
		c.Close()
	}
	for op, d := range took {
		t.Logf("%-22s of --fault-timeout %s: %s", op, limit, spread(d))
	}
}

// TestPauseOfADaemonThatWaitsForItself: a program waits for a page whose home does not answer, and its daemon tells the kernel to drop that page. The kernel has the
// thread wait for the page, beyond the reach of signals, and the page comes only when the daemon answers. The daemon counts as stopped all the same, and goes on.
func TestPauseOfADaemonThatWaitsForItself(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 3, Flags: append([]string{"--fault-timeout", "60s"}, lasting...)})
	all := clients(c)
	all[0].SetXattr(".", "user.dsm.residency", "demand") // a page comes when it is touched
	name := homedAt(t, c, all[0], "n3")
	fd := all[1].Must("open %s r", all[1].Path(name))[0]
	m := all[1].Must("mmap %s 0 %d r", fd, 4*page)[0]
	c.Node(3).Pause()
	loaded := make(chan error, 1)
	go func() {
		words, err := all[1].Do("load %s %d 5", m, 2*page)
		if err == nil && words[0] != "7468657265" {
			err = fmt.Errorf("it is %s", words[0])
		}
		loaded <- err
	}()
	all[0].Must("truncate %s %d", all[0].Path(name), 3*page)
	if !harness.Eventually(limit, func() bool { return harness.Waiting(c.Node(2).PID()) }) {
		t.Error("no thread of the daemon waits in the kernel")
	}
	c.Node(2).Pause()
	c.Node(2).Resume()
	c.Node(3).Resume()
	if err := <-loaded; err != nil {
		t.Error("the page: ", err)
	}
}
