package pages

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// alignedPage returns a copy of b, a page, that begins on a word.
func alignedPage(b []byte) []byte {
	p := unsafe.Slice((*byte)(unsafe.Pointer(&make([]uint64, dsm.PageSize/8)[0])), dsm.PageSize)
	copy(p, b)
	return p
}

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
	got := alignedPage(working)
	k.MergeShared(p, base, got, incoming)
	k.check(t, "shared merge", p, got, want)
	got = alignedPage(incoming)
	k.storeShared(p, base, got, working)
	k.check(t, "shared store", p, got, want)
}

func TestMergeSharedIsMerge(t *testing.T) {
	rng := newRand(t)
	for _, kc := range kernelCases(t) {
		k := naive{kc}
		for range 10 {
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
	copy(mem, pageOf(3))
	base, incoming := pageOf(1), pageOf(2)
	protect(unix.PROT_NONE) // a touch ends the test
	for _, kc := range kernelCases(t) {
		kc.MergeShared(1, base, mem, base)
	}
	protect(unix.PROT_READ)
	mustKernel(t, dsm.MergeLast, dsm.DTypeF32, 0).MergeShared(0, base, mem, incoming)
	protect(unix.PROT_READ | unix.PROT_WRITE)
	wantPage(t, "working", mem, pageOf(3))
}

// TestSnapshotEndsWithArea: what is past the end does not get out, at any end.
func TestSnapshotEndsWithArea(t *testing.T) {
	page := alignedPage(pageOf(7))
	k := mustKernel(t, dsm.MergeLast, dsm.DTypeAuto, 0)
	for _, n := range []int{0, 1, 7, 8, 9, 2049, dsm.PageSize - 8, dsm.PageSize - 1, dsm.PageSize} {
		dst := pageOf(9)
		Snapshot(dst, page[:n])
		want := make([]byte, dsm.PageSize)
		copy(want, page[:n])
		wantPage(t, "snapshot", dst, want)
		var d Delta
		snap := pageOf(9)
		if changed, _ := k.AppendShared(&d, 0, make([]byte, dsm.PageSize), page[:n], snap); changed != (n > 0) || len(d.Data) != n {
			t.Errorf("page of %d bytes: changed %v, %d bytes of data", n, changed, len(d.Data))
		} else if changed {
			got := make([]byte, dsm.PageSize)
			k.Overlay(&d, 0, got)
			wantPage(t, "what was diffed", got, want)
			if n < dsm.PageSize {
				wantPage(t, "what it was diffed from", snap, want)
			}
		}
	}
}

// TestOverwriteShared puts ranges of every alignment in place and nothing else.
func TestOverwriteShared(t *testing.T) {
	rng := newRand(t)
	for range 2000 {
		lo := rng.IntN(dsm.PageSize)
		n := rng.IntN(min(dsm.PageSize-lo, 40) + 1)
		got, want, data := alignedPage(pageOf(1)), pageOf(1), pageOf(2)[:n]
		overwriteShared(got, lo, data)
		copy(want[lo:], data)
		wantPage(t, "page", got, want)
	}
	got := alignedPage(pageOf(1))
	overwriteShared(got, 0, pageOf(2))
	wantPage(t, "page", got, pageOf(2))
}

// TestMergeSharedUnderAtomics lets goroutines add while increments come in, where
// the race detector sees all of it.
func TestMergeSharedUnderAtomics(t *testing.T) {
	const adders, adds, element = 2, 20_000, 5
	for _, dt := range []dsm.DType{dsm.DTypeI32, dsm.DTypeI64, dsm.DTypeF32, dsm.DTypeF64} {
		k := mustKernel(t, dsm.MergeSum, dt, 0)
		size := dt.Size()
		mem := alignedPage(make([]byte, dsm.PageSize))
		var wg sync.WaitGroup
		var running atomic.Int32
		running.Store(adders)
		for a := range adders {
			wg.Go(func() {
				defer running.Add(-1)
				for i := range adds {
					addOne(dt, mem[(element+(i+a)%2)*size:])
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
				addOne(dt, incoming[e*size:])
			}
			k.MergeShared(0, base, mem, incoming)
			base = incoming
			merges++
			runtime.Gosched()
		}
		wg.Wait()
		for i, want := range []int{merges + adders*adds/2, merges + adders*adds/2, merges, 0} {
			if got := elementAt(dt, mem[(element+i)*size:]); got != want {
				t.Errorf("%v: element %d is %d, want %d after %d merges", dt, element+i, got, want, merges)
			}
		}
	}
}

// addOne adds 1 to the element at the start of b, atomically.
func addOne(dt dsm.DType, b []byte) {
	switch p := unsafe.Pointer(&b[0]); dt {
	case dsm.DTypeI32:
		atomic.AddInt32((*int32)(p), 1)
	case dsm.DTypeI64:
		atomic.AddInt64((*int64)(p), 1)
	case dsm.DTypeF32:
		for p := (*uint32)(p); ; {
			old := atomic.LoadUint32(p)
			if atomic.CompareAndSwapUint32(p, old, math.Float32bits(math.Float32frombits(old)+1)) {
				return
			}
		}
	case dsm.DTypeF64:
		for p := (*uint64)(p); ; {
			old := atomic.LoadUint64(p)
			if atomic.CompareAndSwapUint64(p, old, math.Float64bits(math.Float64frombits(old)+1)) {
				return
			}
		}
	}
}

// elementAt returns the whole number in the element at the start of b.
func elementAt(dt dsm.DType, b []byte) int {
	switch le := binary.LittleEndian; dt {
	case dsm.DTypeI32:
		return int(int32(le.Uint32(b)))
	case dsm.DTypeI64:
		return int(le.Uint64(b))
	case dsm.DTypeF32:
		return int(math.Float32frombits(le.Uint32(b)))
	default:
		return int(math.Float64frombits(le.Uint64(b)))
	}
}

// BenchmarkMergeShared merges with and without care for others that store to the
// page, into pages that are as the base or have a store in every block.
func BenchmarkMergeShared(b *testing.B) {
	for _, c := range benchCases {
		k := mustKernel(b, c.rule, c.dt, 0)
		base, incoming := benchPages(benchSet, c.dt, c.store)
		working := alignedPage(nil)
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
					perPage(b)
				})
			}
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	src := alignedPage(pageOf(1))
	dst := make([]byte, dsm.PageSize)
	for b.Loop() {
		Snapshot(dst, src)
	}
	perPage(b)
}

// randomIncrements adds 1 to some elements of page, from one to all, and to their totals.
func randomIncrements(rng *rand.Rand, dt dsm.DType, page []byte, first int, totals []int) {
	add := func(e int) {
		addOne(dt, page[e*dt.Size():])
		totals[e]++
	}
	if rng.IntN(3) == 0 {
		for e := first; e < len(totals); e++ {
			add(e)
		}
		return
	}
	for range 1 + rng.IntN(10) {
		add(first + rng.IntN(len(totals)-first))
	}
}
