package attach

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
	linked func() error // called when a file has got its name; nil: none
	perm   uint32       // of the directory, if not all
	mu     sync.Mutex
	done   []string
	made   dsm.Inode
	names  map[string]dsm.Ino
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
	if ino, ok := m.names[name]; ok {
		return m.Getattr(ctx, ino)
	}
	return dsm.Inode{}, errs.E(errs.NotExist, "look up", "")
}

func (*makingMount) CheckSetting(string) error { return nil }

func (m *makingMount) CreateUnnamed(_ context.Context, _ *dsm.Credentials, _, n dsm.Inode, settings []dsm.Setting) (Area, dsm.Inode, error) {
	m.did("create")
	for _, x := range settings {
		var err error
		if n.Spec, err = n.Spec.With(x.Key, x.Value); err != nil {
			return nil, n, err
		}
	}
	m.mu.Lock()
	n.Ino = max(m.made.Ino+1, 7)
	m.made = n
	m.mu.Unlock()
	return makingArea{m: m}, n, nil
}

func (m *makingMount) Link(_ context.Context, ino, _ dsm.Ino, name string) (dsm.Inode, error) {
	m.did("link")
	m.mu.Lock()
	_, taken := m.names[name]
	if !taken {
		if m.names == nil {
			m.names = make(map[string]dsm.Ino)
		}
		m.names[name] = ino
	}
	i := m.made
	m.mu.Unlock()
	switch {
	case taken:
		return dsm.Inode{}, errs.E(errs.Exist, "link", "%s", name)
	case m.linked != nil:
		return i, m.linked()
	}
	return i, nil
}

func (m *makingMount) Getattr(ctx context.Context, ino dsm.Ino) (dsm.Inode, error) {
	i, err := m.openMount.Getattr(ctx, ino)
	i.Ino = ino
	if ino == dsm.RootIno && m.perm != 0 {
		i.Perm = m.perm
	}
	return i, err
}

type makingArea struct {
	idleArea
	m *makingMount
}

func (a makingArea) Publish(context.Context) error            { a.m.did("publish"); return nil }
func (makingArea) PublishNow(time.Duration, func(error)) bool { return false }

// serve returns a program that is connected to a server of the mount.
func (m *makingMount) serve(t *testing.T) testProgram {
	h := &hostile{t: t, socket: filepath.Join(t.TempDir(), "attach")}
	s, err := New(Config{
		Mount: m, Log: slog.New(slog.DiscardHandler), Socket: h.socket, Tracking: uffd.Compare, Timeout: time.Minute, Life: t.Context(),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Serve()
	t.Cleanup(func() {
		s.Close()
		m.background.Wait()
	})
	return h.dial()
}

// TestFileIsNamedWhenItIsWhole: between PREPARE and NAME nobody can find the file. NAME publishes first. No other
// attachment can be named, and a name that is taken is refused in both.
func TestFileIsNamedWhenItIsWhole(t *testing.T) {
	m := &makingMount{}
	p := m.serve(t)
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

// TestOneNameAtOnce: of two NAMEs of one file at once the second is refused.
func TestOneNameAtOnce(t *testing.T) {
	first := make(chan struct{}, 1)
	goOn := make(chan struct{})
	var calls atomic.Int32
	m := &makingMount{linked: func() error {
		if calls.Add(1) == 1 {
			first <- struct{}{}
			<-goOn
		}
		return nil
	}}
	p := m.serve(t)
	a, text := p.call(header{op: opPrepare, arg: [4]uint64{5000, 0o640}}, "/v\n")
	if a.errno != 0 {
		t.Fatalf("PREPARE: %v %s", a.errno, text)
	}
	if err := p.post(header{op: opName, attachment: a.attachment}, "/v"); err != nil {
		t.Fatal(err)
	}
	<-first
	if got, _ := p.call(header{op: opName, attachment: a.attachment}, "/w"); got.errno != unix.EINVAL {
		t.Errorf("a second NAME meanwhile: %v", got.errno)
	}
	close(goOn)
	if got, text := p.answer(); got.errno != 0 {
		t.Errorf("the first NAME: %v %s", got.errno, text)
	}
}

// TestNameAfterATimeout: a NAME that was not answered in time may have given the name. The next one says so.
func TestNameAfterATimeout(t *testing.T) {
	m := &makingMount{linked: func() error { return errs.E(errs.Timeout, "link", "") }}
	p := m.serve(t)
	prepare := func() uint64 {
		a, text := p.call(header{op: opPrepare, arg: [4]uint64{5000, 0o640}}, "/v\n")
		if a.errno != 0 {
			t.Fatalf("PREPARE: %v %s", a.errno, text)
		}
		return a.attachment
	}
	a, other := prepare(), prepare()
	for _, x := range []struct {
		id   uint64
		want unix.Errno
	}{{a, unix.ETIMEDOUT}, {other, unix.EEXIST}, {a, 0}, {a, unix.EINVAL}} {
		if got, text := p.call(header{op: opName, attachment: x.id}, "/v"); got.errno != x.want {
			t.Errorf("NAME of attachment %d: %v %s, want %v", x.id, got.errno, text, x.want)
		}
	}
}

// TestOtherNameAfterATimeout: as long as nobody knows whether a file has got a name it gets no other.
func TestOtherNameAfterATimeout(t *testing.T) {
	m := &makingMount{linked: func() error { return errs.E(errs.Timeout, "link", "") }, names: map[string]dsm.Ino{"taken": 3}}
	p := m.serve(t)
	made, text := p.call(header{op: opPrepare, arg: [4]uint64{5000, 0o640}}, "/v\n")
	if made.errno != 0 {
		t.Fatalf("PREPARE: %v %s", made.errno, text)
	}
	for _, x := range []struct {
		path string
		want unix.Errno
	}{{"/taken", unix.EEXIST}, {"/v", unix.ETIMEDOUT}, {"/w", unix.EINVAL}, {"/w", unix.EINVAL}, {"/v", 0}} {
		if got, text := p.call(header{op: opName, attachment: made.attachment}, x.path); got.errno != x.want {
			t.Errorf("NAME %s: %v %s, want %v", x.path, got.errno, text, x.want)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.names) != 2 {
		t.Errorf("the names are %v", m.names)
	}
}

// TestExistingFileNeedsNoPermission: who may not write in a directory learns that a file exists, and may use it.
func TestExistingFileNeedsNoPermission(t *testing.T) {
	m := &makingMount{perm: 0o555, names: map[string]dsm.Ino{"w": 7}}
	a := &conn{s: &Server{cfg: Config{Mount: m}}, who: program{Credentials: dsm.Credentials{UID: 1000, GID: 1000}}}
	for _, x := range []struct {
		what string
		call func(context.Context, *request) (reply, error)
		arg  uint64
		path string
		want errs.Kind
	}{
		{"CREATE", a.create, 0, "/w\n", errs.Other},
		{"CREATE of a new file", a.create, 1, "/w\n", errs.Exist},
		{"CREATE", a.create, 0, "/v\n", errs.Access},
		{"PREPARE", a.prepare, 0, "/w\n", errs.Exist},
		{"PREPARE", a.prepare, 0, "/v\n", errs.Access},
	} {
		q := &request{header: header{arg: [4]uint64{5000, 0o640, x.arg}}, payload: x.path}
		r, err := x.call(t.Context(), q)
		if errs.KindOf(err) != x.want || (err == nil) != (x.want == errs.Other) || err == nil && r.arg[1] != 7 {
			t.Errorf("%s %q: %+v, %v", x.what, x.path, r.arg, err)
		}
		if x.want == errs.Exist && !strings.Contains(err.Error(), "/w is there already: attach it, or choose another name") {
			t.Errorf("%s %q: %v: it does not say what to do", x.what, x.path, err)
		}
	}
}

// removingMount is a filesystem in which the file is there when it is to be made, and gone when it is looked for, so often.
type removingMount struct {
	openMount
	times, creates int
}

func (m *removingMount) Create(ctx context.Context, _ *dsm.Credentials, _ dsm.Inode, _ string, _ dsm.Inode, _ []dsm.Setting) (dsm.Inode, error) {
	if m.creates++; m.creates <= m.times {
		return dsm.Inode{}, errs.E(errs.Exist, "create", "")
	}
	return m.Getattr(ctx, 7)
}

func (*removingMount) Lookup(context.Context, dsm.Ino, string) (dsm.Inode, error) {
	return dsm.Inode{}, errs.E(errs.NotExist, "look up", "")
}

// TestCreateOfAFileThatIsRemoved: CREATE makes the file if the one that is there is removed before it is found.
func TestCreateOfAFileThatIsRemoved(t *testing.T) {
	m := &removingMount{times: 3}
	p := listenHostileWith(t, defaultLimits, m, &m.openMount).dial()
	if h, text := p.call(header{op: opCreate, arg: [4]uint64{dsm.PageSize, 0o600}}, "/w\n"); h.errno != 0 || h.arg[1] != 7 {
		t.Errorf("%v, %q: file %d", h.errno, text, h.arg[1])
	}
}
