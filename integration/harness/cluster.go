package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Network says where the nodes of a cluster talk to each other.
type Network int

const (
	// Loopback gives every node an own address of 127.0.0.0/8.
	Loopback Network = iota
	// Namespaces gives every node a network namespace on a bridge, which can be
	// partitioned and slowed down.
	Namespaces
)

// Options choose a cluster.
type Options struct {
	Nodes   int      // that New starts; 0: only Declare and Add make some
	Network Network  // where they talk
	Memory  string   // --memory of every node; empty: 512M
	Flags   []string // more flags of dsmfs mount
	Secure  bool     // Namespaces without --insecure: nodes join by the token
	Single  bool     // files have one copy: it goes with its home
	Default bool     // a mount outlives its daemon, as users have it. Otherwise only with --hold in the flags: tests kill daemons to see nodes die
	// Memories is --memory of the first nodes; of the others it is Memory.
	Memories []string
	// Limit bounds the memory of each node, its daemon and its programs together, in bytes: see NoCgroups. 0: nothing does.
	Limit int64
}

// tagVariable is set to the cluster's tag in every process of a cluster.
const tagVariable = "DSMFS_TEST_CLUSTER"

// startLimit bounds how long a node may take until its mount is usable.
const startLimit = 60 * time.Second

// Cluster is some nodes that know each other. Its methods, like those of Node,
// are for the goroutine of the test; Clients may be used by one goroutine each.
type Cluster struct {
	t     TB
	opts  Options
	tag   string // in environments, names of namespaces and interfaces
	dir   string
	net   network
	nodes []*Node

	bereaved bool // a node was killed
	single   bool // as in Options, and set

	mu struct {
		sync.Mutex
		clients []*Client
		closed  bool
	}
}

var clusterCount atomic.Int64

var live struct {
	sync.Mutex
	clusters map[*Cluster]bool
}

// New starts a cluster and returns when every node is usable. It ends with the test.
func New(t TB, o Options) *Cluster {
	t.Helper()
	if skip, err := Prepare(); err != nil || skip != "" {
		t.Fatalf("the harness is not usable: %s %v", skip, err)
	}
	if o.Memory == "" {
		o.Memory = "512M"
	}
	c := &Cluster{t: t, opts: o, tag: fmt.Sprintf("dm%dc%d", os.Getpid()%100000, clusterCount.Add(1))}
	dir, err := os.MkdirTemp("", "dsmfs-"+c.tag+"-")
	if err != nil {
		t.Fatalf("cluster: %v", err)
	}
	c.dir = dir
	live.Lock()
	if live.clusters == nil {
		live.clusters = map[*Cluster]bool{}
	}
	live.clusters[c] = true
	live.Unlock()
	t.Cleanup(c.Close)
	if o.Network == Namespaces {
		c.net = &bridged{tag: c.tag}
	} else {
		c.net = loopback(clusterCount.Load())
	}
	if err := c.net.open(); err != nil {
		t.Fatalf("network: %v", err)
	}
	for range o.Nodes {
		c.Add()
	}
	return c
}

// Add starts a further node, which joins the others, and returns when it is usable.
func (c *Cluster) Add() *Node {
	c.t.Helper()
	n := c.Declare()
	n.Start()
	return n
}

// Declare makes a node, its directories and its network, and does not start it.
func (c *Cluster) Declare() *Node {
	c.t.Helper()
	i := len(c.nodes) + 1
	n := &Node{c: c, Name: "n" + strconv.Itoa(i), dir: filepath.Join(c.dir, "n"+strconv.Itoa(i))}
	n.Mount = filepath.Join(n.dir, "mnt")
	if err := os.MkdirAll(n.Mount, 0o755); err != nil {
		c.t.Fatalf("%s: %v", n.Name, err)
	}
	var err error
	if n.Address, err = c.net.attach(i); err != nil {
		c.t.Fatalf("%s: %v", n.Name, err)
	}
	c.nodes = append(c.nodes, n)
	if c.opts.Limit > 0 {
		if n.group, err = newCgroup("dsmfs-"+c.tag+n.Name, c.opts.Limit); err != nil {
			c.t.Fatalf("%s: %v", n.Name, err)
		}
	}
	return n
}

// Node returns the node i, counted from 1.
func (c *Cluster) Node(i int) *Node { return c.nodes[i-1] }

// Nodes returns all nodes, those that were stopped too.
func (c *Cluster) Nodes() []*Node { return append([]*Node(nil), c.nodes...) }

// Partition cuts every link between nodes of different sides. Only clusters in
// namespaces have links to cut.
func (c *Cluster) Partition(sides ...[]*Node) {
	c.t.Helper()
	for i, side := range sides {
		for j, other := range sides {
			if i == j {
				continue
			}
			for _, n := range side {
				for _, o := range other {
					if err := c.net.drop(n.index(), o.Address); err != nil {
						c.t.Fatalf("partition: %v", err)
					}
				}
			}
		}
	}
}

// Mute has nothing arrive at one node that another one sends.
func (c *Cluster) Mute(from, to *Node) {
	c.t.Helper()
	if err := c.net.drop(to.index(), from.Address); err != nil {
		c.t.Fatalf("mute: %v", err)
	}
}

// Heal undoes Partition and Mute.
func (c *Cluster) Heal() {
	c.t.Helper()
	for _, n := range c.nodes {
		if err := c.net.heal(n.index()); err != nil {
			c.t.Fatalf("heal: %v", err)
		}
	}
}

// Close takes the cluster down: cleanly where nodes still run, by force where
// that fails, which is an error of the test, as is anything left afterwards. It
// is called by Cleanup; calling it earlier or again is fine.
func (c *Cluster) Close() {
	c.t.Helper()
	c.mu.Lock()
	closed, clients := c.mu.closed, c.mu.clients
	c.mu.closed = true
	c.mu.Unlock()
	if closed {
		return
	}
	if c.t.Failed() {
		c.dumpLogs()
	}
	failedBefore := c.t.Failed()
	for _, n := range c.nodes {
		_ = c.net.heal(n.index())
		n.resume()
	}
	for _, cl := range clients {
		cl.Close()
	}
	for _, n := range c.nodes {
		n.signalStop()
	}
	for _, n := range c.nodes {
		n.awaitStop()
	}
	c.checkNothingLeft()
	for _, n := range c.nodes {
		if n.group == nil {
			continue
		}
		if err := n.group.remove(); err != nil {
			c.t.Errorf("%s: %v", n.Name, err)
		}
	}
	if err := c.net.close(); err != nil {
		c.t.Errorf("network: %v", err)
	}
	if c.t.Failed() && !failedBefore {
		c.dumpLogs()
	}
	if os.Getenv("DSMFS_KEEP") == "" {
		if err := os.RemoveAll(c.dir); err != nil {
			c.t.Errorf("cluster: %v", err)
		}
	}
	live.Lock()
	delete(live.clusters, c)
	live.Unlock()
}

// closeAll is for a process that is told to end before its tests did.
func closeAll() {
	live.Lock()
	var all []*Cluster
	for c := range live.clusters {
		all = append(all, c)
	}
	live.Unlock()
	for _, c := range all {
		c.Close()
	}
}
