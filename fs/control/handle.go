package control

import (
	"context"
	"strings"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Handle is an open control file.
type Handle struct {
	tree *Tree
	c    Node
	file *file

	mu   lockrank.Mutex
	text string // as of the last read at offset 0
}

// Open opens a control file.
func (t *Tree) Open(c Node, flags uint32) (*Handle, error) {
	f := c.file()
	if f == nil {
		return nil, errs.E(errs.IsDir, "open", "")
	}
	access := flags & syscall.O_ACCMODE
	if f.read == nil && access != syscall.O_WRONLY || f.write == nil && access != syscall.O_RDONLY {
		return nil, errs.E(errs.Access, "open", "") // the mode does not stop root
	}
	h := &Handle{tree: t, c: c, file: f}
	h.mu.Init("control.Handle")
	return h, nil
}

// Read returns the text from off on. A read at offset 0 takes the current text; reads at later
// offsets continue in that text.
func (h *Handle) Read(ctx context.Context, off uint64) (string, error) {
	var text string
	if off == 0 {
		var err error
		if text, err = h.file.read(ctx, h.tree, h.c.ino); err != nil {
			return "", err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if off == 0 {
		h.text = text
	}
	return h.text[min(off, uint64(len(h.text))):], nil
}

// Write takes one write(2) as one value, whatever its offset, as the kernel's own control files do.
func (h *Handle) Write(ctx context.Context, data []byte) error {
	value := strings.TrimSuffix(string(data), "\n")
	err := error(errs.E(errs.Invalid, "write", "%d bytes: want one short value", len(data)))
	if len(data) <= maxWrite {
		err = h.file.write(ctx, h.tree, h.c.ino, value)
	}
	if err != nil {
		h.tree.cfg.Log.Warn("write to control file", "file", h.file.name, "area", uint64(h.c.ino), "value", value[:min(len(value), 64)], "err", err)
	}
	return err
}
