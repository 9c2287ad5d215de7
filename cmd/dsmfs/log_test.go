package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLastLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte(strings.Repeat("old\n", 100000)+"one\ntwo\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		without int64
		n       int
		want    string
	}{
		{0, 2, "one\ntwo"},
		{400000, 5, "one\ntwo"},
		{400004, 5, "two"},
		{400008, 5, ""},
		{900000, 1, "two"},
	} {
		if got := lastLines(file, c.without, c.n); got != c.want {
			t.Errorf("%d lines without %d bytes: %q, want %q", c.n, c.without, got, c.want)
		}
	}
	if got := lastLines(file+"x", 0, 2); got != "" {
		t.Errorf("of no file: %q", got)
	}
}

// TestLogIsBounded writes much more than the limit: the last lines are there, and no more than twice the limit.
func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("of the mount before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const limit = 1000
	w, err := newLogWriter(path, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	log, _, err := newLog(w, "info")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("first")
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(text), "of the mount before\n") || !strings.Contains(string(text), "first") {
		t.Errorf("not appended: %q, %v", text, err)
	}
	for i := range 1000 {
		log.Info("line", "i", i)
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path + ".1")
	if err != nil {
		t.Fatal(err)
	}
	if len(now) > limit || len(before) > limit || len(before) < limit/2 {
		t.Errorf("%d and %d bytes, with a limit of %d", len(before), len(now), limit)
	}
	all := strings.Split(strings.TrimSpace(string(before)+string(now)), "\n")
	for i, line := range all {
		if want := fmt.Sprintf("i=%d", 1000-len(all)+i); !strings.HasSuffix(line, want) {
			t.Fatalf("line %d is %q, want %s", i, line, want)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLogGoesOnWhereItCannotRotate: a directory is in the way.
func TestLogGoesOnWhereItCannotRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.MkdirAll(filepath.Join(path+".1", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := newLogWriter(path, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	for _, line := range []string{"0123456\n", "89abcdef\n", "end\n"} {
		if _, err := w.Write([]byte(line)); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "0123456\n89abcdef\nend\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestOldLogsGo(t *testing.T) {
	base := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{"a.log": logAge * 2, "a.log.1": logAge * 2, "b.log": logAge / 2, "other": logAge * 2} {
		path := filepath.Join(base, name)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	sweepLogs(base, now)
	left, err := filepath.Glob(filepath.Join(base, "*"))
	if err != nil || fmt.Sprint(left) != fmt.Sprintf("[%s/b.log %s/other]", base, base) {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestLogPlace(t *testing.T) {
	if got := logPlace("/s", "/mnt/dsm"); got != "/s/log" {
		t.Errorf("with a state directory: %s", got)
	}
	if got := logPlace("", "/mnt/dsm"); filepath.Base(got) != "mnt-dsm.log" && got != filepath.Join(defaultState("/mnt/dsm"), "log") {
		t.Errorf("without: %s", got)
	}
}
