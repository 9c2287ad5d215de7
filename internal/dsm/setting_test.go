package dsm

import (
	"errors"
	"strings"
	"testing"
)

// TestSettingsAreReadAsTheyAreSet goes through all keys.
func TestSettingsAreReadAsTheyAreSet(t *testing.T) {
	spec := DefaultSpec()
	values := map[string]string{"mode": "relaxed", "merge": "sum", "dtype": "bf16", "apply": "sync", "interval": "1m30s", "residency": "demand", "access": "cached", "locks": "plain", "placement": "spread"}
	for _, key := range SettingKeys {
		next, err := spec.With(key, values[key])
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := next.Setting(key); !ok || got != values[key] {
			t.Errorf("%s=%s reads %q", key, values[key], got)
		}
		if got, err := next.With(key, "no such value"); err == nil || got != next {
			t.Errorf("%s: %v, %v", key, got, err)
		}
		spec = next
	}
	if _, err := spec.With("colour", "red"); err == nil || !strings.Contains(err.Error(), strings.Join(SettingKeys, " ")) {
		t.Errorf("an unknown key: %v", err)
	}
	if _, err := spec.With("access", "direct"); err == nil {
		t.Error("a direct file on demand")
	}
}

func TestCheckChange(t *testing.T) {
	for _, c := range []struct {
		key, value string
		size       int64
		fixed      bool
		want       string // empty: it goes
	}{
		{"residency", "demand", 0, false, ""},
		{"residency", "demand", 1, true, "the residency of a file of 1 bytes is full and fixed"},
		{"access", "direct", 5, true, "the access of a file of 5 bytes is cached and fixed"},
		{"placement", "one", 5, true, "the placement of a file of 5 bytes is auto and fixed"},
		{"placement", "spread", 5, true, "is auto and fixed"},
		{"placement", "n1", AutoExtents * ExtentSize, false, ""},
		{"placement", "n1", AutoExtents*ExtentSize + 1, true, "is auto and fixed"},
		{"placement", "spread", 0, false, ""},
		{"merge", "sum", 5, false, ""},
		{"locks", "plain", 5, false, ""},
		{"dtype", "f32", 0, false, ""},
		{"dtype", "f32", 8, false, ""},
		{"dtype", "f32", 5, false, "5 bytes is no multiple of the 4 bytes of a f32 element"},
		{"dtype", "auto", 5, false, ""},
	} {
		to, err := DefaultSpec().With(c.key, c.value)
		if err != nil {
			t.Fatal(err)
		}
		err = DefaultSpec().CheckChange(to, c.size)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrFixed) != c.fixed {
			t.Errorf("%s=%s of %d bytes: %v, want %q", c.key, c.value, c.size, err, c.want)
		}
	}
}
