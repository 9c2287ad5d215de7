package fs

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// topFiles are the files of /.dsm itself; the order is part of their inode numbers.
var topFiles = []controlFile{
	{name: "version", perm: 0o444, read: func(_ context.Context, b *bridge, _ dsm.Ino) (string, error) {
		return b.cfg.Info.Version() + "\n", nil
	}},
	{name: "config", perm: 0o444, read: func(_ context.Context, b *bridge, _ dsm.Ino) (string, error) {
		return flatKeyed(b.cfg.Info.Config()), nil
	}},
	{name: "members", perm: 0o444, read: func(_ context.Context, b *bridge, _ dsm.Ino) (string, error) {
		return nestedKeyed(b.cfg.Info.Members()), nil
	}},
	{name: "stats", perm: 0o444, read: func(_ context.Context, b *bridge, _ dsm.Ino) (string, error) {
		return flatKeyed(append(b.stats(), b.cfg.Areas.Stats()...)), nil
	}},
	{name: "log_level", perm: 0o644, read: func(_ context.Context, b *bridge, _ dsm.Ino) (string, error) {
		return formatLevel(b.cfg.Info.LogLevel()) + "\n", nil
	}, write: func(_ context.Context, b *bridge, _ dsm.Ino, value string) error {
		level, err := parseLevel(value)
		if err == nil {
			b.cfg.Info.SetLogLevel(level)
		}
		return err
	}},
	{name: "attach", perm: 0o444, read: func(_ context.Context, b *bridge, _ dsm.Ino) (string, error) {
		if b.cfg.AttachSocket == "" {
			return "", errs.E(errs.Unsupported, "attach", "this node lets no program attach")
		}
		return b.cfg.AttachSocket + "\n", nil
	}},
}

// areaFiles are the control files of an area; the order is part of their inode numbers.
var areaFiles = []controlFile{
	specFile("mode"), specFile("merge"), specFile("dtype"), specFile("apply"), specFile("interval"), specFile("residency"), specFile("access"),
	liveFile("version"), liveFile("home"), liveFile("subscribers"),
	{name: "publish", perm: 0o222, write: func(ctx context.Context, b *bridge, ino dsm.Ino, value string) error {
		return trigger(b, ino, value, func(a *openArea) error { return b.harvestAndPublish(ctx, a) })
	}},
	{name: "acquire", perm: 0o222, write: func(ctx context.Context, b *bridge, ino dsm.Ino, value string) error {
		return trigger(b, ino, value, func(a *openArea) error { return a.current().Acquire(ctx) })
	}},
	{name: "stats", perm: 0o444, read: func(_ context.Context, b *bridge, ino dsm.Ino) (string, error) {
		if a := b.opens.find(dsm.AreaID(ino)); a != nil && a.current() != nil {
			return b.areaStats(a), nil
		}
		return "", nil // nobody here has had it open lately
	}},
}

// specFile is the control file of a setting.
func specFile(key string) controlFile {
	return controlFile{name: key, perm: 0o666,
		read: func(ctx context.Context, b *bridge, ino dsm.Ino) (string, error) {
			i, err := b.cfg.Names.Getattr(ctx, ino)
			if err != nil {
				return "", err
			}
			v, _ := specValue(i.Spec, key)
			return v + "\n", nil
		},
		write: func(ctx context.Context, b *bridge, ino dsm.Ino, value string) error {
			return b.setSpec(ctx, ino, key, value)
		},
	}
}

// liveFile is the control file of what the homes of an area know.
func liveFile(key string) controlFile {
	return controlFile{name: key, perm: 0o444, read: func(ctx context.Context, b *bridge, ino dsm.Ino) (string, error) {
		i, err := b.cfg.Names.Getattr(ctx, ino)
		if err != nil {
			return "", err
		}
		v, err := b.liveValue(ctx, i, key)
		if v != "" {
			v += "\n"
		}
		return v, err
	}}
}

// trigger does what writing a 1 asks for. An area that is not open here has
// nothing to publish, and acquires when it is opened.
func trigger(b *bridge, ino dsm.Ino, value string, do func(*openArea) error) error {
	if value != "1" {
		return errs.E(errs.Invalid, "write", "%q: want 1", value)
	}
	a := b.opens.find(dsm.AreaID(ino))
	if a == nil || a.handles() == 0 {
		return nil
	}
	return do(a)
}

func stat[V any](name string, v V) Stat { return Stat{name, fmt.Sprint(v)} }

func flatKeyed(stats []Stat) string {
	var t strings.Builder
	for _, s := range stats {
		fmt.Fprintf(&t, "%s %s\n", s.Name, s.Value)
	}
	return t.String()
}

func nestedKeyed(members []Member) string {
	var t strings.Builder
	for _, m := range members {
		fmt.Fprintf(&t, "%s name=%s addr=%s state=%s voter=%d leaving=%d budget=%d\n",
			m.ID, m.Name, m.Addr, m.State, bit(m.Voter), bit(m.Leaving), m.Budget)
	}
	return t.String()
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// formatNodes is a line per node; the last line has no newline.
func formatNodes(ids []dsm.NodeID) string {
	lines := make([]string, len(ids))
	for i, id := range ids {
		lines[i] = id.String()
	}
	return strings.Join(lines, "\n")
}

func formatVersion(v dsm.Version) string { return strconv.FormatUint(uint64(v), 10) }

// levels are the names of the levels of log_level.
var levels = []struct {
	name  string
	level slog.Level
}{{"debug", slog.LevelDebug}, {"info", slog.LevelInfo}, {"warn", slog.LevelWarn}, {"error", slog.LevelError}}

func formatLevel(l slog.Level) string {
	for _, n := range levels {
		if n.level == l {
			return n.name
		}
	}
	return l.String()
}

func parseLevel(s string) (slog.Level, error) {
	for _, n := range levels {
		if n.name == s {
			return n.level, nil
		}
	}
	return 0, errs.E(errs.Invalid, "set log level", "%q: want debug, info, warn or error", s)
}
