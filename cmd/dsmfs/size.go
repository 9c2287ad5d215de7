package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a flag value: bytes, with a binary suffix as in 64M or 1.5GiB.
type byteSize int64

var sizeUnits = map[string]int64{
	"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
}

// Set parses s.
func (b *byteSize) Set(s string) error {
	text := strings.ToLower(strings.TrimSpace(s))
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz")
	unit := strings.TrimSpace(text[len(digits):])
	if unit != "b" {
		unit = strings.TrimSuffix(strings.TrimSuffix(unit, "b"), "i")
	}
	factor, known := sizeUnits[unit]
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if !known || err != nil || math.IsNaN(n) || n*float64(factor) < 1 || n*float64(factor) >= 1<<62 {
		return fmt.Errorf("%q is no size: want a number with K, M, G or T, for example 512M or 16G", s)
	}
	*b = byteSize(n * float64(factor))
	return nil
}

// String returns the size with the largest suffix that divides it.
func (b *byteSize) String() string {
	n := int64(*b)
	for _, unit := range []string{"t", "g", "m", "k"} {
		if f := sizeUnits[unit]; n != 0 && n%f == 0 {
			return strconv.FormatInt(n/f, 10) + strings.ToUpper(unit)
		}
	}
	return strconv.FormatInt(n, 10)
}

// Type names the value in help.
func (*byteSize) Type() string { return "SIZE" }

// formatSize returns n in the form in which people read it.
func formatSize(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, i := float64(n)/1024, 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + units[i:i+1] + "iB"
}
