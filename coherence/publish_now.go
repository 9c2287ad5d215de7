package coherence

import (
	"context"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// PublishNow is Publish for a goroutine that must not wait for anything. It returns false, and has published nothing, where Publish might have to
// wait for a lock or for a program's memory, or takes long: then the caller has another goroutine call Publish. If it returns true, done is
// called once with what Publish would return, with no lock held: perhaps before PublishNow returns, else by the goroutine that
// handles the last ack, or after limit; or by one of its own, where a version waits for a backup or for the kernel.
func (a *Area) PublishNow(limit time.Duration, done func(error)) bool {
	t := &a.attached
	if !t.mu.TryLock() {
		return false
	}
	if !t.mu.tracking.Brief() {
		t.mu.Unlock()
		return false
	}
	held := true // t.mu: what is found is recorded under it
	taken, waits := false, false
	var rule error
	var rest func(context.Context) error
	free := a.tryStep(0, func() {
		taken = a.publishesBrieflyLocked()
		if taken {
			t.mu.tracking.Collect(nil, a.comparedLocked)
		}
		t.mu.Unlock()
		if held = false; !taken {
			return
		}
		if a.versionedLocked() {
			rest, rule = a.versionNowLocked()
			return
		}
		goal := a.requestPublishLocked()
		if goal == nil {
			rule = a.errNotFiniteLocked()
			return
		}
		if rule = a.publishableLocked(); rule != nil {
			return
		}
		waits = true
		a.afterHomesLocked("publish", limit, func() bool {
			if rule = a.publishableLocked(); rule != nil {
				return true
			}
			reached := a.reachedLocked(goal)
			if reached {
				rule = a.errNotFiniteLocked()
			}
			return reached
		}, func() dsm.NodeID { return a.deadGoalLocked(goal, false) }, func() { a.silentLocked(goal) }, func(err error) {
			if err == nil {
				err = rule
			}
			done(err)
		})
	})
	if held {
		t.mu.Unlock()
	}
	if !free || !taken {
		return false
	}
	switch {
	case rest != nil:
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			done(rest(ctx))
		}()
	case !waits:
		done(rule)
	}
	return true
}

// publishesBrieflyLocked reports whether a publish of the area takes little time, and nothing but what PublishNow does.
func (a *Area) publishesBrieflyLocked() bool {
	return a.extentsLocked() == 1 && len(a.mu.drafts) == 0 && !a.mu.replica.demand && a.candidateLocked() == nil &&
		(!a.versionedLocked() || a.versionsBrieflyLocked())
}
