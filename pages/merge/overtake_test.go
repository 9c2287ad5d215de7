package merge

import (
	"bytes"
	"slices"
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// TestOvertake: what a later delta has of elements of which the last value stays is there whichever of the two is applied last. Sums are added, and
// the better value stays, in any order.
func TestOvertake(t *testing.T) {
	rng := pagetest.Rand(t)
	for range pagetest.Rounds(3) {
		for _, c := range kernelCases(t) {
			k := naive{c}
			var home, parts, news [4][]byte
			for i := range home {
				home[i] = make([]byte, dsm.PageSize)
				k.fillPage(rng, home[i])
				parts[i] = change(rng, home[i])
				news[i] = change(rng, parts[i])
			}
			part, later := deltaOf(c.Kernel, home, parts, 0, 3), deltaOf(c.Kernel, parts, news, 1, 4)
			alias, sent := part.Data, bytes.Clone(part.Data)
			changed := c.Overtake(part, c.Kernel, later)
			if !bytes.Equal(alias, sent) {
				t.Fatalf("%v: what may be on its way has changed", c)
			}
			if changed == bytes.Equal(sent, part.Data) {
				t.Fatalf("%v: changed %v", c, changed)
			}
			if err := part.Validate(c.Kernel); err != nil {
				t.Fatalf("%v: %v", c, err)
			}
			if c.Overtake(part, c.Kernel, later) {
				t.Fatalf("%v: the second time something changes", c)
			}
			for i := range home {
				p := page(0, i)
				first, last := slices.Clone(home[i]), slices.Clone(home[i])
				c.Overlay(part, i, first)
				c.Overlay(later, i, first)
				c.Overlay(later, i, last)
				c.Overlay(part, i, last)
				k.elements(p, func(from, to int, rule dsm.MergeRule) {
					if rule == dsm.MergeLast && !bytes.Equal(first[from:to], last[from:to]) {
						t.Fatalf("%v: page %d has %x at %d if the part comes first, else %x", c, i, first[from:to], from, last[from:to])
					}
				})
			}
		}
	}
}

// deltaOf is what has changed in the pages [from, to).
func deltaOf(k Kernel, base, working [4][]byte, from, to int) *Delta {
	d := new(Delta)
	for i := from; i < to; i++ {
		k.AppendDelta(d, page(0, i), base[i], working[i])
	}
	return d
}
