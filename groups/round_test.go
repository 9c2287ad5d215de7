package groups

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
	"github.com/dsmfs/dsmfs/internal/errs"
)

// noted is an area that notes what rounds do with it.
type noted struct {
	mu     sync.Mutex
	list   []string
	refuse error // of Contribute
	failed error // of FinishRound
}

func (a *noted) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, fmt.Sprintf(format, args...))
}

// wants checks what has been done since it was last asked, in any order.
func (a *noted) wants(t *testing.T, what ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(a.list)
	if !slices.Equal(a.list, what) {
		t.Errorf("done %q, want %q", a.list, what)
	}
	a.list = nil
}

func (a *noted) Contribute(_ context.Context, id dsm.RoundID) error {
	a.note("contribute %d", id.Number)
	return a.refuse
}

func (a *noted) FinishRound(_ context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int) error {
	a.note("finish %d of %d on %d", id.Number, writers, nodes)
	return a.failed
}

func (a *noted) AbandonRound(id dsm.RoundID) { a.note("abandon %d", id.Number) }

// TestRoundOfAGroup: members of a node share what it contributes. Who has waited in vain goes on with the same round, and contributes
// once. What nobody of the node is going to end is taken back.
func TestRoundOfAGroup(t *testing.T) {
	c := newCluster(t, 2)
	members := c.join(3, 0, 0, 1)
	first, second := new(noted), new(noted)
	areas := []map[dsm.AreaID]Area{{5: first}, {5: first}, {5: second}}
	meet := func(ctx context.Context, i int, number uint64) error {
		r, err := members[i].Meet(ctx, number, areas[i], time.Minute)
		if err == nil && r.Number != number {
			t.Errorf("number %d, want %d", r.Number, number)
		}
		return err
	}
	short := func(i int, number uint64) {
		t.Helper()
		wants(t, meet(ended(t), i, number), errs.Timeout, "have not all arrived")
	}
	short(0, 1)
	short(0, 1)
	first.wants(t, "contribute 1")
	_, err := members[0].Barrier(t.Context(), 1)
	wants(t, err, errs.Invalid, "waits for the end of round 1")
	var all sync.WaitGroup
	for i := range members {
		all.Go(func() {
			if err := meet(t.Context(), i, 1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	first.wants(t, "abandon 1", "contribute 1", "finish 1 of 3 on [1 2]", "finish 1 of 3 on [1 2]")
	second.wants(t, "abandon 1", "contribute 1", "finish 1 of 3 on [1 2]")

	short(0, 2)
	short(2, 2)
	members[0].Leave()
	first.wants(t, "abandon 2", "contribute 2") // alone in it
	second.wants(t, "contribute 2")
	all.Go(func() {
		if err := meet(t.Context(), 1, 2); err != nil {
			t.Error(err)
		}
	})
	if err := meet(t.Context(), 2, 2); err != nil {
		t.Error(err)
	}
	all.Wait()
	second.wants(t, "abandon 2", "finish 2 of 2 on [1 2]")
	first.wants(t, "abandon 2", "contribute 2", "finish 2 of 2 on [1 2]")

	first.refuse = errs.E(errs.Busy, "contribute", "another group")
	wants(t, meet(t.Context(), 1, 3), errs.Busy, "another group")
	first.wants(t, "abandon 3", "contribute 3")
	first.refuse = nil
	if n := len(c.nodes[0].mu.stakes) + len(c.nodes[1].mu.stakes); n != 0 {
		t.Errorf("%d rounds are not over", n)
	}
}

// TestNextRoundWaitsForTheLast on a node: until a member has what a round has brought, nothing goes to the next one.
func TestNextRoundWaitsForTheLast(t *testing.T) {
	c := newCluster(t, 2)
	members := c.join(3, 0, 0, 1)
	here, there := new(noted), new(noted)
	areas := []map[dsm.AreaID]Area{{5: here}, {5: here}, {5: there}}
	meet := func(ctx context.Context, i int, number uint64) error {
		return second(members[i].Meet(ctx, number, areas[i], time.Minute))
	}
	late := func(i int, number uint64) {
		t.Helper()
		wants(t, meet(ended(t), i, number), errs.Timeout, "have not all arrived")
	}
	late(1, 1)
	late(2, 1)
	if err := meet(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	late(0, 2)
	here.wants(t, "contribute 1", "contribute 1", "finish 1 of 3 on [1 2]")
	for _, i := range []int{1, 2} {
		if err := meet(t.Context(), i, 1); err != nil {
			t.Fatal(err)
		}
	}
	late(0, 2)
	late(1, 2)
	here.wants(t, "abandon 1", "contribute 2", "contribute 2", "finish 1 of 3 on [1 2]")
	if err := meet(t.Context(), 2, 2); err != nil {
		t.Fatal(err)
	}

	// Nobody waits for a member that leaves.
	if err := meet(t.Context(), 0, 2); err != nil {
		t.Fatal(err)
	}
	late(0, 3)
	here.wants(t, "finish 2 of 3 on [1 2]")
	members[1].Leave()
	late(0, 3)
	here.wants(t, "abandon 2", "contribute 3")
}

// TestFailedRoundIsOver: all have met, so it has its number, unless the member may call it again.
func TestFailedRoundIsOver(t *testing.T) {
	c := newCluster(t, 1)
	m := c.join(1, 0)[0]
	a := new(noted)
	meet := func(number uint64) (uint64, error) {
		r, err := m.Meet(t.Context(), number, map[dsm.AreaID]Area{5: a}, time.Minute)
		return r.Number, err
	}
	for number, kind := range []errs.Kind{errs.NotFinite, errs.Unavailable} {
		number := uint64(number) + 1
		a.failed = errs.E(errs.Timeout, "finish", "not yet")
		if got, err := meet(number); got != 0 || !errs.Is(err, errs.Timeout) {
			t.Errorf("round %d: %v, as number %d", number, err, got)
		}
		a.failed = errs.E(kind, "finish", "a part is missing")
		if got, err := meet(number); got != number || !errs.Is(err, kind) {
			t.Errorf("round %d: %v, as number %d", number, err, got)
		}
	}
	a.failed = nil
	if _, err := m.Barrier(t.Context(), 3); err != nil {
		t.Error(err)
	}
	a.refuse = errs.E(errs.Unavailable, "contribute", "the home has died")
	if got, err := meet(4); got != 0 || !errs.Is(err, errs.Unavailable) {
		t.Errorf("a round without this member: %v, as number %d", err, got)
	}
}

// TestAccumulatedIsPutTogether by the next round, whichever areas that names, and not by a barrier.
func TestAccumulatedIsPutTogether(t *testing.T) {
	c := newCluster(t, 1)
	m := c.join(1, 0)[0]
	a, other := new(noted), new(noted)
	give := func(number uint64, err error) error {
		return m.Accumulate(t.Context(), number, 5, a, func(id dsm.RoundID) error {
			a.note("give to %d", id.Number)
			return err
		})
	}
	wants(t, give(2, nil), errs.Invalid, "has arrived at 0")
	wants(t, give(1, errs.E(errs.Timeout, "give", "too late")), errs.Timeout, "too late")
	a.wants(t, "abandon 1", "give to 1")
	for range 2 {
		if err := give(1, nil); err != nil {
			t.Fatal(err)
		}
	}
	wants(t, second(m.Barrier(t.Context(), 1)), errs.Invalid, "waits for the end of round 1")
	if _, err := m.Meet(t.Context(), 1, map[dsm.AreaID]Area{6: other}, time.Minute); err != nil {
		t.Fatal(err)
	}
	a.wants(t, "abandon 1", "contribute 1", "finish 1 of 1 on [1]", "give to 1", "give to 1")
	wants(t, give(1, nil), errs.Invalid, "has begun")
	if err := give(2, nil); err != nil {
		t.Fatal(err)
	}
	m.Leave()
	a.wants(t, "abandon 2", "give to 2")
}

// TestResultNamesWhoTookPart, also when its rank is another's by now.
func TestResultNamesWhoTookPart(t *testing.T) {
	c := newCluster(t, 3)
	members := c.join(2, 0, 1)
	arrived := make(chan error, 1)
	go func() { arrived <- second(members[1].Barrier(t.Context(), 1)) }()
	before, err := members[0].Barrier(t.Context(), 1)
	if err != nil || <-arrived != nil {
		t.Fatal(err)
	}
	members[1].Leave()
	c.join(2, 2)
	if _, err := members[0].Add(t.Context(), "c", 1); err != nil { // the answer names the new members
		t.Fatal(err)
	}
	again, err := members[0].Barrier(t.Context(), 1)
	if got, want := fmt.Sprint(again), fmt.Sprint(before); err != nil || got != want || !strings.Contains(got, "2") {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if nodes := again.nodes(); !slices.Equal(nodes, []dsm.NodeID{1, 2}) {
		t.Errorf("on %v", nodes)
	}
}

// slow is an area whose Contribute waits.
type slow struct {
	noted
	begun, goOn chan struct{}
}

func (a *slow) Contribute(ctx context.Context, id dsm.RoundID) error {
	close(a.begun)
	<-a.goOn
	return a.noted.Contribute(ctx, id)
}

// TestLeaveWhileContributing: a member leaves before the area knows of its contribution, which is taken back all the same.
func TestLeaveWhileContributing(t *testing.T) {
	c := newCluster(t, 1)
	m := c.join(2, 0, 0)[0]
	a := &slow{begun: make(chan struct{}), goOn: make(chan struct{})}
	done := make(chan error)
	go func() {
		_, err := m.Meet(t.Context(), 1, map[dsm.AreaID]Area{5: a}, time.Minute)
		done <- err
	}()
	<-a.begun
	m.Leave()
	close(a.goOn)
	wants(t, <-done, errs.Closed, "left")
	if last := a.list[len(a.list)-1]; last != "abandon 1" {
		t.Errorf("done %q", a.list)
	}

	m = c.join(2, 0)[0]
	a.list = nil
	err := m.Accumulate(t.Context(), 1, 5, a, func(id dsm.RoundID) error {
		m.Leave()
		a.note("give to %d", id.Number)
		return nil
	})
	if err != nil || a.list[len(a.list)-1] != "abandon 1" {
		t.Errorf("%v, done %q", err, a.list)
	}
}

// ending is an area whose FinishRound waits.
type ending struct {
	noted
	begun, goOn chan struct{}
}

func (a *ending) FinishRound(ctx context.Context, id dsm.RoundID, nodes []dsm.NodeID, writers int) error {
	close(a.begun)
	<-a.goOn
	return a.noted.FinishRound(ctx, id, nodes, writers)
}

// TestAccumulateAfterOthersHaveTheRound: what a member hands over for the next round of an area does not end the last one of another member of its node, which
// it has not named itself.
func TestAccumulateAfterOthersHaveTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		members := c.join(2, 0, 0)
		a := &ending{begun: make(chan struct{}), goOn: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := members[1].Meet(t.Context(), 1, map[dsm.AreaID]Area{5: a}, time.Minute)
			done <- err
		}()
		if _, err := members[0].Meet(t.Context(), 1, nil, time.Minute); err != nil {
			t.Fatal(err)
		}
		<-a.begun
		given := make(chan error, 1)
		go func() {
			given <- members[0].Accumulate(t.Context(), 2, 5, a, func(dsm.RoundID) error { return nil })
		}()
		synctest.Wait()
		if len(given) > 0 {
			t.Error("it does not wait")
		}
		close(a.goOn)
		for _, err := range []error{<-done, <-given} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}
