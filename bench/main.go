// Command bench measures dsmfs against yardsticks of the same machine in the
// same run and prints the ratios:
//
//	go run ./bench                 # the table of bounds and how it grows
//	go run ./bench -run latency    # some rows
//	go run ./bench -json           # for programs
//
// Every row alternates between its yardstick and dsmfs for a number of rounds
// and compares the medians, because a machine that others use drifts during a run.
// All programs on mounts are C programs in bench/client.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"text/tabwriter"

	"github.com/dsmfs/dsmfs/integration/harness"
)

func main() {
	var o options
	pattern := flag.String("run", "", "only rows whose name matches this regular expression")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of every row")
	flag.BoolVar(&o.quick, "quick", false, "smaller sizes and fewer rounds, to see that everything runs")
	asJSON := flag.Bool("json", false, "print JSON")
	strict := flag.Bool("strict", false, "exit 1 if a bound is not kept")
	flag.Parse()
	only, err := regexp.Compile(*pattern)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: -run:", err)
		os.Exit(2)
	}
	if o.quick {
		o.rounds = min(o.rounds, 2)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		harness.Discard()
		os.Exit(1)
	}()
	lines, err := measure(o, only)
	harness.Discard()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if *asJSON {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		err = out.Encode(lines)
	} else {
		err = table(lines)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	for _, l := range lines {
		if *strict && l.Verdict == fail {
			os.Exit(1)
		}
	}
}

// measure runs the rows and says on standard error which one is under way.
func measure(o options, only *regexp.Regexp) ([]line, error) {
	switch skip, err := prepare(); {
	case err != nil:
		return nil, fmt.Errorf("cannot run here: %w", err)
	case skip != "":
		return nil, errors.New("cannot run here: " + skip)
	}
	var lines []line
	for _, r := range rows {
		if !only.MatchString(r.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s\n", r.name)
		more, err := r.run(o)
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", r.name, err)
			more = append(more, line{Name: r.name, Verdict: fail, Error: err.Error()})
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

func table(lines []line) error {
	host, _ := os.Hostname()
	fmt.Printf("%s, %d cores, %s; median (least .. most) of interleaved rounds\n\n", host, runtime.NumCPU(), kernel())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tdsmfs\tyardstick\tratio\tbound\tverdict")
	for _, l := range lines {
		fmt.Fprintln(w, l.String())
	}
	return w.Flush()
}

func kernel() string {
	var u syscall.Utsname
	if syscall.Uname(&u) != nil {
		return runtime.GOOS
	}
	var text []byte
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return "Linux " + string(text)
}
