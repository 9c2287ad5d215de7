package hold_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	sharesLast = 1 << 20   // bytes of the file of rule last
	sharesSum  = 64 << 10  // bytes of the file of rule sum
	sharesFor  = 3         // programs
	lastFile   = "lastadd" // in the directory of the programs, next to sumFile
	sumFile    = "sumadd"
)

// shares maps two files that programs of all nodes map: in one each has elements of its own, in the other all add to all.
type shares struct {
	rnd       *rand.Rand
	k         int
	own       string
	last, sum []byte
	want      []byte   // of last
	added     []uint64 // to sum
}

func (w *shares) begin(dir string, rnd *rand.Rand) (err error) {
	w.rnd, w.own = rnd, filepath.Join(dir, "own")
	if _, err = fmt.Sscanf(filepath.Base(dir), "shares%d", &w.k); err != nil {
		return err
	}
	w.want, w.added = make([]byte, sharesLast), make([]uint64, sharesSum/8)
	common := filepath.Dir(dir)
	if w.last, err = mapped(filepath.Join(common, lastFile), sharesLast); err != nil {
		return err
	}
	w.sum, err = mapped(filepath.Join(common, sumFile), sharesSum)
	return err
}

func mapped(path string, size int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return mem, f.Close() // the mapping stays
}

func (w *shares) step() error {
	for range 20 {
		at, v := 8*(sharesFor*w.rnd.IntN(sharesLast/8/sharesFor)+w.k), w.rnd.Uint64()
		if got, want := binary.LittleEndian.Uint64(w.last[at:]), binary.LittleEndian.Uint64(w.want[at:]); got != want {
			return fmt.Errorf("the element at %d is %#x, want %#x", at, got, want)
		}
		binary.LittleEndian.PutUint64(w.last[at:], v)
		binary.LittleEndian.PutUint64(w.want[at:], v)
	}
	for range 5 {
		i := w.rnd.IntN(len(w.added))
		atomic.AddUint64((*uint64)(unsafe.Pointer(&w.sum[8*i])), 1)
		w.added[i]++
	}
	if w.rnd.IntN(30) > 0 {
		return nil
	}
	return w.sync()
}

func (w *shares) sync() error {
	for name, mem := range map[string][]byte{lastFile: w.last, sumFile: w.sum} {
		if err := unix.Msync(mem, unix.MS_SYNC); err != nil {
			return fmt.Errorf("msync of %s: %w", name, err)
		}
	}
	return nil
}

// check leaves what the program has stored, for looks.
func (w *shares) check() error {
	if err := w.sync(); err != nil {
		return err
	}
	text := append([]byte(nil), w.want...)
	for _, n := range w.added {
		text = binary.LittleEndian.AppendUint64(text, n)
	}
	return os.WriteFile(w.own, text, 0o644)
}

// looks compares what is in the files with what all programs of kind shares have stored.
type looks struct{}

func (looks) begin(dir string, _ *rand.Rand) error {
	common := filepath.Dir(dir)
	want, sums := make([]byte, sharesLast), make([]uint64, sharesSum/8)
	for k := range sharesFor {
		text, err := os.ReadFile(filepath.Join(common, fmt.Sprint("shares", k), "own"))
		if err != nil {
			return err
		}
		for at := 8 * k; at+8 <= sharesLast; at += 8 * sharesFor {
			copy(want[at:], text[at:at+8])
		}
		for i := range sums {
			sums[i] += binary.LittleEndian.Uint64(text[sharesLast+8*i:])
		}
	}
	added := make([]byte, 0, sharesSum)
	for _, n := range sums {
		added = binary.LittleEndian.AppendUint64(added, n)
	}
	for name, want := range map[string][]byte{lastFile: want, sumFile: added} {
		f, err := os.OpenFile(filepath.Join(common, name), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		err = f.Sync()
		got := make([]byte, len(want))
		if err == nil {
			_, err = f.ReadAt(got, 0)
		}
		if err == nil {
			err = same(name, got, want)
		}
		if err == nil {
			if got, err = stored(f.Name()); err == nil {
				err = same("what is stored of "+name, got, want)
			}
		}
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (looks) step() error  { return nil }
func (looks) check() error { return nil }
