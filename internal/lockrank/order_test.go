package lockrank

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	o, err := parse("a < b # outermost\nb < c\nc\n\n# alone\nd\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		outer, inner Rank
		ok           bool
	}{{"a", "b", true}, {"a", "c", true}, {"b", "c", true}, {"b", "a", false}, {"c", "a", false}, {"a", "d", false}, {"d", "a", false}, {"a", "a", false}} {
		if got := o[c.outer][c.inner]; got != c.ok {
			t.Errorf("%s while %s is held: %v, want %v", c.inner, c.outer, got, c.ok)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"a < b\nb < a\n":        "before itself",
		"a < b\nb < c\nc < a\n": "before itself",
		"a < a\n":               "before itself",
		"a < b\n":               "b has no line",
		"a b\n":                 "order.txt:1",
		"a\na\n":                "order.txt:2",
		"a <\n":                 "order.txt:1",
		"< a\n":                 "order.txt:1",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%q) = %v, want %q in the error", text, err, want)
		}
	}
}
