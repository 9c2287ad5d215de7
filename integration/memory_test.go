package integration

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// loadRounds is how often the nodes of TestMemoryStaysWithinTheGroup publish all of their part of the large file.
const loadRounds = 4

// TestMemoryStaysWithinTheGroup: nodes whose daemon, programs and page cache together may take a quarter more than --memory have as much as the filesystem
// takes in, and all go on publishing at once: a large file densely from all of them, one on demand that no node has memory for, thousands of small ones,
// versions to a node with a slow link, sums, and rounds. The kernel kills nobody, nothing hangs, no store is lost, what does not fit is refused where it is
// asked for, and at no time do the nodes take so much that there is nothing to spare.
func TestMemoryStaysWithinTheGroup(t *testing.T) {
	long(t)
	if why := harness.NoCgroups(); why != "" {
		t.Skip(why)
	}
	const group, spare, files = memory192 + memory192/4, 4 * mib, 3000
	c := cluster(t, harness.Options{Nodes: 3, Network: harness.Namespaces, Memory: "192M", Limit: group})
	charges := func(when string) {
		t.Helper()
		for _, n := range c.Nodes() {
			x := n.Charge()
			t.Logf("%s: %s has %.1f MiB, %.1f at most; of these %v", when, n.Name, float64(x.Now)/mib, float64(x.Peak)/mib, x.Most)
			if x.Killed > 0 {
				t.Fatalf("%s: %s: the kernel has killed %d processes for lack of memory", when, n.Name, x.Killed)
			}
			if x.Most.Unreclaimable() > group-spare {
				t.Errorf("%s: %s: %v; want at most %d MiB, so that no burst ends in a kill", when, n.Name, x.Most, (group-spare)/mib)
			}
		}
	}
	charges("idle")
	all := clients(c)

	sh(t, c.Node(1), "mkdir small; cd small; for i in $(seq %d); do printf '%%04096d' $i >$i; done", files)
	for _, n := range c.Nodes() {
		if got := strings.TrimSpace(sh(t, n, "cat small/* | wc -c")); got != fmt.Sprint(files*4096) {
			t.Fatalf("%s reads %s bytes of small files", n.Name, got)
		}
	}
	charges("small files")

	const large, eight = 128 * mib, 8 * mib
	all[0].Must("mkdir %s", all[0].Path("sums"))
	all[0].SetXattr("sums", "user.dsm.dtype", "i64")
	all[0].SetXattr("sums", "user.dsm.merge", "sum")
	make0 := func(name string, size int64, settings ...string) {
		t.Helper()
		f := all[0].Open(name, "rw,creat,excl")
		for i := 0; i < len(settings); i += 2 {
			all[0].SetXattr(name, "user.dsm."+settings[i], settings[i+1])
		}
		f.Truncate(size)
		f.Close()
	}
	make0("demand", large, "residency", "demand", "replicas", "1") // with two it does not fit beside the others
	make0("versions", eight, "mode", "versioned")
	make0("sums/w", eight)
	make0("round", eight, "dtype", "f32", "merge", "sum")
	free := number64(t, all[0].Must("statfs %s", all[0].Path("."))[1]) / (3 * mib) * (3 * mib)
	make0("dense", free)
	dense := all[0].Open("dense", "rw")
	for { // a file that is spread may be larger than df says
		if _, err := all[0].Do("ftruncate %d %d", dense.FD, free+3*mib); err != nil {
			if !errors.Is(err, harness.Failure("ENOSPC")) {
				t.Fatal(err)
			}
			break
		}
		free += 3 * mib
	}
	dense.Close()
	t.Logf("the large file has %d MiB", free/mib)

	var busy sync.WaitGroup
	part, piece := free/3, int64(large/3/mib*mib)
	do := func(n *harness.Node, what string, f func(cl *harness.Client) error) {
		cl := n.Client()
		busy.Go(func() {
			if err := f(cl); err != nil {
				t.Errorf("%s: %s: %v", n.Name, what, err)
			}
		})
	}
	c.Node(3).Rate(200)
	for i, n := range c.Nodes() {
		do(n, "dense", func(cl *harness.Client) error { return publishDense(cl, "dense", int64(i)*part, part, free) })
		do(n, "on demand", func(cl *harness.Client) error { return publishDense(cl, "demand", int64(i)*piece, piece, 3*piece) })
		do(n, "sums", func(cl *harness.Client) error { return addUp(cl, "sums/w", eight) })
	}
	do(c.Node(1), "versions", func(cl *harness.Client) error { return publishDense(cl, "versions", 0, eight, eight) })
	do(c.Node(3), "reader of versions", func(cl *harness.Client) error { return readVersions(cl, "versions", eight) })
	for _, n := range c.Nodes() {
		busy.Go(func() {
			res := n.Run(2*limit, "bash", "-ec", fmt.Sprintf(`cd %q
				exec 9<>.dsm/areas/round/group
				tell() { echo "$1" >&9; read -r answer <&9; case $answer in error*) echo "$1: $answer" >&2; exit 1;; esac; }
				tell 'join 3'
				for i in $(seq %d); do
					head -c %d /dev/zero | tr '\0' '\1' >round
					tell 'round round'
				done`, n.Mount, loadRounds, eight))
			if res.Err != nil {
				t.Errorf("%s: rounds: %v: %s", n.Name, res.Err, res.Stderr)
			}
		})
	}
	busy.Wait()
	charges("load")
	for i, n := range c.Nodes() {
		for _, x := range []struct {
			name string
			size int64
		}{{"dense", part}, {"demand", piece}} {
			f := all[i].Open(x.name, "r")
			m := f.MapForReading(3 * x.size)
			for j := range c.Nodes() {
				if at := m.Check(int64(j)*x.size, x.size, loadRounds-1); at >= 0 {
					t.Errorf("%s: byte %d of %s is not what node %d has stored", n.Name, at, x.name, j+1)
				}
			}
			m.Unmap()
			f.Close()
		}
	}
	charges("end")
}

const memory192 = 192 * mib

func number64(t *testing.T, word string) (n int64) {
	t.Helper()
	if _, err := fmt.Sscan(word, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// session is a client that does one thing after the other, until one fails.
type session struct {
	cl  *harness.Client
	err error
}

func (s *session) do(format string, args ...any) (first string) {
	if s.err != nil {
		return ""
	}
	words, err := s.cl.Do(format, args...)
	if err != nil {
		s.err = fmt.Errorf("%.60s: %w", fmt.Sprintf(format, args...), err)
		return ""
	}
	return strings.Join(words, " ")
}

// publishDense stores a part of a file again and again, another value each time, by a mapping of all of it.
func publishDense(cl *harness.Client, name string, off, n, size int64) error {
	s := session{cl: cl}
	fd := s.do("open %s rw", cl.Path(name))
	m := s.do("mmap %s 0 %d rw", fd, size)
	for seed := range loadRounds {
		s.do("fill %s %d %d %d", m, off, n, seed)
		s.do("msync %s", m)
	}
	s.do("munmap %s", m)
	s.do("close %s", fd)
	return s.err
}

// addUp adds to all elements of a file while it is synced.
func addUp(cl *harness.Client, name string, size int64) error {
	s := session{cl: cl}
	fd := s.do("open %s rw", cl.Path(name))
	m := s.do("mmap %s 0 %d rw", fd, size)
	s.do("add i64 %s 0 %d 1 %d", m, size/8, loadRounds)
	s.do("join %s", m)
	return s.err
}

// readVersions opens a file of versions again and again, and reads it.
func readVersions(cl *harness.Client, name string, size int64) error {
	s := session{cl: cl}
	for range loadRounds {
		fd := s.do("open %s r", cl.Path(name))
		for off := int64(0); off < size; off += mib {
			s.do("pread %s %d %d", fd, off, 4096)
		}
		s.do("close %s", fd)
	}
	return s.err
}
