package pages

import (
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// slabFrames is how many frames are requested from the kernel at once.
const slabFrames = 64

const slabBytes = slabFrames * dsm.PageSize

// idleSlabs are slabs that no area uses, 12 MiB at most. That is how much the copies of a busy area
// take before its homes must wait. While updates stream in, every page needs a frame for a moment. A
// frame of new memory costs 2 us (a page fault, and its share of mmap and munmap), and the copy itself
// only 0.4 us. KeepIdle may say that there is memory for fewer.
var (
	idleSlabs = make(chan []byte, 48)
	idleFewer atomic.Int64 // how many of them must not be kept
	slabs     atomic.Int64 // how many there are, idle or in use, but for those of a Keep
	keptBytes atomic.Int64 // what those take: a slab of a Keep takes no memory before it is used
)

// KeepIdle says how many bytes of frames the process may keep that nothing uses, and how many a Keep.
func KeepIdle(bytes int64) { idleFewer.Store(int64(cap(idleSlabs)) - bytes/slabBytes) }

// keepsIdle reports whether one more slab that nothing uses may be kept, besides n.
func keepsIdle(n int) bool { return int64(n)+idleFewer.Load() < int64(cap(idleSlabs)) }

// FrameBytes returns what all frames of the process take, used or not.
func FrameBytes() int64 { return slabs.Load()*slabBytes + keptBytes.Load() }

// frames provides pages for copies that come and go: twins, and bytes last given to the page cache.
// They are outside the Go heap. There, with GOGC=100, free frames would take as much memory again as
// those in use. One slab whose frames are all free is kept; others go to the idle slabs of the
// process. The zero value is ready for use.
type frames struct {
	all  map[*slab]struct{}
	open []*slab  // slabs with free frames
	idle int      // how many slabs in open have no frame in use
	used int      // frames in use
	kept *keeping // if not nil, the frames outlive the daemon: see keep_frames_linux.go
}

// slab is a mapping of slabFrames frames.
type slab struct {
	mem  []byte
	free []uint8 // indices of free frames
	at   int     // its number, if it is a slab of a Keep
	took int     // of the Keep's: how many of its frames, from the first on, may take memory
}

// frame is one page. Its bytes are undefined when it is taken.
type frame struct {
	mem  []byte
	slab *slab
	i    uint8
}

// take returns a frame. Like the Go heap, it does not return if there is no memory: the node stays
// within its budget because growth is refused.
func (f *frames) take() frame {
	if len(f.open) == 0 {
		var s *slab
		if f.kept != nil {
			s = f.kept.store.grabSlab()
		} else {
			s = &slab{mem: slabMemory()}
		}
		s.free = make([]uint8, slabFrames)
		for i := range s.free {
			s.free[i] = uint8(slabFrames - 1 - i)
		}
		if f.all == nil {
			f.all = map[*slab]struct{}{}
		}
		f.all[s] = struct{}{}
		f.open = append(f.open, s)
		f.idle++
	}
	s := f.open[len(f.open)-1]
	if len(s.free) == slabFrames {
		f.idle--
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	if len(s.free) == 0 {
		f.open = f.open[:len(f.open)-1]
	}
	f.used++
	if f.kept != nil {
		s.takes(int(i) + 1)
	}
	off := int(i) * dsm.PageSize
	return frame{s.mem[off : off+dsm.PageSize : off+dsm.PageSize], s, i}
}

// takes says that the first n frames of a slab of a Keep may take memory.
func (s *slab) takes(n int) {
	if n > s.took {
		keptBytes.Add(int64(n-s.took) * dsm.PageSize)
		s.took = n
	}
}

// slabMemory returns the memory of a slab, with arbitrary content.
func slabMemory() []byte {
	select {
	case mem := <-idleSlabs:
		return mem
	default:
	}
	mem, err := unix.Mmap(-1, 0, slabBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(fmt.Sprintf("no memory for page frames: %v", err))
	}
	slabs.Add(1)
	return mem
}

// put gives a frame back.
func (f *frames) put(x frame) {
	s := x.slab
	f.untag(x)
	f.used--
	s.free = append(s.free, x.i)
	switch len(s.free) {
	case 1:
		f.open = append(f.open, s)
	case slabFrames:
		if f.idle++; f.idle > 1 {
			f.drop(s)
		}
	}
}

// drop removes an idle slab.
func (f *frames) drop(s *slab) {
	at := slices.Index(f.open, s)
	f.open = slices.Delete(f.open, at, at+1)
	f.idle--
	f.release(s)
}

// release keeps the memory of a slab for others, or gives it back to the kernel.
func (f *frames) release(s *slab) {
	delete(f.all, s)
	if f.kept != nil {
		f.kept.store.dropSlab(s)
		return
	}
	if keepsIdle(len(idleSlabs)) {
		select {
		case idleSlabs <- s.mem:
			return
		default:
		}
	}
	slabs.Add(-1)
	if err := unix.Munmap(s.mem); err != nil {
		panic(fmt.Sprintf("unmapping page frames: %v", err))
	}
}

// bytes returns the memory of the frames in use.
func (f *frames) bytes() int64 { return int64(f.used) * dsm.PageSize }

// close releases everything, frames in use included.
func (f *frames) close() {
	for s := range f.all {
		f.release(s)
	}
	*f = frames{kept: f.kept}
}
