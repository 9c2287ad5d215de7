package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// mixer changes one byte of a page: "write" does it by pwrite, and reads it again, the others by a mapping, until the writer
// has set the last byte. The answer is the last value, and for the writer how often it did not read what it wrote.
const mixer = `
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 4096)
v = 0
for line in sys.stdin:
    way, place, rounds = line.split()
    place, lost = int(place), 0
    if way == "write":
        for _ in range(int(rounds)):
            v = (v + 1) % 256
            os.pwrite(fd, bytes([v]), place)
            lost += os.pread(fd, 1, place) != bytes([v])
        os.pwrite(fd, b"e", 4095)
    while way == "store" and m[4095] == 0:
        for _ in range(int(rounds)):
            v = (v + 1) % 256
            m[place] = v
        m.flush()
    print("ok", v, lost, flush=True)
`

// TestWriteBesideMappings: a program writes a byte by pwrite while one of the same node and one of another store others of
// the page through their mappings. No byte goes back to what it was.
func TestWriteBesideMappings(t *testing.T) {
	needNumPy(t)
	python, _ := harness.Interpreter()
	c := nodes(t, 2)
	all := clients(c)
	all[0].Create("mixed", page)
	type result struct {
		words []string
		err   error
	}
	var answers []chan result
	begin := func(n *harness.Node, client *harness.Client, order string) {
		p := n.Program(python, "-c", mixer, client.Path("mixed"))
		done := make(chan result, 1)
		answers = append(answers, done)
		go func() {
			words, err := p.Do("%s", order)
			done <- result{words, err}
		}()
	}
	started := time.Now()
	begin(c.Node(1), all[0], "store 1 20")
	begin(c.Node(2), all[1], "store 2 1")
	begin(c.Node(1), all[0], "write 0 5000")
	last := make([]string, 3)
	for i, place := range []int{1, 2, 0} {
		r := <-answers[i]
		if r.err != nil {
			t.Fatal(r.err)
		}
		last[place] = r.words[0]
		if r.words[1] != "0" {
			t.Errorf("%s bytes were lost that pwrite had brought", r.words[1])
		}
	}
	t.Logf("%v", time.Since(started).Round(time.Millisecond))
	for _, n := range c.Nodes() {
		got := n.Python("f = os.open(mnt + '/mixed', os.O_RDWR); os.fsync(f); print(*os.pread(f, 3, 0))")
		if want := strings.Join(last, " "); got != want {
			t.Errorf("%s: the bytes are %s, want %s", n.Name, got, want)
		}
	}
}
