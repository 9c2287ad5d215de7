package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// pair is a line of a flat keyed control file, or a part of a nested keyed one.
type pair struct{ key, value string }

// parseFlat parses a flat keyed control file: lines "key value". The value may contain blanks, or
// be empty.
func parseFlat(text string) []pair {
	var all []pair
	for line := range strings.Lines(text) {
		if key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); key != "" {
			all = append(all, pair{key, value})
		}
	}
	return all
}

// nested is a line of a nested keyed control file.
type nested struct {
	key    string
	values map[string]string
}

// parseNested parses a nested keyed control file: lines "key name=value ...".
func parseNested(text string) ([]nested, error) {
	var all []nested
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		n := nested{key: words[0], values: make(map[string]string)}
		for _, w := range words[1:] {
			name, value, ok := strings.Cut(w, "=")
			if !ok {
				return nil, fmt.Errorf("line %q: %q is not name=value", strings.TrimSpace(line), w)
			}
			n.values[name] = value
		}
		all = append(all, n)
	}
	return all, nil
}

// readControl reads a file of /.dsm. Only a supervised process may call it, or one that does not wait for it.
func readControl(point, file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(point, ".dsm", file))
	return string(text), err
}

// readFlat reads a flat keyed file of /.dsm as a map.
func readFlat(point, file string) (map[string]string, error) {
	text, err := readControl(point, file)
	if err != nil {
		return nil, err
	}
	m := make(map[string]string)
	for _, p := range parseFlat(text) {
		m[p.key] = p.value
	}
	return m, nil
}
