package catalog

import (
	"context"
	"reflect"
	"time"

	"github.com/hashicorp/raft"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
	"github.com/dsmfs/dsmfs/internal/hold"
	"github.com/dsmfs/dsmfs/internal/lockrank"
	"github.com/dsmfs/dsmfs/internal/wire"
)

// calls are the commands of this node that somebody waits for.
type calls struct {
	orphans chan struct{} // rung when there are commands to abandon
	held    heldCalls
	mu      struct {
		lockrank.Mutex
		last    uint64 // number of the newest
		waiting map[uint64]chan answer
		low     uint64 // waiting has no smaller number
		// seen has the commands whose effect other nodes may see, see settle. givenUp is the
		// highest number among those of them that nobody waits for any more but that may still
		// happen.
		seen    map[uint64]chan struct{}
		givenUp uint64
		// abandoned has commands that are to be decided: see abandon.go. They count as waited for.
		abandoned []uint64
		// late has commands that were given up, and may still happen: see endLate.
		late []uint64
	}
}

// answer is the outcome of a command of this node.
type answer struct {
	result result
	index  uint64
	term   uint64 // of the leader that appended it; 0 if it came in a snapshot
	again  bool   // an earlier daemon may have proposed it
}

func (cs *calls) init(held *hold.Memory, inc uint64) {
	cs.mu.Init("catalog.calls")
	cs.mu.waiting = make(map[uint64]chan answer)
	cs.mu.seen = make(map[uint64]chan struct{})
	cs.held.init(held, inc)
	cs.mu.last = cs.held.before
	cs.mu.low = cs.mu.last + 1
	cs.orphans = make(chan struct{}, 1)
}

// begin numbers a command for a request of the kernel, or zero. low is the smallest number that somebody waits for.
// again says that an earlier daemon has given it its number.
func (cs *calls) begin(seen bool, of hold.Request) (req, low uint64, again bool, done <-chan answer) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if req, again = cs.held.known[of]; !again {
		cs.mu.last++
		req = cs.mu.last
	}
	delete(cs.held.known, of) // if the request repeats the command now, that is another one
	low = cs.held.number(of, req, cs.mu.last, cs.mu.low)
	ch := make(chan answer, 1)
	cs.mu.waiting[req] = ch
	if seen {
		cs.mu.seen[req] = make(chan struct{})
	}
	return req, low, again, ch
}

// finish says that nobody waits for the command any more: it has been applied, or was given up.
func (cs *calls) finish(req uint64, applied bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.mu.waiting, req)
	cs.unseenLocked(req, applied)
	for cs.mu.low <= cs.mu.last && cs.mu.waiting[cs.mu.low] == nil {
		cs.mu.low++
	}
}

// unseenLocked says that nobody need wait for the command before reading: it was applied, or was given up.
func (cs *calls) unseenLocked(req uint64, applied bool) {
	if done, seen := cs.mu.seen[req]; seen {
		close(done)
		delete(cs.mu.seen, req)
		if !applied {
			cs.mu.givenUp = max(cs.mu.givenUp, req)
		}
	}
}

// passed says that commands with numbers below low cannot happen any more.
func (cs *calls) passed(low uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if low > cs.mu.givenUp {
		cs.mu.givenUp = 0
	}
}

// undecided reports whether a command that was given up may still happen.
func (cs *calls) undecided() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.mu.givenUp != 0
}

// settle returns when this node has applied all commands that were under way at the call and whose
// effect other nodes may see. They may have seen it already.
func (cs *calls) settle(ctx, life context.Context) error {
	cs.mu.Lock()
	var wait []chan struct{}
	for _, done := range cs.mu.seen {
		wait = append(wait, done)
	}
	cs.mu.Unlock()
	for _, done := range wait {
		select {
		case <-done:
		case <-ctx.Done():
			return gaveUp(ctx)
		case <-life.Done():
			return gaveUp(ctx)
		}
	}
	return ctx.Err()
}

// deliver hands the answer to the goroutine that waits for it, if there is one.
func (cs *calls) deliver(req uint64, a answer) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	select {
	case cs.mu.waiting[req] <- a:
	default:
	}
}

const (
	// resend is when a command that was accepted but not applied is sent again: the leader may have
	// died with it. It is applied only once.
	resend = 500 * time.Millisecond
	// attempt bounds a request to another node that will be tried again.
	attempt = time.Second
	// unwatched is how long a command waits before it looks whether its caller still does. Most are
	// done by then. To begin looking costs a goroutine and a timer.
	unwatched = 20 * time.Millisecond
)

// propose makes the change o and returns when this node has applied it.
func (c *Catalog) propose(ctx context.Context, o op) (dsm.Inode, error) {
	name := ops[opKinds[reflect.TypeOf(o)]].name
	a, err := c.commit(ctx, o)
	if err == nil {
		err = a.result.err(name)
	}
	return a.result.Inode, named(name, err)
}

// commit sends o to the leader until this node has applied it.
func (c *Catalog) commit(ctx context.Context, o op) (answer, error) {
	kind := opKinds[reflect.TypeOf(o)]
	of, err := c.calls.held.requestOf(ctx, kind, o)
	if err == nil && kind.ordered() {
		err = c.endLate(ctx)
	}
	if err != nil {
		return answer{}, err
	}
	req, low, again, done := c.calls.begin(ops[kind].seen, of)
	applied := false
	defer func() {
		switch {
		case !applied && leavesClaim(o):
			c.calls.abandon(req)
		case !applied && kind.ordered():
			c.calls.giveUp(req)
			fallthrough
		default:
			c.calls.finish(req, applied)
		}
	}()
	data, err := command{Node: c.self.ID, Inc: c.self.Inc, Req: req, Low: low, Now: time.Now().UnixNano()}.encode(o)
	if err != nil {
		return answer{}, err
	}
	for try := 0; ; try++ {
		reign := c.reign.ctx()
		failed, forget := c.submit(reign, ctx, data)
		wait := time.NewTimer(unwatched)
		var given <-chan struct{} // closed when the caller gives up, after unwatched
	waiting:
		for {
			select {
			case a := <-done:
				wait.Stop()
				forget()
				applied, a.again = true, again
				return a, nil
			case err := <-failed:
				c.doubtLeader(err)
				if !retryable(err) {
					wait.Stop()
					return answer{}, err
				}
				failed, given = nil, ctx.Done()
				wait.Reset(backoff(try))
			case <-reign.Done():
				break waiting
			case <-wait.C:
				if given != nil {
					break waiting
				}
				given = ctx.Done()
				wait.Reset(resend)
			case <-given:
				break waiting
			case <-c.life.Done():
				break waiting
			}
		}
		wait.Stop()
		forget()
		if ctx.Err() != nil {
			return answer{}, gaveUp(ctx)
		}
		if c.life.Err() != nil {
			return answer{}, gaveUp(ctx)
		}
	}
}

// submit hands a command to the leader. Why the leader does not take it comes by the channel, until
// forget is called. What raft reports later nobody waits for: the command is done when this node
// applies it, and raft does not answer any more when it shuts down.
func (c *Catalog) submit(reign, ctx context.Context, data []byte) (failed <-chan error, forget func()) {
	id, addr := c.leader()
	refused := make(chan error, 1)
	switch {
	case c.raft.State() == raft.Leader:
		if c.takeNow(data) {
			break
		}
		go func() {
			ctx, cancel := during(reign, ctx)
			defer cancel()
			if err := c.take(ctx, data); err != nil {
				refused <- err
			}
		}()
	case id == 0 || id == c.self.ID:
		refused <- errs.E(errs.Unavailable, "", "the catalog has no leader")
	default:
		return c.caller.Tell(ctx, nodeAddr(id, addr), &wire.Propose{Command: data})
	}
	return refused, func() {}
}

// during returns a context for one attempt at something that is wanted until ctx ends. It also ends
// when the leader changes (reign).
func during(reign, ctx context.Context) (context.Context, context.CancelFunc) {
	a, cancel := context.WithTimeout(reign, attempt)
	stop := context.AfterFunc(ctx, cancel)
	return a, func() { stop(); cancel() }
}

// retryable reports whether the request may succeed if it is made again.
func retryable(err error) bool {
	switch errs.KindOf(err) {
	case errs.Invalid, errs.TooLarge, errs.Corrupt, errs.Unsupported:
		return false
	}
	return true
}

// backoff returns how long to wait after failure number try: a new leader needs a moment, a cluster
// without one needs seconds.
func backoff(try int) time.Duration {
	return min(5*time.Millisecond<<min(try, 6), 200*time.Millisecond)
}

// pause waits after a failure, less if the leader changes. It returns false if ctx or the catalog
// has ended.
func (c *Catalog) pause(ctx, reign context.Context, try int) bool {
	wait := time.NewTimer(backoff(try))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-reign.Done():
	case <-ctx.Done():
	case <-c.life.Done():
	}
	return ctx.Err() == nil && c.life.Err() == nil
}
