package merge

import (
	"encoding/binary"
	"math/bits"
)

// Bytes are gathered and scattered eight at a time without a branch for each, because the processor
// cannot predict which of the eight are in the mask. A processor that moves the bytes of a register
// by a table does it in one instruction. This file does it on all others, by the compress and
// expand of Hacker's Delight (Warren, section 7-4): a byte that must move by n bytes moves by 1, 2
// and 4 of them, according to the bits of n, all eight bytes of a word at once.

// octet says how to move the bytes of a word that are in a mask to the lowest bytes of the word,
// and back.
type octet struct {
	own            uint64 // the bytes of the mask
	one, two, four uint64 // the bytes that move by this many, where they are at that step
}

// octets is the octet of each mask of eight bytes.
var octets = func() (o [256]octet) {
	for set := range o {
		n := 0 // bytes of the mask so far
		for i := range 8 {
			if set>>i&1 == 0 {
				continue
			}
			o[set].own |= 0xff << (8 * i)
			at, by := i, i-n
			for j, step := range []*uint64{&o[set].one, &o[set].two, &o[set].four} {
				if by>>j&1 != 0 {
					*step |= 0xff << (8 * at)
					at -= 1 << j
				}
			}
			n++
		}
	}
	return o
}()

// compress moves the bytes of x that are in the mask to the lowest bytes; the others become zero.
func (o *octet) compress(x uint64) uint64 {
	x &= o.own
	t := x & o.one
	x ^= t ^ t>>8
	t = x & o.two
	x ^= t ^ t>>16
	t = x & o.four
	return x ^ t ^ t>>32
}

// expand is the inverse of compress: it returns to, with the bytes of the mask replaced by the
// lowest bytes of x.
func (o *octet) expand(to, x uint64) uint64 {
	x ^= (x ^ x<<32) & o.four
	x ^= (x ^ x<<16) & o.two
	x ^= (x ^ x<<8) & o.one
	return to ^ (to^x)&o.own
}

// gatherOctets is gatherBytes on any processor.
func gatherOctets(m *mask, page []byte) {
	n := 0
	for i, w := range m {
		if w == 0 {
			continue
		}
		from := page[i*64 : i*64+64]
		if w == ^uint64(0) {
			n += copy(page[n:], from)
			continue
		}
		for ; len(from) >= 8; w >>= 8 {
			set := uint8(w)
			if x := binary.LittleEndian.Uint64(from); set == 0xff {
				binary.LittleEndian.PutUint64(page[n:], x)
			} else if set != 0 {
				binary.LittleEndian.PutUint64(page[n:], octets[set].compress(x))
			}
			n += bits.OnesCount8(set)
			from = from[8:]
		}
	}
}

// scatterBytes copies data, one byte after the other, to the bytes of m in page. data may be
// longer.
func scatterBytes(m *mask, page, data []byte) {
	done, used := scatterWords(m[:], page, data)
	if done == len(m) {
		return
	}
	// What is left of data is shorter than a read.
	var rest [2 * 64]byte
	copy(rest[:], data[used:])
	scatterWords(m[done:], page[done*64:], rest[:])
}

// scatterOctets is scatterWords on any processor.
func scatterOctets(m []uint64, page, data []byte) (done, used int) {
	for i, w := range m {
		if len(data)-used < 64 {
			return i, used
		}
		if w == 0 {
			continue
		}
		to := page[i*64 : i*64+64]
		if w == ^uint64(0) {
			used += copy(to, data[used:])
			continue
		}
		for ; len(to) >= 8; w >>= 8 {
			set := uint8(w)
			if x := binary.LittleEndian.Uint64(data[used:]); set == 0xff {
				binary.LittleEndian.PutUint64(to, x)
			} else if set != 0 {
				binary.LittleEndian.PutUint64(to, octets[set].expand(binary.LittleEndian.Uint64(to), x))
			}
			used += bits.OnesCount8(set)
			to = to[8:]
		}
	}
	return len(m), used
}
