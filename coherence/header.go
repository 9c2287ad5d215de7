package coherence

import (
	"context"
	"hash/maphash"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// header is what an area knows of the header of its file.
type header struct {
	sum uint64 // hash of the one that was read last, which told no layout
	err error  // why not; nil if there is none
}

var headerSeed = maphash.MakeSeed()

// detectLayout looks for a header of a .npy or .safetensors file in an area whose types are not known. If there is one, it
// records the layout in the catalog, for all nodes.
func (a *Area) detectLayout(ctx context.Context) error {
	var head []byte
	var size int64
	var known header
	a.step(func() {
		if a.mu.ino.Spec.DType == dsm.DTypeAuto && a.mu.ino.Layout == (dsm.Layout{}) {
			head, size, known = a.headLocked(), a.mu.ino.Size, a.mu.header
		}
	})
	if head == nil {
		return nil
	}
	sum := maphash.Bytes(headerSeed, head)
	if sum == known.sum {
		return nil
	}
	l, found := npyLayout(head, size)
	var why error
	if !found {
		if l, why = safetensorsLayout(head); why != nil {
			a.node.cfg.Log.Info("the types of a file's elements are not known", "area", a.id, "err", why)
		}
	}
	if l == (dsm.Layout{}) {
		a.note(func() { a.mu.header = header{sum, why} })
		return nil
	}
	return a.node.cfg.View.SetLayout(ctx, a.id, l)
}

// headLocked returns a copy of the area's header; nil if it has none, or not all of it is here.
func (a *Area) headLocked() []byte {
	if a.mu.replica.n == 0 || !a.extentLocked(0).have.Has(0) {
		return nil
	}
	first := a.bytesOfLocked(0)
	n := min(headerSize(first), a.mu.ino.Size)
	head := make([]byte, 0, n)
	for int64(len(head)) < n {
		p := dsm.PageIndex(len(head) / dsm.PageSize)
		if e, i := p.Extent(); !a.extentLocked(e).have.Has(i) {
			return nil
		}
		b := a.bytesOfLocked(p)
		head = append(head, b[:min(int64(len(b)), n-int64(len(head)))]...)
	}
	if int64(len(head)) < headerSize(first) {
		return nil
	}
	return head
}

// headerSize returns how many bytes the header of a file has that begins with these; 0 if it has none.
func headerSize(first []byte) int64 {
	if isNpy(first) {
		return int64(len(first))
	}
	return safetensorsSize(first)
}
