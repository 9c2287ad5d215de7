package dsm

const (
	// PageSize is the unit of dirty tracking and coherence, in bytes.
	PageSize = 4096
	// ExtentPages is the number of pages of an extent.
	ExtentPages = 256
	// ExtentSize is how many bytes an extent has, which has one home.
	ExtentSize = ExtentPages * PageSize
	// Slots is the number of buckets that (area, extent) hashes to: see Class.
	Slots = 512
	// MaxAreaSize bounds the size of one area, in bytes.
	MaxAreaSize = 1 << 42
	// FileCost is what a node keeps of a file besides its pages, however small, while its programs have it open, in bytes: about 6 KiB in Go's
	// heap, and what of that is garbage before Go collects it. It includes the copy of the inode that every member has. The catalog
	// reserves it, and the data plane counts it.
	FileCost = 10 << 10
)

// PageIndex numbers the pages of an area from 0.
type PageIndex uint64

// ExtentIndex numbers the extents of an area from 0.
type ExtentIndex uint32

// Slot is the bucket of an extent; the view maps it to its home.
type Slot uint16

// ExtentOf returns the extent of the byte at off.
func ExtentOf(off int64) ExtentIndex { return ExtentIndex(off / ExtentSize) }

// Extents returns how many extents an area of size bytes has.
func Extents(size int64) int { return int((size + ExtentSize - 1) / ExtentSize) }

// Extent returns the extent of page p, and p's place in it.
func (p PageIndex) Extent() (ExtentIndex, int) {
	return ExtentIndex(p / ExtentPages), int(p % ExtentPages)
}
