package fs

import (
	"context"
	"math"
	"time"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// streams are what programs read of a versioned area by one handle. The kernel asks for a large read(2) in pieces of maxTransfer, of which the first may be up to a page less, one after
// the other, and programs read files in pieces themselves. So a piece that begins where the last one of the same thread ended is answered
// from the version that this one was answered from. Any other is answered from the newest, but for programs in Go, which go from thread to
// thread: a thread that goes on nowhere itself may go on where another one has just ended. No thread gets an older version than before.
type streams struct {
	sweep func() // ends the pins of those that are idle
	left  uint64 // the handle is of an earlier daemon: a thread that is not in the table, and began up to then, in ticks since the machine started, may be in the midst of a version
	mu    struct {
		lockrank.Mutex
		of    map[uint32]*stream // by thread; while a READ is answered, it is one that goes on nowhere. nil: the handle is closed
		least dsm.Version        // no thread that is not in the table has read a newer one
		timer *time.Timer        // for sweep
	}
}

// stream is the last piece that a thread has read.
type stream struct {
	next    int64       // where it ended, or nowhere
	full    bool        // it was as large as pieces get (leastFull), so there may be more of the same read(2)
	lent    bool        // another thread has a copy
	version dsm.Version // 0: all zero, before the first publish
	size    int64
	pinned  bool
	at      time.Time
}

const (
	// nowhere is the next of a stream that has come to its end. It tells which version its thread has read.
	nowhere = -1
	// takeOver is how long after a piece another thread may go on. As old may be the version that a new thread gets.
	takeOver = 500 * time.Millisecond
	// streamIdle is how long a version stays pinned for a thread that reads no more: it may cost as much memory as the area.
	// To go on later is ESTALE if the version has been dropped.
	streamIdle = 10 * time.Second
	// leastFull is how much the kernel asks for at least if there may be more of the same read(2): as many pages as maxTransfer has, of which a buffer
	// that does not begin where a page does fills the first one in part.
	leastFull = maxTransfer - dsm.PageSize + 1
	// maxStreams bounds the threads of which a handle knows where they have read.
	maxStreams = 1024
)

func newStreams(sweep func()) *streams {
	s := &streams{sweep: sweep}
	s.mu.Init("fs.streams")
	s.mu.of = make(map[uint32]*stream)
	return s
}

// take returns the stream that a piece of the thread at off goes on with, or nil. foreign says that it is another thread's. The pin of dropped,
// unless it is nil, is to be ended.
func (s *streams) take(tid uint32, off int64) (t *stream, foreign bool, dropped *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, least := time.Now(), s.mu.least
	if own := s.mu.of[tid]; own != nil {
		s.mu.of[tid] = &stream{next: nowhere, version: own.version, at: own.at}
		idle := own.next >= own.size && now.Sub(own.at) > streamIdle // the file may have grown long since
		switch {
		case own.next == off && !idle:
			return own, false, nil
		case own.next != nowhere && !own.lent:
			return nil, false, own
		}
		dropped, least = own, own.version
	}
	var from uint32
	for id, o := range s.mu.of {
		if o.next == off && o.version >= least && now.Sub(o.at) <= takeOver && (t == nil || o.version > t.version) {
			t, from = o, id
		}
	}
	switch {
	case t == nil:
		return nil, false, dropped
	case t.full: // its own thread may be about to go on
		t.lent = true
		copied := *t
		copied.lent, copied.pinned = false, false // that pin is the other thread's
		return &copied, true, dropped
	}
	s.mu.of[from] = &stream{next: nowhere, version: t.version, at: t.at}
	return t, true, dropped
}

// lost is the version of a thread of which it is not known in which version it was reading. None has this number.
const lost = dsm.MaxVersion

// mayGoOn reports whether a thread may have read by the handle from an earlier daemon, and not from this one.
func (s *streams) mayGoOn(tid uint32) bool {
	if s.left == 0 {
		return false
	}
	s.mu.Lock()
	known := s.mu.of[tid] != nil
	s.mu.Unlock()
	return !known && attach.StartOf(int(tid)) <= s.left
}

// told ends streams of which a copy has come to the end. They are not pinned.
func (s *streams) told(end *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.mu.of {
		if t.lent && t.version == end.version && t.next == end.size {
			t.next = nowhere
		}
	}
}

// put returns a stream to the table. The pins of dropped are to be ended.
func (s *streams) put(tid uint32, t *stream) (dropped []*stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.of == nil {
		return []*stream{t}
	}
	if old := s.mu.of[tid]; old != nil && old.pinned { // of another READ at the same time, as io_uring sends them
		dropped = append(dropped, old)
	}
	t.at = time.Now()
	s.mu.of[tid] = t
	if len(s.mu.of) > maxStreams {
		oldest := tid
		for id, o := range s.mu.of {
			if o.at.Before(s.mu.of[oldest].at) {
				oldest = id
			}
		}
		dropped = append(dropped, s.mu.of[oldest])
		s.mu.least = max(s.mu.least, s.mu.of[oldest].version)
		delete(s.mu.of, oldest)
	}
	if t.pinned && s.mu.timer == nil {
		s.mu.timer = time.AfterFunc(streamIdle, s.sweep)
	}
	return dropped
}

// idle returns the versions whose pins are to be ended, because their threads have not read for a while.
func (s *streams) idle() (unpin []dsm.Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.timer = nil
	now := time.Now()
	for _, t := range s.mu.of {
		if !t.pinned {
			continue
		}
		if wait := t.at.Add(streamIdle).Sub(now); wait <= 0 {
			t.pinned = false
			unpin = append(unpin, t.version)
		} else if s.mu.timer == nil {
			s.mu.timer = time.AfterFunc(wait, s.sweep)
		}
	}
	return unpin
}

// end takes out all, for good.
func (s *streams) end() (all []*stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
func (h *fileHandle) readWhole(ctx context.Context, tid uint32, p []byte, off int64) (n int, err error) {
	area := h.area.current()
	t, err := h.stream(ctx, area, tid, off)
	if err != nil {
		return 0, err
	}
	switch left := max(t.size-off, 0); {
	case left == 0:
	case t.version == 0:
		n = int(min(left, int64(len(p))))
		clear(p[:n])
	default:
		n, err = area.ReadVersion(t.version, p, off)
	}
	if err != nil {
		t.next = off
		h.failed(area, tid, t, err)
		return 0, err
	}
	t.next, t.full, t.lent = off+int64(n), n >= leastFull, false
	if t.next >= t.size {
		t.unpin(area)
	}
	if n == 0 { // the program is told of the end; what it reads next is of the newest
		h.streams.told(t)
		t.next = nowhere
	}
	h.keep(area, tid, t)
	return n, nil
}

// stream returns what a piece of the thread at off goes on with. If off is before its end, it is pinned.
func (h *fileHandle) stream(ctx context.Context, area Area, tid uint32, off int64) (t *stream, err error) {
	t, foreign, dropped := h.streams.take(tid, off)
	if dropped != nil {
		dropped.unpin(area)
	}
	if t == nil && off > 0 && h.streams.mayGoOn(tid) {
		if t, err = h.newest(ctx, area); err != nil || t.version == area.GoesOnAt() {
			return t, err
		}
		t.unpin(area)
		t = &stream{next: off, full: off >= leastFull, version: lost, size: math.MaxInt64}
	}
	if t == nil {
		return h.newest(ctx, area)
	}
	if t.pinned || off >= t.size || t.version == 0 {
		return t, nil
	}
	_, err = area.PinToRead(ctx, t.version)
	switch {
	case err == nil:
		t.pinned = true
		return t, nil
	case foreign && errs.Is(err, errs.Dropped):
		return h.newest(ctx, area)
	}
	h.failed(area, tid, t, err)
	return nil, err
}

// failed keeps a stream after an error, since to try again must not read another version. When the program has been told that the version is
// dropped, it goes on nowhere. An error in the middle of a read(2) tells it only that there was less to read, so then it is told once more.
func (h *fileHandle) failed(area Area, tid uint32, t *stream, err error) {
	if errs.Is(err, errs.Dropped) {
		t.unpin(area)
		if !t.full {
			t.next = nowhere
		}
		t.full = false
	}
	h.keep(area, tid, t)
}

// newest pins the newest version.
func (h *fileHandle) newest(ctx context.Context, area Area) (*stream, error) {
	v, err := area.PinToRead(ctx, 0)
	switch {
	case err == nil:
		return &stream{version: v.Version, size: v.Size, pinned: true}, nil
	case errs.Is(err, errs.Invalid): // no bytes
		return &stream{}, nil
	}
	return nil, err
}

func (h *fileHandle) keep(area Area, tid uint32, t *stream) {
	for _, d := range h.streams.put(tid, t) {
		d.unpin(area)
	}
}

// sweep ends the pins of threads that do not read.
func (h *fileHandle) sweep() {
	for _, v := range h.streams.idle() {
		h.area.current().PauseVersion(v)
	}
}

// endStreams ends all pins of the handle, which is closed.
func (h *fileHandle) endStreams() {
	if h.streams == nil {
		return
	}
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
