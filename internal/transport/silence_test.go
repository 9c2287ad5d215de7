package transport

import (
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// until polls what only the kernel knows.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for began := time.Now(); !is(); <-look.C {
		if time.Since(began) > patience {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// TestSilences: a node that answers is silent for a moment at most, one that does not for longer and longer, and nothing is said of
// nodes that are not named.
func TestSilences(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	if all := a.Silences(); len(all) != 0 {
		t.Errorf("silences of nobody: %v", all)
	}
	know(a, b)
	a.send(b, 1)
	b.frame()
	of := func() time.Duration {
		d, ok := a.Silences()[2]
		if !ok {
			t.Fatal("nothing is said of a node that is named")
		}
		return d
	}
	began := time.Now()
	most := time.Duration(0)
	until(t, "an idle session asks for a sign", func() bool {
		d := of()
		most = max(most, d)
		return d < most/2
	})
	if took := time.Since(began); most > took+keepAlive {
		t.Errorf("silent for %v after %v", most, took)
	}
	b.Close()
	until(t, "the silence of a node that has ended", func() bool { return of() > keepAlive+keepAlive/2 })
	a.SetPeers(nil)
	if all := a.Silences(); len(all) != 0 {
		t.Errorf("silences of nobody: %v", all)
	}
}

// TestSilenceEndsWithASession: a node that was out of reach is in reach with the next session.
func TestSilenceEndsWithASession(t *testing.T) {
	a, b := newNode(t, 1, nil), newNode(t, 2, nil)
	know(a)
	b.Close()
	addr := b.Addr()
	peers := map[dsm.NodeID]string{2: addr}
	a.SetPeers(peers)
	until(t, "the silence of a node that is not there", func() bool { return a.Silences()[2] > 200*time.Millisecond })
	again := newNode(t, 2, func(c *Config) { c.Listen = addr })
	a.send(again, 1)
	until(t, "a session", func() bool { return a.Silences()[2] < 100*time.Millisecond })
}
