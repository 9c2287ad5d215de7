package merge

// The loops over adjacent elements of four bytes, 16 at a time, or of eight bytes, 8 at a time. n is a multiple of that, and not 0.

//go:noescape
func addRows(to, from *float32, n int)

//go:noescape
func addQuotients(to, from *float32, divisor float32, n int)

//go:noescape
func keepRows(to, from *uint32, n int, o *order[uint32])

//go:noescape
func carryRows(p *uint64, n int, keep, add uint64) uint64

// carries returns all bits that any of w has once it is masked with keep and add is added.
func carries(w []uint64, keep, add uint64) (bits uint64) {
	n := len(w) &^ 7
	if n > 0 {
		bits = carryRows(&w[0], n, keep, add)
	}
	for _, x := range w[n:] {
		bits |= x&keep + add
	}
	return bits
}

// addFloats adds each element of from to that of to.
func addFloats(to, from []float32) {
	from = from[:len(to)]
	n := len(to) &^ 15
	if n > 0 {
		addRows(&to[0], &from[0], n)
	}
	for j := n; j < len(to); j++ {
		to[j] += from[j]
	}
}

// addMeans adds each element of from, divided, to that of to.
func addMeans(to, from []float32, divisor float32) {
	from = from[:len(to)]
	n := len(to) &^ 15
	if n > 0 {
		addQuotients(&to[0], &from[0], divisor, n)
	}
	for j := n; j < len(to); j++ {
		to[j] += from[j] / divisor
	}
}

// keepBetter keeps the better one of each element of to and from in to.
func keepBetter(o order[uint32], to, from []uint32) {
	from = from[:len(to)]
	n := len(to) &^ 15
	if n > 0 {
		keepRows(&to[0], &from[0], n, &o)
	}
	for j := n; j < len(to); j++ {
		to[j] = o.better(to[j], from[j])
	}
}
