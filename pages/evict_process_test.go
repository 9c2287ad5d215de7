package pages

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/uffd"
	"github.com/dsmfs/dsmfs/pages/merge"
	"github.com/dsmfs/dsmfs/pages/pagetest"
)

// Programs that are processes of their own, this test binary once more, map a demand
// area and store into random pages while these are evicted and brought again at random.
//
// Every page has a word that says which page it is, a counter to which all programs add
// atomically, and for each program a counter that it alone stores to.
const (
	demandEnv      = "DSMFS_TEST_DEMAND"
	demandPages    = 96
	demandPrograms = 3

	tagWord   = 0
	addWord   = 17
	ownWord   = 100 // and those after it, one for each program
	demandTag = 0xabcd0000
)

// demandStores is how many stores each program makes.
func demandStores() int {
	if testing.Short() || pagetest.Race {
		return 50_000
	}
	return 300_000
}

// TestDemandProgram is such a program. Descriptor 3 is the memfd, 4 a socket: it
// sends the address of its mapping with a userfaultfd, and begins when it is told.
func TestDemandProgram(t *testing.T) {
	args := strings.Split(os.Getenv(demandEnv), "/")
	if len(args) != 3 {
		t.Skip("runs in a process of its own, started by TestEvictWithPrograms")
	}
	var a [3]int
	for i := range a {
		var err error
		if a[i], err = strconv.Atoi(args[i]); err != nil {
			t.Fatal(err)
		}
	}
	me, stores, seed := a[0], a[1], a[2]
	mem, err := unix.MmapPtr(3, 0, nil, demandPages*dsm.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|1, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	if err := unix.Sendmsg(4, strconv.AppendUint(nil, uint64(uintptr(mem)), 10), unix.UnixRights(int(fd)), nil, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(4, make([]byte, 1)); n != 1 {
		t.Fatalf("not told to begin: %v", err)
	}
	word := func(page, w int) *uint64 { return (*uint64)(unsafe.Add(mem, page*dsm.PageSize+w*8)) }
	var mine [demandPages]uint64
	check := func(p int) {
		if got := *word(p, tagWord); got != demandTag|uint64(p) {
			t.Fatalf("page %d says %#x", p, got)
		}
		if got := *word(p, ownWord+me); got != mine[p] {
			t.Fatalf("page %d: the counter is %d, and %d was stored", p, got, mine[p])
		}
	}
	rng := rand.New(rand.NewPCG(uint64(seed), uint64(me)))
	for range stores {
		p := rng.IntN(demandPages)
		if rng.IntN(2) == 0 {
			p = rng.IntN(8) // where all are
		}
		switch rng.IntN(3) {
		case 0:
			check(p)
			mine[p]++
			*word(p, ownWord+me) = mine[p]
		case 1:
			mine[p]++
			*word(p, ownWord+me) = mine[p] // the first touch may be this store
			check(p)
		case 2:
			atomic.AddUint64(word(p, addWord), 1)
			check(p)
		}
	}
	for p := range demandPages {
		check(p)
		fmt.Println(mine[p])
	}
}

// demandModel is the daemon's side: what the home has, and which pages are here.
type demandModel struct {
	t    *testing.T
	rng  *rand.Rand
	area *Area
	home [demandPages][]byte

	mu     sync.Mutex
	here   dsm.PageSet
	faults int
	kept   int
	gone   int

	missing  chan int64
	programs []*demandProgram
}

// demandProgram is a program as the daemon sees it.
type demandProgram struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	socket int
	mapped *uffd.Range
}

func (m *demandModel) start(me int, seed uint64, mode uffd.Mode) *demandProgram {
	t := m.t
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &demandProgram{socket: pair[0], cmd: exec.Command("/proc/self/exe", "-test.run=^TestDemandProgram$", "-test.count=1")}
	t.Cleanup(func() { _ = unix.Close(pair[0]) })
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	defer theirs.Close()
	memfd, err := m.area.OpenWorking(true)
	if err != nil {
		t.Fatal(err)
	}
	defer memfd.Close()
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d/%d/%d", demandEnv, me, demandStores(), uint32(seed)))
	p.cmd.ExtraFiles = []*os.File{memfd, theirs}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	buf, oob := make([]byte, 64), make([]byte, 64)
	n, oobn, _, _, err := unix.Recvmsg(pair[0], buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || oobn == 0 {
		_ = p.cmd.Wait()
		t.Fatalf("the program sends %d bytes, %d of rights: %v\n%s", n, oobn, err, p.out.String())
	}
	addr, err := strconv.ParseUint(string(buf[:n]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(p.cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	var st unix.Stat_t
	if err := unix.Fstat(m.area.working.fd, &st); err != nil {
		t.Fatal(err)
	}
	p.mapped, err = uffd.Track(uffd.Config{UFFD: fds[0], PidFD: pidfd, Addr: addr, Length: demandPages * dsm.PageSize,
		Dev: st.Dev, Ino: st.Ino, Mode: mode, Missing: func(off int64) { m.missing <- off }, Memfd: m.area.working.fd})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// install brings page p and some after it, which are not here.
func (m *demandModel) install(p int) {
	var n []byte
	to := p
	for ; to < min(p+1+m.rng.IntN(4), demandPages) && !m.here.Has(to); to++ {
		n = append(n, m.home[to]...)
	}
	here, stored, err := m.area.Install(merge.Kernel{}, dsm.PageIndex(p), n, true)
	if err != nil || here != dsm.Range(p, to) || stored != (dsm.PageSet{}) {
		m.t.Errorf("install of pages [%d, %d): %x here, %x stored, %v", p, to, here, stored, err)
	}
	m.here = m.here.Or(here)
}

// serve brings pages that programs wait for.
func (m *demandModel) serve() {
	for off := range m.missing {
		p := int(off / dsm.PageSize)
		m.mu.Lock()
		if !m.here.Has(p) {
			m.install(p)
		}
		m.faults++
		m.mu.Unlock()
		for _, q := range m.programs {
			q.mapped.Wake(off, dsm.PageSize)
		}
	}
}

// evict takes a random run away, publishes what of it was stored to, and brings a page. It
// reports whether to scan, which it does now and then.
func (m *demandModel) evict() (scan bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := m.rng.IntN(demandPages)
	set := dsm.Range(from, min(from+1+m.rng.IntN(1+m.rng.IntN(demandPages)), demandPages)).And(m.here)
	stored, err := m.area.Evict(merge.Kernel{}, 0, set, true)
	if err != nil {
		m.t.Errorf("evict %x: %v", set, err)
	}
	m.here = m.here.Minus(set).Or(stored)
	m.gone += set.Len() - stored.Len()
	m.kept += stored.Len()
	for i := range stored.All() {
		merge.Snapshot(m.home[i], m.area.Working(dsm.PageIndex(i)))
		m.area.SetBase(dsm.PageIndex(i), m.home[i])
	}
	if p := m.rng.IntN(demandPages); m.rng.IntN(4) == 0 && !m.here.Has(p) {
		m.install(p)
	}
	return m.rng.IntN(8) == 0
}

// TestEvictWithPrograms: no store is lost, and nothing is ever read that is not the page's.
func TestEvictWithPrograms(t *testing.T) {
	for _, mode := range []uffd.Mode{uffd.Async, uffd.Compare} {
		t.Run(mode.String(), func(t *testing.T) {
			m := &demandModel{t: t, rng: pagetest.Rand(t), area: newTestDemandArea(t, demandPages*dsm.PageSize), missing: make(chan int64, demandPages*demandPrograms)}
			if err := m.area.Attachable(); err != nil {
				t.Skip(err)
			}
			if _, err := uffd.Choose(uffd.Probe(), mode.String()); err != nil {
				t.Skip(err)
			}
			for p := range m.home {
				m.home[p] = make([]byte, dsm.PageSize)
				binary.LittleEndian.PutUint64(m.home[p], demandTag|uint64(p))
			}
			// The death signal is that of the thread, which must not end before the test.
			runtime.LockOSThread()
			seed := m.rng.Uint64()
			for me := range demandPrograms {
				m.programs = append(m.programs, m.start(me, seed, mode))
			}
			var served sync.WaitGroup
			served.Go(m.serve)
			ended := make(chan error, demandPrograms)
			for _, p := range m.programs {
				if _, err := unix.Write(p.socket, []byte{1}); err != nil {
					t.Fatal(err)
				}
				go func() { ended <- p.cmd.Wait() }()
			}
			var stores uffd.Stores
			for running := demandPrograms; running > 0; {
				select {
				case err := <-ended:
					running--
					if err != nil {
						t.Error(err)
					}
				default:
					if !m.evict() {
						continue
					}
					for _, p := range m.programs { // protects what it finds
						stores.Reset()
						if err := p.mapped.Scan(&stores); err != nil {
							t.Error(err)
						}
					}
				}
			}
			for _, p := range m.programs {
				if err := p.mapped.Close(); err != nil {
					t.Error(err)
				}
			}
			close(m.missing)
			served.Wait()
			m.check()
		})
	}
}

// check compares what the pages have with what the programs say that they stored.
func (m *demandModel) check() {
	sum, said := uint64(0), uint64(0)
	own := make([]uint64, demandPages*demandPrograms)
	for me, p := range m.programs {
		lines := strings.Fields(p.out.String())
		if len(lines) < demandPages {
			m.t.Fatalf("program %d says\n%s", me, p.out.String())
		}
		for i := range demandPages {
			n, err := strconv.ParseUint(lines[i], 10, 64)
			if err != nil {
				m.t.Fatalf("program %d says\n%s", me, p.out.String())
			}
			own[i*demandPrograms+me] = n
			said += n
		}
	}
	for p := range demandPages {
		page := m.home[p]
		if m.here.Has(p) {
			page = m.area.Working(dsm.PageIndex(p))
		}
		w := unsafe.Slice((*uint64)(unsafe.Pointer(&page[0])), dsm.PageSize/8)
		sum += w[addWord]
		for me := range demandPrograms {
			if got, want := w[ownWord+me], own[p*demandPrograms+me]; got != want {
				m.t.Errorf("page %d: the counter of program %d is %d, want %d", p, me, got, want)
			}
		}
	}
	if total := uint64(demandPrograms * demandStores()); sum+said != total {
		m.t.Errorf("%d atomic and %d plain stores, of %d", sum, said, total)
	}
	m.t.Logf("%d faults, %d pages gone, %d kept as stored to", m.faults, m.gone, m.kept)
	if m.gone == 0 || m.kept == 0 {
		m.t.Error("nothing happened")
	}
}
