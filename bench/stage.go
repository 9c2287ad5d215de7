package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// programs are the paths of what prepare built.
var programs struct{ bench, barefuse string }

func prepare() (skip string, err error) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return "no iperf3, which measures what TCP can do: make bench installs it, or apt-get install iperf3", nil
	}
	if skip, err = harness.Prepare(); err != nil || skip != "" {
		return skip, err
	}
	sources, err := filepath.Glob("bench/client/*.c")
	if err != nil || len(sources) == 0 {
		return "", fmt.Errorf("no bench/client/*.c: run it in the root of the source tree (%w)", err)
	}
	if programs.bench, err = harness.Compile("bench", append([]string{"gcc", "-O2", "-pthread", "-o", "{out}"}, append(sources, "-lm")...)...); err != nil {
		return "", err
	}
	programs.barefuse, err = harness.Compile("barefuse", "go", "build", "-o", "{out}", "./bench/barefuse")
	return "", err
}

// stage is what a row runs on: a harness.TB whose cleanups end with the row and
// whose errors become the row's.
type stage struct {
	cleanups []func()
	errs     []error
}

// failed is what Fatalf panics with; act recovers it.
type failed struct{ error }

func (s *stage) Helper()                         {}
func (s *stage) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (s *stage) Failed() bool                    { return len(s.errs) > 0 }
func (s *stage) Cleanup(f func())                { s.cleanups = append(s.cleanups, f) }
func (s *stage) Errorf(format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

func (s *stage) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	panic(failed{s.errs[len(s.errs)-1]})
}

// act runs a row on a fresh stage.
func act(row func(s *stage) error) (err error) {
	s := &stage{}
	defer func() {
		if f, ok := recover().(failed); ok {
			err = f
		}
		for i := len(s.cleanups) - 1; i >= 0; i-- {
			s.cleanups[i]()
		}
		err = errors.Join(append([]error{err}, s.errs...)...)
	}()
	return row(s)
}

const patience = 10 * time.Minute

// numbers runs a verb of the benchmark client at a node and returns the numbers it printed.
func numbers(n *harness.Node, verb string, args ...any) ([]float64, error) {
	words := []string{verb}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	res := n.Run(patience, programs.bench, words...)
	if res.Err != nil {
		return nil, fmt.Errorf("%v: %w: %s", words, res.Err, res.Stderr)
	}
	return parse(res.Stdout)
}

// one is numbers for verbs that print one.
func one(n *harness.Node, verb string, args ...any) (float64, error) {
	v, err := numbers(n, verb, args...)
	if err == nil && len(v) != 1 {
		err = fmt.Errorf("%s printed %v", verb, v)
	}
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

func parse(text string) ([]float64, error) {
	var all []float64
	for _, w := range strings.Fields(text) {
		v, err := strconv.ParseFloat(w, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// helper is a program that runs beside a measurement.
type helper struct {
	in     io.Closer
	lines  *bufio.Reader
	cancel func() // kills it; end follows
	end    func() error
}

// start runs a program at a node and waits for its first line of output.
func start(n *harness.Node, name string, args ...any) (*helper, string, error) {
	var words []string
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	cmd := n.Command(ctx, name, words...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, "", err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, "", err
	}
	h := &helper{in: in, lines: bufio.NewReader(out), cancel: cancel}
	h.end = func() error {
		defer cancel()
		_ = in.Close() // some end when their input does
		return cmd.Wait()
	}
	first, err := h.lines.ReadString('\n')
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("%s %v: %w", name, words, err), h.end())
	}
	return h, strings.TrimSpace(first), nil
}

// afterInput ends the input of the helper, and returns the numbers it prints then.
func (h *helper) afterInput() ([]float64, error) {
	if err := h.in.Close(); err != nil {
		return nil, errors.Join(err, h.end())
	}
	return h.rest()
}

// rest returns the numbers the helper prints until it ends.
func (h *helper) rest() ([]float64, error) {
	text, err := io.ReadAll(h.lines)
	if err != nil {
		return nil, errors.Join(err, h.end())
	}
	if err := h.end(); err != nil {
		return nil, err
	}
	return parse(string(text))
}
