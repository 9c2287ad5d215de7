package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// twoNodes mounts a cluster of two nodes and returns the mount points and the
// attach socket of the first.
func twoNodes(t *testing.T) (first, second, socket string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting for all needs root")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("no mounts here: %v", err)
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv(actVariable, "dsmfs")
	dir := t.TempDir()
	points := []string{filepath.Join(dir, "m1"), filepath.Join(dir, "m2")}
	join := ""
	for i, point := range points {
		if err := os.Mkdir(point, 0o755); err != nil {
			t.Fatal(err)
		}
		state := fmt.Sprintf("%s/s%d", dir, i+1)
		args := []string{"mount", point, "--state", state, "--listen", "127.0.0.1:0", "--memory", "256M"}
		if join != "" {
			args = append(args, "--join", join)
		}
		if code, out, errOut := cli(args...); code != exitOK {
			t.Fatalf("mount: code %d, %s%s", code, out, errOut)
		}
		t.Cleanup(func() {
			if code, out, errOut := cli("umount", point); code != exitOK {
				t.Errorf("umount %s: code %d, %s%s", point, code, out, errOut)
				_, _, _ = cli("umount", point, "--force")
			}
			if t.Failed() {
				if text, err := os.ReadFile(filepath.Join(state, logFile)); err == nil {
					t.Logf("%s:\n%s", point, text)
				}
			}
		})
		addr, err := os.ReadFile(filepath.Join(state, addrFile))
		if err != nil {
			t.Fatal(err)
		}
		join = strings.TrimSpace(string(addr))
	}
	text, err := os.ReadFile(filepath.Join(points[0], ".dsm", "attach"))
	if err != nil {
		t.Fatal(err)
	}
	return points[0], points[1], strings.TrimSpace(string(text))
}

// builtShim compiles the library, whether or not this test binary embeds one.
func builtShim(t *testing.T) string {
	t.Helper()
	return compile(t, "-O2 -fPIC -shared -fvisibility=hidden -ftls-model=initial-exec", "shim/*.c")
}

// TestShim lets a program that knows nothing of dsmfs do to its mappings what
// programs do, and looks at each store from the other node.
func TestShim(t *testing.T) {
	shim := "LD_PRELOAD=" + builtShim(t)
	plain := compile(t, "-O1", "shim/test/plain.c")
	first, second, _ := twoNodes(t)
	for _, step := range []string{"basic", "parts", "moves", "protects", "joins", "many", "forks", "forks_with_an_allocator", "tail", "closes", "threads", "signals", "both", "both_summed"} {
		t.Run(step, func(t *testing.T) {
			if _, text := runProgram(t, []string{shim}, plain, step, filepath.Join(first, step), filepath.Join(second, step)); text != "" {
				t.Errorf("printed %q", text)
			}
		})
	}
	t.Run("lost", func(t *testing.T) {
		_, text := runProgram(t, []string{shim}, plain, "forks_after_removal", filepath.Join(first, "r"), filepath.Join(second, "r"))
		if text != "" && !strings.Contains(text, "/r is not in the memory of this child of fork") {
			t.Errorf("printed %q", text)
		}
	})
}

// TestShimSpeaks looks at the lines that it prints, and at the page-cache plane
// behind them.
func TestShimSpeaks(t *testing.T) {
	shim := "LD_PRELOAD=" + builtShim(t)
	first, _, _ := twoNodes(t)
	python := lookProgram(t, "python3")
	file := filepath.Join(first, "w")
	const program = `
import mmap, sys
f = open(sys.argv[1], 'w+b')
f.truncate(8192)
for i in range(2):
    m = mmap.mmap(f.fileno(), 0)
    m[0] = 65
    m.flush()
print('/memfd:' in open('/proc/self/maps').read(), open(sys.argv[1], 'rb').read(1))
`
	for _, c := range []struct {
		env       []string
		out, text string
	}{
		{nil, "True b'A'\n", ""},
		{[]string{"DSMFS_VERBOSE=1"}, "True b'A'\n", "dsmfs: /w is attached: for reading and writing\n"},
		{[]string{"DSMFS_ATTACH=/no/socket"}, "False b'A'\n", "dsmfs: /w stays on the page cache: connect to /no/socket: No such file or directory\n"},
		{[]string{"DSMFS_ATTACH=/no/socket", "DSMFS_QUIET=1"}, "False b'A'\n", ""},
	} {
		out, text := runProgram(t, append(c.env, shim), python, "-c", program, file)
		if out != c.out || text != c.text {
			t.Errorf("%v: printed %q and %q, want %q and %q", c.env, out, text, c.out, c.text)
		}
	}
}

// TestShimOfADirectFile: a mapping for reading of a file that is open with access=direct, by a descriptor for writing, can become one for writing.
func TestShimOfADirectFile(t *testing.T) {
	shim := "LD_PRELOAD=" + builtShim(t)
	first, second, _ := twoNodes(t)
	const program = `
import ctypes, mmap, os, sys
path, other = sys.argv[1:]
os.close(os.open(path, os.O_RDWR | os.O_CREAT))
os.setxattr(path, 'user.dsm.access', b'direct')
f = os.open(path, os.O_RDWR)
os.ftruncate(f, 8192)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
p = libc.mmap(None, ctypes.c_size_t(8192), mmap.PROT_READ, mmap.MAP_SHARED, f, ctypes.c_long(0))
assert ctypes.string_at(p, 2) == b'\0\0'
if libc.mprotect(ctypes.c_void_p(p), ctypes.c_size_t(8192), mmap.PROT_READ | mmap.PROT_WRITE) != 0:
    sys.exit('mprotect: ' + os.strerror(ctypes.get_errno()))
ctypes.memset(p + 5000, 65, 1)
os.fsync(f)
print(open(other, 'rb').read()[5000:5001], os.pread(f, 1, 5000))
`
	if out, text := runProgram(t, []string{shim, "DSMFS_QUIET=1"}, lookProgram(t, "python3"), "-c", program, filepath.Join(first, "d"), filepath.Join(second, "d")); out != "b'A' b'A'\n" {
		t.Errorf("printed %q, %q", out, text)
	}
}

// TestHeader runs the tests of dsmfs.h against real nodes.
func TestHeader(t *testing.T) {
	first, second, socket := twoNodes(t)
	for i, flags := range []string{"-O2", "-O1 -fsanitize=address,undefined", "-O1 -fsanitize=thread"} {
		t.Run(strings.ReplaceAll(flags, " ", ""), func(t *testing.T) {
			api := compile(t, flags, "include/test/api.c")
			name := fmt.Sprintf("w%d", i)
			runProgram(t, nil, api, "real", filepath.Join(first, name), filepath.Join(second, name))
			runProgram(t, nil, api, "socket", socket)
		})
	}
}

// TestExample runs examples/c on two nodes.
func TestExample(t *testing.T) {
	average := compile(t, "-O2 -I../../include", "examples/c/average.c")
	first, second, _ := twoNodes(t)
	var both sync.WaitGroup
	outs := make([]string, 2)
	for i, point := range []string{first, second} {
		both.Go(func() { outs[i], _ = runProgram(t, nil, average, filepath.Join(point, "sum"), "1000") })
	}
	both.Wait()
	for i, out := range outs {
		if !strings.Contains(out, "added 1000") {
			t.Errorf("node %d printed %q", i+1, out)
		}
	}
	if out, _ := runProgram(t, nil, average, filepath.Join(second, "sum"), "0"); !strings.Contains(out, "the sum is 2000") {
		t.Errorf("printed %q, want the sum of both", out)
	}
}

// lookProgram skips the test if the machine has not the program.
func lookProgram(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s here: %v", name, err)
	}
	return path
}

// TestShimWithSQLite is about a program that nobody here wrote, and which has opinions about
// its mappings: it reads the database by a shared mapping that it moves by mremap as the file grows, and in WAL
// mode several processes share an index by a writable mapping, with locks and no msync.
func TestShimWithSQLite(t *testing.T) {
	sqlite := lookProgram(t, "sqlite3")
	shim := "LD_PRELOAD=" + builtShim(t)
	first, second, _ := twoNodes(t)
	db := filepath.Join(first, "db")
	const settings = "PRAGMA mmap_size=268435456; PRAGMA busy_timeout=30000; "
	out, text := runProgram(t, []string{shim, "DSMFS_VERBOSE=1"}, sqlite, db, settings+`PRAGMA journal_mode=WAL;
		CREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT);
		WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x < 5000) INSERT INTO t SELECT x, hex(randomblob(50)) FROM c;
		PRAGMA wal_checkpoint(TRUNCATE);
		SELECT count(*), sum(length(v)) FROM t;`)
	if !strings.HasSuffix(out, "5000|500000\n") || !strings.Contains(text, "is attached") {
		t.Fatalf("printed %q and %q", out, text)
	}
	closeIt := keepOpen(t, shim, sqlite, db)
	const writers, rows = 3, 10
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range rows {
				runProgram(t, []string{shim}, sqlite, db, fmt.Sprintf("%sINSERT INTO t(v) VALUES('row %d of %d');", settings, i, w))
			}
		})
	}
	all.Wait()
	out, _ = runProgram(t, []string{shim}, sqlite, db, settings+"SELECT count(*) FROM t WHERE v LIKE 'row%'; PRAGMA integrity_check; PRAGMA wal_checkpoint(TRUNCATE);")
	if want := fmt.Sprintf("%d\nok\n", writers*rows); !strings.Contains(out, want) {
		t.Errorf("printed %q, want %q", out, want)
	}
	closeIt() // till then no other node may
	out, _ = runProgram(t, nil, sqlite, filepath.Join(second, "db"), "SELECT count(*) FROM t; PRAGMA integrity_check;")
	if want := fmt.Sprintf("%d\nok\n", 5000+writers*rows); out != want {
		t.Errorf("the other node, on its page cache, has %q, want %q", out, want)
	}
}

// keepOpen keeps a connection to the database open until it is told otherwise, as a
// server would: the last that closes one removes the index that they share.
func keepOpen(t *testing.T, shim, sqlite, db string) (closeIt func()) {
	t.Helper()
	cmd := exec.Command(sqlite, db)
	cmd.Env = append(os.Environ(), shim)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	closeIt = sync.OnceFunc(func() {
		_ = in.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(closeIt)
	if _, err := in.Write([]byte("SELECT count(*) FROM t;\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 64)); err != nil { // the count: now it is open
		t.Fatal(err)
	}
	return closeIt
}

// TestShimWithNumPy maps as training programs do, at an offset that is no multiple of a page.
func TestShimWithNumPy(t *testing.T) {
	python, err := filepath.Abs("../../.venv/bin/python")
	if err == nil {
		_, err = os.Stat(python)
	}
	if err != nil {
		t.Skipf("no virtual environment, make deps makes it: %v", err)
	}
	shim := "LD_PRELOAD=" + builtShim(t)
	first, second, _ := twoNodes(t)
	const write = `
import numpy as np, sys, multiprocessing as mp
a = np.lib.format.open_memmap(sys.argv[1], 'w+', dtype='f4', shape=(1000, 100))
a[:] = 1
def work(i):
    a[i] += i
    a.flush()
ps = [mp.get_context('fork').Process(target=work, args=(i,)) for i in range(4)]
[p.start() for p in ps]; [p.join() for p in ps]
assert [p.exitcode for p in ps] == [0] * 4
a.flush()
assert '/memfd:' in open('/proc/self/maps').read()
b = np.memmap(sys.argv[1], 'f4', 'r+', offset=128, shape=(1000, 100))
b[999] = 7
b.flush()
`
	const read = `
import numpy as np, sys
a = np.load(sys.argv[1], mmap_mode='r')
print([float(x) for x in a[[0, 1, 2, 3, 4, 999], 50]])
`
	if _, text := runProgram(t, []string{shim}, python, "-c", write, filepath.Join(first, "a.npy")); text != "" {
		t.Errorf("printed %q", text)
	}
	for _, env := range [][]string{nil, {shim}} {
		out, _ := runProgram(t, env, python, "-c", read, filepath.Join(second, "a.npy"))
		if want := "[1.0, 2.0, 3.0, 4.0, 1.0, 7.0]\n"; out != want {
			t.Errorf("the other node with %v printed %q, want %q", env, out, want)
		}
	}
}
