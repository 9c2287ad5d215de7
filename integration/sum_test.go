package integration

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// TestSumIsExact adds from several threads on three nodes to the same elements,
// with msync and interval publishes all the while: every node ends with exactly
// the total.
func TestSumIsExact(t *testing.T) {
	tests := []struct {
		dtype  string
		rounds int
		total  func(int64) int64
		short  bool
	}{
		{"i64", 40_000, func(n int64) int64 { return n }, true},
		{"i32", 40_000, func(n int64) int64 { return n }, false},
		{"u8", 40_001, func(n int64) int64 { return n % 256 }, true},
		{"f32", 20_000, func(n int64) int64 { return n }, true}, // the total stays below 2^24
	}
	for _, test := range tests {
		t.Run(test.dtype, func(t *testing.T) {
			if !test.short {
				long(t)
			}
			const (
				elements = 700 // with 8 bytes each: more than a page
				threads  = 2
			)
			c := nodes(t, 3)
			all := clients(c)
			const size = 4 * page
			f := all[0].Open("w", "rw,creat,excl")
			all[0].SetXattr("w", "user.dsm.merge", "sum")
			all[0].SetXattr("w", "user.dsm.dtype", test.dtype)
			all[0].SetXattr("w", "user.dsm.interval", "10ms")
			f.Truncate(size)
			maps := attachAll(all, "w", size)
			for _, m := range maps {
				for range threads {
					m.Add(test.dtype, 0, elements, 1, test.rounds)
				}
			}
			joinAll(t, maps)
			settle(maps)
			want := test.total(int64(test.rounds * threads * len(maps)))
			for i, m := range maps {
				if lo, hi := m.Range(test.dtype, 0, elements); lo != want || hi != want {
					t.Errorf("node %d: elements from %d to %d, want all %d", i+1, lo, hi, want)
				}
			}
		})
	}
}

// TestSumAfterRest adds with pauses, so that publishes of one node reach others
// while they have nothing of their own, something unpublished, or something in flight.
func TestSumAfterRest(t *testing.T) {
	c := nodes(t, 3)
	all := clients(c)
	all[0].Must("mkdir %s", all[0].Path("sums"))
	all[0].SetXattr("sums", "user.dsm.merge", "sum")
	all[0].SetXattr("sums", "user.dsm.dtype", "i64")
	f := all[0].Open("sums/w", "rw,creat,excl")
	f.Truncate(page)
	if got := all[1].Xattr("sums/w", "user.dsm.merge"); got != "sum" {
		t.Fatalf("a new file in a directory with merge=sum has merge %q", got)
	}
	maps := attachAll(all, "sums/w", page)
	want := int64(0)
	for round := range 30 {
		for i, m := range maps {
			m.Add("i64", 0, 512, float64(i+1), 1)
			want += int64(i + 1)
			if (round+i)%3 == 0 {
				m.Sync()
			}
		}
		joinAll(t, maps)
		if round%5 == 4 {
			settle(maps)
			for i, m := range maps {
				if lo, hi := m.Range("i64", 0, 512); lo != want || hi != want {
					t.Fatalf("round %d, node %d: elements from %d to %d, want %d", round, i+1, lo, hi, want)
				}
			}
		}
	}
}

// TestSumEntersOnlyInSync checks apply=sync, the default with sum: what others
// publish changes memory at the program's own msync and at no other time.
func TestSumEntersOnlyInSync(t *testing.T) {
	c := nodes(t, 2)
	all := clients(c)
	f := all[0].Open("w", "rw,creat,excl")
	all[0].SetXattr("w", "user.dsm.merge", "sum")
	all[0].SetXattr("w", "user.dsm.dtype", "i32")
	f.Truncate(page)
	maps := attachAll(all, "w", page)
	one := []byte{1, 0, 0, 0}
	maps[0].Store(8, one)
	maps[0].Sync()
	// Something that applies on arrival, published later, tells that the sum has arrived too.
	_, am := all[0].Create("arrived", page)
	_, bm := all[1].Attach("arrived", page)
	am.Store(0, one)
	am.Sync()
	bm.Await(0, one, limit)
	for i := range byte(3) { // three intervals of node 2 pass: they publish and must not apply
		maps[1].Store(16, []byte{i})
		bm.Store(8, []byte{i + 1})
		am.Await(8, []byte{i + 1}, limit)
	}
	if got := maps[1].Load(8, 4); got[0] != 0 {
		t.Errorf("a sum entered memory outside of msync: %x", got)
	}
	maps[1].Sync()
	if got := maps[1].Load(8, 4); got[0] != 1 {
		t.Errorf("after msync: %x, want the other node's 1", got)
	}
}

func TestNumPyHeaderTypesTheArea(t *testing.T) {
	needNumPy(t)
	c := nodes(t, 3)
	for _, dtype := range []string{"<f8", "<f4", "<f2", "<i2"} {
		if dtype != "<f4" && testing.Short() {
			continue
		}
		t.Run(dtype, func(t *testing.T) {
			name := "w" + strings.TrimPrefix(dtype, "<") + ".npy"
			header := c.Node(1).Python(fmt.Sprintf(`
path = mnt + '/%s'
open(path, 'wb').close()
os.setxattr(path, 'user.dsm.merge', b'sum')
w = numpy.lib.format.open_memmap(path, 'w+', '%s', (3, 1000))
w.flush()
print(open(path, 'rb').read(w.offset).hex())
`, name, dtype))
			const rounds = 40
			var wg sync.WaitGroup
			for _, n := range c.Nodes() {
				wg.Go(func() {
					res := n.TryPython(fmt.Sprintf(`
w = numpy.load(mnt + '/%s', mmap_mode='r+')
for i in range(%d):
    w += 1
    w.flush()
`, name, rounds))
					if res.Err != nil {
						t.Errorf("%s: %v\n%s", n.Name, res.Err, res.Stderr)
					}
				})
			}
			wg.Wait()
			for _, n := range c.Nodes() {
				got := n.Python(fmt.Sprintf(`
path = mnt + '/%s'
w = numpy.load(path, mmap_mode='r')
print(open(path, 'rb').read(w.offset).hex(), w.min(), w.max(), w.dtype.str)
`, name))
				want := fmt.Sprintf("%s %v %v %s", header, rounds*3, rounds*3, dtype)
				if strings.ReplaceAll(got, ".0", "") != want {
					t.Errorf("%s: header, least, greatest, type:\n%s, want\n%s", n.Name, got, want)
				}
			}
		})
	}
}

// attachAll maps a file that exists for every client.
func attachAll(all []*harness.Client, name string, size int64) []*harness.Map {
	maps := make([]*harness.Map, len(all))
	for i, cl := range all {
		_, maps[i] = cl.Attach(name, size)
	}
	return maps
}

// joinAll lets every client publish until its adders have ended.
func joinAll(t *testing.T, maps []*harness.Map) {
	t.Helper()
	const longest = 2 * time.Minute
	errs := make([]error, len(maps))
	var wg sync.WaitGroup
	for i, m := range maps {
		wg.Go(func() {
			_, errs[i] = m.Join(longest)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// settle publishes what every node has, then lets every node take what the others published.
func settle(maps []*harness.Map) {
	for range 2 {
		for _, m := range maps {
			m.Sync()
		}
	}
}
