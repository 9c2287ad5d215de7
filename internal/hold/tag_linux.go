package hold

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	tagSize = 32
	// framesPiece is how many bytes of frames are mapped at once. A process has no more than 65,530 mappings (vm.max_map_count), and all frames are
	// 4096 pieces.
	framesPiece = 64 << 20
)

// MaxFrames is how many frames there are.
const MaxFrames = 1 << 26

// Tag says what a frame has.
type Tag struct {
	// Kind is what package pages makes of it, 0 if the frame is not used. It is set last and cleared first.
	Kind *atomic.Uint64
	// ID is the area's. Arg and More depend on the kind.
	ID, Arg, More *atomic.Uint64
}

// Tag returns the tag of frame i.
func (m *Memory) Tag(i int) Tag {
	at := func(k int) *atomic.Uint64 { return word(m.tags, i*tagSize/8+k) }
	return Tag{Kind: at(0), ID: at(1), Arg: at(2), More: at(3)}
}

// WordOf returns the first eight bytes of b, which must be aligned, as a number.
func WordOf(b []byte) *atomic.Uint64 { return word(b, 0) }

// Frames returns n bytes of the frames, from off on. n is a power of two, off a multiple of it. They stay where they are until Close. The caller has a lock of
// its own.
func (m *Memory) Frames(off, n int64) ([]byte, error) {
	i, off := off/framesPiece, off%framesPiece
	if m.frames[i] == nil {
		mem, err := unix.Mmap(m.fd, FramesAt+i*framesPiece, framesPiece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
		if err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
		_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE) // EINVAL where the kernel has none
		m.frames[i] = mem
	}
	return m.frames[i][off : off+n : off+n], nil
}
