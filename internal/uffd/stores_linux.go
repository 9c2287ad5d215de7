package uffd

// Run is a range of bytes of an area; both are multiples of the page size.
type Run struct{ Off, Len int64 }

// Stores is what a Scan found. The two lists may overlap. Callers reuse one value, so that scans
// allocate nothing.
type Stores struct {
	// Written are the pages that were stored to. They are armed again: a store made after the
	// caller has begun to read them is found by the next Scan.
	Written []Run
	// Suspect are pages of which nothing is known: the caller compares them.
	Suspect []Run
}

// Reset empties the lists, and keeps their memory for reuse.
func (s *Stores) Reset() { s.Written, s.Suspect = s.Written[:0], s.Suspect[:0] }

// extend appends a run, or lengthens the last one if they touch.
func extend(runs []Run, off, n int64) []Run {
	if k := len(runs) - 1; k >= 0 && runs[k].Off+runs[k].Len == off {
		runs[k].Len += n
		return runs
	}
	return append(runs, Run{off, n})
}

// pageSet is a set of pages of a range, by index.
type pageSet []uint64

func newPageSet(pages int64) pageSet { return make(pageSet, (pages+63)/64) }

func (s pageSet) add(page int64)      { s[page>>6] |= 1 << (page & 63) }
func (s pageSet) remove(page int64)   { s[page>>6] &^= 1 << (page & 63) }
func (s pageSet) has(page int64) bool { return s[page>>6]&(1<<(page&63)) != 0 }

func (s pageSet) addRun(from, to int64) {
	for p := from; p < to; p++ {
		s.add(p)
	}
}

func (s pageSet) removeRun(from, to int64) {
	for p := from; p < to; p++ {
		s.remove(p)
	}
}

// runs calls f with each run [from, to) of pages in the set with indexes below pages. f may remove
// these.
func (s pageSet) runs(pages int64, f func(from, to int64)) {
	for p := int64(0); p < pages; {
		if s[p>>6] == 0 {
			p = (p>>6 + 1) << 6
			continue
		}
		if !s.has(p) {
			p++
			continue
		}
		from := p
		for p < pages && s.has(p) {
			p++
		}
		f(from, p)
	}
}
