package main

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"strings"
)

// newLog returns the log of a daemon and its level, which can be changed.
func newLog(w io.Writer, level string) (*slog.Logger, *slog.LevelVar, error) {
	l, err := parseLevel(level)
	if err != nil {
		return nil, nil, err
	}
	v := new(slog.LevelVar)
	v.Set(l)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: v})), v, nil
}

// lastLines returns the end of a text file, empty if it cannot be read.
func lastLines(file string, n int) string {
	const most = 64 << 10
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // only read
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
