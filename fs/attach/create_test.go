package attach

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// makingMount is a filesystem with an empty directory in which everybody may write. It keeps what it is
// told to do.
type makingMount struct {
	openMount
	mu    sync.Mutex
	done  []string
	made  dsm.Inode
	names []string
}

func (m *makingMount) did(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = append(m.done, what)
}

// last returns the file that was made last, and all that the mount was told to do.
func (m *makingMount) last() (made dsm.Inode, done string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made, strings.Join(m.done, " ")
}

func (m *makingMount) Lookup(ctx context.Context, _ dsm.Ino, name string) (dsm.Inode, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.names, name) {
		return m.Getattr(ctx, dsm.RootIno+1)
	}
	return dsm.Inode{}, errs.E(errs.NotExist, "look up", "")
}

func (*makingMount) CheckSetting(string) error { return nil }

func (m *makingMount) CreateUnnamed(_ context.Context, _ *dsm.Credentials, _, n dsm.Inode, settings []dsm.Setting) (Area, dsm.Inode, error) {
	m.did("create")
	n.Ino = 7
	for _, x := range settings {
		var err error
		if n.Spec, err = n.Spec.With(x.Key, x.Value); err != nil {
			return nil, n, err
		}
	}
	m.mu.Lock()
	m.made = n
	m.mu.Unlock()
	return makingArea{m: m}, n, nil
}

func (m *makingMount) Link(_ context.Context, ino, _ dsm.Ino, name string) (dsm.Inode, error) {
	m.did("link")
	m.mu.Lock()
	defer m.mu.Unlock()
	if ino != 7 || slices.Contains(m.names, name) {
		return dsm.Inode{}, errs.E(errs.Exist, "link", "%s", name)
	}
	m.names = append(m.names, name)
	return m.made, nil
}

type makingArea struct {
	idleArea
	m *makingMount
}

func (a makingArea) Publish(context.Context) error { a.m.did("publish"); return nil }

// TestFileIsNamedWhenItIsWhole: between PREPARE and NAME nobody can find the file. NAME publishes first. No other
// attachment can be named, and a name that is taken is refused in both.
func TestFileIsNamedWhenItIsWhole(t *testing.T) {
	m := &makingMount{}
	h := &hostile{t: t, socket: filepath.Join(t.TempDir(), "attach")}
	s, err := Listen(Config{
		Mount: m, Log: slog.New(slog.DiscardHandler), Socket: h.socket, Tracking: uffd.Compare, Timeout: time.Minute, Life: t.Context(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		m.background.Wait()
	})
	p := h.dial()
	prepare := func(payload string, offset uint64) (header, string) {
		t.Helper()
		return p.call(header{op: opPrepare, arg: [4]uint64{5000, 0o640, offset}}, payload)
	}
	const payload = "/w\nmerge sum\ndtype f32\n"
	a, text := prepare(payload, 128)
	if a.errno != 0 || a.attachment == 0 || a.arg != [4]uint64{5000, 7, accessWrite, wantsNone | mergesElements} {
		t.Fatalf("PREPARE: %+v %s", a, text)
	}
	want := dsm.Inode{
		Ino: 7, Kind: dsm.KindFile, Perm: 0o640, Size: 5000, Spec: dsm.Spec{Merge: dsm.MergeSum},
		Layout: dsm.Layout{DType: dsm.DTypeF32, DataOffset: 128},
	}
	if made, _ := m.last(); made != want {
		t.Errorf("made %+v, want %+v", made, want)
	}
	second, _ := prepare(payload, 0)
	if made, _ := m.last(); made.Spec.DType != dsm.DTypeF32 || made.Layout != (dsm.Layout{}) {
		t.Errorf("without an offset: made %+v", made)
	}
	name := func(id uint64, path string) unix.Errno {
		t.Helper()
		got, _ := p.call(header{op: opName, attachment: id}, path)
		return got.errno
	}
	if e := name(a.attachment, "/w"); e != 0 {
		t.Fatalf("NAME: %v", e)
	}
	if _, got := m.last(); got != "create create publish link" {
		t.Errorf("the mount was told to %s", got)
	}
	if e := name(a.attachment, "/v"); e != unix.EINVAL {
		t.Errorf("NAME of a file that has one: %v", e)
	}
	if e := name(second.attachment, "/w"); e != unix.EEXIST {
		t.Errorf("NAME of what exists: %v", e)
	}
	if got, _ := prepare(payload, 128); got.errno != unix.EEXIST {
		t.Errorf("PREPARE of what exists: %v", got.errno)
	}
	other, e, _ := p.attach()
	if e != 0 || name(other, "/v") != unix.EINVAL {
		t.Error("NAME of a file that was not prepared")
	}
	for _, wrong := range []string{"/v\n", "/v\ndtype red\n"} {
		if got, _ := prepare(wrong, 128); got.errno != unix.EINVAL {
			t.Errorf("PREPARE of %q with an offset: %v", wrong, got.errno)
		}
	}
	if e := name(second.attachment, "/v"); e != 0 {
		t.Errorf("NAME after one that was refused: %v", e)
	}
}
