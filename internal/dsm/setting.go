package dsm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Setting is a field of a Spec by its name, and its value, as users write them.
type Setting struct{ Key, Value string }

// SettingKeys are the keys of the settings, in the order they are shown.
var SettingKeys = []string{"mode", "merge", "dtype", "apply", "interval", "residency", "access", "locks", "placement", "staleness", "retain", "replicas", "on_nonfinite"}

// Setting returns the value of a key, in the format in which it is set; ok is false if there is no
// such key.
func (s Spec) Setting(key string) (value string, ok bool) {
	switch key {
	case "mode":
		return s.Mode.String(), true
	case "merge":
		return s.Merge.String(), true
	case "dtype":
		return s.DType.String(), true
	case "apply":
		return s.Apply.String(), true
	case "interval":
		return s.Interval.String(), true
	case "residency":
		return s.Residency.String(), true
	case "access":
		return s.Access.String(), true
	case "locks":
		return s.Locks.String(), true
	case "placement":
		return s.Placement.String(), true
	case "staleness":
		if s.Staleness == 0 {
			return noStaleness, true
		}
		return s.Staleness.String(), true
	case "retain":
		return strconv.Itoa(s.Retained()), true
	case "replicas":
		return strconv.Itoa(s.Copies()), true
	case "on_nonfinite":
		return s.OnNonFinite.String(), true
	}
	return "", false
}

// With returns s with the field named by key set to value. The error says which values are allowed.
func (s Spec) With(key, value string) (Spec, error) {
	was := s
	var err error
	switch key {
	case "mode":
		s.Mode, err = ParseMode(value)
	case "merge":
		s.Merge, err = ParseMerge(value)
	case "dtype":
		s.DType, err = ParseDType(value)
	case "apply":
		s.Apply, err = ParseApply(value)
	case "interval":
		s.Interval, err = parseInterval(value)
	case "residency":
		s.Residency, err = ParseResidency(value)
	case "access":
		s.Access, err = ParseAccess(value)
	case "locks":
		s.Locks, err = ParseLocks(value)
	case "placement":
		s.Placement, err = ParsePlacement(value)
	case "staleness":
		s.Staleness, err = parseStaleness(value)
	case "retain":
		s.Retain, err = parseRetain(value)
	case "replicas":
		s.Replicas, err = parseReplicas(value)
	case "on_nonfinite":
		s.OnNonFinite, err = ParseNonFinite(value)
	default:
		return was, fmt.Errorf("unknown attribute %q: want one of %s", key, strings.Join(SettingKeys, " "))
	}
	if err == nil {
		err = s.conflict()
	}
	if err != nil {
		return was, err
	}
	return s, nil
}

// parseInterval reads a Go duration or a number of milliseconds.
func parseInterval(value string) (time.Duration, error) {
	d, err := parseDuration(value, MaxInterval)
	if err != nil || d < 0 || d > MaxInterval {
		return 0, fmt.Errorf("interval %q: want milliseconds or a duration such as 250ms, from 0 (on request only) to %v", value, MaxInterval)
	}
	return d, nil
}

// noStaleness is how a bound that is none is written.
const noStaleness = "none"

// parseStaleness reads what parseInterval does, or none.
func parseStaleness(value string) (time.Duration, error) {
	if value == noStaleness {
		return 0, nil
	}
	if strings.Contains(value, "version") {
		return 0, fmt.Errorf("staleness %q: want a time: versions are times, not numbers in a row, so nobody can say how many one is behind", value)
	}
	d, err := parseDuration(value, MaxStaleness)
	if err != nil || d < MinStaleness || d > MaxStaleness {
		return 0, fmt.Errorf("staleness %q: want none, or milliseconds or a duration such as 250ms, from %v to %v", value, MinStaleness, MaxStaleness)
	}
	return d, nil
}

// parseDuration reads a Go duration or a number of milliseconds. A number above most becomes a little more than most, for the caller to refuse.
func parseDuration(value string, most time.Duration) (time.Duration, error) {
	if ms, err := strconv.ParseInt(value, 10, 64); err == nil {
		return time.Duration(max(-1, min(ms, most.Milliseconds()+1))) * time.Millisecond, nil
	}
	return time.ParseDuration(value)
}

// parseRetain reads how many versions stay readable.
func parseRetain(value string) (uint8, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > MaxRetain {
		return 0, fmt.Errorf("retain %q: want how many versions of a versioned area stay readable, from 1 to %d", value, MaxRetain)
	}
	if n == DefaultRetain {
		n = 0 // so that a spec in which it was never set is the same
	}
	return uint8(n), nil
}

// parseReplicas reads how many nodes keep what the home has.
func parseReplicas(value string) (uint8, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > MostReplicas {
		return 0, fmt.Errorf("unknown number of replicas %q: want one of 1 2 3", value)
	}
	if n == DefaultReplicas {
		n = 0 // so that a spec in which it was never set is the same
	}
	return uint8(n), nil
}

// ErrFixed is in the chain of an error about a setting that can be changed only while the file is
// empty.
var ErrFixed = errors.New("fixed while the file is not empty: truncate it to 0 first")

// CheckChange returns why the spec of a file of size bytes cannot be changed to another, or nil.
func (s Spec) CheckChange(to Spec, size int64) error {
	if size == 0 {
		return nil
	}
	for _, key := range []string{"mode", "residency", "access", "replicas"} {
		was, _ := s.Setting(key)
		if now, _ := to.Setting(key); now != was {
			return fmt.Errorf("the %s of a file of %d bytes is %s and %w", key, size, was, ErrFixed)
		}
	}
	if s.Placement != to.Placement && !(s.OneHome(size) && to.OneHome(size) && s.moves(to)) {
		return fmt.Errorf("the placement of a file of %d bytes is %s and %w; but a file that lives at one home can be moved to another by the name of a node", size, s.Placement, ErrFixed)
	}
	if to.DType != s.DType {
		return to.DType.CheckSize(size)
	}
	return nil
}

// moves reports whether one of the two placements names a node: then the change says where the one home is to be, not how many there are.
func (s Spec) moves(to Spec) bool {
	_, was := s.Placement.Node()
	_, is := to.Placement.Node()
	return was || is
}

// CheckSize refuses a size that is not a whole number of elements.
func (d DType) CheckSize(size int64) error {
	if n := int64(d.Size()); size%n != 0 {
		return fmt.Errorf("a size of %d bytes is no multiple of the %d bytes of a %s element", size, n, d)
	}
	return nil
}
