package hold_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const page = 4096

// stored returns the bytes of a file as the daemon has them, past the page cache.
func stored(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	buf, err := unix.Mmap(-1, 0, int(st.Size)+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	done := 0
	for done < int(st.Size) {
		n, err := unix.Pread(fd, buf[done:(int(st.Size)+page-1)&^(page-1)], int64(done))
		if err != nil || n == 0 {
			return nil, fmt.Errorf("read past the page cache at %d of %d: %d, %w", done, st.Size, n, err)
		}
		done += n
	}
	return buf[:st.Size], nil
}

// same says where two contents differ.
func same(what string, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
		}
	}
	return fmt.Errorf("%s: %d bytes, want %d", what, len(got), len(want))
}

// maps stores into mappings of a small and a large file, and calls msync now and then.
type maps struct {
	rnd   *rand.Rand
	paths []string
	mem   [][]byte
	want  [][]byte
}

func (w *maps) begin(dir string, rnd *rand.Rand) error {
	w.rnd = rnd
	for i, size := range []int{5 * page, 3 << 20} {
		path := filepath.Join(dir, fmt.Sprint("m", i))
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		if err := f.Truncate(int64(size)); err != nil {
			return err
		}
		mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil { // the mapping stays
			return err
		}
		w.paths, w.mem, w.want = append(w.paths, path), append(w.mem, mem), append(w.want, make([]byte, size))
	}
	return nil
}

func (w *maps) step() error {
	k := w.rnd.IntN(len(w.mem))
	for range 20 {
		at, v := 8*w.rnd.IntN(len(w.mem[k])/8), w.rnd.Uint64()
		binary.LittleEndian.PutUint64(w.mem[k][at:], v)
		binary.LittleEndian.PutUint64(w.want[k][at:], v)
	}
	p := page * w.rnd.IntN(len(w.mem[k])/page)
	if err := same("the mapping", w.mem[k][p:p+page], w.want[k][p:p+page]); err != nil {
		return fmt.Errorf("file %d, page %d: %w", k, p/page, err)
	}
	if w.rnd.IntN(30) > 0 {
		return nil
	}
	if err := unix.Msync(w.mem[k], unix.MS_SYNC); err != nil {
		return fmt.Errorf("msync: %w", err)
	}
	got, err := stored(w.paths[k])
	if err != nil {
		return err
	}
	return same("what is stored after msync", got, w.want[k])
}

func (w *maps) check() error {
	for k := range w.mem {
		if err := same("the mapping", w.mem[k], w.want[k]); err != nil {
			return err
		}
		if err := unix.Msync(w.mem[k], unix.MS_SYNC); err != nil {
			return fmt.Errorf("msync: %w", err)
		}
		got, err := stored(w.paths[k])
		if err == nil {
			err = same("what is stored", got, w.want[k])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writes uses write(2) and fsync, in a file that grows, and in one that has no name.
type writes struct {
	rnd   *rand.Rand
	files []*os.File
	want  [][]byte
}

func (w *writes) begin(dir string, rnd *rand.Rand) error {
	w.rnd = rnd
	for i := range 2 {
		path := filepath.Join(dir, fmt.Sprint("f", i))
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		if i == 1 {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		w.files, w.want = append(w.files, f), append(w.want, nil)
	}
	return nil
}

func (w *writes) step() error {
	k := w.rnd.IntN(len(w.files))
	n, at := 1+w.rnd.IntN(20_000), w.rnd.IntN(400_000)
	data := bytes.Repeat([]byte{byte(w.rnd.Uint32())}, n)
	if m, err := w.files[k].WriteAt(data, int64(at)); err != nil || m != n {
		return fmt.Errorf("write: %d, %w", m, err)
	}
	if len(w.want[k]) < at+n {
		w.want[k] = append(w.want[k], make([]byte, at+n-len(w.want[k]))...)
	}
	copy(w.want[k][at:], data)
	if w.rnd.IntN(10) == 0 {
		if err := w.files[k].Sync(); err != nil {
			return fmt.Errorf("fsync: %w", err)
		}
	}
	if w.rnd.IntN(10) == 0 {
		return w.check()
	}
	return nil
}

func (w *writes) check() error {
	for k, f := range w.files {
		got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
		if err == nil {
			err = same("the file", got, w.want[k])
		}
		if err == nil && k == 0 {
			if got, err = stored(f.Name()); err == nil {
				err = same("what is stored", got, w.want[k])
			}
		}
		if err != nil {
			return fmt.Errorf("file %d: %w", k, err)
		}
	}
	return nil
}

// appends appends lines: each must be there once.
type appends struct {
	f    *os.File
	want bytes.Buffer
}

func (w *appends) begin(dir string, _ *rand.Rand) (err error) {
	w.f, err = os.OpenFile(filepath.Join(dir, "lines"), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	return err
}

func (w *appends) step() error {
	line := fmt.Sprintf("line of %d bytes before it\n", w.want.Len())
	w.want.WriteString(line)
	if n, err := w.f.WriteString(line); err != nil || n != len(line) {
		return fmt.Errorf("append: %d, %w", n, err)
	}
	return nil
}

func (w *appends) check() error {
	got, err := os.ReadFile(w.f.Name())
	if err != nil {
		return err
	}
	return same("the lines", got, w.want.Bytes())
}

// names makes, moves, links and removes files and directories. Nobody else does so there, so each call does what it should.
type names struct {
	rnd  *rand.Rand
	dir  string
	want map[string]bool // true: a directory
	next int
}

func (w *names) begin(dir string, rnd *rand.Rand) error {
	w.dir, w.rnd, w.want = dir, rnd, make(map[string]bool)
	return nil
}

// any returns a name that is there.
func (w *names) any(dir bool) string {
	var all []string
	for name, d := range w.want {
		if d == dir {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return all[w.rnd.IntN(len(all))]
}

func (w *names) step() error {
	at := func(name string) string { return filepath.Join(w.dir, name) }
	w.next++
	fresh := fmt.Sprintf("n%d", w.next)
	file, sub := w.any(false), w.any(true)
	var err error
	what := ""
	switch k := w.rnd.IntN(7); {
	case k == 0 || file == "":
		what = "create " + fresh
		var f *os.File
		if f, err = os.OpenFile(at(fresh), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			_, err = f.WriteString(fresh)
			err = errors.Join(err, f.Close())
		}
		w.want[fresh] = false
	case k == 1 || sub == "":
		what = "mkdir " + fresh
		err = os.Mkdir(at(fresh), 0o755)
		w.want[fresh] = true
	case k == 2 && len(w.want) > 20:
		what = "rmdir " + sub
		err = os.Remove(at(sub))
		delete(w.want, sub)
	case k == 3 && len(w.want) > 20:
		what = "unlink " + file
		err = os.Remove(at(file))
		delete(w.want, file)
	case k == 4:
		what = "link " + file + " " + fresh
		err = os.Link(at(file), at(fresh))
		w.want[fresh] = false
	case k == 5:
		what = "move the directory " + sub + " " + fresh
		err = os.Rename(at(sub), at(fresh))
		delete(w.want, sub)
		w.want[fresh] = true
	default:
		what = "move " + file + " " + fresh
		err = os.Rename(at(file), at(fresh))
		delete(w.want, file)
		w.want[fresh] = false
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if w.rnd.IntN(20) == 0 {
		return w.check()
	}
	return nil
}

func (w *names) check() error {
	list, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	got := make(map[string]bool)
	for _, e := range list {
		got[e.Name()] = e.IsDir()
		if !e.IsDir() {
			if text, err := os.ReadFile(filepath.Join(w.dir, e.Name())); err != nil || !strings.HasPrefix(string(text), "n") {
				return fmt.Errorf("%s has %q, %w", e.Name(), text, err)
			}
		}
	}
	for name, d := range w.want {
		if is, ok := got[name]; !ok || is != d {
			return fmt.Errorf("%s is missing, or of another kind", name)
		}
	}
	if len(got) != len(w.want) {
		return fmt.Errorf("%d names, want %d", len(got), len(w.want))
	}
	return nil
}

// sizes makes a file shorter and longer, and punches holes.
type sizes struct {
	rnd  *rand.Rand
	f    *os.File
	want []byte
}

func (w *sizes) begin(dir string, rnd *rand.Rand) (err error) {
	w.rnd = rnd
	w.f, err = os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	return err
}

func (w *sizes) step() error {
	n := w.rnd.IntN(200_000)
	switch w.rnd.IntN(4) {
	case 0:
		if err := w.f.Truncate(int64(n)); err != nil {
			return fmt.Errorf("truncate: %w", err)
		}
		w.want = append(w.want[:min(n, len(w.want))], make([]byte, max(n-len(w.want), 0))...)
	case 1:
		m := 1 + w.rnd.IntN(50_000)
		if err := unix.Fallocate(int(w.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(n), int64(m)); err != nil {
			return fmt.Errorf("punch: %w", err)
		}
		if n < len(w.want) {
			clear(w.want[n:min(n+m, len(w.want))])
		}
	default:
		data := bytes.Repeat([]byte{1 + byte(w.rnd.IntN(255))}, 1+w.rnd.IntN(9000))
		if _, err := w.f.WriteAt(data, int64(n)); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		w.want = append(w.want, make([]byte, max(n+len(data)-len(w.want), 0))...)
		copy(w.want[n:], data)
	}
	if w.rnd.IntN(8) == 0 {
		return w.check()
	}
	return nil
}

func (w *sizes) check() error {
	got, err := io.ReadAll(io.NewSectionReader(w.f, 0, 1<<30))
	if err == nil {
		err = same("the file", got, w.want)
	}
	if err == nil {
		if got, err = stored(w.f.Name()); err == nil {
			err = same("what is stored", got, w.want)
		}
	}
	return err
}

// counter adds to a number that programs share, under a flock and, at another place, under a lock of fcntl.
type counter struct {
	rnd *rand.Rand
	f   *os.File
	own string
	n   [2]uint64
}

func (w *counter) begin(dir string, rnd *rand.Rand) (err error) {
	w.rnd, w.own = rnd, filepath.Join(dir, "own")
	w.f, err = os.OpenFile(filepath.Join(filepath.Dir(dir), "shared", "counter"), os.O_RDWR|os.O_CREATE, 0o644)
	return err
}

func (w *counter) step() error {
	k := w.rnd.IntN(2)
	lock := func(how int16) error {
		if k == 0 {
			return unix.Flock(int(w.f.Fd()), map[int16]int{unix.F_WRLCK: unix.LOCK_EX, unix.F_UNLCK: unix.LOCK_UN}[how])
		}
		return unix.FcntlFlock(w.f.Fd(), unix.F_SETLKW, &unix.Flock_t{Type: how, Start: 8, Len: 8})
	}
	restarted := func(how int16) error {
		for {
			if err := lock(how); !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	}
	if err := restarted(unix.F_WRLCK); err != nil {
		return fmt.Errorf("lock %d: %w", k, err)
	}
	var b [8]byte
	if _, err := w.f.ReadAt(b[:], int64(8*k)); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read: %w", err)
	}
	binary.LittleEndian.PutUint64(b[:], binary.LittleEndian.Uint64(b[:])+1)
	if _, err := w.f.WriteAt(b[:], int64(8*k)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	w.n[k]++
	if err := restarted(unix.F_UNLCK); err != nil {
		return fmt.Errorf("unlock %d: %w", k, err)
	}
	return nil
}

// check leaves how much it has added; the last that ends compares. The numbers are looked at under no lock: nobody adds any more.
func (w *counter) check() error {
	text := fmt.Sprintf("%d %d", w.n[0], w.n[1])
	if err := os.WriteFile(w.own, []byte(text), 0o644); err != nil {
		return err
	}
	var sum [2]uint64
	all, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(w.own)), "counter*"))
	if err != nil {
		return err
	}
	for _, dir := range all {
		var n [2]uint64
		text, err := os.ReadFile(filepath.Join(dir, "own"))
		if errors.Is(err, os.ErrNotExist) {
			return nil // the other will look
		}
		if _, err := fmt.Sscan(string(text), &n[0], &n[1]); err != nil {
			return err
		}
		sum[0], sum[1] = sum[0]+n[0], sum[1]+n[1]
	}
	var b [16]byte
	if _, err := w.f.ReadAt(b[:], 0); err != nil {
		return err
	}
	for k := range sum {
		if got := binary.LittleEndian.Uint64(b[8*k:]); got != sum[k] {
			return fmt.Errorf("number %d is %d, and %d was added", k, got, sum[k])
		}
	}
	return nil
}

// owner has a lock all the time, which nobody else gets.
type owner struct{ f, other *os.File }

func (w *owner) begin(dir string, _ *rand.Rand) (err error) {
	path := filepath.Join(dir, "lock")
	if w.f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	if err := unix.Flock(int(w.f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	w.other, err = os.Open(path)
	return err
}

func (w *owner) step() error {
	if err := unix.Flock(int(w.other.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("lock what is locked: %w", err)
	}
	return nil
}

func (w *owner) check() error {
	if err := w.f.Close(); err != nil {
		return err
	}
	return unix.Flock(int(w.other.Fd()), unix.LOCK_SH)
}
