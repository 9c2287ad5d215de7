package fs

import (
	"context"
	"slices"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// wholly has the kernel send each read(2) of a versioned area by a handle for reading, past its page cache, which has the bytes of all
// versions in turn. The file can still be mapped (Linux 6.6; ENODEV without): a mapping of the live name shows a version while it is being
// put in place.
func (h *fileHandle) wholly(out *fuse.OpenOut) {
	if !h.write && h.area.spec().Mode == dsm.ModeVersioned {
		h.streams = newStreams(h.sweep)
		h.goPast(out)
	}
}

// nodeHere stands for this node where the name of one is wanted.
const nodeHere = "here"

// transfer makes a node the owner of a versioned area: the one with this name or id, or this one.
func (b *bridge) transfer(ctx context.Context, ino dsm.Ino, to string) error {
	i, err := b.cfg.Names.Getattr(ctx, ino)
	if err != nil {
		return err
	}
	if i.Kind != dsm.KindFile || i.Spec.Mode != dsm.ModeVersioned {
		return errs.E(errs.Invalid, "transfer", "the mode is %s: only a versioned area has an owner", i.Spec.Mode)
	}
	target, err := b.nodeNamed("transfer", to)
	if err != nil {
		return err
	}
	return b.cfg.Areas.Transfer(ctx, i.Area(), target)
}

// nodeNamed returns the member of the cluster with a name or an id.
func (b *bridge) nodeNamed(op, word string) (dsm.NodeID, error) {
	if word == nodeHere {
		return b.cfg.Info.Self(), nil
	}
	var names []string
	for _, m := range b.cfg.Info.Members() {
		if m.Name == word || m.ID.String() == word {
			return m.ID, nil
		}
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return 0, errs.E(errs.Invalid, op, "no member has the name or id %q: want %s, or one of %s", word, nodeHere, strings.Join(names, " "))
}

// nodeName returns the name of a node, or its id if it is no member any more; of nobody "-".
func (b *bridge) nodeName(id dsm.NodeID) string {
	if id == 0 {
		return "-"
	}
	for _, m := range b.cfg.Info.Members() {
		if m.ID == id {
			return m.Name
		}
	}
	return id.String()
}

// ownerName returns who owns a versioned area: "-" if nobody does. errs.NoAttr for an area of another mode.
func (b *bridge) ownerName(i dsm.Inode) (string, error) {
	if i.Spec.Mode != dsm.ModeVersioned {
		return "", errs.E(errs.NoAttr, "inspect area", "")
	}
	return b.nodeName(b.cfg.Areas.Owner(i.Area())), nil
}
