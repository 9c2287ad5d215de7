package harvest

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// The daemon and the child that harvests for it speak over the child's standard
// input and output. The daemon asks one thing at a time; numbers are big endian.
//
//	daemon                                   child
//	  | hello: 'H' length32 directory -------->|
//	  | watch: 'W' count32 (ino64 every64)* -->|  from now on opens and syncs them at that
//	  |                                        |  interval, in nanoseconds; 0: no more
//	  | sync:  'S' count32 (ino64 off64 n64)*->|  opens what is not open, syncs
//	  |<-------------------- count32 (errno32)*|
//	  | stat:  'A' count32 (ino64)* ---------->|  makes the kernel ask for their attributes
//	  |<-------------------- count32 (errno32)*|
//	  | look:  'L' length32 name ------------->|  makes the kernel look the name up
//	  |<-------------------- count32 (errno32)*|  of one
//	  | close: 'C' count32 (ino64)* ---------->|  watches them no more
//	  |<-------------------- count32 (errno32)*|
//	  | free:  'F' count32 (fd64 off64 pid64   |  frees what a process has in a file from an offset on; while it does,
//	  |         lock64 at64)* ---------------->|  it has a byte of another file of that process locked, unless lock is 0
//	  |<-------------------- count32 (errno32)*|
//	  | end of file -------------------------->|  closes all and exits
//
// A watch has no answer, so that a harvest that finds nothing wakes nobody. What
// goes wrong in one is a line on the child's standard error.
const (
	opHello = 'H'
	opWatch = 'W'
	opSync  = 'S'
	opStat  = 'A'
	opLook  = 'L'
	opClose = 'C'
	opFree  = 'F'

	maxPath  = 4096    // PATH_MAX
	maxBatch = 1 << 20 // areas in one request
)

// item is an area in a request: with a range in a sync, where n = 0 means up to the end, and with
// an interval in a watch. In a free, ino is a descriptor of the process n, and lock another.
type item struct{ ino, off, n, every, lock, at uint64 }

// request is one message of the daemon.
type request struct {
	op    byte
	path  string // of a hello: the directory with the files; of a look: the name
	items []item // of all other requests
}

func (q request) hasPath() bool { return q.op == opHello || q.op == opLook }

// answers is how many results the answer has.
func (q request) answers() int {
	if q.hasPath() {
		return 1
	}
	return len(q.items)
}

func (q request) append(p []byte) []byte {
	p = append(p, q.op)
	if q.hasPath() {
		p = binary.BigEndian.AppendUint32(p, uint32(len(q.path)))
		return append(p, q.path...)
	}
	p = binary.BigEndian.AppendUint32(p, uint32(len(q.items)))
	for _, it := range q.items {
		p = binary.BigEndian.AppendUint64(p, it.ino)
		switch q.op {
		case opSync:
			p = binary.BigEndian.AppendUint64(p, it.off)
			p = binary.BigEndian.AppendUint64(p, it.n)
		case opFree:
			for _, v := range []uint64{it.off, it.n, it.lock, it.at} {
				p = binary.BigEndian.AppendUint64(p, v)
			}
		case opWatch:
			p = binary.BigEndian.AppendUint64(p, it.every)
		}
	}
	return p
}

// readRequest reads one request; io.EOF if the daemon has gone.
func readRequest(r io.Reader) (request, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return request{}, err
	}
	q := request{op: head[0]}
	n, size, most := int(binary.BigEndian.Uint32(head[1:])), 8, maxBatch
	switch q.op {
	case opHello, opLook:
		size, most = 1, maxPath
	case opSync:
		size = 24
	case opFree:
		size = 40
	case opWatch:
		size = 16
	case opClose, opStat:
	default:
		return q, fmt.Errorf("harvest request of unknown kind %q", q.op)
	}
	if n > most {
		return q, fmt.Errorf("harvest request %q of %d items: want at most %d", q.op, n, most)
	}
	body := make([]byte, n*size)
	if _, err := io.ReadFull(r, body); err != nil {
		return q, fmt.Errorf("harvest request %q ends early: %w", q.op, err)
	}
	if q.hasPath() {
		q.path = string(body)
		return q, nil
	}
	for ; len(body) > 0; body = body[size:] {
		it := item{ino: binary.BigEndian.Uint64(body)}
		switch q.op {
		case opSync, opFree:
			it.off, it.n = binary.BigEndian.Uint64(body[8:]), binary.BigEndian.Uint64(body[16:])
			if q.op == opFree {
				it.lock, it.at = binary.BigEndian.Uint64(body[24:]), binary.BigEndian.Uint64(body[32:])
			}
		case opWatch:
			if it.every = binary.BigEndian.Uint64(body[8:]); it.every > uint64(dsm.MaxInterval) {
				return q, fmt.Errorf("watch at an interval of %d ns: want at most %v", it.every, dsm.MaxInterval)
			}
		}
		q.items = append(q.items, it)
	}
	return q, nil
}

// appendReply appends the answer to a request: an errno for each item.
func appendReply(p []byte, errnos []uint32) []byte {
	p = binary.BigEndian.AppendUint32(p, uint32(len(errnos)))
	for _, e := range errnos {
		p = binary.BigEndian.AppendUint32(p, e)
	}
	return p
}

// readReply reads the answer to a request of n items.
func readReply(r io.Reader, n int) ([]uint32, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if got := binary.BigEndian.Uint32(head[:]); int64(got) != int64(n) {
		return nil, fmt.Errorf("harvest reply of %d items to a request of %d", got, n)
	}
	body := make([]byte, 4*n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	errnos := make([]uint32, n)
	for i := range errnos {
		errnos[i] = binary.BigEndian.Uint32(body[4*i:])
	}
	return errnos, nil
}
