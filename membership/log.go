package membership

import (
	"context"
	"log/slog"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// logLines passes the lines that memberlist logs, each in one Write, on to slog, one level lower:
// memberlist calls an unanswered probe an error.
//
// It also extracts the suspicions. memberlist 0.7.0 has no event for them, and never sets the state
// in memberlist.Node. If another version words the line differently, TestSuspicion fails.
type logLines struct {
	log   *slog.Logger
	table *table
}

var logLevels = map[string]slog.Level{
	"[ERR]": slog.LevelWarn, "[WARN]": slog.LevelInfo, "[INFO]": slog.LevelDebug, "[DEBUG]": slog.LevelDebug,
}

func (l *logLines) Write(b []byte) (int, error) {
	level, text, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	text = strings.TrimPrefix(text, "memberlist: ")
	if name, ok := strings.CutPrefix(text, "Suspect "); ok {
		name, _, _ = strings.Cut(name, " ")
		if id, err := dsm.ParseNodeID(name); err == nil {
			l.table.suspect(id)
		}
	}
	l.log.Log(context.Background(), logLevels[level], "gossip", "event", text)
	return len(b), nil
}
