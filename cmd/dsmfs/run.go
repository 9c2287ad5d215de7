package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit codes of run if the program cannot be run; they are those of env(1).
const (
	exitCannotRun  exitCode = 126
	exitNoSuchFile exitCode = 127
)

// runVerb replaces this process by a program with a preloaded library that gives it the memory
// plane: see shim/shim.c.
func runVerb(p *program, args []string) error {
	f := p.flags("run")
	f.SetInterspersed(false)
	verbose := f.BoolP("verbose", "v", false, "say so, too, when the program has attached its first file")
	quiet := f.BoolP("quiet", "q", false, "do not say why a file stays on the page-cache plane")
	if err := f.Parse(args); err != nil {
		return parse(f, args, 0, 0, "")
	}
	if f.NArg() == 0 {
		return fail(exitUsage, "run: usage: dsmfs run [flags] -- PROGRAM [ARGS]; see dsmfs help run")
	}
	library, err := embeddedShim()
	if err != nil {
		return err
	}
	if library == nil {
		return fail(exitOther, "this binary was built without the shim: run make build")
	}
	path, err := exec.LookPath(f.Arg(0))
	if errors.Is(err, exec.ErrDot) { // found by a relative entry of PATH, which a shell would accept
		err = nil
	}
	if err != nil {
		return fail(noProgram(err), "run: %w", err)
	}
	preload, err := shimPath(library, shimDirs())
	if err != nil {
		return fail(exitOther, "there is no place for the library that programs load: %w", err)
	}
	why, breaks := unshimmed(path)
	if why != "" && !*quiet && os.Getenv("DSMFS_QUIET") == "" {
		fmt.Fprintf(p.err, "dsmfs: %s\n", why)
	}
	if breaks {
		preload = ""
	}
	err = unix.Exec(path, f.Args(), runEnviron(os.Environ(), preload, *verbose, *quiet))
	return fail(noProgram(err), "run: %s: %w", path, err)
}

// noProgram returns the exit code for a program that could not be started.
func noProgram(err error) exitCode {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return exitNoSuchFile
	}
	return exitCannotRun
}

// runEnviron returns the environment of the program; with an empty preload no library is preloaded.
// Other preloaded libraries come first: some, such as sanitizers, insist on that.
func runEnviron(env []string, preload string, verbose, quiet bool) []string {
	const name = "LD_PRELOAD="
	var out []string
	var list []string
	for _, v := range env {
		old, ok := strings.CutPrefix(v, name)
		if !ok {
			out = append(out, v)
			continue
		}
		list = strings.FieldsFunc(old, func(r rune) bool { return r == ':' || r == ' ' })
	}
	if preload != "" && !slices.Contains(list, preload) {
		list = append(list, preload)
	}
	if len(list) > 0 {
		out = append(out, name+strings.Join(list, ":"))
	}
	if verbose {
		out = append(out, "DSMFS_VERBOSE=1")
	}
	if quiet {
		out = append(out, "DSMFS_QUIET=1")
	}
	return out
}
