package fs

import (
	"os"
	"testing"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/internal/dsm"
)

// TestStreamsOfAnEarlierDaemon: a thread that may be in the midst of a version goes on in that, or is told that it is dropped, once. A thread that has begun since has read nothing.
func TestStreamsOfAnEarlierDaemon(t *testing.T) {
	self := uint32(os.Getpid())
	began := attach.StartOf(os.Getpid())
	if now := attach.Ticks(); began == 0 || began > now {
		t.Fatalf("this process began at %d, and it is %d", began, now)
	}
	const half = streamSize / 2
	for name, c := range map[string]struct {
		left   uint64
		goesOn dsm.Version
		off    int64
		reads  bool
	}{
		"in the newest":     {began, 1, half, true},
		"in another":        {began, 0, half, false},
		"at the beginning":  {began, 0, 0, true},
		"a thread since":    {began - 1, 0, half, true},
		"no earlier daemon": {0, 0, half, true},
	} {
		t.Run(name, func(t *testing.T) {
			streamTest(t, func(s *streamCase) {
				s.h.streams.left, s.area.goesOn = c.left, c.goesOn
				if c.reads {
					s.want(self, c.off, 10, 1)
					return
				}
				s.wantDropped(self, c.off)
				s.want(self, c.off, 10, 1)
			})
		})
	}
}
