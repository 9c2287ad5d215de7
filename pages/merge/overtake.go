package merge

import (
	"bytes"
	"slices"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// Overtake gives the elements of d that later has too, and of which the last value stays, the values that they have in later: so it
// does not matter which of the two is applied last. d is of kernel k, later of kernel l. If anything changes d gets a Data of its own,
// and Overtake reports true.
func (k Kernel) Overtake(d *Delta, l Kernel, later *Delta) (changed bool) {
	last := func(s section) bool { return s.op == opLast }
	var buf few
	for i := range d.Pages.And(later.Pages).All() {
		secs := k.sections(d.page(i), buf[:0])
		if !slices.ContainsFunc(secs, last) {
			continue
		}
		var page [dsm.PageSize]byte
		k.Overlay(d, i, page[:])
		l.Overlay(later, i, page[:])
		at := d.at[rank(&d.Pages, i)]
		index, data := d.Index[at.index:], at.data
		for _, s := range secs {
			var m mask
			used, count := m.decode(index, s)
			n := count * s.unit
			if last(s) {
				now := page
				gatherUnits(&m, s.unit, now[:])
				if !bytes.Equal(now[:n], d.Data[data:][:n]) {
					if !changed {
						d.Data = bytes.Clone(d.Data)
					}
					changed = true
					copy(d.Data[data:], now[:n])
				}
			}
			index, data = index[used:], data+n
		}
	}
	return changed
}
