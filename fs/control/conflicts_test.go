package control

import (
	"testing"
	"time"
)

func TestConflictText(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_250_000)
	got := conflictText([]KeptConflicts{{Node: "a", List: []Conflict{
		{Number: 3, Time: at, Off: 4096, Kept: []byte{1, 0xab}, Taken: []byte{2, 0}},
		{Number: 5, Time: at, Off: 0, Kept: make([]byte, 33)},
	}, Lost: 7}, {Node: "b"}, {Node: "c", List: []Conflict{{Number: 1, Time: at, Off: 9, Kept: []byte{3}}}, More: true}, {Node: "d", Silent: true}})
	want := "a/3 time=1700000000.250000 offset=4096 length=2 kept=01ab taken=0200\n" +
		"a/5 time=1700000000.250000 offset=0 length=33 kept=000000000000000000000000000000000000000000000000000000000000000000\n" +
		"lost node=a bytes=7\n" +
		"c/1 time=1700000000.250000 offset=9 length=1 kept=03\n" +
		"more node=c\n" +
		"silent node=d\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := conflictText([]KeptConflicts{{Node: "a"}}); got != "" {
		t.Errorf("without conflicts: %q", got)
	}
}

func TestParseClear(t *testing.T) {
	for _, c := range []struct {
		value, node string
		upTo        uint64
		ok          bool
	}{
		{"clear", "", 0, true}, {"clear 12", "", 12, true}, {"clear a/12", "a", 12, true}, {"clear a/b/12", "a/b", 12, true},
		{"", "", 0, false}, {"clear 0", "", 0, false}, {"clear ", "", 0, false}, {"clear x", "", 0, false}, {"1", "", 0, false},
		{"clear a", "", 0, false}, {"clear a/", "", 0, false}, {"clear a/0", "", 0, false}, {"clear /1", "", 0, false},
	} {
		if node, upTo, err := parseClear(c.value); node != c.node || upTo != c.upTo || (err == nil) != c.ok {
			t.Errorf("%q: %q, %d, %v", c.value, node, upTo, err)
		}
	}
}
