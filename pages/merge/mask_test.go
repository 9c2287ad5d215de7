package merge

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestDiffBlocks compares what is in assembly with what it stands for: blocks of which
// nothing, a little, nearly all and all differs, at every alignment to 8 bytes.
func TestDiffBlocks(t *testing.T) {
	rng := pagetest.Rand(t)
	for _, c := range []struct {
		unit         int
		fast, simple func(units []uint64, base, working, snap []byte)
	}{
		{1, diffBlock1, func(u []uint64, b, w, s []byte) { diffBlock[uint8](u, words(b), words(w), words(s)) }},
		{4, diffBlock4, func(u []uint64, b, w, s []byte) { diffBlock[uint32](u, words(b), words(w), words(s)) }},
	} {
		t.Run(fmt.Sprint(c.unit), func(t *testing.T) {
			base, working := make([]byte, blockSize+64), make([]byte, blockSize+64)
			for range pagetest.Rounds(20000) {
				equal := rng.Uint32() >> (rng.IntN(33)) // of 2^32: the share of equal units
				for i := range working {
					base[i], working[i] = byte(rng.Uint32()), byte(rng.Uint32())
				}
				at := 8 * rng.IntN(8)
				b, w := base[at:at+blockSize], working[at:at+blockSize]
				for i := 0; i < blockSize; i += c.unit {
					if rng.Uint32() <= equal {
						copy(w[i:i+c.unit], b[i:])
					}
				}
				var got, want [blockSize/64 + 2]uint64
				got[len(got)-1], got[len(got)-2] = 7, 7
				want[len(want)-1], want[len(want)-2] = 7, 7
				snap, other := make([]byte, blockSize), make([]byte, blockSize)
				n := blockSize / 64 / c.unit
				c.fast(got[:n:n], b, w, snap)
				c.simple(want[:n:n], b, w, other)
				if got != want {
					t.Fatalf("units %x, want %x, of\n%x\n%x", got, want, b, w)
				}
				if !bytes.Equal(snap, w) || !bytes.Equal(other, w) {
					t.Fatal("what was compared is not what was left")
				}
			}
		})
	}
}
