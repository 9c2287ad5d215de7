package catalog

import (
	"context"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLog passes raft's log lines on to slog, all at level debug: raft calls it an error that a
// peer is dead, and repeats that twice a second. The catalog itself logs what users should know.
type raftLog struct {
	*slog.Logger
	name string
}

var _ hclog.Logger = raftLog{}

func (l raftLog) Log(_ hclog.Level, msg string, args ...any) {
	if !l.IsDebug() {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			args[i] = f[1:]
		}
	}
	l.Logger.Debug(msg, args...)
}

func (l raftLog) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l raftLog) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l raftLog) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l raftLog) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l raftLog) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l raftLog) IsTrace() bool { return false }
func (l raftLog) IsDebug() bool { return l.Enabled(context.Background(), slog.LevelDebug) }
func (l raftLog) IsInfo() bool  { return l.IsDebug() }
func (l raftLog) IsWarn() bool  { return l.IsDebug() }
func (l raftLog) IsError() bool { return l.IsDebug() }

func (l raftLog) ImpliedArgs() []any               { return nil }
func (l raftLog) With(args ...any) hclog.Logger    { return raftLog{l.Logger.With(args...), l.name} }
func (l raftLog) Name() string                     { return l.name }
func (l raftLog) Named(name string) hclog.Logger   { return raftLog{l.Logger, l.name + "." + name} }
func (l raftLog) ResetNamed(n string) hclog.Logger { return raftLog{l.Logger, n} }
func (l raftLog) SetLevel(hclog.Level)             {}
func (l raftLog) GetLevel() hclog.Level            { return hclog.Debug }

func (l raftLog) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.Handler(), slog.LevelDebug)
}

func (l raftLog) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(o).Writer()
}
