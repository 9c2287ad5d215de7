package hold

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// again returns the memory as the next daemon finds it.
func again(t *testing.T, m *Memory) *Memory {
	t.Helper()
	fd, err := unix.Dup(m.FD())
	if err != nil {
		t.Fatal(err)
	}
	next, err := Adopt(fd)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func create(t *testing.T) *Memory {
	t.Helper()
	m, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestHeadIsThereForTheNext(t *testing.T) {
	m := create(t)
	m.Word(Node).Store(7)
	if err := m.SetText(Point, "/mnt/x"); err != nil {
		t.Fatal(err)
	}
	if err := m.SetText(InitIn, string(make([]byte, textSize))); err == nil {
		t.Error("a string that is too long was taken")
	}
	if n := again(t, m); n.Word(Node).Load() != 7 || n.Text(Point) != "/mnt/x" || n.Text(Key) != "" {
		t.Errorf("node %d, point %q, key %q", n.Word(Node).Load(), n.Text(Point), n.Text(Key))
	}
	m.Word(format).Store(Format + 1)
	if _, err := Adopt(m.FD()); err == nil {
		t.Error("another format was adopted")
	}
}

// TestReplacedText: a string is replaced whole. Until the last store the one before is there.
func TestReplacedText(t *testing.T) {
	m := create(t)
	before := ""
	for _, s := range []string{"a", strings.Repeat("b", MostReplaced), "", "c", strings.Repeat("d", MostReplaced)} {
		length, _ := m.text(Members)
		was := length.Load()
		if err := m.ReplaceText(Members, s); err != nil {
			t.Fatal(err)
		}
		next := again(t, m)
		if got := next.Text(Members); got != s {
			t.Errorf("%d bytes, want %d", len(got), len(s))
		}
		length, _ = next.text(Members)
		is := length.Swap(was)
		if got := next.Text(Members); got != before {
			t.Errorf("%d bytes before the last store, want %d", len(got), len(before))
		}
		length.Store(is)
		before = s
	}
	if err := m.ReplaceText(Members, strings.Repeat("e", MostReplaced+1)); err == nil || m.Text(Members) != before {
		t.Errorf("too long: %v", err)
	}
}

func read(t *testing.T, j *Journal) (all []string) {
	t.Helper()
	if err := j.Read(func(r []byte) error { all = append(all, string(r)); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestJournal(t *testing.T) {
	m := create(t)
	a, b := m.Catalog(), m.Files()
	var want []string
	for i := range 100 {
		text := fmt.Sprint("record ", i)
		want = append(want, text)
		if err := a.Append([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Append([]byte("x"), nil, []byte("y")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, again(t, m).Catalog()); !slices.Equal(got, want) {
		t.Errorf("read %q", got)
	}
	for _, r := range []string{"one", "two"} {
		if err := a.Rewrite([][]byte{[]byte(r)}); err != nil {
			t.Fatal(err)
		}
		if err := a.Append([]byte("more")); err != nil {
			t.Fatal(err)
		}
		if got := read(t, again(t, m).Catalog()); !slices.Equal(got, []string{r, "more"}) {
			t.Errorf("read %q after it was written anew", got)
		}
	}
	if got := read(t, again(t, m).Files()); !slices.Equal(got, []string{"x", "", "y"}) {
		t.Errorf("the other journal: %q", got)
	}
}

func TestRequests(t *testing.T) {
	m := create(t)
	for req := uint64(1); req <= 3*MostRequests; req++ {
		m.Note(Request{req / 2, 5}, req)
	}
	got := again(t, m).Noted()
	for req := uint64(3*MostRequests - MostRequests); req <= 3*MostRequests; req++ {
		if n := got[Request{req / 2, 5}]; n/2 != req/2 {
			t.Fatalf("request %d was command %d, want %d", req/2, n, req)
		}
	}
}
