package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestTablesAreComplete: what is generated names every verb and every flag that is not hidden.
func TestTablesAreComplete(t *testing.T) {
	texts := map[string]string{}
	for _, shell := range shells {
		code, out, errOut := cli("completion", shell)
		if code != exitOK {
			t.Fatalf("completion %s: %d, %s", shell, code, errOut)
		}
		texts[shell] = out
	}
	code, out, errOut := cli("manual")
	if code != exitOK {
		t.Fatalf("manual: %d, %s", code, errOut)
	}
	texts["manual"] = strings.ReplaceAll(out, `\-`, "-")
	count := 0
	for _, v := range shown() {
		err := eachFlag(v, func(f *pflag.Flag) {
			count++
			for what, text := range texts {
				name := "--" + f.Name
				if what == "fish" {
					name = "'__fish_seen_subcommand_from " + v.name + "' -l " + f.Name + " "
				}
				if !strings.Contains(text, name) {
					t.Errorf("%s lacks --%s of %s", what, f.Name, v.name)
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
		for what, text := range texts {
			if !strings.Contains(text, v.name) {
				t.Errorf("%s lacks %s", what, v.name)
			}
		}
	}
	if count < 20 {
		t.Errorf("there are %d flags", count)
	}
	for what, text := range texts {
		if strings.Contains(text, detachedFlag) || strings.Contains(text, harvestVerbName) {
			t.Errorf("%s has what is hidden", what)
		}
	}
	for code, text := range exitTexts {
		if !strings.Contains(texts["manual"], text) {
			t.Errorf("the manual lacks exit code %d", code)
		}
	}
}

// TestFlagValues: what completion offers is taken.
func TestFlagValues(t *testing.T) {
	for name, values := range flagValues {
		for _, value := range values {
			if name == "output" {
				if code, _, errOut := cli("status", "/", "--output", value); code != exitNoMount {
					t.Errorf("--output %s: %s", value, errOut)
				}
				continue
			}
			if name == "tracking" && value != "auto" {
				continue // the machine may not have it
			}
			parsed(t, "/mnt", "--"+name+"="+value)
		}
	}
}

// TestScriptsAreOfTheirShell lets the shells that this machine has read the scripts.
func TestScriptsAreOfTheirShell(t *testing.T) {
	for _, shell := range shells {
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("not read by %s: %v", shell, err)
			continue
		}
		_, out, _ := cli("completion", shell)
		cmd := exec.Command(shell, "-n")
		cmd.Stdin = strings.NewReader(out)
		if text, err := cmd.CombinedOutput(); err != nil || len(text) > 0 {
			t.Errorf("%s -n: %v\n%s", shell, err, text)
		}
	}
}

// TestBashCompletes runs the script for bash on command lines.
func TestBashCompletes(t *testing.T) {
	_, script, _ := cli("completion", "bash")
	for line, want := range map[string]string{
		"dsmfs um":                          "umount",
		"dsmfs mount --tr":                  "--tracking",
		"dsmfs mount --tracking as":         "async",
		"dsmfs mount --tracking async /pro": "/proc",
		"dsmfs mount --join ":               "",
		"dsmfs status --output j":           "json",
		"dsmfs set / mer":                   "merge=",
		"dsmfs get /pro":                    "/proc",
		"dsmfs help doc":                    "doctor",
		"dsmfs run bas":                     "bash",
		"dsmfs version ":                    "",
	} {
		words := strings.Split(line, " ")
		cmd := exec.Command("bash", append([]string{"-c", script + `
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
			_dsmfs
			printf '%s\n' "${COMPREPLY[@]}"`, "bash"}, words...)...)
		out, err := cmd.CombinedOutput()
		got := strings.Fields(string(out))
		if err != nil || want == "" && len(got) > 0 || want != "" && !slices.Contains(got, want) {
			t.Errorf("%q completes to %q, %v; want %q", line, got, err, want)
		}
	}
}

// TestManualIsAManual lets groff look for mistakes where it is there.
func TestManualIsAManual(t *testing.T) {
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip(err)
	}
	_, page, _ := cli("manual")
	cmd := exec.Command("groff", "-man", "-ww", "-Tascii", "-P-cbou")
	cmd.Stdin = strings.NewReader(page)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil || errOut.Len() > 0 || !strings.Contains(out.String(), "dsmfs mount MNT [flags]") {
		t.Errorf("%v\n%s\n%.500s", err, errOut.String(), out.String())
	}
}
