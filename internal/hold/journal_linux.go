package hold

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Journal is a list of records to which records are appended. It has two halves: while it is written anew the old one counts.
type Journal struct {
	m  *Memory
	at int64
	w  Word // tail<<1 | half
}

// Catalog returns the journal of the catalog's log.
func (m *Memory) Catalog() *Journal { return &Journal{m, journalsAt, catalogTail} }

// Files returns the journal of what is open.
func (m *Memory) Files() *Journal { return &Journal{m, journalsAt + 2*journalHalf, filesTail} }

func (j *Journal) tail() (half, n int64) {
	w := int64(j.m.Word(j.w).Load())
	return w & 1, w >> 1
}

// Size returns how many bytes the records take.
func (j *Journal) Size() int64 {
	_, n := j.tail()
	return n
}

// Append adds records: all, or none.
func (j *Journal) Append(records ...[]byte) error {
	half, n := j.tail()
	return j.write(half, n, records)
}

// Rewrite replaces all records.
func (j *Journal) Rewrite(records [][]byte) error {
	half, n := j.tail()
	if err := j.write(1-half, 0, records); err != nil {
		return err
	}
	return j.m.Free(j.at+half*journalHalf, max(n, 1))
}

// write writes records to a half, from n on, which then counts.
func (j *Journal) write(half, n int64, records [][]byte) error {
	size := 0
	for _, r := range records {
		size += 4 + len(r)
	}
	text := make([]byte, 0, size)
	for _, r := range records {
		text = append(binary.LittleEndian.AppendUint32(text, uint32(len(r))), r...)
	}
	for done := 0; done < len(text); {
		k, err := unix.Pwrite(j.m.fd, text[done:], j.at+half*journalHalf+n+int64(done))
		if err != nil {
			return os.NewSyscallError("pwrite", err)
		}
		done += k
	}
	j.m.Word(j.w).Store(uint64((n+int64(size))<<1 | half))
	return nil
}

// Read calls f for each record.
func (j *Journal) Read(f func(record []byte) error) error {
	half, n := j.tail()
	text := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(reader(j.m.fd), j.at+half*journalHalf, n), text); err != nil {
		return err
	}
	for len(text) > 0 {
		if len(text) < 4 || int64(binary.LittleEndian.Uint32(text)) > int64(len(text)-4) {
			return fmt.Errorf("a journal ends in the middle of a record")
		}
		k := 4 + int(binary.LittleEndian.Uint32(text))
		if err := f(text[4:k]); err != nil {
			return err
		}
		text = text[k:]
	}
	return nil
}

// reader reads a file that it does not own.
type reader int

func (r reader) ReadAt(p []byte, off int64) (int, error) {
	n, err := unix.Pread(int(r), p, off)
	if err == nil && n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, os.NewSyscallError("pread", err)
}
