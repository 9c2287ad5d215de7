package head

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Line tells programs about one area. Its first word is a futex, which changes whenever a program
// that waits may have to look again.
//
// Who has watched has its Number: once that changes, the line belongs to another area.
type Line struct {
	word    uint32
	state   uint32
	newest  uint64
	here    uint64
	whole   uint64
	arrived int64
	asked   int64
	changes uint64
	number  uint64
}

// LineSize is the size of a Line.
const LineSize = 64

// Bits of Values.State.
const (
	// Ended says that nothing watches any more for the programs that used the line.
	Ended = 1 << iota
	// Removed says that the area is gone.
	Removed
	// Follows says that later versions come without being asked for.
	Follows
	// Own says that the memory is the program's own: only its own calls bring updates.
	Own
)

// Died in the life line's word says that the daemon has ended.
const Died = 0x40000000

// Values is what a line says.
type Values struct {
	State uint32
	// Newest is the newest version that the node has heard of. Here is the newest that has come, and
	// everything up to Whole is in memory. Whole may be behind Here, since homes do not wait for each other.
	Newest, Here, Whole uint64
	// Asked is when everything that was published was last known to be in memory; zero: never.
	Asked time.Time
}

// Set enters values, after the bytes that they speak of are in memory. It reports whether programs that wait must
// be woken. One goroutine at a time may call it.
func (l *Line) Set(v Values) (changed bool) {
	atomic.StoreUint64(&l.newest, v.Newest)
	if !v.Asked.IsZero() {
		atomic.StoreInt64(&l.asked, v.Asked.UnixNano())
	}
	if l.here == v.Here && l.whole == v.Whole && l.state == v.State {
		return false
	}
	if l.here != v.Here {
		atomic.StoreInt64(&l.arrived, time.Now().UnixNano())
		atomic.StoreUint64(&l.here, v.Here)
	}
	atomic.StoreUint64(&l.whole, v.Whole)
	atomic.StoreUint32(&l.state, v.State)
	atomic.AddUint32(&l.word, 1)
	return true
}

// Changing says that the bytes are about to change of which the line says the version. Until Changed the number of changes is odd: what a
// program copies meanwhile may be of two versions.
func (l *Line) Changing() {
	if l.changes%2 == 0 {
		atomic.AddUint64(&l.changes, 1)
	}
}

// Changed ends Changing, after Set.
func (l *Line) Changed() {
	if l.changes%2 != 0 {
		atomic.AddUint64(&l.changes, 1)
	}
}

// Waiters are the programs that wait at a line. They can be woken when the line has been given back, and its page is not mapped any more: then
// that does nothing.
type Waiters uintptr // the address of the line's word; not a pointer, for it may be of no memory

// Waiters returns the programs that wait at the line.
func (l *Line) Waiters() Waiters { return Waiters(unsafe.Pointer(&l.word)) }

// Number identifies the use of the line.
func (l *Line) Number() uint64 { return l.number }
