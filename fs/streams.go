package fs

import (
	"maps"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// streams are what programs read of a versioned area by one handle. The kernel asks for a large read(2) in pieces of maxTransfer, one after
// the other, and programs read files in pieces themselves. So a piece that begins where the last one of the same thread ended is answered
// from the version that this one was answered from; where that of another thread ended, too: programs in Go go from thread to thread. Any
// other is answered from the newest.
type streams struct {
	mu struct {
		lockrank.Mutex
		of    map[uint32]*stream // by thread; who answers a READ takes it out meanwhile
		timer *time.Timer        // ends the pins of those that are idle
		ended bool
	}
}

// stream is the last piece that a thread has read.
type stream struct {
	next    int64       // where it ended
	full    bool        // it was as large as pieces get, so there may be more of the same read(2)
	version dsm.Version // 0: all zero, before the first publish
	size    int64
	pinned  bool
	at      time.Time
}

const (
	// streamIdle is how long a version stays pinned for a thread that reads no more: it may cost as much memory as the area.
	// To go on later is ESTALE if the version has been dropped.
	streamIdle = 10 * time.Second
	// maxStreams bounds the threads of which a handle knows where they have read.
	maxStreams = 1024
)

func (s *streams) init() { s.mu.Init("fs.streams") }

// take returns the stream that a piece of the thread at off goes on with, or nil. The pin of dropped, unless it is nil, is to be ended.
// With shared, another thread may go on with it too.
func (s *streams) take(tid uint32, off int64, now time.Time) (t *stream, shared bool, dropped *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t = s.mu.of[tid]
	delete(s.mu.of, tid)
	if t != nil && t.next == off {
		return t, false, nil
	}
	dropped = t
	for id, o := range s.mu.of {
		if o.next != off || !o.pinned && o.next < o.size && o.version != 0 || now.Sub(o.at) > streamIdle {
			continue
		}
		if o.full {
			copied := *o
			return &copied, true, dropped
		}
		delete(s.mu.of, id)
		return o, false, dropped
	}
	return nil, false, dropped
}

// told forgets streams that have come to the end at off. Their versions are not pinned.
func (s *streams) told(off int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.mu.of, func(_ uint32, t *stream) bool { return t.next == off && t.next >= t.size })
}

// put returns a stream to the table. The pins of dropped are to be ended. sweep is called later.
func (s *streams) put(tid uint32, t *stream, now time.Time, sweep func()) (dropped []*stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ended {
		return []*stream{t}
	}
	if old := s.mu.of[tid]; old != nil { // of another READ at the same time, as io_uring sends them
		dropped = append(dropped, old)
	}
	if s.mu.of == nil { // of most handles nothing is read in this way
		s.mu.of = make(map[uint32]*stream)
	}
	t.at = now
	s.mu.of[tid] = t
	if len(s.mu.of) > maxStreams {
		oldest := tid
		for id, o := range s.mu.of {
			if o.at.Before(s.mu.of[oldest].at) {
				oldest = id
			}
		}
		dropped = append(dropped, s.mu.of[oldest])
		delete(s.mu.of, oldest)
	}
	if t.pinned && s.mu.timer == nil {
		s.mu.timer = time.AfterFunc(streamIdle, sweep)
	}
	return dropped
}

// idle returns the versions whose pins are to be ended, because their threads have not read for a while.
func (s *streams) idle(now time.Time, sweep func()) (unpin []dsm.Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.timer = nil
	for _, t := range s.mu.of {
		if !t.pinned {
			continue
		}
		if wait := t.at.Add(streamIdle).Sub(now); wait <= 0 {
			t.pinned = false
			unpin = append(unpin, t.version)
		} else if s.mu.timer == nil && !s.mu.ended {
			s.mu.timer = time.AfterFunc(wait, sweep)
		}
	}
	return unpin
}

// end takes out all, for good.
func (s *streams) end() (all []*stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ended = true
	if s.mu.timer != nil {
		s.mu.timer.Stop()
	}
	for _, t := range s.mu.of {
		all = append(all, t)
	}
	s.mu.of = nil
	return all
}

// readWhole answers a READ of a versioned area, other than for a mapping, from one version.
func (h *fileHandle) readWhole(tid uint32, p []byte, off int64) (n int, err error) {
	area := h.area.current()
	t, shared, dropped := h.streams.take(tid, off, time.Now())
	if dropped != nil {
		dropped.unpin(area)
	}
	if shared {
		t.pinned = false // that pin is the other thread's
	}
	if t == nil {
		if t, err = h.newest(area); err != nil {
			return 0, err
		}
	} else if !t.pinned && off < t.size && t.version != 0 {
		if _, err = area.PinVersion(t.version); err != nil {
			h.keep(area, tid, t) // to try again must not read another version
			return 0, err
		}
		t.pinned = true
	}
	switch left := max(t.size-off, 0); {
	case left == 0:
	case t.version == 0:
		n = int(min(left, int64(len(p))))
		clear(p[:n])
	default:
		n, err = area.ReadVersion(t.version, p, off)
	}
	t.next, t.full = off+int64(n), n == maxTransfer
	if t.next >= t.size {
		t.unpin(area)
	}
	if err == nil && n == 0 {
		h.streams.told(off)
		return 0, nil // the program has been told of the end; what it reads next is of the newest
	}
	h.keep(area, tid, t)
	return n, err
}

// newest pins the newest version.
func (h *fileHandle) newest(area Area) (*stream, error) {
	v, err := area.PinToRead(0)
	if err == nil {
		return &stream{version: v.Version, size: v.Size, pinned: true}, nil
	}
	if len(area.Versions()) > 0 {
		return nil, err
	}
	size, _ := h.area.noted() // nothing has been published
	return &stream{size: size}, nil
}

func (h *fileHandle) keep(area Area, tid uint32, t *stream) {
	for _, d := range h.streams.put(tid, t, time.Now(), h.sweep) {
		d.unpin(area)
	}
}

// sweep ends the pins of threads that do not read.
func (h *fileHandle) sweep() {
	for _, v := range h.streams.idle(time.Now(), h.sweep) {
		h.area.current().UnpinVersion(v)
	}
}

// endStreams ends all pins of the handle, which is closed.
func (h *fileHandle) endStreams() {
	for _, t := range h.streams.end() {
		t.unpin(h.area.current())
	}
}

func (t *stream) unpin(area Area) {
	if t.pinned {
		t.pinned = false
		area.UnpinVersion(t.version)
	}
}
