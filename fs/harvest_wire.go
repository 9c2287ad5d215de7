package fs

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The daemon and the child that harvests for it speak over the child's standard
// input and output. The daemon asks one thing at a time; numbers are big endian.
//
//	daemon                                   child
//	  | hello: 'H' length32 mount point ------>|
//	  | sync:  'S' count32 (ino64 off64 n64)*->|  opens what is not open, syncs
//	  |<-- count32 (errno32 nanoseconds64)* ---|
//	  | close: 'C' count32 (ino64)* ---------->|
//	  |<------------------------------ count32 |
//	  | end of file -------------------------->|  closes all and exits
const (
	harvestHello = 'H'
	harvestSync  = 'S'
	harvestClose = 'C'

	maxMountpoint   = 4096    // PATH_MAX
	maxHarvestBatch = 1 << 20 // areas in one request
)

// harvestItem asks for the range of an area; n = 0 is up to the end.
type harvestItem struct{ ino, off, n uint64 }

// harvestResult is what became of an item.
type harvestResult struct {
	errno       uint32
	nanoseconds uint64
}

// harvestRequest is one message of the daemon.
type harvestRequest struct {
	op    byte
	mount string        // of hello
	items []harvestItem // of sync; of close only with ino
}

func (q harvestRequest) append(p []byte) []byte {
	p = append(p, q.op)
	if q.op == harvestHello {
		p = binary.BigEndian.AppendUint32(p, uint32(len(q.mount)))
		return append(p, q.mount...)
	}
	p = binary.BigEndian.AppendUint32(p, uint32(len(q.items)))
	for _, it := range q.items {
		p = binary.BigEndian.AppendUint64(p, it.ino)
		if q.op == harvestSync {
			p = binary.BigEndian.AppendUint64(p, it.off)
			p = binary.BigEndian.AppendUint64(p, it.n)
		}
	}
	return p
}

// readHarvestRequest reads one request; io.EOF if the daemon has gone.
func readHarvestRequest(r io.Reader) (harvestRequest, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return harvestRequest{}, err
	}
	q := harvestRequest{op: head[0]}
	n, item, most := int(binary.BigEndian.Uint32(head[1:])), 8, maxHarvestBatch
	switch q.op {
	case harvestHello:
		item, most = 1, maxMountpoint
	case harvestSync:
		item = 24
	case harvestClose:
	default:
		return q, fmt.Errorf("harvest request of unknown kind %q", q.op)
	}
	if n > most {
		return q, fmt.Errorf("harvest request %q of %d items: want at most %d", q.op, n, most)
	}
	body := make([]byte, n*item)
	if _, err := io.ReadFull(r, body); err != nil {
		return q, fmt.Errorf("harvest request %q cut short: %w", q.op, err)
	}
	if q.op == harvestHello {
		q.mount = string(body)
		return q, nil
	}
	for ; len(body) > 0; body = body[item:] {
		it := harvestItem{ino: binary.BigEndian.Uint64(body)}
		if q.op == harvestSync {
			it.off, it.n = binary.BigEndian.Uint64(body[8:]), binary.BigEndian.Uint64(body[16:])
		}
		q.items = append(q.items, it)
	}
	return q, nil
}

func appendHarvestReply(p []byte, results []harvestResult) []byte {
	p = binary.BigEndian.AppendUint32(p, uint32(len(results)))
	for _, r := range results {
		p = binary.BigEndian.AppendUint32(p, r.errno)
		p = binary.BigEndian.AppendUint64(p, r.nanoseconds)
	}
	return p
}

// readHarvestReply reads the results of a request of n items.
func readHarvestReply(r io.Reader, n int) ([]harvestResult, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if got := binary.BigEndian.Uint32(head[:]); int64(got) != int64(n) {
		return nil, fmt.Errorf("harvest reply of %d items to a request of %d", got, n)
	}
	body := make([]byte, 12*n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	results := make([]harvestResult, n)
	for i := range results {
		results[i] = harvestResult{errno: binary.BigEndian.Uint32(body[12*i:]), nanoseconds: binary.BigEndian.Uint64(body[12*i+4:])}
	}
	return results, nil
}
