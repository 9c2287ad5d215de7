package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/pflag"
)

// version is set by the linker to the output of scripts/version.sh. Other builds use their
// revision, in the same form. A plain go build in a linked worktree of git has none: Go (1.26) records it only where .git
// is a directory.
var version = ""

// programVersion returns the version of the program.
func programVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "0.0.0+g" + s.Value[:min(12, len(s.Value))]
		}
	}
	return "0.0.0+unknown"
}

func versionVerb(p *program, args []string) error {
	f := p.flags("version")
	if err := parse(f, args, 0, 0, ""); err != nil {
		return err
	}
	_, err := fmt.Fprintf(p.out, "dsmfs %s %s/%s %s\n", programVersion(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	return err
}

func helpVerb(p *program, args []string) error {
	f := p.flags("help")
	if err := parse(f, args, 0, 1, "[VERB]"); err != nil {
		return err
	}
	if f.NArg() == 1 {
		for _, v := range verbs() {
			if v.name == f.Arg(0) && v.name != "help" && v.summary != "" {
				return v.run(p, []string{"--help"})
			}
		}
		if f.Arg(0) != "help" {
			return fail(exitUsage, "help: unknown verb %q; see dsmfs help", f.Arg(0))
		}
		f.Usage()
		return pflag.ErrHelp
	}
	fmt.Fprint(p.out, "dsmfs mounts memory that many machines share.\n\n"+
		"  dsmfs mount /mnt/dsm --listen :7480                  the first node, host1\n"+
		"  dsmfs token /mnt/dsm                                 there: prints the token\n"+
		"  dsmfs mount /mnt/dsm --join host1 --token TOKEN      every further one\n\n"+
		"verbs:\n")
	for _, v := range verbs() {
		if v.summary != "" {
			fmt.Fprintf(p.out, "  %-10s %-26s %s\n", v.name, v.args, v.summary)
		}
	}
	fmt.Fprint(p.out, "\ndsmfs help VERB lists the flags of a verb.\n\nexit codes:\n")
	for code, text := range exitTexts {
		fmt.Fprintf(p.out, "  %2d  %s\n", code, text)
	}
	return nil
}
