//go:build !amd64

package merge

// diffBlock1 is diffBlock for bytes.
func diffBlock1(units []uint64, base, working, snap []byte) {
	diffBlock[uint8](units, words(base), words(working), words(snap))
}

// diffBlock4 is diffBlock for units of four bytes.
func diffBlock4(units []uint64, base, working, snap []byte) {
	diffBlock[uint32](units, words(base), words(working), words(snap))
}
