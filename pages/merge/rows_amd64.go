package merge

// The loops over adjacent elements of four bytes, 16 at a time. n is a multiple of 16, and not 0.

//go:noescape
func addRows(to, from *float32, n int)

//go:noescape
func addQuotients(to, from *float32, divisor float32, n int)

//go:noescape
func keepRows(to, from *uint32, n int, o *order[uint32])

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
