package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/pages"
)

// The methods of held do nothing for a node that is not held.

// begin says in the log who takes over, and in what is held where the log is.
func (h *held) begin(c *mountConfig, log *slog.Logger) error {
	if h.resuming {
		log.Warn("taking over from a daemon that has ended; its programs go on", "mount", c.point, "ended", h.before, "daemons", h.mem.Word(hold.Daemons).Load(), "version", programVersion())
		return nil
	}
	for t, s := range map[hold.Text]string{hold.Point: c.point, hold.State: c.state, hold.Log: c.logFile} {
		if err := h.mem.SetText(t, s); err != nil {
			return err
		}
	}
	return nil
}

// identify gives the node its identity, or that which it had.
func (h *held) identify(self *dsm.Member, listen *string) (seed []byte, err error) {
	switch {
	case h == nil:
		return nil, nil
	case h.resuming:
		self.ID, *listen = dsm.NodeID(h.mem.Word(hold.Node).Load()), h.mem.Text(hold.Listen)
		return []byte(h.mem.Text(hold.Key)), nil
	}
	seed = make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	h.mem.Word(hold.Node).Store(uint64(self.ID))
	return seed, h.mem.SetText(hold.Key, string(seed))
}

// listening keeps where the node listens.
func (h *held) listening(addr string) error {
	if h == nil {
		return nil
	}
	return h.mem.SetText(hold.Listen, addr)
}

func (h *held) memory() *hold.Memory {
	if h == nil {
		return nil
	}
	return h.mem
}

// first is memory for the node's first catalog. One that follows it, because the node joins again, is not held.
func (h *held) first(is bool) *hold.Memory {
	if h != nil && !is {
		h.mem.Word(hold.Refused).Store(1)
		return nil
	}
	return h.memory()
}

// store returns where the areas are held.
func (h *held) store() (*pages.Keep, error) {
	if h == nil {
		return nil, nil
	}
	return pages.NewKeep(h.mem)
}

// viewChanged takes note of other members. What they have of this node ends with the daemon, as without a holder.
func (h *held) viewChanged(v *dsm.View, log *slog.Logger) {
	if h != nil && len(v.Members) > 1 && h.mem.Word(hold.Exclusive).Swap(1) == 0 {
		log.Warn("other nodes have joined: from now on the mount is lost if the daemon is killed, as without --hold")
	}
}

// resume takes over from the daemon that was killed.
func (n *node) resume(ctx context.Context) error {
	if err := n.cats.last().Resume(ctx); err != nil {
		if errs.Is(err, errs.Busy) {
			n.cfg.held.mem.Word(hold.Exclusive).Store(1) // so that the holder tries no other daemon
		}
		return fmt.Errorf("resume the catalog: %w", err)
	}
	n.member = true
	n.Reset()
	if err := n.data.Resume(); err != nil {
		return fmt.Errorf("resume the files: %w", err)
	}
	return nil
}
