package merge

import (
	"math/bits"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// Delta is the changed elements of one extent, as AppendDelta finds them at a replica and Apply
// merges them at the home. Extent, Pages, Index and Data are sent over the network. A Delta that
// was received, or whose fields were set in any other way, must not be used before Validate has
// accepted it.
//
// The zero Delta is that of extent 0 without changes. Copies share the buffers.
type Delta struct {
	Extent dsm.ExtentIndex
	Pages  dsm.PageSet // pages with changed elements
	Index  []byte      // which elements, page after page; see index.go
	Data   []byte      // the elements' values (last, min, max) or differences (sum, mean), in order

	NotFinite      int   // elements that AppendDelta found and that are no finite numbers
	FirstNotFinite int64 // where the first one is, as an offset in the area

	at []pageAt // where each page of Pages begins, in order
}

// pageAt is where a page begins in Index and Data.
type pageAt struct{ index, data int }

// Reset empties d for reuse with extent e. It keeps the buffers, so the Index and Data that d had
// must not be in use any more.
func (d *Delta) Reset(e dsm.ExtentIndex) {
	*d = Delta{Extent: e, Index: d.Index[:0], Data: d.Data[:0], at: d.at[:0]}
}

// Grow makes room for this many more pages with few changes each.
func (d *Delta) Grow(pages int) {
	const few = 8 // a tag and a run
	d.Index = slices.Grow(d.Index, pages*few)
	d.at = slices.Grow(d.at, pages)
}

// Size returns the bytes of the index and the data.
func (d *Delta) Size() int { return len(d.Index) + len(d.Data) }

// Validate checks a delta that came from elsewhere against the kernel that will apply it: every
// page has a well-formed index, the elements lie within their page, and the data is exactly as long
// as the index says. The error is of kind errs.Corrupt. It does not check against the size of the
// area.
func (d *Delta) Validate(k Kernel) error {
	d.at = slices.Grow(d.at[:0], d.Pages.Len())
	index, data := 0, 0
	for i := range d.Pages.All() {
		d.at = append(d.at, pageAt{index, data})
		var buf few
		changed := false
		for _, s := range k.sections(d.page(i), buf[:0]) {
			used, count, err := checkIndex(d.Index[index:], s)
			if err != nil {
				return &errs.Error{Op: "validate delta", Kind: errs.Corrupt, Err: err}
			}
			changed = changed || count > 0
			index += used
			data += count * s.unit
		}
		if !changed {
			return errs.E(errs.Corrupt, "validate delta", "page %d has no changed element", i)
		}
	}
	if index != len(d.Index) || data != len(d.Data) {
		return errs.E(errs.Corrupt, "validate delta", "index of %d bytes and data of %d bytes: want %d and %d",
			len(d.Index), len(d.Data), index, data)
	}
	return nil
}

// page returns the index in the area of page i of the extent.
func (d *Delta) page(i int) dsm.PageIndex {
	return dsm.PageIndex(d.Extent)*dsm.ExtentPages + dsm.PageIndex(i)
}

// growData makes room for n more bytes of Data and returns it.
func (d *Delta) growData(n int) []byte {
	at := len(d.Data)
	d.Data = slices.Grow(d.Data, n)[:at+n]
	return d.Data[at:]
}

// hasFrom reports whether d has a page at or after i.
func (d *Delta) hasFrom(i int) bool {
	from := dsm.Range(i, dsm.ExtentPages).And(d.Pages)
	return !from.Empty()
}

// rank returns how many pages of s are before page i.
func rank(s *dsm.PageSet, i int) int {
	n := bits.OnesCount64(s[i/64] & (1<<(i%64) - 1))
	for _, w := range s[:i/64] {
		n += bits.OnesCount64(w)
	}
	return n
}
