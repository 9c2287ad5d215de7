package merge

import (
	"golang.org/x/sys/cpu"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// shuffles reports whether the processor can move bytes by a table, which every one since 2011 can.
// BMI2 has an instruction that needs no table, but it is never faster, and takes hundreds of cycles
// on the first two generations of Zen.
var shuffles = cpu.X86.HasSSSE3 && cpu.X86.HasSSE41 && cpu.X86.HasPOPCNT

// gatherTable and scatterTable say, for each mask of eight bytes, where each byte of the result
// comes from. When scattering, a byte whose entry has the highest bit set stays as it is.
var gatherTable, scatterTable = func() (gather, scatter [256][8]byte) {
	for set := range gather {
		n := 0
		for i := range 8 {
			if set>>i&1 == 0 {
				scatter[set][i] = 0x80
				continue
			}
			gather[set][n], scatter[set][i] = byte(i), byte(n)
			n++
		}
	}
	return gather, scatter
}()

// gatherShuffle is gatherBytes by PSHUFB.
//
//go:noescape
func gatherShuffle(m *mask, page *byte, table *[256][8]byte)

// scatterShuffle is scatterWords by PSHUFB for n > 0 words and size bytes of data.
//
//go:noescape
func scatterShuffle(m *uint64, n int, page, data *byte, size int, table *[256][8]byte) (done, used int)

// gatherBytes moves the bytes of m together at the start of page, which is a whole page.
func gatherBytes(m *mask, page []byte) {
	if !shuffles {
		gatherOctets(m, page)
		return
	}
	_ = page[dsm.PageSize-1]
	gatherShuffle(m, &page[0], &gatherTable)
}

// scatterWords is scatterBytes for words of a mask, as long as 64 bytes of data are left. It
// returns how many words it did and how much data that took.
func scatterWords(m []uint64, page, data []byte) (done, used int) {
	if !shuffles {
		return scatterOctets(m, page, data)
	}
	if len(data) < 64 {
		return 0, 0
	}
	_ = page[len(m)*64-1]
	return scatterShuffle(&m[0], len(m), &page[0], &data[0], len(data), &scatterTable)
}
