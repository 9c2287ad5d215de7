package attach

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/uffd"
)

// heldMount has one file, whose memory outlives the daemons of the test. Only root may use it.
type heldMount struct {
	openMount
	memory int // its descriptor
	mu     sync.Mutex
	tracks int
	writes int // attachments that may store
	ended  []string
	mode   uffd.Mode
	last   uint64
	kept   map[uint64]Held
}

const heldIno = dsm.RootIno + 1

func newHeldMount(t *testing.T) *heldMount {
	t.Helper()
	fd, err := unix.MemfdCreate("area", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, dsm.PageSize)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &heldMount{memory: fd, kept: make(map[uint64]Held), mode: uffd.Compare}
}

func (m *heldMount) Attached(h Held) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Number == 0 {
		m.last++
		h.Number = m.last
	}
	m.kept[h.Number] = h
	return h.Number, nil
}

func (m *heldMount) Detached(number uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kept, number)
}

func (m *heldMount) journal() (all []Held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for h := range maps.Values(m.kept) {
		all = append(all, h)
	}
	return all
}

func (m *heldMount) Getattr(_ context.Context, ino dsm.Ino) (dsm.Inode, error) {
	return fileOfRoot(ino, 0o777), nil
}
func (*heldMount) IsOpen(dsm.Ino) bool                                 { return true }
func (m *heldMount) Open(context.Context, dsm.Ino, bool) (Area, error) { return heldArea{m: m}, nil }

type heldArea struct {
	idleArea
	m *heldMount
}

func (a heldArea) Reattach(_ int, write bool, memory uint64) (Attachment, *os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(a.m.memory, &st); err != nil || st.Ino != memory {
		return nil, nil, errStale()
	}
	t := heldAttachment{m: a.m, write: write}
	t.count(+1)
	f, err := t.Memory()
	return t, f, err
}

type heldAttachment struct {
	idleAttachment
	m     *heldMount
	write bool
}

func (t heldAttachment) count(by int) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if t.write {
		t.m.writes += by
	}
}
func (t heldAttachment) Detach()   { t.count(-1) }
func (t heldAttachment) Released() { t.ends("released") }
func (t heldAttachment) Killed()   { t.ends("killed") }

func (t heldAttachment) ends(how string) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	t.m.ended = append(t.m.ended, how)
}

func (heldAttachment) Ready(context.Context) error { return nil }

func (t heldAttachment) Memory() (*os.File, error) {
	fd, err := unix.Open(fmt.Sprint("/proc/self/fd/", t.m.memory), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return os.NewFile(uintptr(fd), "area"), err
}

func (t heldAttachment) Track(Source, int64, int64) (stop func()) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	t.m.tracks++
	return func() {
		t.m.mu.Lock()
		defer t.m.mu.Unlock()
		t.m.tracks--
	}
}

// serve starts a daemon. It ends as one that is killed: it takes nothing out of the journal.
func (m *heldMount) serve(t *testing.T) (s *Server, h *hostile) {
	t.Helper()
	h = &hostile{t: t, socket: filepath.Join(t.TempDir(), "attach")}
	life, end := context.WithCancel(t.Context())
	s, err := New(Config{Mount: m, Log: slog.New(slog.DiscardHandler), Socket: h.socket, Tracking: m.mode, Timeout: time.Minute, Life: life, Journal: m})
	if err != nil {
		t.Fatal(err)
	}
	s.Adopt(t.Context(), m.journal())
	s.Serve()
	t.Cleanup(func() {
		end()
		s.Close()
		m.background.Wait()
	})
	return s, h
}

// mapped maps the memory as a program of this process.
func (m *heldMount) mapped(t *testing.T) []byte {
	t.Helper()
	fd, err := unix.Open(fmt.Sprint("/proc/self/fd/", m.memory), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	return mem
}

// inode returns the number of the memory.
func (m *heldMount) inode(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(m.memory, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatal(what)
		}
		<-time.After(time.Millisecond)
	}
}

func (m *heldMount) has() (tracks, writes int, kept int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tracks, m.writes, len(m.kept)
}

// TestAttachmentIsTakenOver: what a program that lives has attached is found by comparing when another daemon follows, until the program is back or has nothing mapped any more.
func TestAttachmentIsTakenOver(t *testing.T) {
	for _, back := range []bool{false, true} {
		m := newHeldMount(t)
		mem := m.mapped(t)
		m.kept[1], m.last = Held{Number: 1, File: heldIno, PID: os.Getpid(), Start: StartOf(os.Getpid()), UID: 0, Write: true, Memory: m.inode(t)}, 1
		_, h := m.serve(t)
		eventually(t, "nobody looks for its stores", func() bool { tracks, writes, _ := m.has(); return tracks == 1 && writes == 1 })
		p := h.dial()
		q := header{op: opResume, arg: [4]uint64{accessWrite, uint64(heldIno), m.inode(t)}}
		if back {
			r, text := p.call(q, "/elsewhere")
			if r.errno != 0 || r.attachment == 0 || r.arg[1] != uint64(heldIno) || r.arg[3]&outlivesDaemon == 0 {
				t.Fatalf("resume: %v %s, %v", r.errno, text, r.arg)
			}
			at := uint64(uintptr(unsafe.Pointer(&mem[0])))
			if r, text := p.call(header{op: opTrack, attachment: r.attachment, arg: [4]uint64{at, dsm.PageSize}}, ""); r.errno != 0 {
				t.Fatalf("track: %v %s", r.errno, text)
			}
			eventually(t, "its stores are looked for twice", func() bool { tracks, writes, kept := m.has(); return tracks == 1 && writes == 1 && kept == 1 })
		}
		if err := unix.Munmap(mem); err != nil {
			t.Fatal(err)
		}
		if back {
			_ = p.Close()
		}
		eventually(t, "it is not let go", func() bool { tracks, writes, kept := m.has(); return tracks == 0 && writes == 0 && kept == 0 })
	}
}

// TestHowItEndsIsKnownToTheNextDaemon: a program that was killed while no daemon was there is told from one that has exited, or lives and has nothing mapped any more. Of one that nobody can be asked about it is assumed. Nothing is kept open.
func TestHowItEndsIsKnownToTheNextDaemon(t *testing.T) {
	for name, c := range map[string]struct {
		script       string
		reap, reader bool
		want         []string
	}{
		"lives":            {"read x", false, false, []string{"released"}},
		"exited":           {"exit 1", false, false, []string{"released"}},
		"killed":           {"kill -9 $$", false, false, []string{"killed"}},
		"nobody knows":     {"exit 0", true, false, []string{"killed"}},
		"has only read":    {"kill -9 $$", false, true, nil},
		"reads, and lives": {"read x", false, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newHeldMount(t)
			cmd := exec.Command("sh", "-c", c.script)
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			pid := cmd.Process.Pid
			start := StartOf(pid)
			if c.reap {
				_ = cmd.Wait() // it has exited
			} else {
				t.Cleanup(func() {
					_ = in.Close()
					_ = cmd.Wait() // however it has ended
				})
				if c.script != "read x" {
					eventually(t, "it does not end", func() bool { return zombie(pid) })
				}
			}
			before := pidfds(t)
			m.kept[1], m.last = Held{Number: 1, File: heldIno, PID: pid, Start: start, Write: !c.reader, Memory: m.inode(t)}, 1
			m.serve(t)
			eventually(t, "it is not let go", func() bool { _, _, kept := m.has(); return kept == 0 })
			m.mu.Lock()
			defer m.mu.Unlock()
			if !slices.Equal(m.ended, c.want) {
				t.Errorf("it was %v, want %v", m.ended, c.want)
			}
			if now := pidfds(t); now != before {
				t.Errorf("%d descriptors of processes are open, %d were", now, before)
			}
		})
	}
}

// zombie reports whether a process has ended, and is not reaped.
func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(text), ") Z ")
}

// pidfds counts the descriptors of processes that this one has.
func pidfds(t *testing.T) (n int) {
	t.Helper()
	list, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range list {
		if to, err := os.Readlink(fd); err == nil && strings.Contains(to, "pidfd") {
			n++
		}
	}
	return n
}

// TestTrackedWhileTheDaemonBeforeEnds: the daemon before still has the userfaultfd of a mapping. A program that is back is tracked when it has none any more.
func TestTrackedWhileTheDaemonBeforeEnds(t *testing.T) {
	if async := uffd.Probe().Async; !async.OK {
		t.Skip(async.Reason)
	}
	m := newHeldMount(t)
	m.mode = uffd.Async
	mem := m.mapped(t)
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	faults := func() int {
		fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		return int(fd)
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.memory, &st); err != nil {
		t.Fatal(err)
	}
	before, err := uffd.Track(uffd.Config{UFFD: faults(), PidFD: self, Addr: at, Length: dsm.PageSize, Dev: st.Dev, Ino: st.Ino, Mode: uffd.Async})
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(self)
	m.kept[1], m.last = Held{Number: 1, File: heldIno, PID: os.Getpid(), Start: StartOf(os.Getpid()), Write: true, Memory: st.Ino}, 1
	_, h := m.serve(t)
	p := h.dial()
	r, text := p.call(header{op: opResume, arg: [4]uint64{accessWrite, uint64(heldIno), st.Ino}}, "/w")
	if r.errno != 0 {
		t.Fatalf("resume: %v %s", r.errno, text)
	}
	own := faults()
	q := header{op: opTrack, attachment: r.attachment, arg: [4]uint64{at, dsm.PageSize}}
	if _, _, err := p.WriteMsgUnix(q.encode(nil), unix.UnixRights(own), nil); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(own)
	<-time.After(50 * time.Millisecond) // so that it is looked at, as a rule, while the range has the other one
	_ = before.Close()
	if r, text := p.answer(); r.errno != 0 || uffd.Mode(r.arg[0]) != uffd.Async {
		t.Errorf("track: %v %s, mode %d", r.errno, text, r.arg[0])
	}
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
}

// TestResumeIsForWhoHadIt: a program goes on with what it had attached, whatever the permissions are now, but with no more; and others are asked as for ATTACH. Other memory than that of the
// node is ESTALE.
func TestResumeIsForWhoHadIt(t *testing.T) {
	m := newHeldMount(t)
	memory := m.inode(t)
	with := func(change func(h *Held), uid uint32, access, memory uint64) error {
		had := Held{Number: 1, File: heldIno, PID: 77, Start: 5, UID: uid, Write: true, Memory: memory}
		change(&had)
		a := connOf(t, &privateMount{m}, uid)
		a.s.cfg.Journal, a.s.mu.left = m, map[uint64]Held{1: had}
		a.who.pid, a.who.start = 77, 5
		_, err := a.resume(t.Context(), &request{header: header{op: opResume, arg: [4]uint64{access, uint64(heldIno), memory}}, payload: "/w"})
		return err
	}
	same := func(*Held) {}
	if err := with(same, 1000, accessWrite, memory); err != nil {
		t.Errorf("who had it: %v", err)
	}
	if err := with(same, 1000, accessWrite, memory+1); errnoOf(err) != unix.ESTALE {
		t.Errorf("other memory: %v", err)
	}
	for what, change := range map[string]func(h *Held){
		"another process":            func(h *Held) { h.PID = 78 },
		"one of the same number":     func(h *Held) { h.Start = 6 },
		"it had another file":        func(h *Held) { h.File++ },
		"it had attached it to read": func(h *Held) { h.Write = false },
	} {
		if err := with(change, 1000, accessWrite, memory); errnoOf(err) != unix.EACCES {
			t.Errorf("%s: %v, want EACCES", what, err)
		}
		if err := with(change, 0, accessWrite, memory); err != nil {
			t.Errorf("%s, of root: %v", what, err)
		}
	}
	if err := with(func(h *Held) { h.Write = false }, 1000, accessRead, memory); err != nil {
		t.Errorf("to read: %v", err)
	}
	m.background.Wait()
}

// privateMount is a heldMount whose file only its owner may use.
type privateMount struct{ *heldMount }

func (m *privateMount) Getattr(_ context.Context, ino dsm.Ino) (dsm.Inode, error) {
	perm := uint32(0o755)
	if ino != dsm.RootIno {
		perm = 0o600
	}
	return fileOfRoot(ino, perm), nil
}

func (m *privateMount) Lookup(ctx context.Context, _ dsm.Ino, _ string) (dsm.Inode, error) {
	return m.Getattr(ctx, heldIno)
}

// TestMemoryThatIsGoneIsForgotten: an attachment whose area or memory is not there any more is taken out of the journal, but not if the daemon had no time to find out.
func TestMemoryThatIsGoneIsForgotten(t *testing.T) {
	m := newHeldMount(t)
	m.kept[1] = Held{Number: 1, File: heldIno, PID: os.Getpid(), Write: true, Memory: m.inode(t) + 1}
	s := connOf(t, goneMount{m}, 0).s
	s.cfg.Journal, s.mu.left = m, make(map[uint64]Held)
	ended, end := context.WithCancel(t.Context())
	end()
	s.Adopt(ended, m.journal())
	if _, _, kept := m.has(); kept != 1 {
		t.Error("it is forgotten by a daemon that had no time")
	}
	s.Adopt(t.Context(), m.journal())
	if _, _, kept := m.has(); kept != 0 {
		t.Error("an area that is gone is kept")
	}
	s.cfg.Mount = m
	m.kept[1] = Held{Number: 1, File: heldIno, PID: os.Getpid(), Write: true, Memory: m.inode(t) + 1}
	s.Adopt(t.Context(), m.journal())
	if _, writes, kept := m.has(); kept != 0 || writes != 0 {
		t.Error("memory that is gone is kept")
	}
}

type goneMount struct{ *heldMount }

func (goneMount) Open(context.Context, dsm.Ino, bool) (Area, error) {
	return nil, errs.E(errs.NotExist, "open", "")
}

// TestResumeWithoutAHolder: where nothing outlives the daemon there is nothing to go on with.
func TestResumeWithoutAHolder(t *testing.T) {
	h := listenHostile(t, defaultLimits)
	p := h.dial()
	if r, text := p.call(header{op: opResume, arg: [4]uint64{accessRead, uint64(heldIno), 1}}, "/w"); r.errno != unix.ESTALE {
		t.Errorf("%v %s, want ESTALE", r.errno, text)
	}
	if r, text := p.call(header{op: opAttach, arg: [4]uint64{accessRead}}, "/w"); r.errno != 0 || r.arg[3]&outlivesDaemon != 0 {
		t.Errorf("attach: %v %s, flags %d", r.errno, text, r.arg[3])
	}
}
