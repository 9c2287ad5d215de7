package head

import (
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv("HEAD_TEST_DAEMON") != "" {
		daemon()
	}
	os.Exit(m.Run())
}

// daemon is the process that TestKilledDaemon kills: it gives its header pages to its parent.
func daemon() {
	p, err := NewPages(NewKeeper(), 10)
	if err != nil {
		panic(err)
	}
	l, _, err := p.Take()
	if err != nil {
		panic(err)
	}
	l.Set(Values{Here: 7})
	if err := unix.Sendmsg(3, []byte("x"), unix.UnixRights(int(p.File().Fd())), nil, 0); err != nil {
		panic(err)
	}
	for {
		_ = unix.Pause() // to Go's runtime a daemon whose goroutines all wait for each other is over
	}
}

// waitv waits until a word is not as given.
func waitv(t *testing.T, word *uint32, is uint32) {
	type futex struct {
		val, addr  uint64
		flags, pad uint32
	}
	const futex32 = 2
	w := futex{uint64(is), uint64(uintptr(unsafe.Pointer(word))), futex32, 0}
	for atomic.LoadUint32(word) == is {
		if _, _, e := unix.Syscall6(449, uintptr(unsafe.Pointer(&w)), 1, 0, 0, 0, 0); e != 0 && e != unix.EAGAIN && e != unix.EINTR {
			t.Errorf("futex_waitv: %v", e)
			return
		}
	}
}

// TestKilledDaemon kills a process that has header pages: the kernel tells a program that waits.
func TestKilledDaemon(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "HEAD_TEST_DAEMON=1")
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(pair[1]), "pair")}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	if _, _, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, 0); err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Mmap(fds[0], 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("a program can map the pages for writing")
	}
	if err := unix.Ftruncate(fds[0], 0); err == nil {
		t.Error("a program can shorten the memfd")
	}
	mem, err := unix.Mmap(fds[0], 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	life, line := (*uint32)(unsafe.Pointer(&mem[0])), (*Line)(unsafe.Pointer(&mem[LineSize]))
	if line.here != 7 || line.arrived == 0 || line.number == 0 {
		t.Errorf("the line is %+v", line)
	}
	was := atomic.LoadUint32(life)
	if was == 0 {
		t.Skip("no robust futexes here")
	}
	if was&Died != 0 {
		t.Fatalf("the daemon lives, and the word is %#x", was)
	}
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		waitv(t, life, was)
	}()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-woken
	if now := atomic.LoadUint32(life); now&Died == 0 {
		t.Errorf("it was killed, and the word is %#x", now)
	}
	_ = cmd.Wait() // it was killed
}

// TestKeeper takes and gives pages in any order.
func TestKeeper(t *testing.T) {
	k := NewKeeper()
	var all []*Pages
	for range 3 {
		p, err := NewPages(k, 100)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	words := func() (n int) {
		for at := k.mu.list.first.next.Load(); at != &k.mu.list.first; at = at.next.Load() {
			n++
		}
		return n
	}
	for i, j := range []int{1, 2, 0} {
		if got := words(); got != 3-i && k.tid != 0 {
			t.Errorf("%d links, want %d", got, 3-i)
		}
		if err := all[j].Close(); err != nil {
			t.Error(err)
		}
	}
	k.Close()
}

// TestLines takes all lines, and gives some back.
func TestLines(t *testing.T) {
	k := NewKeeper()
	defer k.Close()
	p, err := NewPages(k, 63)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[int64]*Line)
	for range 63 {
		l, off, err := p.Take()
		if err != nil || seen[off] != nil || off < LineSize || off%LineSize != 0 {
			t.Fatalf("line at %d: %v", off, err)
		}
		seen[off] = l
	}
	if _, _, err := p.Take(); err == nil {
		t.Fatal("more lines than there are")
	}
	old := seen[5*LineSize].Number()
	word := seen[5*LineSize].word
	p.Give(seen[5*LineSize])
	if seen[5*LineSize].state != Ended || seen[5*LineSize].word == word {
		t.Error("who waits at a line that was given back is not told")
	}
	if l, off, err := p.Take(); err != nil || off != 5*LineSize || l.Number() == old || l.state != 0 {
		t.Errorf("line at %d, number %d after %d: %v", off, l.Number(), old, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestSet changes the word for what programs wait for, and for nothing else.
func TestSet(t *testing.T) {
	l := &Line{}
	now := time.Now()
	for i, c := range []struct {
		v       Values
		changed bool
	}{
		{Values{Newest: 5}, false},
		{Values{Newest: 5, Here: 3, Asked: now}, true},
		{Values{Newest: 6, Here: 3, Asked: now.Add(1)}, false},
		{Values{Newest: 6, Here: 3, Whole: 3}, true},
		{Values{Newest: 6, Here: 3, Whole: 3, State: Follows}, true},
	} {
		word := l.word
		if got := l.Set(c.v); got != c.changed || (l.word != word) != c.changed {
			t.Errorf("case %d: changed is %v, the word %d after %d", i, got, l.word, word)
		}
	}
	if l.asked != now.Add(1).UnixNano() || l.newest != 6 || l.arrived == 0 {
		t.Errorf("%+v", l)
	}
}

// TestChanges: the number of changes is odd from Changing to Changed, however often they are called.
func TestChanges(t *testing.T) {
	l := &Line{}
	for i := range uint64(3) {
		for range 2 {
			if l.Changing(); l.changes != 2*i+1 {
				t.Errorf("changing: %d", l.changes)
			}
		}
		for range 2 {
			if l.Changed(); l.changes != 2*i+2 {
				t.Errorf("changed: %d", l.changes)
			}
		}
	}
}

// TestWakeAfterClose wakes who waited at a line whose pages are not mapped any more: a program can end at any time.
func TestWakeAfterClose(t *testing.T) {
	p, err := NewPages(NewKeeper(), 1)
	if err != nil {
		t.Fatal(err)
	}
	l, _, err := p.Take()
	if err != nil {
		t.Fatal(err)
	}
	w := l.Waiters()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	w.Wake()
}

func BenchmarkWakeNobody(b *testing.B) {
	k := NewKeeper()
	defer k.Close()
	p, err := NewPages(k, 10)
	if err != nil {
		b.Fatal(err)
	}
	l, _, _ := p.Take()
	for b.Loop() {
		l.Waiters().Wake()
	}
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
}
