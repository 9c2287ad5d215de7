package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/internal/mountinfo"
)

const membersFile = `00000000000000aa name=n1 addr=10.0.0.1:7480 state=alive voter=1 leaving=0 budget=67108864
00000000000000bb name=n2 addr=10.0.0.2:7480 state=suspect voter=0 leaving=1 budget=1024
`

func TestMembers(t *testing.T) {
	rows, err := parseMembers(membersFile, "00000000000000bb", "00000000000000aa")
	if err != nil {
		t.Fatal(err)
	}
	want := memberRows{
		{ID: "00000000000000aa", Name: "n1", Addr: "10.0.0.1:7480", State: "alive", Voter: true, Leader: true, Memory: 64 << 20},
		{ID: "00000000000000bb", Name: "n2", Addr: "10.0.0.2:7480", State: "suspect", Leaving: true, Self: true, Memory: 1024},
	}
	if !reflect.DeepEqual(rows, want) {
		t.Errorf("%+v, want %+v", rows, want)
	}
	var b bytes.Buffer
	if err := rows.text(&b); err != nil {
		t.Fatal(err)
	}
	const table = `NAME  ID                ADDRESS        STATE    MEMORY    ROLE
n1    00000000000000aa  10.0.0.1:7480  alive    64.0 MiB  leader
n2    00000000000000bb  10.0.0.2:7480  suspect  1.0 KiB   this node, leaving
`
	if b.String() != table {
		t.Errorf("printed\n%s, want\n%s", b.String(), table)
	}
	if _, err := parseMembers("aa name\n", "", ""); err == nil {
		t.Error("a line that is not nested keyed is taken")
	}
}

// TestJSONKeysAreStable fails when a key that programs may read goes or changes.
func TestJSONKeysAreStable(t *testing.T) {
	for _, c := range []struct {
		v    any
		keys string
	}{
		{memberRow{}, "addr id leader leaving memory name self state voter"},
		{areaRow{}, "dtype homes merge mode path placement replicas resident size staleness version"},
		{areaRow{Owner: "n1", Versions: 1}, "dtype homes merge mode owner path placement replicas resident size staleness version versions"},
		{statusReport{}, "addr cluster config epoch id leader members memory mount name pid stats used version"},
	} {
		text, err := json.Marshal(c.v)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		for _, key := range strings.Fields(c.keys) {
			if _, ok := m[key]; !ok {
				t.Errorf("%T has no key %s", c.v, key)
			}
		}
		if len(m) != len(strings.Fields(c.keys)) {
			t.Errorf("%T has keys that are not in this test: %s", c.v, text)
		}
	}
	for _, empty := range []any{memberRows{}, areaRows{}} {
		if text, err := json.Marshal(empty); err != nil || string(text) != "[]" {
			t.Errorf("no %T is %s, %v", empty, text, err)
		}
	}
}

func TestParseFlat(t *testing.T) {
	got := parseFlat("a 1\nb two words\nc \nd\n\n")
	want := []pair{{"a", "1"}, {"b", "two words"}, {"c", ""}, {"d", ""}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAreasOfATree(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "w"), make([]byte, 5000), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sub/w", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	rows, err := lookAreas(dir, ".")
	if err != nil || len(rows) != 1 || rows[0].Path != "sub/w" || rows[0].Size != 5000 || rows[0].Mode != "-" {
		t.Errorf("%+v, %v", rows, err)
	}
	if rows, err := lookAreas(dir, "sub/w"); err != nil || len(rows) != 1 || rows[0].Path != "sub/w" {
		t.Errorf("of one file: %+v, %v", rows, err)
	}
	if _, err := lookAreas(dir, "absent"); err == nil {
		t.Error("no error for a missing directory")
	}
}

func TestResolveMount(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(dir, "real")
	for _, link := range []struct{ name, to string }{{"rel", "real"}, {"abs", real}, {"two", "rel"}, {"loop", "loop"}} {
		if err := os.Symlink(link.to, filepath.Join(dir, link.name)); err != nil {
			t.Fatal(err)
		}
	}
	all := []mountinfo.Mount{{Point: real}}
	for _, path := range []string{"real", "rel", "abs", "two", "real/"} {
		if got, err := resolveMount(filepath.Join(dir, path), all); err != nil || got != real {
			t.Errorf("%s: %s, %v", path, got, err)
		}
	}
	if _, err := resolveMount(filepath.Join(dir, "loop"), all); err == nil {
		t.Error("a loop resolves")
	}
	if got, err := resolveMount(filepath.Join(dir, "none"), all); err != nil || got != filepath.Join(dir, "none") {
		t.Errorf("a missing one: %s, %v", got, err)
	}
	if _, err := resolveMount(filepath.Join(dir, "no", "dir"), all); err == nil {
		t.Error("no error where the directory above is missing")
	}
}

func TestNodeName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	for _, c := range []struct{ chosen, addr, want string }{
		{"n", "h:1", "n"}, {"", "h:7480", host}, {"", "h:1", host + "-1"},
	} {
		if got, err := nodeName(c.chosen, c.addr); err != nil || got != c.want {
			t.Errorf("%q at %s: %q, %v", c.chosen, c.addr, got, err)
		}
	}
}

// TestUsers finds this process by a directory it works in.
func TestUsers(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	self := "/proc/self"
	if !usesMount(self, dir) {
		t.Error("an open file is not found")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if usesMount(self, dir) {
		t.Error("a closed file is found")
	}
	t.Chdir(dir)
	if !usesMount(self, dir) || usesMount(self, dir+"x") {
		t.Error("the working directory is not found, or of another mount too")
	}
}
