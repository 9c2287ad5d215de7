package pages

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// length fails the test unless the memfd of the working copy is n bytes long.
func length(t *testing.T, a *Area, n int64) {
	t.Helper()
	if got, err := a.Extended(); err != nil || got != n {
		t.Fatalf("the file is %d bytes long (%v), want %d", got, err, n)
	}
}

// sharedFile returns an area of size bytes whose memory is a file of a mount, and a descriptor of one of its programs.
func sharedFile(t *testing.T, size int64) (*Area, *os.File) {
	t.Helper()
	a := newTestArea(t, size)
	NewCached(a).SetShared(true)
	g, err := a.OpenWorking(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }() // only read
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", g.Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return a, f
}

// The file is as long as the area, so that a program that has it open reads to its end
// and appends there.
func TestFileIsAsLongAsTheArea(t *testing.T) {
	a := newTestArea(t, 100)
	length(t, a, 100)
	for _, size := range []int64{dsm.PageSize, 3*dsm.PageSize + 5, 2 << 20, 7, 0} {
		resize(t, a, size)
		length(t, a, size)
	}
}

// What a program writes past the end stays when the area grows, to there, further, or
// less far; what it stored past the end by a mapping does not.
func TestWrittenPastTheEnd(t *testing.T) {
	for _, size := range []int64{150, 250, dsm.PageSize + 10, 3 << 20} {
		a, f := sharedFile(t, 100)
		if _, err := f.WriteAt(pagetest.PageOf(7)[:100], 100); err != nil {
			t.Fatal(err)
		}
		length(t, a, 200)
		w := a.Working(0)
		w[300] = 9
		resize(t, a, size)
		length(t, a, max(size, 200))
		want := append(make([]byte, 100), append(pagetest.PageOf(7)[:100], make([]byte, dsm.PageSize-200)...)...)
		if size == 150 {
			want[300] = 9 // past the end of the file still
		}
		pagetest.WantPage(t, "working", a.Working(0), want)
	}
}

func TestTrim(t *testing.T) {
	a, f := sharedFile(t, 100)
	if _, err := f.WriteAt(pagetest.PageOf(7), 5*dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	length(t, a, 6*dsm.PageSize)
	if err := a.Trim(); err != nil {
		t.Fatal(err)
	}
	length(t, a, 100)
	resize(t, a, 6*dsm.PageSize)
	pagetest.WantPage(t, "working", a.Working(5), pagetest.PageOf(0))
}

// A program that makes the file longer all the time loses nothing to an area that
// grows at the same moment.
func TestExtendedWhileGrowing(t *testing.T) {
	a, f := sharedFile(t, 10)
	const writes = 20_000
	done := make(chan error, 1)
	go func() {
		fd := int(f.Fd())
		for i := range int64(writes) {
			if _, err := unix.Pwrite(fd, []byte{1}, 10+i); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
			end, err := a.Extended()
			if err != nil {
				t.Fatal(err)
			}
			resize(t, a, end)
		}
	}
	resize(t, a, 10+writes)
	got := make([]byte, writes)
	a.ReadWorking(got, 10)
	for i, b := range got {
		if b != 1 {
			t.Fatalf("byte %d written past the end is lost", i)
		}
	}
}
