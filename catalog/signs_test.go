package catalog

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

func TestVerdicts(t *testing.T) {
	const lease = 2500 * time.Millisecond
	for _, x := range []struct {
		silent   time.Duration
		refusals int
		want     verdict
	}{
		{0, 0, lives},
		{500 * time.Millisecond, 0, lives}, // the next sign is on its way
		{650 * time.Millisecond, 0, overdue},
		{650 * time.Millisecond, leastRefusals, overdue}, // a node that lives would try again
		{time.Second, leastRefusals - 1, overdue},
		{time.Second, leastRefusals, ended},
		{lease, 0, overdue}, // it may count a little slower
		{lease + lease/evictGrace, 0, expired},
		{lease + lease/evictGrace, 9, expired},
	} {
		if got := judge(x.silent, lease, x.refusals); got != x.want {
			t.Errorf("silent for %v, %d refusals: verdict %d, want %d", x.silent, x.refusals, got, x.want)
		}
	}
}

var signsSeed = flag.Uint64("signs.seed", 0, "seed of TestNoMemberActsAfterItsEviction; 0: random")

// TestNoMemberActsAfterItsEviction runs one member against leaders that follow one another, in virtual time: messages take any time,
// each process is stopped now and then, and its clock runs up to a fiftieth fast or slow. When a leader's eviction is in the log, the
// member is fenced, and stays so.
func TestNoMemberActsAfterItsEviction(t *testing.T) {
	seed := *signsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-signs.seed=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	evicted := 0
	for range 500 {
		if oneLife(t, r) {
			evicted++
		}
		if t.Failed() {
			return
		}
	}
	if evicted < 50 {
		t.Errorf("%d members of 500 were evicted: nothing is tested", evicted)
	}
}

// oneLife simulates one member until it is evicted, which it reports, or some time has passed.
func oneLife(t *testing.T, r *rand.Rand) (evicted bool) {
	const (
		lease  = 1000 * time.Millisecond
		tick   = 10 * time.Millisecond
		member = dsm.NodeID(7)
	)
	now := time.Duration(0)
	clock := func() func() time.Duration {
		rate := 1 + (r.Float64()-0.5)/25
		return func() time.Duration { return time.Hour + time.Duration(float64(now)*rate) }
	}
	var m signs
	m.init()
	m.clock = clock()
	leaders := make([]*signs, 3)
	for i := range leaders {
		leaders[i] = new(signs)
		leaders[i].init()
		leaders[i].clock = clock()
	}
	term := uint64(1) // its leader is leaders[term%3]; a deposed one may still believe to lead
	leaders[1].begin(1)
	believes := map[int]uint64{1: 1}
	looked := make(map[int]time.Duration)
	stopped := make(map[int]time.Duration) // until when; 3: the member
	type question struct {
		sent        time.Duration // by the member's clock
		at          time.Duration // when it arrives
		to          int
		term        uint64
		confirmedAt time.Duration
		answer      bool
	}
	var under []question
	var next time.Duration
	var lastTerm uint64 // in which the member was evicted
	for ; now < 20*time.Second; now += tick {
		for who := range 4 {
			if now >= stopped[who] && r.IntN(400) == 0 {
				stopped[who] = now + time.Duration(r.Int64N(int64(3*lease)))
			}
		}
		if r.IntN(150) == 0 { // an election, of any process that runs
			if who := r.IntN(3); now >= stopped[who] {
				for term++; int(term%3) != who; term++ {
				}
				leaders[who].begin(term)
				believes[who] = term
			}
		}
		if now >= stopped[3] && now >= next {
			next = now + lease/leaseParts
			delay := time.Duration(r.Int64N(int64(lease / 20)))
			if r.IntN(3) == 0 {
				delay = time.Duration(r.Int64N(int64(2 * lease)))
			}
			under = append(under, question{sent: m.clock(), at: now + delay, to: r.IntN(3)})
		}
		rest := under[:0]
		for _, q := range under {
			switch {
			case q.at > now:
			case q.answer:
				if now < stopped[3] {
					break
				}
				m.confirm(q.sent)
				continue
			case q.confirmedAt == 0: // it arrives
				if now < stopped[q.to] {
					break
				}
				q.term = believes[q.to]
				if q.term == 0 || evicted && q.term > lastTerm || !leaders[q.to].hear(member, 0, q.term) {
					continue // it does not lead, or knows that the member is gone, or is evicting it
				}
				q.confirmedAt, q.at = now, now+time.Duration(r.Int64N(int64(lease/5)))
			case q.term != term: // a majority knows of a later leader
				continue
			default:
				q.answer, q.at = true, now+time.Duration(r.Int64N(int64(lease/2)))
			}
			rest = append(rest, q)
		}
		under = rest
		for who, l := range leaders {
			if believes[who] == 0 || now < stopped[who] {
				continue
			}
			if now-looked[who] > lease/2 {
				l.startOver()
			}
			looked[who] = now
			if judge(l.silence(member, 0), lease, 0) != expired || !l.doom(member, 0, lease+lease/evictGrace, believes[who]) {
				continue
			}
			if believes[who] != term {
				continue // it cannot be committed
			}
			if !m.fenced(lease) {
				t.Errorf("at %v a member is evicted that is not fenced", now)
			}
			evicted, lastTerm = true, term
		}
		if evicted && !m.fenced(lease) {
			t.Errorf("at %v a member acts that was evicted", now)
			return evicted
		}
	}
	return evicted
}

func TestFencedUntilItIsAnswered(t *testing.T) {
	var g signs
	g.init()
	now := time.Hour
	g.clock = func() time.Duration { return now }
	if !g.fenced(time.Second) {
		t.Error("a node that was never answered is not fenced")
	}
	if g.confirm(now); g.fenced(time.Second) {
		t.Error("a node that was answered is fenced")
	}
	now += time.Second - 1
	if g.fenced(time.Second) {
		t.Error("the lease ends too soon")
	}
	g.confirm(now)
	now += time.Second
	if !g.fenced(time.Second) {
		t.Error("the lease does not end")
	}
	if g.confirm(now - 2*time.Second); !g.fenced(time.Second) {
		t.Error("an answer to an old question renews the lease")
	}
	if g.confirm(now); g.fenced(time.Second) {
		t.Error("an answer does not end the fence")
	}
}
