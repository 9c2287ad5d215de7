package harvest

import (
	"bytes"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

func TestWire(t *testing.T) {
	for _, q := range []request{
		{op: opHello, path: "/mnt/dsm"},
		{op: opLook, path: "/mnt/dsm/a"},
		{op: opSync, items: []item{{ino: 1, off: 2, n: 3}, {ino: 1 << 60}}},
		{op: opWatch, items: []item{{ino: 1, every: uint64(dsm.MaxInterval)}, {ino: 2}}},
		{op: opClose, items: []item{{ino: 9}}},
		{op: opFree, items: []item{{ino: 9, off: 1 << 40, n: 1234}}},
	} {
		got, err := readRequest(bytes.NewReader(q.append(nil)))
		if err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v became %+v, %v", q, got, err)
		}
	}
	results := []uint32{0, 5}
	got, err := readReply(bytes.NewReader(appendReply(nil, results)), 2)
	if err != nil || !reflect.DeepEqual(got, results) {
		t.Errorf("%+v became %+v, %v", results, got, err)
	}
	if _, err := readReply(bytes.NewReader(appendReply(nil, results)), 1); err == nil {
		t.Error("reply to another request accepted")
	}
	never := request{op: opWatch, items: []item{{ino: 1, every: uint64(dsm.MaxInterval) + 1}}}
	if _, err := readRequest(bytes.NewReader(never.append(nil))); err == nil {
		t.Error("an interval that no area can have accepted")
	}
}

// liveArea is an area that a program can store into.
type liveArea struct{}

func (liveArea) ID() dsm.AreaID          { return 1 }
func (liveArea) Live() bool              { return true }
func (liveArea) Interval() time.Duration { return time.Second }

// TestNoChild: without a command nothing is harvested, and nothing fails.
func TestNoChild(t *testing.T) {
	h := New(Config{Background: func(f func()) { f() }, Live: func() []Area { return []Area{liveArea{}} }, Life: t.Context(), Log: slog.New(slog.DiscardHandler)})
	h.changes.mu.areas[liveArea{}] = struct{}{}
	h.tell()
	if err := h.Look(t.Context(), "/"); err == nil {
		t.Error("a child that is not there has looked")
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte("H\x00\x00\x00\x04/mnt"))
	f.Add([]byte("S\xff\xff\xff\xff"))
	f.Add(request{op: opSync, items: []item{{ino: 1, off: 2, n: 3}}}.append(nil))
	f.Add(request{op: opWatch, items: []item{{ino: 1, every: 5}}}.append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		q, err := readRequest(bytes.NewReader(p))
		if err == nil && !bytes.HasPrefix(p, q.append(nil)) {
			t.Errorf("%+v is not what %q says", q, p)
		}
	})
}

// runMain gives the child that input and returns what it answers.
func runMain(t *testing.T, input []byte) ([]byte, error) {
	t.Helper()
	in, toChild, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	fromChild, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer fromChild.Close()
	if _, err := toChild.Write(input); err != nil {
		t.Fatal(err)
	}
	toChild.Close()
	mainErr := Main(in, out)
	out.Close()
	answers, err := io.ReadAll(fromChild)
	if err != nil {
		t.Fatal(err)
	}
	return answers, mainErr
}

// TestMainEnds: with its input, also while it watches, and at nonsense.
func TestMainEnds(t *testing.T) {
	if _, err := runMain(t, nil); err != nil {
		t.Error(err)
	}
	in := request{op: opHello, path: "/nowhere"}.append(nil)
	in = request{op: opWatch, items: []item{{ino: 5, every: uint64(time.Hour)}}}.append(in)
	in = request{op: opSync, items: []item{{ino: 5}}}.append(in)
	in = request{op: opClose, items: []item{{ino: 5}}}.append(in)
	answers, err := runMain(t, in)
	if err != nil {
		t.Error(err)
	}
	r := bytes.NewReader(answers)
	for _, want := range []uint32{uint32(syscall.ENOENT), 0} {
		if got, err := readReply(r, 1); err != nil || got[0] != want {
			t.Errorf("%v, %v; want errno %d", got, err, want)
		}
	}
	if _, err := runMain(t, []byte("Xabcd")); err == nil {
		t.Error("nonsense accepted")
	}
}

// harvestRounds plays the child for a while, with harvests that take as long as took
// says, and returns the starts of each area's harvests and the number of wake-ups.
func harvestRounds(s *schedule, from, to time.Duration, took func(ino uint64) time.Duration) (map[uint64][]time.Duration, int) {
	starts, wakeups := make(map[uint64][]time.Duration), 0
	for now := from; ; wakeups++ {
		at, ok := s.next()
		if now = max(now, at); !ok || now > to {
			return starts, wakeups
		}
		start := now
		for i := range s.watches {
			if w := &s.watches[i]; w.isDue(start) {
				starts[w.ino] = append(starts[w.ino], now)
				d := took(w.ino)
				w.harvested(now, d)
				now += d
			}
		}
	}
}

func newSchedule() *schedule { return &schedule{places: make(map[uint64]int)} }

// TestScheduleTogether: areas with one interval are harvested at once, whenever they
// were opened, and each at least that often.
func TestScheduleTogether(t *testing.T) {
	s := newSchedule()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	every := map[uint64]time.Duration{}
	added := map[uint64]time.Duration{}
	now := time.Duration(0)
	for ino := range uint64(60) {
		now += time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
		every[ino], added[ino] = 100*time.Millisecond, now
		if ino%3 == 0 {
			every[ino] = 70 * time.Millisecond
		}
		s.set(ino, every[ino], now)
	}
	starts, wakeups := harvestRounds(s, now, now+7*time.Second, func(uint64) time.Duration { return time.Microsecond })
	for ino, at := range starts {
		if last := added[ino]; at[0] > max(last+every[ino], now+time.Millisecond) {
			t.Errorf("area %d added at %v, first harvested at %v", ino, last, at[0])
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i] - at[i-1]; gap > every[ino]+time.Millisecond {
				t.Errorf("area %d at %v is harvested %v after the last time", ino, at[i], gap)
			}
		}
	}
	if most := 70 + 100 + 20; len(starts) != 60 || wakeups > most {
		t.Errorf("%d wake-ups for %d areas, want at most %d for 60", wakeups, len(starts), most)
	}
}

// TestScheduleRests: after a harvest that took T the area is left alone for 4T, and the
// others are not.
func TestScheduleRests(t *testing.T) {
	s := newSchedule()
	s.set(1, 100*time.Millisecond, 0)
	s.set(2, 100*time.Millisecond, 0)
	slow := 50 * time.Millisecond
	starts, _ := harvestRounds(s, 0, 10*time.Second, func(ino uint64) time.Duration {
		if ino == 1 {
			return slow
		}
		return 0
	})
	for i := 1; i < len(starts[1]); i++ {
		if gap := starts[1][i] - starts[1][i-1]; gap < (1+RestFactor)*slow {
			t.Errorf("harvests of %v are %v apart", slow, gap)
		}
	}
	if n := len(starts[1]); n < 30 || n > 40 {
		t.Errorf("%d slow harvests in 10 s", n)
	}
	if n := len(starts[2]); n < 95 {
		t.Errorf("%d harvests of the other area in 10 s", n)
	}
}

func TestScheduleChanges(t *testing.T) {
	s := newSchedule()
	if _, ok := s.next(); ok {
		t.Error("an area is due, of none")
	}
	for ino := range uint64(3) {
		s.set(ino, time.Hour, 0)
	}
	s.set(1, 10*time.Millisecond, time.Second)
	if at, ok := s.next(); !ok || at <= time.Second || at > time.Second+10*time.Millisecond {
		t.Errorf("due at %v, %v after the interval became shorter", at, ok)
	}
	s.set(1, 0, time.Second)
	s.remove(0)
	s.remove(0)
	if at, ok := s.next(); !ok || at < 59*time.Minute || len(s.watches) != 1 || s.places[2] != 0 {
		t.Errorf("next at %v, %v: %+v", at, ok, s)
	}
	s.remove(2)
	if _, ok := s.next(); ok || len(s.places) != 0 {
		t.Errorf("%+v", s)
	}
}
