package merge

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestLittleEndian: the lanes of a word are in the order of the elements in memory.
func TestLittleEndian(t *testing.T) {
	if binary.NativeEndian.Uint64([]byte{1, 2, 3, 4, 5, 6, 7, 8}) != 0x0807060504030201 {
		t.Error("the merge functions are for little-endian processors")
	}
}

// checkShared compares the merges into shared memory with Merge, which is tested
// against the reference.
func checkShared(t *testing.T, k naive, p dsm.PageIndex, base, working, incoming []byte) {
	t.Helper()
	want := bytes.Clone(working)
	k.Merge(p, base, want, incoming, nil)
	got := pagetest.AlignedPage(working)
	k.MergeShared(p, base, got, incoming)
	k.check(t, "shared merge", p, got, want)
	got = pagetest.AlignedPage(incoming)
	k.StoreShared(p, base, got, working)
	k.check(t, "shared store", p, got, want)
}

func TestMergeSharedIsMerge(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, kc := range kernelCases(t) {
		k := naive{kc}
		for range pagetest.Rounds(10) {
			for p := range dsm.PageIndex(3) {
				base := make([]byte, dsm.PageSize)
				k.fillPage(rng, base)
				checkShared(t, k, p, base, change(rng, base), change(rng, base))
			}
		}
	}
}

// FuzzMergeShared compares the merges into shared memory of arbitrary pages.
func FuzzMergeShared(f *testing.F) {
	f.Add(uint8(2), uint16(8), []byte{1, 2, 3}, []byte{4, 5, 6}, []byte{7, 8, 9})
	f.Add(uint8(15), uint16(4), []byte{0, 0, 128, 127}, []byte{0, 0, 128, 255}, []byte{1, 0, 128, 127})
	f.Add(uint8(17), uint16(2), []byte{0, 60}, []byte{1, 60}, []byte{2, 60})
	fuzzPages(f, func(t *testing.T, ref naive, b, w, n []byte) { checkShared(t, ref, 0, b, w, n) })
}

// TestMergeSharedLeavesAlone: memory is not touched where nothing came in, and not
// written where the stores that are there win.
func TestMergeSharedLeavesAlone(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	}()
	protect := func(prot int) {
		if err := unix.Mprotect(mem, prot); err != nil {
			t.Fatal(err)
		}
	}
	copy(mem, pagetest.PageOf(3))
	base, incoming := pagetest.PageOf(1), pagetest.PageOf(2)
	protect(unix.PROT_NONE) // a touch ends the test
	for _, kc := range kernelCases(t) {
		kc.MergeShared(1, base, mem, base)
	}
	protect(unix.PROT_READ)
	mustKernel(t, dsm.MergeLast, dsm.DTypeF32, 0).MergeShared(0, base, mem, incoming)
	protect(unix.PROT_READ | unix.PROT_WRITE)
	pagetest.WantPage(t, "working", mem, pagetest.PageOf(3))
}

// TestSnapshotEndsWithArea: what is past the end does not get out, at any end.
func TestSnapshotEndsWithArea(t *testing.T) {
	page := pagetest.AlignedPage(pagetest.PageOf(0))
	for i := range page {
		page[i] = byte(1 + i%255) // no two words nearby are the same, and none is zero
	}
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for _, n := range []int{0, 1, 7, 8, 9, 63, 64, 72, 2049, dsm.PageSize - 8, dsm.PageSize - 1, dsm.PageSize} {
		dst := pagetest.PageOf(9)
		Snapshot(dst, page[:n])
		want := make([]byte, dsm.PageSize)
		copy(want, page[:n])
		pagetest.WantPage(t, "snapshot", dst, want)
		var d Delta
		snap := pagetest.PageOf(9)
		if changed, _ := k.AppendShared(&d, 0, make([]byte, dsm.PageSize), page[:n], snap); changed != (n > 0) || len(d.Data) != n {
			t.Errorf("page of %d bytes: changed %v, %d bytes of data", n, changed, len(d.Data))
		} else if changed {
			got := make([]byte, dsm.PageSize)
			k.Overlay(&d, 0, got)
			pagetest.WantPage(t, "what was diffed", got, want)
			if n < dsm.PageSize {
				pagetest.WantPage(t, "what it was diffed from", snap, want)
			}
		}
	}
}

// TestOverwriteShared puts ranges of every alignment in place and nothing else.
func TestOverwriteShared(t *testing.T) {
	rng := pagetest.Rand(t)
	for range 2000 {
		lo := rng.IntN(dsm.PageSize)
		n := rng.IntN(min(dsm.PageSize-lo, 40) + 1)
		got, want, data := pagetest.AlignedPage(pagetest.PageOf(1)), pagetest.PageOf(1), pagetest.PageOf(2)[:n]
		OverwriteShared(got, lo, data)
		copy(want[lo:], data)
		pagetest.WantPage(t, "page", got, want)
	}
	got := pagetest.AlignedPage(pagetest.PageOf(1))
	OverwriteShared(got, 0, pagetest.PageOf(2))
	pagetest.WantPage(t, "page", got, pagetest.PageOf(2))
}

// TestMergeSharedUnderAtomics lets goroutines add while increments come in, where
// the race detector sees all of it.
func TestMergeSharedUnderAtomics(t *testing.T) {
	const adders, adds, element = 2, 20_000, 5
	for _, dt := range []dsm.DType{dsm.DTypeI32, dsm.DTypeI64, dsm.DTypeF32, dsm.DTypeF64} {
		k := mustKernel(t, dsm.MergeSum, dt, 0)
		size := dt.Size()
		mem := pagetest.AlignedPage(make([]byte, dsm.PageSize))
		var wg sync.WaitGroup
		var running atomic.Int32
		running.Store(adders)
		for a := range adders {
			wg.Go(func() {
				defer running.Add(-1)
				for i := range adds {
					pagetest.AddOne(dt, mem[(element+(i+a)%2)*size:])
					if i%64 == 0 {
						runtime.Gosched()
					}
				}
			})
		}
		base, merges := make([]byte, dsm.PageSize), 0
		for running.Load() > 0 || merges < 100 {
			incoming := bytes.Clone(base)
			for e := element; e < element+3; e++ {
				pagetest.AddOne(dt, incoming[e*size:])
			}
			k.MergeShared(0, base, mem, incoming)
			base = incoming
			merges++
			runtime.Gosched()
		}
		wg.Wait()
		for i, want := range []int{merges + adders*adds/2, merges + adders*adds/2, merges, 0} {
			if got := pagetest.ElementAt(dt, mem[(element+i)*size:]); got != want {
				t.Errorf("%v: element %d is %d, want %d after %d merges", dt, element+i, got, want, merges)
			}
		}
	}
}

// BenchmarkMergeShared merges with and without care for others that store to the
// page, into pages that are as the base or have a store in every block.
func BenchmarkMergeShared(b *testing.B) {
	for _, c := range benchCases {
		k := mustKernel(b, c.rule, c.dt, 0)
		base, incoming := benchPages(benchSet, c.dt, c.store)
		working := pagetest.AlignedPage(nil)
		for _, merge := range []struct {
			name string
			f    func(p int)
		}{
			{"alone", func(p int) { k.Merge(dsm.PageIndex(p), base[p], working, incoming[p], nil) }},
			{"shared", func(p int) { k.MergeShared(dsm.PageIndex(p), base[p], working, incoming[p]) }},
		} {
			for _, local := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/stores=%v/%s", c.name, local, merge.name), func(b *testing.B) {
					for i := 0; b.Loop(); i++ {
						p := i % benchSet
						copy(working, base[p]) // 60 ns of the result
						if local {
							for at := 0; at < len(working); at += 512 {
								working[at]++
							}
						}
						merge.f(p)
					}
					pagetest.PerPage(b)
				})
			}
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	src := pagetest.AlignedPage(pagetest.PageOf(1))
	dst := make([]byte, dsm.PageSize)
	for b.Loop() {
		Snapshot(dst, src)
	}
	pagetest.PerPage(b)
}
