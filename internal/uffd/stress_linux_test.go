package uffd

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStress lets several processes with several threads store at random, some of
// which also drop their pages or have a part of their mapping moved, and scans at random. The model is a copy of the
// area into which only what a scan reported is copied, at once. Whenever the writers rest,
// one more scan must make it equal to the area.
func TestStress(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 2))
		const pages = 1536
		a := newArea(t, pages)
		copied := make([]byte, a.size)
		buf := make([]byte, a.size)
		type writer struct {
			*client
			*Range
			addr, length uint64
			tail         uint64 // where the last pages of the mapping are now
		}
		const tail = 64
		var writers []writer
		for i := range 3 {
			c := newClient(t, a.fd)
			// One maps a part.
			off := int64(i/2) * 100 * int64(pageSize)
			addr := c.mmap(a.size-off, off)
			writers = append(writers, writer{c, a.trackAt(c, mode, addr, a.size-off, off), addr, uint64(a.size-off) - tail*pageSize, addr + uint64(a.size-off) - tail*pageSize})
		}
		var s Stores
		found := 0
		take := func() {
			s.Reset()
			for _, w := range writers {
				if err := w.Scan(&s); err != nil {
					t.Fatal(err)
				}
				if err := w.Failure(); err != nil {
					t.Fatal(err)
				}
			}
			for _, runs := range [][]Run{s.Written, s.Suspect} {
				for _, r := range runs {
					found++
					if _, err := unix.Pread(a.fd, copied[r.Off:r.Off+r.Len], r.Off); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		rounds, scans := 8, 40
		if testing.Short() {
			rounds = 4
		}
		for round := range rounds {
			for _, w := range writers {
				w.do("spin", w.addr, w.length, 2, random.Uint64()>>1, random.IntN(2))
			}
			for range scans {
				take()
				for range random.IntN(50) {
					runtime.Gosched()
				}
				if w := &writers[random.IntN(len(writers))]; random.IntN(8) == 0 {
					w.store(w.tail+random.Uint64N(tail)*pageSize, random.Uint64()>>1)
					to := w.do("mmap", tail*pageSize, 0, unix.PROT_NONE, unix.MAP_SHARED)
					w.client.begin("mremap", w.tail, tail*pageSize, tail*pageSize, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to)
					take() // while it moves
					if at, _, errno := w.answer(); at != to {
						t.Fatal("mremap: ", errno)
					}
					w.tail = to
					w.store(w.tail+random.Uint64N(tail)*pageSize, random.Uint64()>>1)
				}
				if w := writers[random.IntN(len(writers))]; random.IntN(40) == 0 {
					if err := w.Disarm(); err != nil {
						t.Fatal(err)
					}
					take()
					if err := w.Arm(); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, w := range writers {
				w.do("rest")
			}
			take()
			if _, err := unix.Pread(a.fd, buf, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(buf, copied) {
				t.Fatalf("seed %d, round %d: not found: %s", seed, round, differing(buf, copied))
			}
			if take(); len(s.Written)+len(s.Suspect) > 0 {
				t.Fatalf("seed %d, round %d: found in rest: %s %s", seed, round, text(s.Written), text(s.Suspect))
			}
		}
		t.Logf("%d runs found", found)
	})
}

// differing lists the pages that differ.
func differing(x, y []byte) string {
	list := ""
	for p := 0; p < len(x); p += int(pageSize) {
		if !bytes.Equal(x[p:p+int(pageSize)], y[p:p+int(pageSize)]) {
			list += fmt.Sprint(" ", p/int(pageSize))
		}
	}
	return list
}
