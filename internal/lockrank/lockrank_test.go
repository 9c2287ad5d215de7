//go:build invariants

package lockrank

import (
	"strings"
	"testing"
)

// withOrder replaces the text for one test.
func withOrder(t *testing.T, text string) {
	t.Helper()
	o, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	before := ranks
	ranks = func() order { return o }
	t.Cleanup(func() { ranks = before })
}

// panicOf returns what f panics with.
func panicOf(f func()) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = v.(string)
		}
	}()
	f()
	return ""
}

func TestOrder(t *testing.T) {
	withOrder(t, "a < b\nb < c\nc\nd\n")
	var a, a2, b, c, d Mutex
	var r RWMutex
	a.Init("a")
	a2.Init("a")
	b.Init("b")
	c.Init("c")
	d.Init("d")
	r.Init("b")
	hold := func(outer, inner interface {
		Lock()
		Unlock()
	}) string {
		outer.Lock()
		defer outer.Unlock()
		return panicOf(func() {
			inner.Lock()
			defer inner.Unlock()
		})
	}
	for _, right := range []string{hold(&a, &b), hold(&a, &c), hold(&b, &c), hold(&a, &r), hold(&r, &c)} {
		if right != "" {
			t.Errorf("a right order panics: %s", right)
		}
	}
	for want, wrong := range map[string]string{
		"a is taken while b is held": hold(&b, &a),
		"a is taken while c is held": hold(&c, &a),
		"d is taken while a is held": hold(&a, &d),
		"a is taken while a is held": hold(&a, &a2),
		"b is taken while c is held": hold(&c, &r),
	} {
		if !strings.Contains(wrong, want) || !strings.Contains(wrong, "lockrank_test.go") {
			t.Errorf("got %q, want %q and where the first was taken", wrong, want)
		}
	}
}

func TestReadLocksAreInTheOrder(t *testing.T) {
	withOrder(t, "a < b\nb\n")
	var a, b RWMutex
	a.Init("a")
	b.Init("b")
	b.RLock()
	if got := panicOf(a.RLock); !strings.Contains(got, "a is taken while b is held") {
		t.Errorf("got %q", got)
	}
	b.RUnlock()
	a.RLock()
	if got := panicOf(b.RLock); got != "" {
		t.Errorf("a right order panics: %s", got)
	}
	b.RUnlock()
	a.RUnlock()
}

func TestUnlockByAnotherGoroutine(t *testing.T) {
	withOrder(t, "a\nb\n")
	var a, b Mutex
	a.Init("a")
	b.Init("b")
	a.Lock()
	done := make(chan struct{})
	go func() { a.Unlock(); close(done) }()
	<-done
	if got := panicOf(b.Lock); got != "" { // a is not held any more
		t.Error(got)
	}
	b.Unlock()
	if !a.TryLock() {
		t.Fatal("a is still locked")
	}
	if got := panicOf(b.Lock); !strings.Contains(got, "b is taken while a is held") {
		t.Errorf("after TryLock: %q", got)
	}
	a.Unlock()
}

func TestRankIsNeeded(t *testing.T) {
	var m Mutex
	if got := panicOf(m.Lock); !strings.Contains(got, "before Init") {
		t.Errorf("Lock without Init: %q", got)
	}
	if got := panicOf(func() { m.Init("no.such") }); !strings.Contains(got, "no.such") {
		t.Errorf("Init with an unknown rank: %q", got)
	}
}
