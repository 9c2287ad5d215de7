package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// manualVerb prints the manual page. Verbs, flags, options and exit codes come from the tables that
// the program itself uses.
func manualVerb(p *program, args []string) error {
	f := p.flags("manual")
	if err := parse(f, args, 0, 0, ""); err != nil {
		return err
	}
	var b strings.Builder
	if err := writeManual(&b); err != nil {
		return err
	}
	_, err := fmt.Fprint(p.out, b.String())
	return err
}

// roff escapes text for a manual page.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func writeManual(b *strings.Builder) error {
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	text := func(s string) {
		for l := range strings.Lines(s) {
			b.WriteString(roff(l))
		}
	}
	line(`.TH DSMFS 8 "" "dsmfs %s" "System Administration"`, roff(programVersion()))
	line(".SH NAME\ndsmfs, mount.dsmfs \\- memory that many machines share, as files")
	line(".SH SYNOPSIS")
	for _, v := range shown() {
		line(".B dsmfs %s\n\\&%s\n.br", roff(v.name), roff(v.args))
	}
	line(".B mount \\-t dsmfs\n.RI [ HOST [: PORT ]| dsmfs ]\n.I MNT\n.RB [ \\-o\n.IR OPTIONS ]")
	line(".SH DESCRIPTION")
	text(`Every node mounts the filesystem. Each file in it is memory that the programs of all nodes map, load from and store to;
what changed moves to the other nodes, page by page, when it is published: by msync, fsync, close, or every 100 ms.
The first mount makes a cluster of one, every further one joins it.
`)
	line(".SH VERBS")
	for _, v := range shown() {
		line(".SS dsmfs %s %s", roff(v.name), roff(v.args))
		text(strings.ToUpper(v.summary[:1]) + strings.TrimRight(v.summary[1:], ".") + ".\n")
		err := eachFlag(v, func(f *pflag.Flag) {
			what, usage := pflag.UnquoteUsage(f)
			short := ""
			if f.Shorthand != "" {
				short = fmt.Sprintf(`\fB\-%s\fR, `, f.Shorthand)
			}
			if joined(f) != nil {
				line(".TP\n%s\\fB\\-\\-%s\\fR[=\\fI%s\\fR]", short, roff(f.Name), roff(what))
			} else {
				line(".TP\n%s\\fB\\-\\-%s\\fR \\fI%s\\fR", short, roff(f.Name), roff(what))
			}
			if v := f.DefValue; (takesValue(f) || joined(f) != nil) && v != "" && v != "[]" && v != "0" && f.Name != "memory" {
				usage += " (default " + v + ")"
			}
			text(usage + "\n")
		})
		if err != nil {
			return err
		}
	}
	line(".SH MOUNT OPTIONS")
	text(`mount(8) and fstab take the flags of dsmfs mount as options, with = before the value. The source is a node to join, or the word dsmfs:
`)
	line(".PP\n.nf")
	text(fstabExample)
	line(".fi\n.PP")
	text("Options for others are ignored: " + strings.Join(ignoredOptions, " ") + ", and what begins with x-, X- or comment=.\n")
	line(".SH FILES\n.TP\n.I /run/dsmfs/NAME\\-OF\\-MNT")
	text("State of a mount: lock, process id, address, the socket of programs that attach. The name is MNT with - for /.\n")
	line(".TP\n.I MNT/.dsm")
	text("Control files, hidden from ls of the root.\n")
	line(".SH EXIT STATUS")
	for code, meaning := range exitTexts {
		line(".TP\n.B %d", code)
		text(meaning + "\n")
	}
	line(".SH SEE ALSO\n.BR mount (8),\n.BR fstab (5),\n.BR systemd.mount (5)")
	return nil
}

// fstabExample are lines of fstab that a test mounts.
const fstabExample = `dsmfs  /mnt/dsm  dsmfs  noauto,x-systemd.automount,_netdev,nofail,memory=4G  0 0
host1  /mnt/dsm  dsmfs  _netdev,nofail,token=@/etc/dsmfs/token  0 0
`
