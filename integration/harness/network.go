package harness

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
)

// port is the one port of every node.
const port = "7400"

// network is what a cluster talks over. Nodes are counted from 1.
type network interface {
	open() error
	// attach makes node i's end and returns its host:port.
	attach(i int) (string, error)
	// enter changes a command so that it runs at node i.
	enter(i int, name string, args []string) (string, []string)
	// drop loses everything that comes from the address at node i.
	drop(i int, from string) error
	heal(i int) error
	rate(i, mbit int) error
	// lose loses some of all that comes to node i.
	lose(i, percent int) error
	// close removes everything and tells what could not be removed.
	close() error
}

var errNoLinks = errors.New("nodes on loopback have no links to cut or slow down: want harness.Namespaces")

// loopback is the network of the nodes of one cluster on this machine: an
// address of 127.0.0.0/8 each, so that clusters and leftovers do not meet.
type loopback int64

func (loopback) open() error  { return nil }
func (loopback) close() error { return nil }

func (l loopback) attach(i int) (string, error) {
	return net.JoinHostPort(fmt.Sprintf("127.%d.%d.%d", 16+os.Getpid()%200, 1+int64(l)%250, i), port), nil
}

func (loopback) enter(_ int, name string, args []string) (string, []string) { return name, args }
func (loopback) drop(int, string) error                                     { return errNoLinks }
func (loopback) heal(int) error                                             { return nil }
func (loopback) rate(int, int) error                                        { return errNoLinks }
func (loopback) lose(int, int) error                                        { return errNoLinks }

// bridged is a bridge with one namespace per node, 10.99.0.i, each connected by
// a pair of interfaces. The host has no address on it, so any number can exist.
type bridged struct {
	tag   string
	nodes []int
	cut   map[int]bool
}

func (b *bridged) bridge() string         { return b.tag + "b" }
func (b *bridged) namespace(i int) string { return fmt.Sprintf("%sn%d", b.tag, i) }
func (b *bridged) outside(i int) string   { return fmt.Sprintf("%sv%d", b.tag, i) }
func (b *bridged) nsPath(i int) string    { return "/var/run/netns/" + b.namespace(i) }
func address(i int) string                { return fmt.Sprintf("10.99.0.%d", i) }
func (b *bridged) inside(i int, a ...string) error {
	name, args := b.enter(i, a[0], a[1:])
	return tool(name, args...)
}

func (b *bridged) open() error {
	b.cut = map[int]bool{}
	if err := tool("ip", "link", "add", b.bridge(), "type", "bridge"); err != nil {
		return err
	}
	return tool("ip", "link", "set", b.bridge(), "up")
}

func (b *bridged) attach(i int) (string, error) {
	b.nodes = append(b.nodes, i)
	ns, out := b.namespace(i), b.outside(i)
	for _, line := range []string{
		"ip netns add " + ns,
		"ip link add " + out + " type veth peer name eth0 netns " + ns,
		"ip link set " + out + " master " + b.bridge() + " up",
		"ip -n " + ns + " address add " + address(i) + "/24 dev eth0",
		"ip -n " + ns + " link set eth0 up",
		"ip -n " + ns + " link set lo up",
	} {
		words := strings.Fields(line)
		if err := tool(words[0], words[1:]...); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(address(i), port), nil
}

// enter uses nsenter: ip netns exec would make a new mount namespace as well, and
// nobody else would see the mounts that are made in it.
func (b *bridged) enter(i int, name string, args []string) (string, []string) {
	return "nsenter", append([]string{"--net=" + b.nsPath(i), "--", name}, args...)
}

func (b *bridged) drop(i int, from string) error {
	host, _, err := net.SplitHostPort(from)
	if err != nil {
		return err
	}
	if !b.cut[i] {
		b.cut[i] = true
		if err := b.inside(i, "nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0 ; }"); err != nil {
			return err
		}
	}
	return b.inside(i, "nft", "add rule inet cut in ip saddr "+host+" drop")
}

func (b *bridged) heal(i int) error {
	if !b.cut[i] {
		return nil
	}
	delete(b.cut, i)
	return b.inside(i, "nft", "delete table inet cut")
}

// rate shapes both directions: what leaves the namespace, and what the bridge sends into it.
func (b *bridged) rate(i, mbit int) error {
	_ = tool("tc", "qdisc", "del", "dev", b.outside(i), "root") // fails where no limit was set
	_ = b.inside(i, "tc", "qdisc", "del", "dev", "eth0", "root")
	if mbit == 0 {
		return nil
	}
	limit := []string{"root", "tbf", "rate", fmt.Sprintf("%dmbit", mbit), "burst", "128k", "latency", "100ms"}
	if err := tool("tc", append([]string{"qdisc", "add", "dev", b.outside(i)}, limit...)...); err != nil {
		return err
	}
	return b.inside(i, append([]string{"tc", "qdisc", "add", "dev", "eth0"}, limit...)...)
}

// lose drops packets at random: kernels may be without netem.
func (b *bridged) lose(i, percent int) error {
	if percent == 0 {
		return b.inside(i, "nft", "delete table inet loss")
	}
	return b.inside(i, "nft", fmt.Sprintf("add table inet loss; add chain inet loss in { type filter hook input priority 0 ; }; "+
		"flush chain inet loss in; add rule inet loss in iifname eth0 numgen random mod 100 < %d drop", percent))
}

func (b *bridged) close() error {
	var errs []error
	for _, i := range b.nodes {
		if !exists(b.nsPath(i)) {
			continue
		}
		// Deleting the outer end also works when a process is still in the namespace.
		errs = append(errs, tool("ip", "link", "del", b.outside(i)), tool("ip", "netns", "del", b.namespace(i)))
	}
	if exists("/sys/class/net/" + b.bridge()) {
		errs = append(errs, tool("ip", "link", "del", b.bridge()))
	}
	for _, i := range b.nodes {
		if exists(b.nsPath(i)) || exists("/sys/class/net/"+b.outside(i)) {
			errs = append(errs, fmt.Errorf("namespace %s is left", b.namespace(i)))
		}
	}
	return errors.Join(errs...)
}

func tool(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
