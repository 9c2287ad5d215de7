package dsm

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestSettingsAreReadAsTheyAreSet goes through all keys.
func TestSettingsAreReadAsTheyAreSet(t *testing.T) {
	spec := DefaultSpec()
	values := map[string]string{"mode": "relaxed", "merge": "sum", "dtype": "bf16", "apply": "sync", "interval": "1m30s", "residency": "demand", "access": "cached", "locks": "plain", "placement": "spread", "staleness": "250ms", "retain": "5", "replicas": "3", "on_nonfinite": "refuse"}
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
	if got, _ := DefaultSpec().Setting("retain"); got != "2" {
		t.Errorf("retain is %s by default", got)
	}
	for key, value := range map[string]string{"merge": "sum", "residency": "demand", "access": "direct", "placement": "one", "apply": "sync", "on_nonfinite": "refuse"} {
		versioned := DefaultSpec()
		versioned.Mode = ModeVersioned
		if _, err := versioned.With(key, value); err == nil {
			t.Errorf("a versioned area with %s=%s", key, value)
		}
	}
	if _, err := spec.With("access", "direct"); err == nil {
		t.Error("a direct file on demand")
	}
}

// TestStaleness is none or a time, and not for what nobody can bound.
func TestStaleness(t *testing.T) {
	for value, want := range map[string]string{
		"none": "none", "250": "250ms", "1s": "1s", "1ms": "1ms", "1h": "1h0m0s",
		"0": "", "0s": "", "500us": "", "-5": "", "2h": "", "9223372036854775807": "", "soon": "", "": "",
	} {
		spec, err := DefaultSpec().With("staleness", value)
		if got, _ := spec.Setting("staleness"); err == nil != (want != "") || err == nil && got != want {
			t.Errorf("staleness=%s: %s, %v; want %q", value, got, err, want)
		}
		if !spec.Valid() {
			t.Errorf("staleness=%s is not valid", value)
		}
	}
	for _, value := range []string{"5versions", "1 version"} {
		if _, err := DefaultSpec().With("staleness", value); err == nil || !strings.Contains(err.Error(), "versions are times") {
			t.Errorf("staleness=%s: %v", value, err)
		}
	}
	direct, err := DefaultSpec().With("access", "direct")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := direct.With("staleness", "1s"); err == nil || !strings.Contains(err.Error(), "access cached") {
		t.Errorf("a bound for a direct file: %v", err)
	}
	for _, d := range []time.Duration{-1, 1, MaxStaleness + 1} {
		if (Spec{Staleness: d}).Valid() {
			t.Errorf("a bound of %v is valid", d)
		}
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
