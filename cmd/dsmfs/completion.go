package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// flagValues are the values of flags that take one of a few words; they are the same for all verbs.
var flagValues = map[string][]string{
	"output":      {"text", "json"},
	"log-level":   {"debug", "info", "warn", "error"},
	"tracking":    {"auto", "async", "sync", "compare"},
	"passthrough": {"auto", "off"},
	"hold":        {"auto", "on", "off"},
}

// kind is the kind of a word on a command line, as far as a shell can complete it.
type kind int

const (
	anything kind = iota
	someWords
	directory
	anyFile
	mountPoint
	aProgram
)

// argument is what a flag or a verb takes: a kind, and for someWords the words. A file may be
// followed by some of the words.
type argument struct {
	kind  kind
	words []string
}

// argumentOf returns what the verb takes in addition to flags.
func argumentOf(v verb) argument {
	switch v.name {
	case "mount", "dev":
		return argument{kind: directory}
	case "umount", "upgrade":
		return argument{kind: mountPoint}
	case "status", "members", "areas":
		return argument{kind: mountPoint}
	case "area":
		return argument{anyFile, []string{"transfer"}}
	case "get":
		return argument{anyFile, slices.Concat(dsm.SettingKeys, liveKeys)}
	case "set":
		return argument{anyFile, strings.Fields(strings.Join(dsm.SettingKeys, "= ") + "=")}
	case "unset":
		return argument{anyFile, dsm.SettingKeys}
	case "run":
		return argument{kind: aProgram}
	case "help":
		return argument{someWords, verbNames()}
	case "completion":
		return argument{someWords, shells}
	}
	return argument{}
}

// valueOf returns what a flag takes.
func valueOf(f *pflag.Flag) argument {
	what, _ := pflag.UnquoteUsage(f)
	switch {
	case flagValues[f.Name] != nil:
		return argument{someWords, flagValues[f.Name]}
	case what == "DIR":
		return argument{kind: directory}
	case what == "FILE":
		return argument{kind: anyFile}
	}
	return argument{}
}

func verbNames() []string {
	var names []string
	for _, v := range shown() {
		names = append(names, v.name)
	}
	return names
}

// shown are the verbs that help lists.
func shown() []verb {
	return slices.DeleteFunc(verbs(), func(v verb) bool { return v.summary == "" })
}

// shells are those for which there is a script.
var shells = []string{"bash", "zsh", "fish"}

func completionVerb(p *program, args []string) error {
	f := p.flags("completion")
	if err := parse(f, args, 1, 1, "bash|zsh|fish"); err != nil {
		return err
	}
	write := map[string]func(*strings.Builder) error{"bash": completeBash, "zsh": completeZsh, "fish": completeFish}[f.Arg(0)]
	if write == nil {
		return fail(exitUsage, "completion: unknown shell %q: want one of %s", f.Arg(0), strings.Join(shells, " "))
	}
	var b strings.Builder
	if err := write(&b); err != nil {
		return err
	}
	_, err := fmt.Fprint(p.out, b.String())
	return err
}

// eachFlag calls do for every flag that help shows.
func eachFlag(v verb, do func(f *pflag.Flag)) error {
	table, err := v.flags()
	if err != nil {
		return err
	}
	table.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			do(f)
		}
	})
	return nil
}

// takesValue reports whether the next word is the flag's value.
func takesValue(f *pflag.Flag) bool { return f.NoOptDefVal == "" }

// joined returns the flag with each of its values, if it takes them only after =.
func joined(f *pflag.Flag) (words []string) {
	if !takesValue(f) {
		for _, value := range flagValues[f.Name] {
			words = append(words, "--"+f.Name+"="+value)
		}
	}
	return words
}

// listMounts is a command that prints the mount points without touching one.
const listMounts = `awk '/ - fuse\.dsmfs / { print $5 }' /proc/self/mountinfo`

// completeBash writes the script for bash.
func completeBash(b *strings.Builder) error {
	of := func(a argument) string {
		switch a.kind {
		case someWords:
			return `-W "` + strings.Join(a.words, " ") + `"`
		case directory:
			return "-d"
		case anyFile:
			return strings.TrimSuffix(`-f -W "`+strings.Join(a.words, " ")+`"`, ` -W ""`)
		case mountPoint:
			return `-W "$(` + listMounts + `)"`
		case aProgram:
			return "-c"
		}
		return ""
	}
	b.WriteString(`# bash completion of dsmfs; made by dsmfs completion bash
_dsmfs() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        COMPREPLY=($(compgen -W "` + strings.Join(verbNames(), " ") + `" -- "$cur"))
        return
    fi
    case $verb in
`)
	for _, v := range shown() {
		fmt.Fprintf(b, "    %s)\n        case $prev in\n", v.name)
		var flags []string
		err := eachFlag(v, func(f *pflag.Flag) {
			names := "--" + f.Name
			flags = append(flags, names)
			flags = append(flags, joined(f)...)
			if f.Shorthand != "" {
				names += " | -" + f.Shorthand
			}
			if takesValue(f) {
				values := ":"
				if how := of(valueOf(f)); how != "" {
					values = "COMPREPLY=($(compgen " + how + ` -- "$cur"))`
				}
				fmt.Fprintf(b, "        %s) %s; return ;;\n", names, values)
			}
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "        esac\n        case $cur in\n        -*) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n        esac\n", strings.Join(flags, " "))
		if how := of(argumentOf(v)); how != "" {
			fmt.Fprintf(b, "        COMPREPLY=($(compgen %s -- \"$cur\"))\n", how)
		}
		b.WriteString("        ;;\n")
	}
	b.WriteString("    esac\n}\ncomplete -o filenames -F _dsmfs dsmfs\n")
	return nil
}

// completeZsh writes the script for zsh.
func completeZsh(b *strings.Builder) error {
	plain := strings.NewReplacer("'", `'\''`, "[", `\[`, "]", `\]`, ":", `\:`).Replace
	of := func(a argument) string {
		switch a.kind {
		case someWords:
			return "(" + strings.Join(a.words, " ") + ")"
		case directory:
			return "_directories"
		case anyFile:
			return "_files"
		case mountPoint:
			return "_dsmfs_mounts"
		case aProgram:
			return "_command_names -e"
		}
		return ""
	}
	b.WriteString("#compdef dsmfs\n# made by dsmfs completion zsh\n" +
		"_dsmfs_mounts() {\n    local -a points=(${(f)\"$(" + listMounts + ")\"})\n    compadd -a points\n}\n" +
		"_dsmfs() {\n    local -a verbs=(\n")
	for _, v := range shown() {
		fmt.Fprintf(b, "        '%s:%s'\n", v.name, plain(v.summary))
	}
	b.WriteString("    )\n    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        return\n    fi\n" +
		"    local verb=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $verb in\n")
	for _, v := range shown() {
		fmt.Fprintf(b, "    %s)\n        _arguments -s", v.name)
		err := eachFlag(v, func(f *pflag.Flag) {
			what, usage := pflag.UnquoteUsage(f)
			value := ""
			if takesValue(f) {
				value = ":" + plain(what) + ":" + of(valueOf(f))
			}
			if joined(f) != nil {
				fmt.Fprintf(b, " \\\n            '--%s=-[%s]::%s:%s'", f.Name, plain(usage), plain(what), of(valueOf(f)))
				return
			}
			many := ""
			if strings.HasSuffix(f.Value.Type(), "Array") {
				many = "*"
			}
			fmt.Fprintf(b, " \\\n            '%s--%s[%s]%s'", many, f.Name, plain(usage), value)
			if f.Shorthand != "" {
				fmt.Fprintf(b, " \\\n            '%s-%s[%s]%s'", many, f.Shorthand, plain(usage), value)
			}
		})
		if err != nil {
			return err
		}
		takes := argumentOf(v)
		switch how := of(takes); {
		case takes.kind == anyFile && takes.words != nil:
			fmt.Fprintf(b, " \\\n            '1: :%s' '*: :(%s)'", how, strings.Join(takes.words, " "))
		case how != "":
			fmt.Fprintf(b, " \\\n            '*: :%s'", how)
		}
		b.WriteString("\n        ;;\n")
	}
	b.WriteString("    esac\n}\n_dsmfs \"$@\"\n")
	return nil
}

// completeFish writes the script for fish.
func completeFish(b *strings.Builder) error {
	quote := func(s string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
	}
	of := func(a argument) string {
		switch a.kind {
		case someWords:
			return " -x -a " + quote(strings.Join(a.words, " "))
		case directory:
			return " -x -a '(__fish_complete_directories)'"
		case anyFile:
			if a.words != nil {
				return " -F -a " + quote(strings.Join(a.words, " "))
			}
			return " -r -F"
		case mountPoint:
			return " -x -a " + quote("("+listMounts+")")
		case aProgram:
			return " -x -a '(__fish_complete_command)'"
		}
		return ""
	}
	b.WriteString("# fish completion of dsmfs; made by dsmfs completion fish\ncomplete -c dsmfs -f\n")
	for _, v := range shown() {
		fmt.Fprintf(b, "complete -c dsmfs -n __fish_use_subcommand -a %s -d %s\n", v.name, quote(v.summary))
	}
	for _, v := range shown() {
		head := "complete -c dsmfs -n '__fish_seen_subcommand_from " + v.name + "'"
		if how := of(argumentOf(v)); how != "" {
			b.WriteString(head + how + "\n")
		}
		err := eachFlag(v, func(f *pflag.Flag) {
			_, usage := pflag.UnquoteUsage(f)
			line := head + " -l " + f.Name
			if f.Shorthand != "" {
				line += " -s " + f.Shorthand
			}
			if takesValue(f) {
				how := of(valueOf(f))
				if how == "" {
					how = " -x"
				}
				line += how
			}
			b.WriteString(line + " -d " + quote(usage) + "\n")
			for _, word := range joined(f) {
				b.WriteString(head + " -a " + word + "\n")
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
