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

// Coalesce joins ranges that are at most gap bytes apart. Joined ranges cover bytes that did not
// change. Storing these into a page to which a program may have stored would lose the program's
// stores, so use it for clean pages only.
func (r *Runs) Coalesce(gap int64) {
	s := *r
	if len(s) == 0 {
		return
	}
	last := 0
	for _, x := range s[1:] {
		if end := s[last].Off + s[last].Len; x.Off-end <= gap {
			s[last].Len = x.Off + x.Len - s[last].Off
			continue
		}
		last++
		s[last] = x
	}
	*r = s[:last+1]
}
