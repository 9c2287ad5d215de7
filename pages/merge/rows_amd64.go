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

//go:noescape
func subtractRows(base, working, out *float32, n int) (off bool)

// subtractFloats sets each element of out to that of working minus that of base. inexact reports whether adding one of them to base does not
// give working.
func subtractFloats(base, working, out []float32) (inexact bool) {
	working, out = working[:len(base)], out[:len(base)]
	n := len(base) &^ 15
	if n > 0 {
		inexact = subtractRows(&base[0], &working[0], &out[0], n)
	}
	for j := n; j < len(base); j++ {
		d := working[j] - base[j]
		out[j] = d
		inexact = inexact || bitsOf[uint32](base[j]+d) != bitsOf[uint32](working[j])
	}
	return inexact
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
