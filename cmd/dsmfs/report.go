package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is the output of a verb that looks at a mount: as JSON, whose keys are permanent, or as
// text for people.
type report interface {
	text(w io.Writer) error
}

// report runs a verb that looks at the mount that contains a path; inside is the path within it. A
// child process does the looking; see supervise.
func (p *program) report(name string, args []string, look func(point, inside string) (report, error)) error {
	f := p.flags(name)
	output := f.String("output", "text", "`FORMAT`: text, for people, or json, for programs")
	limit := f.Duration("timeout", 15*time.Second, "how long to wait for the daemon of the mount")
	if err := parse(f, args, 0, 1, "[PATH] [flags]"); err != nil {
		return err
	}
	if !slices.Contains(flagValues["output"], *output) {
		return fail(exitUsage, "%s: --output %q: want text or json", name, *output)
	}
	m, inside, err := findPath(f.Arg(0))
	if err != nil {
		return err
	}
	if !isSupervised() {
		return p.supervise(m.Point, *limit, name, "--output", *output, "--", filepath.Join(m.Point, inside))
	}
	r, err := look(m.Point, inside)
	if err != nil {
		return touched(m.Point, err)
	}
	if *output == "json" {
		e := json.NewEncoder(p.out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.text(p.out)
}

// table prints aligned columns; the first row is the head.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		if _, err := fmt.Fprintln(t, strings.Join(r, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}
