package integration

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// The kernel drops pages of its cache by itself, here because programs say that they need them no
// more, and asks for them again while others have to leave: every read ends, with the right bytes.
func TestDemandKernelDropsPages(t *testing.T) {
	const size, threads, reads, piece = 64 * mib, 8, 400, 128 << 10
	c := harness.New(t, harness.Options{Single: true, Nodes: 2, Memory: "512M", Memories: []string{"32M"}, Flags: []string{"--fault-timeout", "10s"}})
	onDemand(t, c.Node(2), "w", size)
	number(t, c.Node(2).Attach("/w", true), 0)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for i := range threads {
		f, err := os.Open(filepath.Join(c.Node(1).Mount, "w"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }() // only read
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			b := make([]byte, piece)
			for k := range reads {
				off := rng.IntN(size/piece) * piece
				if _, err := f.ReadAt(b, int64(off)); err != nil {
					t.Error(err)
					return
				}
				for at := 0; at < piece; at += 4096 {
					if v := binary.LittleEndian.Uint64(b[at:]); v != uint64(off+at)/8 {
						t.Errorf("word %d is %d", (off+at)/8, v)
						return
					}
				}
				if i%2 == 0 && k%20 == 0 {
					if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}
