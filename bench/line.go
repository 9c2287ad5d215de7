package main

import (
	"fmt"
	"slices"
	"strings"
)

// options are the flags that rows look at.
type options struct {
	rounds int
	quick  bool
}

// pick returns the first value, or the second in a quick run.
func (o options) pick(full, quick int) int {
	if o.quick {
		return quick
	}
	return full
}

// spread is what the rounds of one measurement gave.
type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func spreadOf(v []float64) spread {
	if len(v) == 0 {
		return spread{}
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return spread{v[0], (v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[len(v)-1]}
}

// The verdicts. A line without a bound has none.
const (
	pass = "pass"
	fail = "FAIL"
)

// line is one line of the table.
type line struct {
	Name      string  `json:"name"`
	Unit      string  `json:"unit,omitempty"` // of both values
	Value     spread  `json:"value"`
	Yardstick spread  `json:"yardstick,omitzero"`
	Measure   string  `json:"measure,omitempty"` // what the yardstick is
	Ratio     float64 `json:"ratio,omitempty"`
	Bound     float64 `json:"bound,omitempty"`
	AtLeast   bool    `json:"at_least,omitempty"` // the ratio must not be under the bound, else not over it
	Verdict   string  `json:"verdict,omitempty"`
	Note      string  `json:"note,omitempty"`
	Error     string  `json:"error,omitempty"`
}

// judge fills in the ratio and whether it keeps the bound.
func (l line) judge() line {
	if l.Yardstick.Median != 0 {
		l.Ratio = l.Value.Median / l.Yardstick.Median
	}
	if l.Bound != 0 {
		l.Verdict = fail
		if l.AtLeast && l.Ratio >= l.Bound || !l.AtLeast && l.Ratio <= l.Bound {
			l.Verdict = pass
		}
	}
	return l
}

// String returns the cells of the table, separated by tabs.
func (l line) String() string {
	if l.Error != "" {
		return strings.Join([]string{l.Name, "error: " + l.Error, "", "", "", l.Verdict}, "\t")
	}
	cells := []string{l.Name, show(l.Value, l.Unit), "", "", "", l.Verdict}
	if l.Measure != "" {
		cells[2] = l.Measure + ": " + show(l.Yardstick, l.Unit)
		cells[3] = fmt.Sprintf("%.2f", l.Ratio)
	}
	if l.Bound != 0 {
		sign := "<="
		if l.AtLeast {
			sign = ">="
		}
		cells[4] = fmt.Sprintf("%s %.3g", sign, l.Bound)
	}
	if l.Note != "" {
		cells[5] = strings.TrimSpace(cells[5] + " " + l.Note)
	}
	return strings.Join(cells, "\t")
}

func show(s spread, unit string) string {
	if s.Min == s.Max {
		return amount(s.Median, unit)
	}
	return fmt.Sprintf("%s (%s .. %s)", amount(s.Median, unit), amount(s.Min, unit), amount(s.Max, unit))
}

// amount prints a value of a unit for people: ns and B/s with the fitting prefix.
func amount(v float64, unit string) string {
	type scale struct {
		from float64
		name string
	}
	scales := map[string][]scale{
		"ns":  {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}},
		"B/s": {{1e9, "GB/s"}, {1e6, "MB/s"}, {1, "B/s"}},
		"B":   {{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "B"}},
	}
	for _, s := range scales[unit] {
		if v >= s.from {
			return fmt.Sprintf("%.3g %s", v/s.from, s.name)
		}
	}
	return strings.TrimSpace(fmt.Sprintf("%.3g %s", v, unit))
}

// interleave calls both measurements in every round, in alternating order, and
// returns what they gave. A nil yardstick is left out.
func interleave(rounds int, value, yardstick func() (float64, error)) (spread, spread, error) {
	var values, yards []float64
	for round := range rounds {
		steps := []int{0, 1}
		if round%2 == 1 {
			steps = []int{1, 0}
		}
		for _, s := range steps {
			f, into := value, &values
			if s == 1 {
				f, into = yardstick, &yards
			}
			if f == nil {
				continue
			}
			v, err := f()
			if err != nil {
				return spread{}, spread{}, err
			}
			*into = append(*into, v)
		}
	}
	return spreadOf(values), spreadOf(yards), nil
}
