package control

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// topFiles are the files of /.dsm itself; the order is part of their inode numbers.
var topFiles = []file{
	{name: "version", perm: 0o444, read: func(_ context.Context, t *Tree, _ dsm.Ino) (string, error) {
		return t.cfg.Info.Version() + "\n", nil
	}},
	{name: "config", perm: 0o444, read: func(_ context.Context, t *Tree, _ dsm.Ino) (string, error) {
		return FlatKeyed(t.cfg.Info.Config()), nil
	}},
	{name: "members", perm: 0o444, read: func(_ context.Context, t *Tree, _ dsm.Ino) (string, error) {
		return nestedKeyed(t.cfg.Info.Members()), nil
	}},
	{name: "stats", perm: 0o444, read: func(_ context.Context, t *Tree, _ dsm.Ino) (string, error) {
		return FlatKeyed(t.cfg.Mount.Stats()), nil
	}},
	{name: "log_level", perm: 0o644, read: func(_ context.Context, t *Tree, _ dsm.Ino) (string, error) {
		return formatLevel(t.cfg.Info.LogLevel()) + "\n", nil
	}, write: func(_ context.Context, t *Tree, _ dsm.Ino, value string) error {
		level, err := parseLevel(value)
		if err == nil {
			t.cfg.Info.SetLogLevel(level)
		}
		return err
	}},
	{name: "attach", perm: 0o444, read: func(_ context.Context, t *Tree, _ dsm.Ino) (string, error) {
		if t.cfg.AttachSocket == "" {
			return "", errs.E(errs.Unsupported, "attach", "this node lets no program attach")
		}
		return t.cfg.AttachSocket + "\n", nil
	}},
	{name: "groups", perm: 0o444, read: func(ctx context.Context, t *Tree, _ dsm.Ino) (string, error) {
		return lines(t.cfg.Mount.Groups(ctx)), nil
	}},
	{name: "token", perm: 0o600, read: func(ctx context.Context, t *Tree, _ dsm.Ino) (string, error) {
		tokens, err := t.cfg.Info.Tokens(ctx)
		return lines(tokens), err
	}, order: func(ctx context.Context, t *Tree, _ dsm.Ino, value string) (string, error) {
		made, err := t.cfg.Info.ChangeTokens(ctx, value)
		return made + "\n", err
	}},
	{name: "cluster", perm: 0o644, read: func(_ context.Context, t *Tree, _ dsm.Ino) (string, error) {
		return FlatKeyed(t.cfg.Info.Cluster()), nil
	}, write: func(ctx context.Context, t *Tree, _ dsm.Ino, value string) error {
		if value != "recover" {
			return errs.E(errs.Invalid, "cluster", "%q: want recover", value)
		}
		return t.cfg.Info.RecoverCluster(ctx)
	}},
	{name: "scrub", perm: 0o644, read: func(_ context.Context, t *Tree, _ dsm.Ino) (string, error) {
		return FlatKeyed(t.cfg.Info.Scrubbed()), nil
	}, write: func(ctx context.Context, t *Tree, _ dsm.Ino, value string) error {
		if value != "now" {
			return errs.E(errs.Invalid, "scrub", "%q: want now", value)
		}
		return t.cfg.Info.Scrub(ctx)
	}},
}

// areaFiles are the control files of an area; the order is part of their inode numbers.
var areaFiles = []file{
	specFile("mode"), specFile("merge"), specFile("dtype"), specFile("apply"), specFile("interval"), specFile("residency"), specFile("access"),
	liveFile("version"), liveFile("home"), liveFile("subscribers"),
	{name: "publish", perm: 0o222, write: func(ctx context.Context, t *Tree, ino dsm.Ino, value string) error {
		return trigger(ctx, ino, value, t.cfg.Mount.Publish)
	}},
	{name: "acquire", perm: 0o222, write: func(ctx context.Context, t *Tree, ino dsm.Ino, value string) error {
		return trigger(ctx, ino, value, t.cfg.Mount.Acquire)
	}},
	{name: "stats", perm: 0o444, read: func(_ context.Context, t *Tree, ino dsm.Ino) (string, error) {
		return FlatKeyed(t.cfg.Mount.AreaStats(dsm.AreaID(ino))), nil
	}},
	specFile("locks"), specFile("placement"),
	{name: "group", perm: 0o666, talks: true, read: func(ctx context.Context, t *Tree, ino dsm.Ino) (string, error) {
		number := strconv.FormatUint(uint64(ino), 10)
		return lines(slices.DeleteFunc(t.cfg.Mount.Groups(ctx), func(line string) bool {
			of, _, _ := strings.Cut(line, " ")
			return of != number
		})), nil
	}},
	specFile("staleness"),
	specFile("retain"),
	{name: "owner", perm: 0o666, read: liveFile("owner").read, write: func(ctx context.Context, t *Tree, ino dsm.Ino, value string) error {
		return t.cfg.Mount.Transfer(ctx, ino, value)
	}},
	{name: "history", perm: 0o444, read: func(ctx context.Context, t *Tree, ino dsm.Ino) (string, error) {
		versions, err := t.cfg.Mount.Versions(ctx, ino)
		return History(versions), err
	}},
	specFile("replicas"),
	{name: "conflicts", perm: 0o666, read: func(ctx context.Context, t *Tree, ino dsm.Ino) (string, error) {
		return conflictText(t.cfg.Mount.Conflicts(ctx, dsm.AreaID(ino))), nil
	}, write: func(ctx context.Context, t *Tree, ino dsm.Ino, value string) error {
		node, upTo, err := parseClear(value)
		if err != nil {
			return err
		}
		return t.cfg.Mount.ClearConflicts(ctx, dsm.AreaID(ino), node, upTo)
	}},
	specFile("on_nonfinite"),
}

// lines returns a text of them.
func lines(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, "\n") + "\n"
}

// specFile returns the control file of a setting.
func specFile(key string) file {
	return file{name: key, perm: 0o666,
		read: func(ctx context.Context, t *Tree, ino dsm.Ino) (string, error) {
			i, err := t.cfg.Mount.Getattr(ctx, ino)
			if err != nil {
				return "", err
			}
			v, _ := i.Spec.Setting(key)
			return v + "\n", nil
		},
		write: func(ctx context.Context, t *Tree, ino dsm.Ino, value string) error {
			return t.cfg.Mount.SetSpec(ctx, ino, key, value)
		},
	}
}

// liveFile returns the control file of a value that the homes of an area know.
func liveFile(key string) file {
	return file{name: key, perm: 0o444, read: func(ctx context.Context, t *Tree, ino dsm.Ino) (string, error) {
		i, err := t.cfg.Mount.Getattr(ctx, ino)
		if err != nil {
			return "", err
		}
		v, err := t.cfg.Mount.Inspect(ctx, i, key)
		if v != "" {
			v += "\n"
		}
		return v, err
	}}
}

// trigger calls do if the value written is 1.
func trigger(ctx context.Context, ino dsm.Ino, value string, do func(context.Context, dsm.AreaID) error) error {
	if value != "1" {
		return errs.E(errs.Invalid, "write", "%q: want 1", value)
	}
	return do(ctx, dsm.AreaID(ino))
}

// FlatKeyed returns one line "name value" for each figure.
func FlatKeyed(stats []Stat) string {
	var text strings.Builder
	for _, s := range stats {
		fmt.Fprintf(&text, "%s %s\n", s.Name, s.Value)
	}
	return text.String()
}

// History returns one line for each version, with the time when it was made in seconds since 1970.
func History(versions []Version) string {
	var text strings.Builder
	for _, v := range versions {
		fmt.Fprintf(&text, "%d time=%.6f size=%d writer=%s\n", v.Number, float64(v.Number.Time().UnixMicro())/1e6, v.Size, v.Writer)
	}
	return text.String()
}

func nestedKeyed(members []Member) string {
	var text strings.Builder
	for _, m := range members {
		fmt.Fprintf(&text, "%s name=%s addr=%s state=%s voter=%d leaving=%d budget=%d\n",
			m.ID, m.Name, m.Addr, m.State, bit(m.Voter), bit(m.Leaving), m.Budget)
	}
	return text.String()
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

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
