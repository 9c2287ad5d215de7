package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/dsmfs/dsmfs/fs"
)

// With dev --orders, lines on standard input are orders, so that users and tests can see what
// failures do. "kill NAME" ends a node as the loss of its machine would, and "add" starts another
// one. Each is answered by a line of output: for a node that was started the same line as for the
// others, for an order that was refused the reason.

// readOrders sends the lines of r until it ends.
func readOrders(r io.Reader) <-chan string {
	orders := make(chan string)
	go func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			orders <- strings.TrimSpace(lines.Text())
		}
	}()
	return orders
}

// obey carries out an order and prints the answer. stopped reports that dev was told to end
// meanwhile.
func (d *dev) obey(order string) (stopped bool) {
	verb, name, _ := strings.Cut(order, " ")
	var err error
	switch {
	case verb == "kill":
		err = d.kill(name)
	case order == "add":
		stopped, err = d.add()
	default:
		err = fail(exitUsage, "unknown order %q: want kill NAME, or add", order)
	}
	if err != nil {
		fmt.Fprintf(d.p.out, "refused: %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return stopped
}

// kill ends a node without warning, and unmounts its mount.
func (d *dev) kill(name string) error {
	for _, n := range d.nodes {
		if n.name != name || n.killed {
			continue
		}
		n.killed = true
		_ = n.d.cmd.Process.Kill() // it may have ended
		<-n.d.exited
		if err := fs.UnmountPath(n.mount, true); err != nil {
			return err
		}
		fmt.Fprintf(d.p.out, "killed %s\n", name)
		return nil
	}
	return fail(exitUsage, "no node %q is running", name)
}

// add starts a node that joins one of the living ones.
func (d *dev) add() (stopped bool, err error) {
	first := ""
	for _, n := range d.nodes {
		if !n.killed {
			first = n.addr
		}
	}
	if first == "" {
		return false, fail(exitUsage, "no node is left that one could join")
	}
	if len(d.nodes) == most {
		return false, fail(exitUsage, "%d nodes are the most", most)
	}
	n, err := d.newNode()
	if err != nil {
		return false, err
	}
	stopped, err = d.start(n, first)
	if err != nil {
		n.killed = true
		if n.d != nil {
			_ = n.d.cmd.Process.Kill() // likewise
		}
	}
	return stopped, err
}
