package pages

import (
	"testing"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestFramesGoBack: frames that nothing uses take no more memory than KeepIdle has said.
func TestFramesGoBack(t *testing.T) {
	defer KeepIdle(slabBytes * int64(cap(idleSlabs)))
	KeepIdle(2 * slabBytes)
	for len(idleSlabs) > 0 { // of other tests
		(&frames{}).take()
	}
	before := FrameBytes()
	var f frames
	for range 10 * slabFrames {
		f.take()
	}
	if got := FrameBytes() - before; got != 10*slabFrames*dsm.PageSize {
		t.Errorf("%d frames take %d bytes", 10*slabFrames, got)
	}
	f.close()
	if got := FrameBytes() - before; got != 2*slabBytes {
		t.Errorf("frames that nothing uses take %d bytes, want %d", got, 2*slabBytes)
	}
}
