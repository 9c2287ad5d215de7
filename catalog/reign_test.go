package catalog

import (
	"testing"
	"time"
)

// TestPace: only who leads has the pace of a leader, also when another takes over.
func TestPace(t *testing.T) {
	nodes := cluster(t, 3)
	check := func(leader *node) {
		t.Helper()
		for _, n := range nodes {
			want := electionTimeout
			if n == leader {
				want = 10 * heartbeat
			}
			has := func() bool { return n.raft.ReloadableConfig().HeartbeatTimeout == want }
			if err := n.news.until(patient(t), n.life, has); err != nil {
				t.Errorf("%s leads: heartbeat timeout of %s is %v, want %v", leader.self.Name, n.self.Name, n.raft.ReloadableConfig().HeartbeatTimeout, want)
			}
		}
	}
	first := leaderOf(t, nodes)
	check(first)
	ok(t, first.raft.LeadershipTransfer().Error())
	ctx := patient(t)
	second := func() *node {
		for _, n := range nodes {
			if n != first && n.leads() != 0 {
				return n
			}
		}
		return nil
	}
	for second() == nil {
		select {
		case <-ctx.Done():
			t.Fatal("nobody else leads")
		case <-time.After(10 * time.Millisecond):
		}
	}
	check(second())
	// Heartbeats that are too far apart for the lease or for the followers would end the reign.
	if worst := 2 * heartbeat; worst > leaderLease/2 || worst > electionTimeout/2 {
		t.Errorf("up to %v from heartbeat to heartbeat", worst)
	}
}
