package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/fs/attach"
	"github.com/dsmfs/dsmfs/fs/control"
	"github.com/dsmfs/dsmfs/fs/harvest"
	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// memfd returns a memory file of one page, and one to open it anew.
func memfd(t *testing.T) (f *os.File, open func(flags int) *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("dsmfs-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f = os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(dsm.PageSize); err != nil {
		t.Fatal(err)
	}
	return f, func(flags int) *os.File {
		t.Helper()
		o, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = o.Close() })
		return o
	}
}

// TestUnused asks the kernel who has a memory file: the one that made it and the one that
// asks do not count, nor do mappings of the first; all else does, to its last mapping.
func TestUnused(t *testing.T) {
	made, open := memfd(t)
	own, err := unix.Mmap(int(made.Fd()), 0, dsm.PageSize, rw, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(own)
	ask := open(os.O_RDONLY)
	want := func(when string, forWriting, atAll bool) {
		t.Helper()
		for kind, want := range map[int]bool{unix.F_RDLCK: forWriting, unix.F_WRLCK: atAll} {
			if got, err := attach.Unused(ask, kind); got != want || err != nil {
				t.Errorf("%s: unused(%d) = %v, %v, want %v", when, kind, got, err, want)
			}
		}
	}
	want("nobody has it", true, true)
	for _, c := range []struct {
		name     string
		flags    int
		prot     int
		forWrite bool
	}{{"to read", os.O_RDONLY, unix.PROT_READ, true}, {"to read and write", os.O_RDWR, rw, false}} {
		f := open(c.flags)
		want("open "+c.name, c.forWrite, false)
		m, err := unix.Mmap(int(f.Fd()), 0, dsm.PageSize, c.prot, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		want("mapped "+c.name, c.forWrite, false)
		if err := unix.Munmap(m); err != nil {
			t.Fatal(err)
		}
		want("no more mapped "+c.name, true, true)
	}
}

// TestCompareRest: the areas of a node that are compared share a tenth of a core.
func TestCompareRest(t *testing.T) {
	for n, rest := range map[int32]time.Duration{1: 9, 3: 29} {
		synctest.Test(t, func(t *testing.T) {
			b, a, p := pacedArea(10 * time.Millisecond)
			a.live.Store(0)
			a.attached.Store(1)
			a.direct.writing.Store(1)
			b.passthrough.writing.Store(n)
			p.took, p.compare = 50*time.Millisecond, 40*time.Millisecond
			b.intervals.opened(a)
			time.Sleep(10 * time.Second)
			at := p.starts()
			if len(at) < 4 {
				t.Fatalf("%d publishes in 10 s", len(at))
			}
			for i := range at[1:] {
				got, want := at[i+1].Sub(at[i])-p.took, rest*p.compare
				if got < want || got > want+harvest.Togetherness(a.Interval()) {
					t.Errorf("%d areas: %v between comparisons of %v", n, got, p.compare)
				}
			}
			a.attached.Store(0) // the timer finds nothing to do
			time.Sleep(10 * time.Second)
		})
	}
}

// longerArea is an area whose memory is longer than the file.
type longerArea struct {
	*fakeArea
	names   *fakeNames
	ino     dsm.Ino
	end     int64
	trimmed bool // what was too long is gone
}

func (l *longerArea) Extended() int64 {
	i, _ := l.names.Getattr(context.Background(), l.ino)
	if l.trimmed || i.Size >= l.end {
		return 0
	}
	return l.end
}

func (l *longerArea) Trim() { l.trimmed = true }

// TestWrittenPastTheEndAtLast: the catalog is away when the last program has closed a direct file past whose end it has written, for longer than
// calls wait. What it has written is part of the file when the catalog is back, and is not truncated before. It is if it cannot be part of the file.
func TestWrittenPastTheEndAtLast(t *testing.T) {
	for name, c := range map[string]struct {
		away, then error
		size       int64
		takes      time.Duration
		ends       bool // the filesystem goes away meanwhile
	}{
		"comes back":   {away: errs.E(errs.Timeout, "", ""), size: 5 * dsm.PageSize, takes: time.Hour},
		"refuses":      {away: errs.E(errs.NoSpace, "", "")},
		"removed":      {away: errs.E(errs.NotExist, "", "")},
		"removed then": {away: errs.E(errs.Unavailable, "", ""), then: errs.E(errs.NotExist, "", ""), takes: time.Hour},
		"unmounted":    {away: errs.E(errs.Unavailable, "", ""), then: errs.E(errs.Unavailable, "", ""), takes: time.Hour, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, a, _ := pacedArea(0)
				names := b.cfg.Names.(*fakeNames)
				areas := newFakeAreas(names)
				b.cfg.Areas, b.notify.server = areas, slowCache{func() {}}
				l := &longerArea{fakeArea: areas.area(1), names: names, end: 5 * dsm.PageSize}
				a.mu.area = l
				a.attached.Store(1)
				a.direct.writing.Store(1)
				i, err := names.CreateTemp(t.Context(), dsm.RootIno, dsm.Inode{})
				if err != nil {
					t.Fatal(err)
				}
				a.id, l.ino = i.Area(), i.Ino
				fail := func(err error) {
					names.mu.Lock()
					defer names.mu.Unlock()
					names.fail["SetAttr"] = err
				}
				fail(c.away)
				began := time.Now()
				var took time.Duration
				b.releases.run(func() {
					b.opens.publishLast(a)
					took = time.Since(began)
				})
				time.Sleep(time.Hour)
				fail(c.then)
				if c.ends {
					b.end()
				}
				b.releases.close()
				if i, _ = names.Getattr(t.Context(), i.Ino); i.Size != c.size {
					t.Errorf("the file has %d bytes, want %d", i.Size, c.size)
				}
				if took < c.takes || took > c.takes+lastLook {
					t.Errorf("it took %v, want %v", took, c.takes)
				}
				if left := l.Extended(); left != 0 != c.ends {
					t.Errorf("%d bytes are left to be truncated", left)
				}
				b.end()
				b.background.close()
			})
		})
	}
}

// TestPunchPastTheEndThatIsKnown: a hole in what programs have written past the end of a direct file is punched.
func TestPunchPastTheEndThatIsKnown(t *testing.T) {
	names := newFakeNames()
	areas := newFakeAreas(names)
	b := newBridge(Config{Names: names, Areas: areas, FaultTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	defer b.background.close()
	defer b.releases.close()
	i, err := names.CreateTemp(t.Context(), dsm.RootIno, dsm.Inode{})
	if err != nil {
		t.Fatal(err)
	}
	a := newOpenArea(i.Area())
	area := areas.area(a.id)
	a.mu.area = &longerArea{fakeArea: area, names: names, ino: i.Ino, end: 5 * dsm.PageSize}
	a.direct.writing.Store(1)
	in := &fuse.FallocateIn{
		InHeader: fuse.InHeader{NodeId: uint64(i.Ino)}, Fh: b.handles.add(newFileHandle(a, true)),
		Offset: dsm.PageSize, Length: dsm.PageSize, Mode: unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
	}
	if st := b.Fallocate(nil, in); !st.Ok() || len(area.wrote) != 1 {
		t.Errorf("%v, %d holes", st, len(area.wrote))
	}
	if size := names.size(a.id); size != 5*dsm.PageSize {
		t.Errorf("the file has %d bytes", size)
	}
}

// refusing is a kernel that takes a number of memory files and no more.
type refusing struct {
	asked atomic.Int32
	takes int32
}

func (r *refusing) RegisterBackingFd(*fuse.BackingMap) (int32, syscall.Errno) {
	if n := r.asked.Add(1); n <= r.takes {
		return n, 0
	}
	return 0, syscall.ENOMEM
}
func (r *refusing) UnregisterBackingFd(int32) syscall.Errno { return 0 }

// TestPassthroughRefused: where the kernel takes no memory files, which shows at the start
// or only later, direct files are served through the page cache, and the log says so once.
func TestPassthroughRefused(t *testing.T) {
	for _, c := range []struct {
		name, off string
		asked     int32
		why       string
	}{
		{"from the start", "the test says so", 0, "the test says so"},
		{"later", "", 1, "the kernel refused a memory file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := mountTest(t, func(cfg *Config) { cfg.PassthroughOff = c.off })
			server := &refusing{}
			f.fs.b.passthrough.server = server
			if c.off == "" {
				f.fs.b.passthrough.why.Store(nil) // also of a kernel that has no passthrough
			}
			_, open := memfd(t)
			cl := startClient(t)
			for _, name := range []string{"v", "w"} {
				a := f.file(cl, name, nil)
				a.attach = func() (*os.File, error) { return open(os.O_RDONLY), nil }
				f.names.mu.Lock()
				f.names.nodes[dsm.Ino(a.id)].Spec.Access = dsm.AccessDirect
				f.names.mu.Unlock()
				fd := cl.open(f.path(name), unix.O_RDWR)
				cl.must(clientCall{Op: "pwrite", FD: fd, Data: []byte("cached")})
				again := cl.open(f.path(name), unix.O_RDONLY)
				if got := cl.must(clientCall{Op: "pread", FD: again, Len: 6}); string(got.Data) != "cached" {
					t.Errorf("%s: read %q", name, got.Data)
				}
				if s := a.state(); s.opens != 2 {
					t.Errorf("%s: the data plane has %d handles, want 2", name, s.opens)
				}
				stats := control.FlatKeyed(f.fs.b.areaStats(f.fs.b.opens.find(a.id)))
				if !strings.Contains(stats, "access cached "+c.why) {
					t.Errorf("%s: stats:\n%s", name, stats)
				}
			}
			if got := strings.Count(f.log.String(), "served through the page cache"); got != 1 {
				t.Errorf("the log says %d times that files are not direct, want once", got)
			}
			if got := server.asked.Load(); got != c.asked {
				t.Errorf("the kernel was asked %d times, want %d", got, c.asked)
			}
		})
	}
}

// TestProbePassthrough: the probe and a mount agree.
func TestProbePassthrough(t *testing.T) {
	f := mountTest(t)
	if err, why := ProbePassthrough(), f.fs.b.passthrough.reason(); (err == nil) != (why == "") {
		t.Errorf("the probe says %v, the mount %q", err, why)
	}
	server := &refusing{}
	var p passthrough
	p.init(server, "")
	if got := p.reason(); !strings.Contains(got, syscall.ENOMEM.Error()) {
		t.Errorf("a kernel that refuses: %q", got)
	}
	if err := tryPassthrough(&refusing{takes: 1}); err != nil && !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a kernel that takes one: %v", err)
	}
}
