package control

import (
	"context"
	"strings"
	"syscall"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/lockrank"
)

// Handle is an open control file.
type Handle struct {
	tree *Tree
	c    Node
	file *file

	mu       lockrank.Mutex
	text     string // as of the last read at offset 0; of a talk, the rest of an answer
	answered bool   // text is the answer to an order, and stays
	talk     Talk   // nil unless it is one
}

// Open opens a control file for a program of the user.
func (t *Tree) Open(c Node, flags uint32, who dsm.Credentials) (*Handle, error) {
	f := c.file()
	if f == nil {
		return nil, errs.E(errs.IsDir, "open", "")
	}
	access := flags & syscall.O_ACCMODE
	if f.read == nil && access != syscall.O_WRONLY || f.write == nil && f.order == nil && !f.talks && access != syscall.O_RDONLY {
		return nil, errs.E(errs.Access, "open", "") // the mode does not stop root
	}
	h := &Handle{tree: t, c: c, file: f}
	h.mu.Init("control.Handle")
	if f.talks && access != syscall.O_RDONLY {
		var err error
		if h.talk, err = t.cfg.Mount.Talk(c.ino, who); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// Talks reports whether the file is a Talk: it has no offsets, and a read waits.
func (h *Handle) Talks() bool { return h.talk != nil }

// Hear returns at most n bytes of the next answer, or of the one of which there is a rest.
func (h *Handle) Hear(ctx context.Context, n int) (string, error) {
	h.mu.Lock()
	more := h.text == ""
	h.mu.Unlock()
	answer := ""
	if more {
		var err error
		if answer, err = h.talk.Hear(ctx); err != nil {
			return "", err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text += answer
	n = min(n, len(h.text))
	answer, h.text = h.text[:n], h.text[n:]
	return answer, nil
}

// Close ends a talk.
func (h *Handle) Close() {
	if h.talk != nil {
		h.talk.End()
	}
}

// Read returns the text from off on. A read at offset 0 takes the current text; reads at later
// offsets continue in that text. After an order all reads are of the answer.
func (h *Handle) Read(ctx context.Context, off uint64) (string, error) {
	h.mu.Lock()
	current := off == 0 && !h.answered
	h.mu.Unlock()
	var text string
	if current {
		var err error
		if text, err = h.file.read(ctx, h.tree, h.c.ino); err != nil {
			return "", err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if current && !h.answered {
		h.text = text
	}
	return h.text[min(off, uint64(len(h.text))):], nil
}

// Write takes one write(2) as one value, whatever its offset, as the kernel's own control files do.
func (h *Handle) Write(ctx context.Context, data []byte) error {
	value := strings.TrimSuffix(string(data), "\n")
	if h.talk != nil && len(data) <= maxWrite {
		for line := range strings.SplitSeq(value, "\n") {
			if err := h.talk.Say(line); err != nil {
				return err
			}
		}
		return nil
	}
	err := error(errs.E(errs.Invalid, "write", "%d bytes: want one short value", len(data)))
	switch {
	case len(data) > maxWrite:
	case h.file.order != nil:
		err = h.order(ctx, value)
	default:
		err = h.file.write(ctx, h.tree, h.c.ino, value)
	}
	if err != nil {
		h.tree.cfg.Log.Warn("write to control file", "file", h.file.name, "area", uint64(h.c.ino), "value", value[:min(len(value), 64)], "err", err)
	}
	return err
}

// order gives an order, and keeps the answer.
func (h *Handle) order(ctx context.Context, value string) error {
	answer, err := h.file.order(ctx, h.tree, h.c.ino, value)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text, h.answered = answer, true
	return nil
}
