//go:build !amd64

package merge

// gatherBytes moves the bytes of m together at the start of page, a whole one.
func gatherBytes(m *mask, page []byte) { gatherOctets(m, page) }

// scatterWords is scatterBytes for words of a mask, as long as 64 bytes of data are left:
// it returns how many of the words are done and how much of data they are.
func scatterWords(m []uint64, page, data []byte) (done, used int) {
	return scatterOctets(m, page, data)
}
