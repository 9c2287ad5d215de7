package pages

// prefetchLines asks the processor for n lines of 64 bytes from p on; n is even.
//
//go:noescape
func prefetchLines(p *byte, n int)

// prefetch loads the beginning of a page into the processor's caches. A whole page would be more
// requests than the processor has under way at once, and when the beginning is read it loads what
// follows by itself.
func prefetch(page []byte) { prefetchLines(&page[0], 8) }
