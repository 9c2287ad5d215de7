package pages

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// slabFrames is the number of frames that are asked of the kernel in one go.
const slabFrames = 64

// frames hands out pages for the copies that come and go: twins, and bytes last
// given to the page cache. They live outside the Go heap, where a GOGC of 100
// would let as much garbage again pile up beside them. A slab whose frames are
// all free goes back to the kernel, except for one. The zero frames is ready.
type frames struct {
	all  map[*slab]struct{}
	open []*slab // with free frames
	idle int     // of open: with no frame in use
	used int     // frames in use
}

// slab is a mapping of slabFrames frames.
type slab struct {
	mem  []byte
	free []uint8 // indices of free frames
}

// frame is one page. Its bytes are undefined when it is taken.
type frame struct {
	mem  []byte
	slab *slab
	i    uint8
}

// take returns a frame. Like the Go heap, it does not return if there is no
// memory: the budget of the node is kept by refusing growth.
func (f *frames) take() frame {
	if len(f.open) == 0 {
		mem, err := unix.Mmap(-1, 0, slabFrames*dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			panic(fmt.Sprintf("no memory for page frames: %v", err))
		}
		s := &slab{mem: mem, free: make([]uint8, slabFrames)}
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
	off := int(i) * dsm.PageSize
	return frame{s.mem[off : off+dsm.PageSize : off+dsm.PageSize], s, i}
}

// put gives a frame back.
func (f *frames) put(x frame) {
	s := x.slab
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

// drop unmaps an idle slab.
func (f *frames) drop(s *slab) {
	at := slices.Index(f.open, s)
	f.open = slices.Delete(f.open, at, at+1)
	f.idle--
	f.unmap(s)
}

func (f *frames) unmap(s *slab) {
	delete(f.all, s)
	if err := unix.Munmap(s.mem); err != nil {
		panic(fmt.Sprintf("unmapping page frames: %v", err))
	}
}

// bytes returns the memory of the frames in use.
func (f *frames) bytes() int64 { return int64(f.used) * dsm.PageSize }

// close unmaps everything, frames in use included.
func (f *frames) close() {
	for s := range f.all {
		f.unmap(s)
	}
	*f = frames{}
}
