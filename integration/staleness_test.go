package integration

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// reader is a program that has a file open to read.
type reader struct {
	cl *harness.Client
	fd string
}

func openReader(t *testing.T, cl *harness.Client, name string) reader {
	t.Helper()
	words, err := cl.Do("open %s r", cl.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	return reader{cl, words[0]}
}

// reads does a pread of 4 bytes.
func (r reader) reads() (string, error) {
	words, err := r.cl.Do("pread %s %d 4", r.fd, 2*page)
	if err != nil {
		return "", err
	}
	return words[0], nil
}

// TestStalenessBound reads a file with a bound while its home does not answer: a read is an error, also of pages that the node has
// and a mapping shows. As long as the home answers no read waits for it, and none returns more than the bound ago.
func TestStalenessBound(t *testing.T) {
	c := cluster(t, harness.Options{Flags: lasting})
	impatient(c, 3, 2, "2s")
	all := clients(c)
	name := homedAt(t, c, all[0], "n3")
	n := c.Node(2)
	done(t, "set", n.CLI("set", n.Mount+"/"+name, "staleness=200ms"))
	if got := all[0].Control("areas/" + name + "/staleness"); got != "200ms\n" {
		t.Errorf("the control file says %q", got)
	}
	r := openReader(t, all[1], name)
	for i := range 100 {
		if got, err := r.reads(); err != nil || got != fmt.Sprintf("%x", "ther") {
			t.Fatalf("read %d: %q, %v", i, got, err)
		}
	}
	words, err := all[1].Do("mmap %s 0 %d r", r.fd, 4*page)
	if err != nil {
		t.Fatal(err)
	}
	load := func() error { _, err := all[1].Do("load %s %d 4", words[0], 2*page); return err }
	if err := load(); err != nil {
		t.Error("load: ", err)
	}
	c.Node(3).Pause()
	var failure harness.Failure
	if !harness.Eventually(limit, func() bool { _, err = r.reads(); return err != nil }) || !errors.As(err, &failure) || failure != "EIO" {
		t.Errorf("a read without the home: %v, want EIO", err)
	}
	if err := load(); err != nil { // nobody can delay it
		t.Error("a load without the home: ", err)
	}
	c.Node(3).Resume()
	if !harness.Eventually(limit, func() bool { got, err := r.reads(); return err == nil && got == fmt.Sprintf("%x", "ther") }) {
		t.Error("no read succeeds after the home went on")
	}
	log, err := os.ReadFile(n.LogFile())
	for _, want := range []string{"user.dsm.staleness", "no answer from home", "older than its bound", "within its bound again"} {
		if err != nil || !strings.Contains(string(log), want) {
			t.Errorf("the log does not say %q (%v)", want, err)
		}
	}
	for line := range strings.Lines(all[1].Control("areas/" + name + "/stats")) {
		for _, tooOld := range []string{"512ms", "1024ms", "2048ms", "4096ms", "more"} {
			if strings.HasPrefix(line, "read_staleness_"+tooOld) {
				t.Errorf("a read beyond the bound: %s", line)
			}
		}
	}
	if stats := all[1].Control("stats"); !strings.Contains(stats, "read_staleness_128ms ") || !strings.Contains(stats, "sync_staleness_more ") {
		t.Errorf("stats: %s", stats)
	}
	for _, row := range report[[]row](t, n, "areas") {
		if row.text("path") == name && row.text("staleness") != "200ms" {
			t.Errorf("areas: %v", row)
		}
	}
}

// TestStalenessBehindAPartition cuts a node off and publishes on the other side. Once the bound has passed a read of the node fails: the bytes
// of before are too old. When it is healed reads have the new ones.
func TestStalenessBehindAPartition(t *testing.T) {
	const bound = 300 * time.Millisecond
	c := cluster(t, harness.Options{Network: harness.Namespaces, Flags: lasting})
	impatient(c, 3, 2, "2s")
	all := clients(c)
	name := homedAt(t, c, all[0], "n3")
	done(t, "set", c.Node(1).CLI("set", c.Node(1).Mount+"/"+name, "staleness="+bound.String()))
	_, writer := all[0].Attach(name, 4*page)
	r := openReader(t, all[1], name)
	if got, err := r.reads(); err != nil || got != fmt.Sprintf("%x", "ther") {
		t.Fatalf("before: %q, %v", got, err)
	}
	c.Partition([]*harness.Node{c.Node(1), c.Node(3)}, []*harness.Node{c.Node(2)})
	writer.Store(2*page, []byte("news"))
	writer.Sync()
	<-time.After(bound)
	for range 2 {
		var failure harness.Failure
		if got, err := r.reads(); !errors.As(err, &failure) || failure != "EIO" {
			t.Errorf("%v after a publish that the node has not got: %q, %v; want EIO", bound, got, err)
		}
	}
	c.Heal()
	if !harness.Eventually(limit, func() bool { _, err := r.reads(); return err == nil }) {
		t.Fatal("no read succeeds after the partition")
	}
	if got, err := r.reads(); err != nil || got != fmt.Sprintf("%x", "news") {
		t.Errorf("after the partition: %q, %v", got, err)
	}
}
