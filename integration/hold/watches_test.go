package hold_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const opWatch = 20

// The header pages that WATCH gives: docs/attach.md.
const (
	lifeDied      = 0x40000000 // in the first word
	changesInLine = 48
)

// watches has attached the file that another program publishes, and looks at it without asking anybody: what it copies while its line says that nothing changes, and that the daemon lives, is a version, and none is older than the one before.
type watches struct {
	c     *attachClient
	f     *attachedFile
	pages []byte // header pages
	line  uint64 // offset of the file's line
	last  uint32
	looks int // that saw a version
}

func (w *watches) begin(dir string, _ *rand.Rand) (err error) {
	var path string
	if w.c, path, err = newAttachClient(dir); err == nil {
		w.f, err = w.c.attach(filepath.Join(filepath.Dir(path), "versions"), forReading)
	}
	if err != nil {
		return err
	}
	return w.watch()
}

// watch gets the header pages of the daemon of now.
func (w *watches) watch() error {
	r, err := w.c.do(func() message { return message{op: opWatch, attachment: w.f.attachment} })
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(r.fd, &st)
	if err == nil && w.pages != nil {
		err = unix.Munmap(w.pages)
	}
	if err == nil {
		w.pages, err = unix.Mmap(r.fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	}
	w.line = r.arg[0]
	return errors.Join(err, unix.Close(r.fd))
}

// whole returns the mark in the memory that is attached. ok is false if that was changing meanwhile, or the daemon has ended.
func (w *watches) whole() (mark uint32, ok bool, err error) {
	life := (*uint32)(unsafe.Pointer(&w.pages[0]))
	changes := (*uint64)(unsafe.Pointer(&w.pages[w.line+changesInLine]))
	n := atomic.LoadUint64(changes)
	if n%2 != 0 {
		return 0, false, nil
	}
	var marks []uint32
	for _, p := range markedPages() {
		marks = append(marks, atomic.LoadUint32((*uint32)(unsafe.Pointer(&w.f.mem[p*page]))))
	}
	if atomic.LoadUint64(changes) != n || atomic.LoadUint32(life)&lifeDied != 0 {
		return 0, false, nil
	}
	for i, got := range marks {
		if got != marks[0] {
			return 0, false, fmt.Errorf("page %d of a version has mark %d, and page 0 has %d", markedPages()[i], got, marks[0])
		}
	}
	return marks[0], true, nil
}

func (w *watches) step() error {
	mark, ok, err := w.whole()
	switch {
	case err != nil:
		return err
	case ok && mark < w.last:
		return fmt.Errorf("version %d is followed by %d", w.last, mark)
	case ok:
		w.last = mark
		w.looks++
	case atomic.LoadUint32((*uint32)(unsafe.Pointer(&w.pages[0])))&lifeDied != 0:
		return w.watch() // which resumes
	}
	return nil
}

// check waits for the version that read(2) has.
func (w *watches) check() error {
	if w.looks == 0 {
		return errors.New("no version was seen")
	}
	want, err := w.read()
	for end := time.Now().Add(limit); err == nil && w.last != want; err = w.step() {
		if time.Now().After(end) {
			return fmt.Errorf("version %d is in memory, and read(2) has %d", w.last, want)
		}
	}
	return err
}

// read returns the mark that read(2) has.
func (w *watches) read() (uint32, error) {
	fd, err := unix.Open(filepath.Join(w.c.root, w.f.path), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	b := make([]byte, 4)
	_, err = unix.Pread(fd, b, 0)
	return binary.LittleEndian.Uint32(b), errors.Join(err, unix.Close(fd))
}
