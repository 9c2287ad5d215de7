package pages

import (
	"math"
	"math/bits"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// half is the arithmetic of 16-bit floats: computed in float32 and rounded to
// nearest even. float32 has more than twice the digits of both types, so one sum or
// difference is rounded as if it had been rounded once.
type half struct {
	bfloat bool // bf16, else IEEE f16
}

func (k Kernel) half() half { return half{k.dtype == dsm.DTypeBF16} }

func (h half) float(x uint16) float32 {
	if h.bfloat {
		return math.Float32frombits(uint32(x) << 16)
	}
	return f16ToFloat(x)
}

func (h half) round(f float32) uint16 {
	if h.bfloat {
		return roundBF16(f)
	}
	return roundF16(f)
}

func (h half) plus(a, b uint16) uint16  { return h.round(h.float(a) + h.float(b)) }
func (h half) minus(a, b uint16) uint16 { return h.round(h.float(a) - h.float(b)) }

// subtract is Kernel.subtract for 16-bit floats.
func (h half) subtract(m *mask, base, working, out []uint16) (inexact bool) {
	n := 0
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			j := i*64 + bits.TrailingZeros64(w)
			d := h.minus(working[j], base[j])
			out[n] = d
			inexact = inexact || h.plus(base[j], d) != working[j]
			n++
		}
	}
	return inexact
}

// add is Kernel.add for 16-bit floats.
func (h half) add(m *mask, page, data []uint16) {
	n := 0
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			j := i*64 + bits.TrailingZeros64(w)
			page[j] = h.plus(page[j], data[n])
			n++
		}
	}
}

// merge is the three-way merge of 16-bit floats.
func (h half) merge(base, working, incoming []uint16) {
	base, incoming = base[:len(working)], incoming[:len(working)]
	for i, b := range base {
		switch b {
		case working[i]:
			working[i] = incoming[i]
		case incoming[i]:
		default:
			// The difference stays in float32: rounding once is better than twice.
			d := h.float(working[i]) - h.float(b)
			working[i] = h.round(h.float(incoming[i]) + d)
		}
	}
}

// f16ToFloat widens an IEEE half. The exponent is rebased by a multiplication
// with 2^112, which is exact and turns subnormals into normal numbers as well.
func f16ToFloat(x uint16) float32 {
	sign, rest := uint32(x&0x8000)<<16, uint32(x&0x7fff)
	if rest >= 0x7c00 {
		return math.Float32frombits(sign | 0x7f800000 | rest&0x3ff<<13)
	}
	f := float32(math.Float32frombits(rest<<13) * 0x1p112)
	return math.Float32frombits(sign | math.Float32bits(f))
}

// roundF16 rounds to the nearest IEEE half, ties to even; NaN becomes quiet.
func roundF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign, a := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case a > 0x7f800000:
		return sign | 0x7e00 | uint16(a>>13&0x3ff)
	case a >= 0x477ff000: // 65520, halfway from the largest half to the next
		return sign | 0x7c00
	case a < 0x38800000: // 2^-14: subnormal. Adding 0.5 aligns the digits, and rounds.
		return sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-0x3f000000)
	}
	a += 0xfff + a>>13&1 // round to even at bit 13
	return sign | uint16((a-112<<23)>>13)
}

// roundBF16 rounds to the nearest bf16, ties to even; NaN becomes quiet.
func roundBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
