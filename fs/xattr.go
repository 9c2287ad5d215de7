package fs

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Extended attributes in the namespaces user and trusted belong to the programs and are kept in the
// catalog. Those below user.dsm are different: they are the settings of the area (or, on a
// directory, of files created in it) and what is known about it.
//
// Those below user.dsm are not listed, so that cp -a, rsync -X and tar --xattrs do not copy them: a
// copy gets the settings of the directory it is made in. getfattr -n user.dsm.merge FILE shows one.

const dsmPrefix = "user.dsm."

// liveKeys are values that can be read but not set.
var liveKeys = []string{"version", "home", "subscribers", "owner"}

// errNoKey is the error for a name below user.dsm that does not exist.
func errNoKey(op, key string) error {
	return errs.E(errs.Invalid, op, "unknown attribute %s%s: want one of %s%s (or, only to read, %s)",
		dsmPrefix, key, dsmPrefix, strings.Join(dsm.SettingKeys, " "), strings.Join(liveKeys, " "))
}

// liveValue returns a value that the homes of an area know; key is one of liveKeys.
func (b *bridge) liveValue(ctx context.Context, i dsm.Inode, key string) (string, error) {
	if i.Kind != dsm.KindFile {
		return "", errs.E(errs.NoAttr, "inspect area", "")
	}
	if key == "home" {
		homes, err := b.cfg.Areas.Homes(i.Area())
		return formatHomes(homes), err
	}
	if key == "owner" {
		return b.ownerName(i)
	}
	rep, err := b.cfg.Areas.Inspect(ctx, i.Area())
	if err != nil {
		return "", err
	}
	if key == "version" {
		return formatVersion(rep.Version), nil
	}
	return formatNodes(rep.Subscribers), nil
}

// formatHomes returns one line for each home, nested keyed: while a part of the area moves there, it has a source; if there are copies of parts
// of it, it has backups, and while there are to be more, nodes that are being filled.
func formatHomes(homes []AreaHome) string {
	lines := make([]string, len(homes))
	for i, h := range homes {
		lines[i] = h.Node.String()
		for _, x := range []struct {
			what  string
			nodes []dsm.NodeID
		}{{"source", h.Sources}, {"backups", h.Backups}, {"filling", h.Filling}} {
			if len(x.nodes) > 0 {
				lines[i] += " " + x.what + "=" + strings.ReplaceAll(formatNodes(x.nodes), "\n", ",")
			}
		}
	}
	return strings.Join(lines, "\n")
}

// formatNodes returns one line for each node; the last line has no newline.
func formatNodes(ids []dsm.NodeID) string {
	lines := make([]string, len(ids))
	for i, id := range ids {
		lines[i] = id.String()
	}
	return strings.Join(lines, "\n")
}

func formatVersion(v dsm.Version) string { return strconv.FormatUint(uint64(v), 10) }

const trustedPrefix = "trusted."

// refused returns why no attribute has a name; OK if one may. Namespaces but these two mean something to
// a kernel (capabilities, ACLs), so programs would believe that they take effect.
func refused(name string) fuse.Status {
	for _, space := range []string{"user.", trustedPrefix} {
		if rest, is := strings.CutPrefix(name, space); is && rest == "" {
			return fuse.EINVAL
		} else if is {
			return fuse.OK
		}
	}
	return fuse.Status(syscall.EOPNOTSUPP)
}

func (b *bridge) xattr(ctx context.Context, ino dsm.Ino, name string) ([]byte, error) {
	key, ours := strings.CutPrefix(name, dsmPrefix)
	if !ours {
		return b.cfg.Names.GetXattr(ctx, ino, name)
	}
	i, err := b.cfg.Names.Getattr(ctx, ino)
	if err != nil {
		return nil, err
	}
	if i.Kind == dsm.KindSymlink {
		return nil, errs.E(errs.NoAttr, "get attribute", "")
	}
	if v, ok := i.Spec.Setting(key); ok {
		return []byte(v), nil
	}
	if !slices.Contains(liveKeys, key) {
		err := errNoKey("get attribute", key)
		b.log.Warn("get attribute", "err", err)
		return nil, err
	}
	v, err := b.liveValue(ctx, i, key)
	return []byte(v), err
}

func (b *bridge) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if _, ok := control.Of(in.NodeId); ok {
		return 0, fuse.Status(syscall.EOPNOTSUPP) // so that ls -l does not ask for the next file's
	}
	if no := refused(name); !no.Ok() {
		return 0, no
	}
	r := b.begin(cancel, in)
	defer r.end()
	value, err := b.xattr(r, inoOf(in.NodeId), name)
	if err != nil {
		return 0, b.walkStatus(r.tid, err)
	}
	b.retries.drop(r.tid)
	return fill(dest, value)
}

// fill answers with a value, or with its size if the program gave no room.
func fill(dest, value []byte) (uint32, fuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

func (b *bridge) ListXAttr(cancel <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	if _, ok := control.Of(in.NodeId); ok {
		return 0, fuse.OK
	}
	r := b.begin(cancel, in)
	defer r.end()
	names, err := b.cfg.Names.ListXattr(r, inoOf(in.NodeId))
	if err != nil {
		return 0, b.walkStatus(r.tid, err)
	}
	var list []byte
	for _, n := range names {
		if in.Uid != 0 && strings.HasPrefix(n, trustedPrefix) {
			continue // the kernel lets no such program read them either
		}
		list = append(append(list, n...), 0)
	}
	b.retries.drop(r.tid)
	return fill(dest, list)
}

func (b *bridge) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	if _, ok := control.Of(in.NodeId); ok {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	if no := refused(name); !no.Ok() {
		return no
	}
	r := b.begin(cancel, &in.InHeader)
	defer r.end()
	value := data[:min(int(in.Size), len(data))]
	if key, ours := strings.CutPrefix(name, dsmPrefix); ours {
		change := b.setSpec
		if key == "owner" {
			change = func(ctx context.Context, ino dsm.Ino, _, to string) error { return b.transfer(ctx, ino, to) }
		}
		err := change(r, inoOf(in.NodeId), key, string(value))
		if err != nil {
			b.log.Warn("set attribute", "attr", name, "value", string(value), "ino", in.NodeId, "err", err)
		}
		return b.walkStatus(r.tid, err)
	}
	how, ok := map[uint32]dsm.XattrHow{
		0: dsm.XattrSet, unix.XATTR_CREATE: dsm.XattrCreate, unix.XATTR_REPLACE: dsm.XattrReplace,
	}[in.Flags]
	if !ok {
		return fuse.EINVAL
	}
	return b.walkStatus(r.tid, b.cfg.Names.SetXattr(r, inoOf(in.NodeId), name, append([]byte(nil), value...), how))
}

// checkSetting refuses a key that is not a setting.
func checkSetting(key string) error {
	switch _, ok := (dsm.Spec{}).Setting(key); {
	case ok:
		return nil
	case slices.Contains(liveKeys, key):
		return errs.E(errs.Invalid, "set attribute", "%s%s cannot be set: it says how things are", dsmPrefix, key)
	}
	return errNoKey("set attribute", key)
}

// setSpec changes a setting of an area or a directory.
func (b *bridge) setSpec(ctx context.Context, ino dsm.Ino, key, value string) error {
	if err := checkSetting(key); err != nil {
		return err
	}
	i, err := b.cfg.Names.SetSpec(ctx, ino, key, value)
	if err != nil {
		return err
	}
	if a := b.opens.find(i.Area()); a != nil {
		a.note(i)
		b.intervals.changed(a)
	}
	return nil
}

func (b *bridge) RemoveXAttr(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	if _, ok := control.Of(in.NodeId); ok {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	if no := refused(name); !no.Ok() {
		return no
	}
	if strings.HasPrefix(name, dsmPrefix) {
		return fuse.EPERM // a setting always has a value
	}
	r := b.begin(cancel, in)
	defer r.end()
	return b.walkStatus(r.tid, b.cfg.Names.RemoveXattr(r, inoOf(in.NodeId), name))
}
