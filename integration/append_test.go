package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestAppendsAlternate has programs of two and three nodes, which keep the file open, append in turns.
func TestAppendsAlternate(t *testing.T) {
	c := nodes(t, 3)
	for _, x := range []struct {
		name, flags string
		nodes       []int
	}{
		{"two nodes", "os.O_WRONLY | os.O_APPEND", []int{1, 2}},
		{"three nodes", "os.O_RDWR | os.O_APPEND", []int{1, 2, 3}},
		{"one node", "os.O_RDWR | os.O_APPEND", []int{2, 2}},
		{"set later", "os.O_RDWR", []int{3, 1}},
	} {
		t.Run(x.name, func(t *testing.T) {
			file := strings.ReplaceAll(x.name, " ", "-")
			var all []*locker
			for _, i := range x.nodes {
				l := newLocker(t, c.Node(i))
				l.do("ok", fmt.Sprintf("op('%s', flags=os.O_CREAT | %s)", file, x.flags))
				if x.name == "set later" {
					l.do("0", "fcntl.fcntl(files['f'], fcntl.F_SETFL, os.O_APPEND)")
				}
				all = append(all, l)
			}
			const rounds = 100
			var want strings.Builder
			for i := range rounds {
				record := fmt.Sprintf("%d of %010d.\n", i%len(all), i)
				all[i%len(all)].do(fmt.Sprint(len(record)), fmt.Sprintf("os.write(files['f'], %q.encode())", record))
				want.WriteString(record)
			}
			for _, l := range all {
				l.do("ok", "close()")
			}
			for _, n := range c.Nodes() {
				got := n.Python(fmt.Sprintf("print(open(mnt + '/%s').read())", file)) + "\n"
				if got != want.String() {
					t.Errorf("%s: %d bytes, want %d: %.200q", n.Name, len(got), want.Len(), got)
				}
			}
		})
	}
}

// TestAppendsAtOnce has programs of three nodes append records of all sizes: each is there whole, once, and those of a
// program are in its order. One way is that of logging, another a file that is direct.
func TestAppendsAtOnce(t *testing.T) {
	needNumPy(t)
	c := nodes(t, 3)
	const rounds = 60
	check := func(t *testing.T, file string) {
		t.Helper()
		for _, n := range c.Nodes() {
			got := n.Python(fmt.Sprintf(`
import collections
seen = collections.defaultdict(list)
for line in open(mnt + '/%s'):
    node, i, text = line.split()
    assert text == str(i) * (int(i) %% 50 + 1), line
    seen[node].append(int(i))
print(all(s == list(range(%d)) for s in seen.values()), len(seen))
`, file, rounds))
			if got != "True 3" {
				t.Errorf("%s: %s", n.Name, got)
			}
		}
	}
	for _, x := range []struct{ name, make, code string }{
		{"written", "open(mnt + '/written', 'w').close()", `
f = os.open(mnt + '/written', os.O_WRONLY | os.O_APPEND)
meet()
for i in range(%d):
    record = f'%s {i} {str(i) * (i %% 50 + 1)}\n'.encode()
    assert os.write(f, record) == len(record)
`},
		{"logged", "open(mnt + '/logged', 'w').close()", `
import logging
logging.basicConfig(filename=mnt + '/logged', level=logging.INFO, format='%%(message)s')
meet()
for i in range(%d):
    logging.info(f'%s {i} {str(i) * (i %% 50 + 1)}')
`},
		{"direct", "os.close(os.open(mnt + '/direct', os.O_CREAT | os.O_WRONLY)); os.setxattr(mnt + '/direct', 'user.dsm.access', b'direct')", `
f = os.open(mnt + '/direct', os.O_RDWR | os.O_APPEND)
meet()
for i in range(%d):
    record = f'%s {i} {str(i) * (i %% 50 + 1)}\n'.encode()
    assert os.write(f, record) == len(record)
`},
	} {
		t.Run(x.name, func(t *testing.T) {
			c.Node(1).Python(x.make + "\nfor x in os.listdir(mnt):\n    if x.startswith('here-'): os.remove(mnt + '/' + x)")
			everywhere(t, c, func(n *harness.Node) string { return fmt.Sprintf(x.code, rounds, n.Name) })
			check(t, x.name)
		})
	}
}

// TestAppendAndMap appends to a file that the same program, and one of another node, has mapped.
func TestAppendAndMap(t *testing.T) {
	needNumPy(t)
	c := nodes(t, 2)
	got := c.Node(2).Python(`
import mmap
f = os.open(mnt + '/mapped', os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(f, b'a' * 5000)
m = mmap.mmap(f, 5000)
m[4999:] = b'z'
os.write(f, b'b' * 5000)
m.flush()
assert os.pread(f, 2, 4999) == b'zb', os.pread(f, 2, 4999)
m2 = mmap.mmap(f, 10000)
assert m2[4999:5001] == b'zb' and m2[9999:] == b'b'
assert os.lseek(f, 0, os.SEEK_END) == 10000
os.close(f)
print('ok')
`)
	if got != "ok" {
		t.Error(got)
	}
	if got := c.Node(1).Python("b = open(mnt + '/mapped', 'rb').read(); print(len(b), b[4998:5001])"); got != "10000 b'azb'" {
		t.Error(got)
	}
}
