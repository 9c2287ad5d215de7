package uffd

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDataRuns: both ways to look for data agree, and with them the holes.
func TestDataRuns(t *testing.T) {
	size := int64(pageSize)
	fd, err := unix.MemfdCreate("t", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := CountPages(fd, 0, size); CannotCount(err) {
		t.Skip(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const n = 70
	there := map[int64]bool{}
	for range 200 {
		p := rng.Int64N(n)
		if there[p] = !there[p]; there[p] {
			_, err = unix.Pwrite(fd, []byte{1}, p*size)
		} else {
			err = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, p*size, size)
			delete(there, p)
		}
		if err != nil {
			t.Fatal(err)
		}
		from, to := rng.Int64N(n), n+rng.Int64N(9)
		want := slices.DeleteFunc(slices.Sorted(maps.Keys(there)), func(p int64) bool { return p < from })
		for i, runs := range []func(int, int64, int64, func(from, to int64) error) error{DataRuns, seekRuns} {
			var got []int64
			last := int64(-1)
			if err := runs(fd, from*size, to*size, func(a, b int64) error {
				if a == last {
					t.Errorf("way %d: two runs meet at %d", i, a)
				}
				for last = b; a < b; a += size {
					got = append(got, a/size)
				}
				return nil
			}); err != nil || !slices.Equal(got, want) {
				t.Fatalf("way %d: pages %d have data (%v), want %d", i, got, err, want)
			}
		}
		at, ok, err := NextData(fd, from*size, to*size)
		if err != nil || ok != (len(want) > 0) || ok && at != want[0]*size {
			t.Fatalf("the first data is at %d (%v, %v), want pages %d", at, ok, err, want)
		}
		if err := holes(fd, from*size, to*size, func(a, b int64) error {
			for ; a < b; a += size {
				want = append(want, a/size)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(want); int64(len(want)) != to-from || len(slices.Compact(want)) != len(want) {
			t.Fatalf("%d pages are data or holes, of %d", len(want), to-from)
		}
	}
}
