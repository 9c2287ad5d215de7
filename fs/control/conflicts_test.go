package control

import (
	"testing"
	"time"
)

func TestConflictText(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_250_000)
	got := conflictText([]Conflict{
		{Number: 3, Time: at, Off: 4096, Kept: []byte{1, 0xab}, Taken: []byte{2, 0}},
		{Number: 5, Time: at, Off: 0, Kept: make([]byte, 33)},
	}, 7)
	want := "3 time=1700000000.250000 offset=4096 length=2 kept=01ab taken=0200\n" +
		"5 time=1700000000.250000 offset=0 length=33 kept=000000000000000000000000000000000000000000000000000000000000000000\n" +
		"lost bytes=7\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := conflictText(nil, 0); got != "" {
		t.Errorf("without conflicts: %q", got)
	}
}

func TestParseClear(t *testing.T) {
	for _, c := range []struct {
		value string
		upTo  uint64
		ok    bool
	}{{"clear", 0, true}, {"clear 12", 12, true}, {"", 0, false}, {"clear 0", 0, false}, {"clear ", 0, false}, {"clear x", 0, false}, {"1", 0, false}} {
		if upTo, err := parseClear(c.value); upTo != c.upTo || (err == nil) != c.ok {
			t.Errorf("%q: %d, %v", c.value, upTo, err)
		}
	}
}
