//go:build !amd64

package merge

// carries returns all bits that any of w has once it is masked with keep and add is added.
func carries(w []uint64, keep, add uint64) (bits uint64) {
	for _, x := range w {
		bits |= x&keep + add
	}
	return bits
}

// subtractFloats sets each element of out to that of working minus that of base. inexact reports whether adding one of them to base does not
// give working.
func subtractFloats(base, working, out []float32) (inexact bool) {
	working, out = working[:len(base)], out[:len(base)]
	for j := range base {
		d := working[j] - base[j]
		out[j] = d
		inexact = inexact || bitsOf[uint32](base[j]+d) != bitsOf[uint32](working[j])
	}
	return inexact
}

// addFloats adds each element of from to that of to.
func addFloats(to, from []float32) {
	from = from[:len(to)]
	for j := range to {
		to[j] += from[j]
	}
}

// addMeans adds each element of from, divided, to that of to.
func addMeans(to, from []float32, divisor float32) {
	from = from[:len(to)]
	for j := range to {
		to[j] += from[j] / divisor
	}
}

// keepBetter keeps the better one of each element of to and from in to.
func keepBetter(o order[uint32], to, from []uint32) {
	from = from[:len(to)]
	for j := range to {
		to[j] = o.better(to[j], from[j])
	}
}
