package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// program is where a verb reads from and prints to.
type program struct {
	in       io.Reader
	out, err io.Writer
	table    **pflag.FlagSet // unless nil it gets the flags of the verb that is run; see verb.flags
}

// verb is one subcommand.
type verb struct {
	name    string
	args    string // for the usage line
	summary string // one line; empty: hidden
	run     func(p *program, args []string) error
}

// flags returns the flags of the verb. The verb's own code declares them, before it looks at any
// argument.
func (v verb) flags() (*pflag.FlagSet, error) {
	var table *pflag.FlagSet
	p := &program{out: io.Discard, err: io.Discard, table: &table}
	if err := v.run(p, []string{"--help"}); !errors.Is(err, pflag.ErrHelp) {
		return nil, fmt.Errorf("the flags of %s: %w", v.name, err)
	}
	return table, nil
}

// verbs returns the subcommands in the order help lists them.
func verbs() []verb {
	return []verb{
		{"mount", "MNT [flags]", "mount at MNT: a new cluster, or with --join a further node of one", mountVerb},
		{"umount", "MNT [flags]", "leave the cluster and unmount MNT", umountVerb},
		{"upgrade", "MNT", "have a daemon of this program take over a mount that outlives its daemon (mount --hold); programs go on", upgradeVerb},
		{"status", "[PATH] [flags]", "how the node of a mount is", statusVerb},
		{"members", "[PATH] [flags]", "the nodes of the cluster", membersVerb},
		{"areas", "[PATH] [flags]", "the files and how they are shared: all of a mount, or those below a path in it", areasVerb},
		{"area", "transfer PATH [NODE] [flags]", "make a node, or this one, the owner of a file with mode=versioned: the node whose programs write it", areaVerb},
		{"get", "PATH [KEY...] [flags]", "the settings of a file, or of a directory: those of what is made in it", getVerb},
		{"set", "PATH KEY=VALUE...", "change settings of a file, or of a directory for what is made in it", setVerb},
		{"unset", "PATH KEY...", "give settings the values that the directory of PATH has", unsetVerb},
		{"token", "MNT [flags]", "the token with which other machines join the cluster of MNT", tokenVerb},
		{"cluster", "recover MNT [flags]", "make the node of MNT a cluster of its own when the majority of the others has died", clusterVerb},
		{"run", "[flags] -- PROGRAM [ARGS]", "run a program with the memory plane: what it maps of a mount is memory itself", runVerb},
		{"dev", "--nodes N DIR [flags]", "a cluster of N nodes on this machine, mounted at DIR/node1 ...", devVerb},
		{"doctor", "", "what this machine can do, and what is missing", doctorVerb},
		{"version", "", "the version of the program", versionVerb},
		{"completion", "bash|zsh|fish", "a script that lets a shell complete command lines", completionVerb},
		{"manual", "", "the manual page, for man -l -", manualVerb},
		{"help", "[VERB]", "this text, or that of a verb", helpVerb},
		{harvestVerbName, "", "", harvestVerb},
		{guardVerbName, "", "", guardVerb},
	}
}

// init keeps main in the first thread of the process: see hold.Memory.Live.
func init() { runtime.LockOSThread() }

func main() {
	p := &program{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	os.Exit(int(p.main(os.Args)))
}

// main runs the verb that the arguments name and prints its error.
func (p *program) main(argv []string) exitCode {
	err := p.dispatch(argv)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return exitOK
	}
	if text := strings.TrimRight(err.Error(), "\n"); text != "" {
		fmt.Fprintf(p.err, "dsmfs: %s\n", text)
	}
	return codeOf(err)
}

func (p *program) dispatch(argv []string) error {
	name, args := "help", []string(nil)
	if len(argv) > 0 && filepath.Base(argv[0]) == "mount.dsmfs" {
		return mountHelperVerb(p, argv[1:])
	}
	if len(argv) > 1 {
		name, args = argv[1], argv[2:]
	}
	switch name {
	case "-h", "--help":
		name = "help"
	case "--version", "-V":
		name = "version"
	}
	for _, v := range verbs() {
		if v.name == name {
			return v.run(p, args)
		}
	}
	return fail(exitUsage, "unknown verb %q; see dsmfs help", name)
}

// flags returns an empty set of flags for a verb, which prints the verb's help for -h.
func (p *program) flags(name string) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(p.err)
	if p.table != nil {
		*p.table = f
	}
	f.Usage = func() {
		for _, v := range verbs() {
			if v.name == name {
				fmt.Fprintf(p.out, "usage: dsmfs %s %s\n\n%s.\n", v.name, v.args, v.summary)
			}
		}
		if f.HasAvailableFlags() {
			fmt.Fprintf(p.out, "\n%s", f.FlagUsages())
		}
	}
	return f
}

// parse parses a verb's flags and checks the number of the other arguments.
func parse(f *pflag.FlagSet, args []string, minimum, maximum int, want string) error {
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return fail(exitUsage, "%s: %w; see dsmfs help %s", f.Name(), err, f.Name())
	}
	if n := f.NArg(); n < minimum || n > maximum {
		return fail(exitUsage, "%s: usage: dsmfs %s %s; see dsmfs help %s", f.Name(), f.Name(), want, f.Name())
	}
	if slices.Contains(f.Args(), "") { // as of a script's variable that is not set: not the only mount, then
		return fail(exitUsage, "%s: an argument is empty; usage: dsmfs %s %s; see dsmfs help %s", f.Name(), f.Name(), want, f.Name())
	}
	return nil
}
