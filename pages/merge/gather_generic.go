//go:build !amd64

package merge

// gatherBytes moves the bytes of m together at the start of page, which is a whole page.
func gatherBytes(m *mask, page []byte) { gatherOctets(m, page) }

// scatterWords is scatterBytes for words of a mask, as long as 64 bytes of data are left. It
// returns how many words it did and how much data that took.
func scatterWords(m []uint64, page, data []byte) (done, used int) {
	return scatterOctets(m, page, data)
}
