package coherence

import (
	"testing"
	"unsafe"

	"github.com/dsmfs/dsmfs/internal/invariants"
)

// TestSmallFilesAreSmall: what the data plane keeps of each file, however small, does not grow past a size class of Go's heap unnoticed. With
// thousands of files it is most of what a node takes.
func TestSmallFilesAreSmall(t *testing.T) {
	if invariants.Enabled {
		t.Skip("locks are larger in this build")
	}
	for _, x := range []struct {
		what       string
		size, most uintptr
	}{
		{"an area", unsafe.Sizeof(Area{}), 2048},
		{"an extent of a replica", unsafe.Sizeof(replicaExtent{}), 256},
		{"a subscriber", unsafe.Sizeof(subscriber{}), 208},
		{"an extent of a home, and the version of one page", unsafe.Sizeof(homeExtent{}) + 8, 112},
	} {
		t.Logf("%s takes %d bytes", x.what, x.size)
		if x.size > x.most {
			t.Errorf("%s takes %d bytes, want at most %d", x.what, x.size, x.most)
		}
	}
	for i, n := range map[int]int{0: 1, 1: 4, 255: 256} {
		x := newHomeExtent(0)
		x.grow(i)
		if len(x.pages) != n {
			t.Errorf("for page %d there is room for %d versions, want %d", i, len(x.pages), n)
		}
	}
}
