package membership

import (
	"context"
	"log/slog"
	"strings"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// logLines takes the lines that memberlist logs, each in one Write, to slog:
// one level lower than memberlist thinks, which calls an unanswered probe an error.
//
// It also reads the suspicion out of them. memberlist 0.7.0 has no event for
// it: the state in memberlist.Node is never set. Another version that words the
// line differently fails TestSuspicion.
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
