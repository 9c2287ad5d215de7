package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// logLimit is the size at which a log in a default place becomes FILE.1, replacing the older
	// one.
	logLimit = 8 << 20
	// logAge is how long the log of a mount is kept when it is not mounted any more.
	logAge = 30 * 24 * time.Hour
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

// logBase returns the default directory of logs, "" if it cannot be used. Unlike the states, logs
// stay when a mount ends and when the machine is restarted.
func logBase() string {
	if os.Geteuid() == 0 {
		return "/var/log/dsmfs"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "dsmfs")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "dsmfs")
	}
	return ""
}

// logPlace returns the default path of the log of a mount. It is in the state directory if that is
// not the default one, or if the directory of logs cannot be used.
func logPlace(state, point string) string {
	if state != "" {
		return filepath.Join(state, logFile)
	}
	place := defaultState(point)
	if base := logBase(); base != "" && os.MkdirAll(base, 0o755) == nil && unix.Access(base, unix.W_OK) == nil {
		return filepath.Join(base, filepath.Base(place)+".log")
	}
	return filepath.Join(place, logFile)
}

// sweepLogs removes the logs of mounts that have not existed for long.
func sweepLogs(base string, now time.Time) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(strings.TrimSuffix(e.Name(), ".1"), ".log")
		info, err := e.Info()
		if ok && err == nil && now.Sub(info.ModTime()) > logAge && lockedBy(filepath.Join(stateBase(), name)) == 0 {
			_ = os.Remove(filepath.Join(base, e.Name())) // the next mount tries again
		}
	}
}

// logWriter writes the log of a daemon. slog gives it one line at a time.
type logWriter struct {
	file     *os.File
	size     int64 // of the file, as far as it was written here
	limit    int64 // 0: no limit
	diverted bool  // standard error goes to the file too
}

// openLog opens the log of the daemon. It makes the name absolute, and puts a link to the log into
// the state directory.
func openLog(p *program, c *mountConfig, st *state) (*logWriter, error) {
	limit := int64(0)
	switch {
	case c.logFile == "" && !c.detached:
		if f, ok := p.err.(*os.File); ok {
			own, err := dup(f)
			return &logWriter{file: own}, err
		}
		return nil, fail(exitUsage, "-f without --log-file wants standard error to be a file")
	case c.logFile == "":
		dir := c.state
		if dir == defaultState(st.point) {
			dir = ""
		}
		c.logFile, limit = logPlace(dir, st.point), logLimit
		if base := logBase(); filepath.Dir(c.logFile) == base {
			sweepLogs(base, time.Now())
		}
	}
	var err error
	if c.logFile, err = filepath.Abs(c.logFile); err != nil {
		return nil, err
	}
	w, err := newLogWriter(c.logFile, limit)
	if err != nil {
		return nil, err
	}
	if link := st.path(logFile); link != c.logFile {
		to, err := os.Readlink(link)
		if err == nil && to != c.logFile {
			_ = os.Remove(link) // left by a daemon that died
		}
		if err == nil && to == c.logFile || os.Symlink(c.logFile, link) == nil {
			st.files = append(st.files, logFile)
		}
	}
	return w, nil
}

// newLogWriter appends to a file.
func newLogWriter(path string, limit int64) (*logWriter, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fail(exitState, "log: %w", err)
	}
	w := &logWriter{file: f, limit: limit}
	if info, err := f.Stat(); err == nil {
		w.size = info.Size()
	}
	return w, nil
}

// Write implements io.Writer.
func (w *logWriter) Write(line []byte) (int, error) {
	if w.limit > 0 && w.size > 0 && w.size+int64(len(line)) > w.limit {
		if err := w.rotate(); err != nil {
			w.size = 0 // continue in the same file and try again later
		}
	}
	n, err := w.file.Write(line)
	w.size += int64(n)
	return n, err
}

// rotate renames the file to FILE.1 and begins a new one.
func (w *logWriter) rotate() error {
	path := w.file.Name()
	if err := os.Rename(path, path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next, err := newLogWriter(path, w.limit)
	if err != nil {
		return err
	}
	_ = w.file.Close() // every line was written when it was logged
	w.file, w.size = next.file, next.size
	if w.diverted {
		return unix.Dup3(int(w.file.Fd()), 2, 0)
	}
	return nil
}

// divert makes standard input and output of this process /dev/null, and standard error, where the
// runtime prints crashes, the log.
func (w *logWriter) divert() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }() // its copies stay
	for to, from := range []*os.File{null, null, w.file} {
		if err := unix.Dup3(int(from.Fd()), to, 0); err != nil {
			return fmt.Errorf("redirect descriptor %d: %w", to, err)
		}
	}
	w.diverted = true
	return nil
}

func (w *logWriter) close() { _ = w.file.Close() } // every line was written when it was logged

// dup returns a new descriptor of f's file.
func dup(f *os.File) (*os.File, error) {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// lastLines returns the end of a text file, leaving out its first bytes; nothing if it cannot be
// read. A file shorter than that is a new one, and nothing is left out.
func lastLines(file string, without int64, n int) string {
	const most = 64 << 10
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // only read
	if info, err := f.Stat(); err == nil {
		if info.Size() < without {
			without = 0
		}
		if _, err := f.Seek(max(without, info.Size()-most), io.SeekStart); err != nil {
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
