package integration

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// slowPath passes streams on to a node. What the node answers waits for as long as wait does.
func slowPath(t *testing.T, to string, wait func()) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var streams sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		streams.Wait()
	})
	pass := func(to, from net.Conn, before func()) {
		defer to.Close()
		for b := make([]byte, 1<<16); ; {
			n, err := from.Read(b)
			if before != nil && n > 0 {
				before()
			}
			if _, werr := to.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	streams.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				in.Close()
				return
			}
			streams.Go(func() { pass(out, in, nil) })
			streams.Go(func() { pass(in, out, wait) })
		}
	})
	return l.Addr().String()
}

// TestEvictedBeforeItIsReady: a node is stopped when it has just been admitted, for so long that the cluster has put it out again. It joins once
// more, and mounts.
func TestEvictedBeforeItIsReady(t *testing.T) {
	c := cluster(t, harness.Options{Nodes: 1})
	first, late := c.Node(1), c.Declare()
	member := func() bool {
		text, err := os.ReadFile(filepath.Join(first.Mount, ".dsm/members"))
		if err != nil && err != io.EOF {
			t.Error(err)
		}
		return strings.Contains(string(text), late.Name)
	}
	put := false
	addr := slowPath(t, first.Address, func() {
		if put || !member() {
			return
		}
		put = true
		text, err := os.ReadFile(filepath.Join(late.State(), "pid"))
		pid, perr := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || perr != nil {
			t.Error(err, perr)
			return
		}
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Error(err)
		}
		if !harness.Eventually(limit, func() bool { return !member() }) {
			t.Error("a node that gives no sign of life stays a member")
		}
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	done(t, "mount", background(late, "--join", addr))
	if !put {
		t.Error("the node was never admitted through the path")
	}
	done(t, "store", late.Run(limit, "cp", "/proc/self/exe", filepath.Join(late.Mount, "f")))
	if st, err := os.Stat(filepath.Join(first.Mount, "f")); err != nil || st.Size() == 0 {
		t.Errorf("the file on the other node: %v, %v", st, err)
	}
	if text, err := os.ReadFile(filepath.Join(late.State(), "log")); err != nil || !strings.Contains(string(text), "joining once more") {
		t.Errorf("the log does not say that it was evicted: %v", err)
	}
	done(t, "umount", late.CLI("umount", late.Mount))
}
