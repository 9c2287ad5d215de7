package coherence

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// header is what an area knows of the header of its file.
type header struct {
	sum uint64 // hash of the one that was read last, which told no layout
	err error  // why not; nil if there is none
}

var headerSeed = maphash.MakeSeed()

// candidate is a header that nobody has looked at.
type candidate struct {
	head []byte
	size int64 // of the area
	sum  uint64
}

// candidateLocked returns the header of a .npy or .safetensors file, if that may tell the types of the area; nil if there is
// none, or it was looked at before.
func (a *Area) candidateLocked() *candidate {
	if a.mu.ino.Spec.DType != dsm.DTypeAuto || a.mu.ino.Layout != (dsm.Layout{}) {
		return nil
	}
	head := a.headLocked()
	if head == nil {
		return nil
	}
	c := &candidate{head, a.mu.ino.Size, maphash.Bytes(headerSeed, head)}
	if c.sum == a.mu.header.sum {
		return nil
	}
	return c
}

// detectLayout looks for a header in an area whose types are not known. If it tells them, they are recorded.
func (a *Area) detectLayout(ctx context.Context) error {
	var c *candidate
	a.step(func() { c = a.candidateLocked() })
	if c == nil {
		return nil
	}
	return a.setLayout(ctx, c)
}

// setLayout records the layout that a header tells in the catalog, for all nodes.
func (a *Area) setLayout(ctx context.Context, c *candidate) error {
	l, ok := npyLayout(c.head, c.size)
	var why error
	if !ok {
		if l, why = safetensorsLayout(c.head); why != nil {
			a.node.cfg.Log.Info("the types of a file's elements are not known", "area", a.id, "err", why)
		}
	}
	if l == (dsm.Layout{}) {
		a.note(func() { a.mu.header.sum, a.mu.header.err = c.sum, why })
		return nil
	}
	return a.node.cfg.View.SetLayout(ctx, a.id, l)
}

// headLocked returns a copy of the area's header; nil if it has none, or not all of it is here.
func (a *Area) headLocked() []byte {
	if a.mu.replica.n == 0 || !a.extentLocked(0).have.Has(0) {
		return nil
	}
	first := a.bytesOfLocked(0)
	n := min(headerSize(first), a.mu.ino.Size)
	head := make([]byte, 0, n)
	for int64(len(head)) < n {
		p := dsm.PageIndex(len(head) / dsm.PageSize)
		if e, i := p.Extent(); !a.extentLocked(e).have.Has(i) {
			return nil
		}
		b := a.bytesOfLocked(p)
		head = append(head, b[:min(int64(len(b)), n-int64(len(head)))]...)
	}
	if int64(len(head)) < headerSize(first) {
		return nil
	}
	return head
}

// headerSize returns how many bytes the header of a file has that begins with these; 0 if it has none.
func headerSize(first []byte) int64 {
	if isNpy(first) {
		return int64(len(first))
	}
	return safetensorsSize(first)
}

// CheckWrite refuses a write(2) of which nothing could be published: the merge rule of the area needs a type, there is none, and with these bytes
// the file does not begin as one with a header. Else only close would say so, which many programs do not look at. through says that the page
// cache has the bytes already.
func (a *Area) CheckWrite(p []byte, off int64, through bool) error {
	a.mu.Lock()
	typed := a.mu.ruleErr == nil || a.mu.ino.Layout != (dsm.Layout{})
	a.mu.Unlock()
	if typed {
		return nil
	}
	var err error
	a.step(func() {
		if a.mu.ruleErr == nil || a.mu.ino.Layout != (dsm.Layout{}) || beginsHeader(a.beginningLocked(p, off)) {
			return
		}
		err = &errs.Error{Op: "write", Area: a.id, Kind: errs.Invalid, Err: a.mu.ruleErr}
		if in := a.mu.ino.Size - off; through && a.mu.replica.subscribed && in > 0 {
			a.mu.cached.NotTaken(off, p[:min(int64(len(p)), in)])
		}
		if !a.mu.writeRefused {
			a.mu.writeRefused = true
			a.node.cfg.Log.Warn("a write is refused, because the elements of the file have no type", "area", a.id, "err", a.mu.ruleErr,
				"todo", "set user.dsm.dtype of the file, or user.dsm.merge=last")
		}
	})
	return err
}

// beginningLocked returns the first bytes of the area as they are after a write(2), as many as tell whether they may be those of a header.
func (a *Area) beginningLocked(p []byte, off int64) []byte {
	first := make([]byte, safetensorsPrefix+1)
	if r := &a.mu.replica; r.subscribed && r.n > 0 && a.extentLocked(0).have.Has(0) {
		copy(first, a.bytesOfLocked(0))
	}
	if off < int64(len(first)) {
		copy(first[off:], p)
	}
	return first[:min(int64(len(first)), max(a.mu.ino.Size, off+int64(len(p))))]
}

// beginsHeader reports whether a header may begin with these bytes, which are all that there are, or enough to tell. Zeroes may be still to
// be written. The length with which a .safetensors file begins is written at once: else any two letters might be some of it.
func beginsHeader(first []byte) bool {
	if isZero(first) {
		return true
	}
	npy := true
	for i, b := range first[:min(len(npyMagic), len(first))] {
		npy = npy && (b == 0 || b == npyMagic[i])
	}
	if npy || len(first) < safetensorsPrefix {
		return npy
	}
	return binary.LittleEndian.Uint64(first) <= mostHeader && strings.Trim(string(first[safetensorsPrefix:]), "\x00{") == ""
}
