package fs

import (
	"os"
	"testing"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestStreamsOfAnEarlierDaemon: a thread that may be in the midst of a version goes on in that, or is told that it is dropped: once, or twice after a piece of the largest size. A thread that has begun since has read nothing.
func TestStreamsOfAnEarlierDaemon(t *testing.T) {
	self := uint32(os.Getpid())
	began := attach.StartOf(os.Getpid())
	if now := attach.Ticks(); began == 0 || began > now {
		t.Fatalf("this process began at %d, and it is %d", began, now)
	}
	const half, large = streamSize / 2, 2 * maxTransfer
	const unaligned = maxTransfer - dsm.PageSize + 1 // a buffer that begins just before the end of a page
	for name, c := range map[string]struct {
		left   uint64
		goesOn dsm.Version
		off    int64
		told   int // so often that the version is dropped
	}{
		"in the newest":     {began, 2, half, 0},
		"in another":        {began, 0, half, 1},
		"within a read(2)":  {began, 0, maxTransfer, 2}, // which returns what came before
		"and unaligned":     {began, 0, unaligned, 2},
		"at the beginning":  {began, 0, 0, 0},
		"a thread since":    {began - 1, 0, half, 0},
		"no earlier daemon": {0, 0, half, 0},
	} {
		t.Run(name, func(t *testing.T) {
			streamTest(t, func(s *streamCase) {
				s.h.streams.left, s.area.goesOn = c.left, c.goesOn
				s.publish(large)
				for range c.told {
					s.wantDropped(self, c.off)
				}
				s.want(self, c.off, 10, s.newest)
			})
		})
	}
}
