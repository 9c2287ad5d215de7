package merge

// diffUnits1 and diffUnits4 are diffBlock for units of one and of four bytes, the most common ones.
// n counts words of the mask, of 64 units each. Each 8 aligned bytes of working are read once.

//go:noescape
func diffUnits1(units *uint64, base, working, snap *byte, n int)

//go:noescape
func diffUnits4(units *uint64, base, working, snap *byte, n int)

// diffBlock1 is diffBlock for bytes.
func diffBlock1(units []uint64, base, working, snap []byte) {
	_, _, _, _ = units[blockSize/64-1], base[blockSize-1], working[blockSize-1], snap[blockSize-1]
	diffUnits1(&units[0], &base[0], &working[0], &snap[0], blockSize/64)
}

// diffBlock4 is diffBlock for units of four bytes.
func diffBlock4(units []uint64, base, working, snap []byte) {
	_, _, _, _ = units[blockSize/256-1], base[blockSize-1], working[blockSize-1], snap[blockSize-1]
	diffUnits4(&units[0], &base[0], &working[0], &snap[0], blockSize/256)
}
