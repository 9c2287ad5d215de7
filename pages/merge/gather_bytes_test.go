package merge

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// cliff returns n bytes in front of memory that cannot be touched.
func cliff(t *testing.T, n int) []byte {
	t.Helper()
	size := (n + dsm.PageSize - 1) &^ (dsm.PageSize - 1)
	b, err := unix.Mmap(-1, 0, size+dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mprotect(b[size:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return b[size-n : size : size]
}

// randomMask returns a mask with words of nothing, of all, of runs, and of units that are
// in it with the same chance, and how many units it has.
func randomMask(rng *rand.Rand) (m mask, units int) {
	share := rng.Uint32() >> rng.IntN(33) // of 2^32
	for i := range m {
		switch rng.IntN(8) {
		case 0:
		case 1:
			m[i] = ^uint64(0)
		case 2:
			lo := rng.IntN(64)
			m[i] = span(lo, lo+1+rng.IntN(64-lo))
		default:
			for j := range 64 {
				if rng.Uint32() <= share {
					m[i] |= 1 << j
				}
			}
		}
		units += bits.OnesCount64(m[i])
	}
	return m, units
}

func fillRandom(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// somewhere returns where a page is in one and 64 bytes: at its end as often as anywhere.
func somewhere(rng *rand.Rand) (at, end int) {
	at = 64
	if rng.IntN(2) == 0 {
		at = rng.IntN(64)
	}
	return at, at + dsm.PageSize
}

// TestGatherBytes compares both ways of gathering with the definition, at every
// alignment: within the page, and with its end where memory ends.
func TestGatherBytes(t *testing.T) {
	rng := pagetest.Rand(t)
	buf := cliff(t, dsm.PageSize+64)
	was := make([]byte, len(buf))
	for range pagetest.Rounds(4000) {
		m, _ := randomMask(rng)
		for name, gather := range map[string]func(*mask, []byte){"processor": gatherBytes, "any": gatherOctets} {
			fillRandom(rng, buf)
			copy(was, buf)
			at, end := somewhere(rng)
			var want []byte
			for i, b := range was[at:end] {
				if m[i/64]>>(i%64)&1 != 0 {
					want = append(want, b)
				}
			}
			gather(&m, buf[at:end:end])
			if !bytes.HasPrefix(buf[at:end], want) {
				t.Fatalf("%s: the bytes of %x are not in front", name, m)
			}
			if !bytes.Equal(buf[:at], was[:at]) || !bytes.Equal(buf[end:], was[end:]) {
				t.Fatalf("%s: gathering %x at %d wrote outside of the page", name, m, at)
			}
		}
	}
}

// TestScatterBytes is TestGatherBytes for scattering: data ends where memory ends, with
// the bytes of the mask or some time after them.
func TestScatterBytes(t *testing.T) {
	rng := pagetest.Rand(t)
	buf, all := cliff(t, dsm.PageSize+64), cliff(t, 2*dsm.PageSize)
	was, other := make([]byte, len(buf)), make([]byte, len(buf))
	fillRandom(rng, all)
	for range pagetest.Rounds(4000) {
		m, units := randomMask(rng)
		data := all[len(all)-units-rng.IntN(3)*rng.IntN(100):]
		fillRandom(rng, buf)
		copy(was, buf)
		copy(other, buf)
		at, end := somewhere(rng)
		want := bytes.Clone(was)
		n := 0
		for i := range dsm.PageSize {
			if m[i/64]>>(i%64)&1 != 0 {
				want[at+i] = data[n]
				n++
			}
		}
		scatterBytes(&m, buf[at:end:end], data)
		if !bytes.Equal(buf, want) {
			t.Fatalf("wrong result of %d bytes of data for %x at %d", len(data), m, at)
		}

		copy(buf, was)
		done, used := scatterWords(m[:], buf[at:end:end], data)
		otherDone, otherUsed := scatterOctets(m[:], other[at:end:end], data)
		if done != otherDone || used != otherUsed || !bytes.Equal(buf, other) {
			t.Fatalf("%d bytes of data for %x: the processor's way does %d words with %d bytes, the other %d with %d",
				len(data), m, done, used, otherDone, otherUsed)
		}
		want = append(append(want[:at:at], want[at:at+done*64]...), was[at+done*64:]...)
		if !bytes.Equal(buf, want) || done < len(m) && len(data)-used >= 64 {
			t.Fatalf("%d bytes of data for %x: %d words with %d bytes are not done, or not all", len(data), m, done, used)
		}
	}
}
