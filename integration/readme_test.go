package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// typed are the lines of README.md that are for host1 or host2, a shell's or Python's: what comes before the
// prompt's end, and what is typed there.
var typed = regexp.MustCompile(`(?m)^    host([12])(#|>>>) (.*)$`)

// prompt is a Python that does what it is told line by line, as people type it.
type prompt struct {
	in      io.WriteCloser
	answers chan string
}

const promptLoop = `
import sys
sys.displayhook = lambda value: None
names = {}
for line in sys.stdin:
    try:
        exec(compile(line, "README", "single"), names)
        print("ok", flush=True)
    except BaseException as e:
        print(repr(e), flush=True)
`

// startPrompt starts a Python that ends with its input.
func startPrompt(t *testing.T, n *harness.Node, environment ...string) *prompt {
	t.Helper()
	python, _ := harness.Interpreter()
	cmd := n.Command(context.Background(), python, "-c", promptLoop)
	cmd.Env = append(cmd.Env, environment...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &prompt{in, make(chan string, 1)}
	go func() {
		defer close(p.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.answers <- lines.Text()
		}
		_ = cmd.Wait() // it was told what to do line by line
	}()
	return p
}

// do types a line and returns what comes of it: ok, or what went wrong.
func (p *prompt) do(line string) string {
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return err.Error()
	}
	select {
	case answer := <-p.answers:
		return answer
	case <-time.After(limit):
		return "no answer"
	}
}

// end ends the Python.
func (p *prompt) end() {
	_ = p.in.Close() // it may have ended
	for range p.answers {
	}
}

// TestReadme types what README.md prints, in its order, on two machines, with only names and places changed.
func TestReadme(t *testing.T) {
	needNumPy(t)
	c := cluster(t, harness.Options{Network: harness.Namespaces})
	hosts := []*harness.Node{c.Declare(), c.Declare()}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(hosts[0].Address, ":")
	var prompts []*prompt
	for _, n := range hosts {
		if err := os.Remove(n.Mount); err != nil { // mount makes it
			t.Fatal(err)
		}
		t.Cleanup(func() {
			name := strings.NewReplacer("-", `\x2d`, "/", "-").Replace(strings.Trim(n.Mount, "/"))
			_ = os.Remove(filepath.Join("/var/log/dsmfs", name+".log"))
		})
		prompts = append(prompts, startPrompt(t, n, "PYTHONPATH="+filepath.Join(root, "pybind"), "DSMFS_BINARY="+harness.Binary()))
	}
	defer func() {
		for _, p := range prompts {
			p.end()
		}
		for i := range hosts { // the last one first: it hands over to the others
			n := hosts[len(hosts)-1-i]
			if res := n.CLI("umount", n.Mount); res.Err != nil {
				t.Errorf("umount: %v %s", res.Err, res.Stderr)
			}
		}
	}()
	commands, token := 0, ""
	for _, m := range typed.FindAllStringSubmatch(string(text), -1) {
		commands++
		i := int(m[1][0] - '1')
		line := strings.ReplaceAll(m[3], "/mnt/dsm", hosts[i].Mount)
		line = regexp.MustCompile(`\bhost1\b`).ReplaceAllString(line, address)
		line = strings.ReplaceAll(line, "TOKEN", token)
		if m[2] == ">>>" {
			if got := prompts[i].do(line); got != "ok" {
				t.Errorf("%s\n%s", m[0], got)
			}
			continue
		}
		if strings.HasPrefix(line, "dsmfs mount") { // both are this machine
			line = strings.Replace(line, " --", " --memory 256M --name host"+m[1]+" --", 1)
		}
		res := hosts[i].Run(limit, "env", "PATH="+filepath.Dir(harness.Binary())+":"+os.Getenv("PATH"), "sh", "-ec", line)
		if res.Err != nil {
			t.Errorf("%s\n%v\n%s%s", m[0], res.Err, res.Stdout, res.Stderr)
		}
		if strings.HasPrefix(line, "dsmfs token") {
			token = strings.TrimSpace(res.Stdout)
		}
	}
	if commands < 10 {
		t.Errorf("README.md has %d lines for two hosts", commands)
	}
	// Where a program stores to a file with merge=sum its syncs let updates in. An Area that is closed has none.
	for i, p := range prompts {
		sum := fmt.Sprintf("assert np.load(%q)[0, 0] == 3", filepath.Join(hosts[i].Mount, "w.npy"))
		p.do("import numpy as np")
		if !harness.Eventually(limit, func() bool { p.do("w.flush()"); return p.do(sum) == "ok" }) {
			t.Errorf("%s: not all three additions are there: %s", hosts[i].Name, p.do(sum))
		}
	}
}
