package pages

// prefetchLines asks the processor for n lines of 64 bytes from p on; n is even.
//
//go:noescape
func prefetchLines(p *byte, n int)

// prefetch gets the beginning of a page. With the whole page there are more requests than the
// processor has under way at once; it gets what follows by itself when the beginning is read.
func prefetch(page []byte) { prefetchLines(&page[0], 8) }
