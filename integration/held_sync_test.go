package integration

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestSyncOnAHeldDescriptor: what one node has stored and synced, another finds after fsync or msync of a
// descriptor that it has had all the time, by pread and in its mapping; every time, also where the file has grown meanwhile.
func TestSyncOnAHeldDescriptor(t *testing.T) {
	c := nodes(t, 3)
	const rounds, mib, most = 500, 1 << 20, 5 << 20
	a, b := c.Node(2).Client(), c.Node(3).Client()
	from := a.Open("w", "rw,creat")
	size := int64(mib)
	from.Truncate(size)
	to := b.Open("w", "rw")
	stores, loads := from.Map(most), to.Map(most)
	word := make([]byte, 8)
	for i := range int64(rounds) {
		off := i * 4096 % size
		binary.LittleEndian.PutUint64(word, uint64(i+1))
		switch i % 4 {
		case 0:
			stores.Store(off, word)
			stores.Sync()
		case 1:
			from.Write(off, word)
			from.Sync()
		case 2:
			stores.Store(off, word)
			from.Sync()
		case 3:
			if size == most {
				from.Write(off, word)
			} else { // an append
				off, size = size, size+16<<10
				from.Write(off, bytes.Repeat(word, 16<<10/8))
			}
			from.Sync()
		}
		if i%2 == 0 {
			to.Sync()
		} else {
			loads.Sync()
		}
		if got := loads.Load(off, 8); !bytes.Equal(got, word) {
			t.Errorf("round %d: memory at %d has %x after a sync, want %x", i, off, got, word)
		}
		if got := to.Read(off, 8); !bytes.Equal(got, word) {
			t.Errorf("round %d: pread at %d gives %x after a sync, want %x", i, off, got, word)
		}
	}
}
