package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckMemory(t *testing.T) {
	most := memoryBound{bytes: 24 << 30, by: "this machine has"}
	for _, c := range []struct {
		memory byteSize
		want   string // empty: taken
	}{
		{12, "--memory 12 is 12 bytes: for 12 GiB write 12G"},
		{512, "for 512 GiB write 512G"},
		{64 << 10, "--memory 64K is 65536 bytes: for 64 GiB write 64G"},
		{3 << 20, "--memory 3M is too little: want at least 4.0 MiB"},
		{4 << 20, ""},
		{24 << 30, ""},
		{25 << 30, "--memory 25G is more than this machine has: 24.0 GiB"},
		{1 << 40, "--memory 1T is more than this machine has: 24.0 GiB"},
	} {
		err := checkMemory(c.memory, most)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || codeOf(err) != exitUsage) {
			t.Errorf("%d: %v, want %q", c.memory, err, c.want)
		}
	}
	group := memoryBound{320 << 20, "the control group of this process may use", true}
	if err := checkMemory(256<<20, group); err != nil {
		t.Error(err)
	}
	if err := checkMemory(257<<20, group); err == nil || !strings.Contains(err.Error(), "320.0 MiB; --memory 256M fits") {
		t.Errorf("a quarter more than --memory is not in the group: %v", err)
	}
	for limit, want := range map[int64]byteSize{24 << 30: 12 << 30, 320 << 20: 160 << 20, 64 << 20: 16 << 20, 50 << 20: 4 << 20} {
		got := defaultFor(memoryBound{bytes: limit, group: true})
		if err := checkMemory(got, memoryBound{limit, "", true}); got != want || (err == nil) != (limit > 52<<20) {
			t.Errorf("in %d the default is %s, want %s: %v", limit, got.String(), want.String(), err)
		}
	}
	if got := defaultMemory(); got < 64<<20 || checkMemory(got, usableMemory()) != nil && usableMemory().bytes >= 64<<20 {
		t.Errorf("the default is %d", got)
	}
}

func TestCgroupLimit(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"memory.max":                       "max\n",
		"a/memory.max":                     "3000\n",
		"a/b/memory.max":                   "max\n",
		"a/small/memory.max":               "2000\n",
		"memory/memory.limit_in_bytes":     "9223372036854771712\n",
		"memory/x/memory.limit_in_bytes":   "5000\n",
		"memory/x/y/memory.limit_in_bytes": "7000\n",
	} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]int64{
		"0::/\n":                                 0,
		"0::/a/b\n":                              3000, // the group around it has the limit
		"0::/a/small\n":                          2000,
		"0::/not/seen/here\n":                    0,
		"4:memory:/x/y\n1:cpu:/a\n0::/\n":        5000,
		"4:memory:/of/the/machine\n":             9223372036854771712,
		"9:name=systemd:/a/small\n":              0,
		"nonsense\n":                             0,
		"4:memory:/x\n0::/a/small\n":             2000,
		"12:cpu,cpuacct:/x\n4:memory:/x/y/z:q\n": 5000,
	} {
		if got := cgroupLimit(dir, text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
