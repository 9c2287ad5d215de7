package pages

import (
	"errors"
	"os"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/merge"
)

// Draft is a working copy that belongs to one program: the memory that the program sees and stores
// into, and the base with which its stores are compared. It relates to the node's working copy as
// that relates to the home: what differs from the base has not been taken over yet.
//
// It takes up to twice the size of the area, and nothing where neither the area nor the program has
// bytes.
type Draft struct {
	memory *areaCopy
	base   *areaCopy
	size   int64
	kept   *keeping // nil unless it outlives the daemon: see keep_drafts_linux.go
}

// NewDraft returns a draft of a program as large as the area, all zero. If the area outlives the daemon its memory is file, which it takes over.
func (a *Area) NewDraft(program int, file *HeldFile) (*Draft, error) {
	d := &Draft{memory: newCopy(a.id, "d", true), base: newCopy(a.id, "db", false)}
	if a.Outlives() {
		if err := a.keepDraft(d, program, file); err != nil {
			return nil, err
		}
	}
	if err := d.Resize(a.size); err != nil {
		return nil, errors.Join(a.fail("new draft", err), d.Close())
	}
	return d, nil
}

// Resize follows the size of the area. Bytes that are truncated are zero if the area grows again.
func (d *Draft) Resize(size int64) error {
	end := wholePages(size)
	for _, c := range []*areaCopy{d.memory, d.base} {
		if err := c.reserve(end); err != nil {
			return err
		}
		if size < d.size {
			if err := c.zero(size, min(end, c.len)); err != nil {
				return err
			}
		}
		if err := c.resize(size); err != nil {
			return err
		}
	}
	d.size = size
	return nil
}

// Fill copies [off, off+n) of the area's working copy to the draft, which the program must not have
// yet.
func (d *Draft) Fill(a *Area, off, n int64) error {
	return a.DataRanges(off, n, func(off, n int64) {
		for p := dsm.PageIndex(off / dsm.PageSize); int64(p)*dsm.PageSize < off+n; p++ {
			b := d.base.page(p)
			merge.Snapshot(b, a.within(p))
			copy(d.memory.page(p), b)
		}
	})
}

// within returns page p of the working copy up to the end of the area.
func (a *Area) within(p dsm.PageIndex) []byte {
	w := a.Working(p)
	return w[:min(int64(len(w)), a.size-int64(p)*dsm.PageSize)]
}

// Memory returns page p as the program sees it, up to the end of the area. The program may be
// storing to it.
func (d *Draft) Memory(p dsm.PageIndex) []byte {
	w := d.memory.page(p)
	return w[:min(int64(len(w)), d.size-int64(p)*dsm.PageSize)]
}

// Page returns the whole page, including bytes past the end of the area.
func (d *Draft) Page(p dsm.PageIndex) []byte { return d.memory.page(p) }

// Read copies bytes of the memory; all must be before the end of the area.
func (d *Draft) Read(dst []byte, off int64) {
	var now [dsm.PageSize]byte
	for len(dst) > 0 {
		p, lo := dsm.PageIndex(off/dsm.PageSize), int(off%dsm.PageSize)
		merge.Snapshot(now[:], d.Memory(p))
		n := copy(dst, now[lo:])
		dst, off = dst[n:], off+int64(n)
	}
}

// Write stores bytes as the program itself would; all must be before the end of the area.
func (d *Draft) Write(data []byte, off int64) {
	for len(data) > 0 {
		p, lo := dsm.PageIndex(off/dsm.PageSize), int(off%dsm.PageSize)
		n := min(dsm.PageSize-lo, len(data))
		merge.OverwriteShared(d.Page(p), lo, data[:n])
		data, off = data[n:], off+int64(n)
	}
}

// Base returns the bytes with which the program's stores to page p are compared. The caller may
// change them.
func (d *Draft) Base(p dsm.PageIndex) []byte { return d.base.page(p) }

// Ranges calls f for the parts of [off, off+n) in which the program may have stored: those that
// take memory.
func (d *Draft) Ranges(off, n int64, f func(off, n int64)) error { return d.memory.data(off, n, f) }

// Open opens the memory for the program, as OpenWorking does for the node's working copy.
func (d *Draft) Open(write bool) (*os.File, error) { return d.memory.open(write) }

// ResidentBytes returns the memory that the draft takes now.
func (d *Draft) ResidentBytes() int64 {
	m, err := d.memory.resident()
	b, err2 := d.base.resident()
	if errors.Join(err, err2) != nil {
		return 0 // fstat of an own memfd does not fail
	}
	return m + b
}

// Close frees the memory; programs keep what they have mapped.
func (d *Draft) Close() error {
	d.kept.forget()
	defer d.kept.end()
	return errors.Join(d.memory.close(), d.base.close())
}
