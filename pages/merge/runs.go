package merge

// Run is a range of bytes of an area.
type Run struct {
	Off, Len int64
}

// Runs is a list of ranges of bytes, disjoint and in increasing order.
type Runs []Run

// Add appends a range that begins at or after the end of the last one. Ranges that touch are
// joined.
func (r *Runs) Add(off, n int64) {
	if s := *r; len(s) > 0 && s[len(s)-1].Off+s[len(s)-1].Len == off {
		s[len(s)-1].Len += n
		return
	}
	*r = append(*r, Run{off, n})
}
