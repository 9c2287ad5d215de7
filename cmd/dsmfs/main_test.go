package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/internal/trust"
)

// actVariable makes the test binary act as dsmfs, or hang, in the processes
// that the code under test starts.
const actVariable = "DSMFS_TEST_ACT"

func TestMain(m *testing.M) {
	switch os.Getenv(actVariable) {
	case "dsmfs":
		main()
	case "hang":
		select {} // the runtime calls it a deadlock only without other goroutines: signal handling is one
	case "listen":
		listenAndHang()
	case "stops":
		stopAndHang()
	case "rounds":
		inAndOutOfRounds()
	case "crash":
		panic("as the test wants")
	}
	os.Exit(m.Run())
}

// cli runs a command line in this process.
func cli(args ...string) (code exitCode, out, errOut string) {
	var o, e bytes.Buffer
	p := &program{in: strings.NewReader(""), out: &o, err: &e}
	code = p.main(append([]string{"dsmfs"}, args...))
	return code, o.String(), e.String()
}

// someToken has the form of one.
var someToken = trust.Token{Secret: make([]byte, 16)}.String()

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		code exitCode
		want string
	}{
		{[]string{"frobnicate"}, exitUsage, `unknown verb "frobnicate"`},
		{[]string{"mount"}, exitUsage, "usage: dsmfs mount MNT"},
		{[]string{"mount", "/a", "/b"}, exitUsage, "usage: dsmfs mount MNT"},
		{[]string{"mount", "/a", "--no-such-flag"}, exitUsage, "--no-such-flag"},
		{[]string{"mount", "/a", "--memory", "much"}, exitUsage, `"much" is no size`},
		{[]string{"mount", "/a", "--memory", "12"}, exitUsage, "--memory 12 is 12 bytes: for 12 GiB write 12G"},
		{[]string{"mount", "/a", "--memory", "900T"}, exitUsage, "--memory 900T is more than this machine has"},
		{[]string{"mount", "/a", "-o", "memory=900T"}, exitUsage, "more than this machine has"},
		{[]string{"dev", "/a", "--memory", "900T"}, exitUsage, "more than this machine has"},
		{[]string{"mount", "/a", "--fault-timeout", "soon"}, exitUsage, `"soon"`},
		{[]string{"mount", "/a", "--fault-timeout", "-1s"}, exitUsage, "more than 0"},
		{[]string{"mount", "/a", "--log-level", "loud"}, exitUsage, "debug, info, warn or error"},
		{[]string{"mount", "/a", "--name", "a b"}, exitUsage, "without blanks"},
		{[]string{"mount", "/a", "-o", "rw,colour=blue,size"}, exitUsage, "unknown option -o colour, size; known: join listen"},
		{[]string{"mount", "/a", "-o", "memory"}, exitUsage, "-o memory needs a value"},
		{[]string{"mount", "/a", "-o", "memory=lots"}, exitUsage, `"lots" is no size`},
		{[]string{"mount", "/a", "--join", "host1"}, exitInsecure, "--join host1:7480 is not on this machine: add --token T"},
		{[]string{"mount", "/a", "--join", "host1"}, exitInsecure, "type: dsmfs mount /a --listen :7480 --insecure --join host1:7480"},
		{[]string{"mount", "/a", "--join", "host1", "--insecure"}, exitUsage, "Type: dsmfs mount /a --listen :7480 --insecure --join host1:7480"},
		{[]string{"mount", "/a", "--join", "host1", "--token", someToken, "--listen", "127.0.0.1:7480"}, exitUsage, "Type: dsmfs mount /a --listen :7480 --join host1:7480 --token TOKEN"},
		{[]string{"mount", "/a", "--join", "host1", "--token", "secret"}, exitUsage, "--token: token: that is no token"},
		{[]string{"mount", "/a", "--join", "host1", "--token", "@/no/such/file"}, exitUsage, "--token: open /no/such/file"},
		{[]string{"mount", "/a", "--join", "host1", "--token", someToken, "--insecure"}, exitUsage, "has no tokens"},
		{[]string{"mount", "/a", "--token", someToken}, exitUsage, "--token needs --join"},
		{[]string{"cluster", "recover", "/tmp"}, exitNoMount, "/tmp is in no dsmfs mount"},
		{[]string{"cluster", "dissolve", "/tmp"}, exitUsage, `unknown word "dissolve"`},
		{[]string{"token", "/tmp"}, exitNoMount, "/tmp is in no dsmfs mount"},
		{[]string{"token", "/tmp", "--ttl", "1ms"}, exitUsage, "at least 1s"},
		{[]string{"mount", "/a", "--join", "127.0.0.1:0"}, exitUsage, "no port"},
		{[]string{"mount", "/a", "--join", "a:b:c"}, exitUsage, "no address"},
		{[]string{"status", "/"}, exitNoMount, "/ is in no dsmfs mount"},
		{[]string{"status", "--output", "xml"}, exitUsage, "want text or json"},
		{[]string{"get", "/"}, exitNoMount, "/ is in no dsmfs mount"},
		{[]string{"get", "/", "colour"}, exitUsage, `unknown setting "colour": want one of mode merge dtype apply interval residency access locks placement staleness retain replicas on_nonfinite, or of a file version`},
		{[]string{"set", "/"}, exitUsage, "usage: dsmfs set PATH KEY=VALUE"},
		{[]string{"set", "/", "merge"}, exitUsage, "want KEY=VALUE, with one of the keys mode merge"},
		{[]string{"set", "/", "colour=red"}, exitUsage, `unknown setting "colour": want one of mode merge`},
		{[]string{"set", "/", "user.dsm.version=1"}, exitUsage, "version cannot be set"},
		{[]string{"unset", "/", "colour"}, exitUsage, `unknown setting "colour"`},
		{[]string{"unset", "/tmp", "merge"}, exitNoMount, "/tmp is in no dsmfs mount"},
		{[]string{"umount", "/proc/../tmp"}, exitNoMount, "/tmp is not a dsmfs mount"},
		{[]string{"umount"}, exitUsage, "usage: dsmfs umount MNT"},
		{[]string{"umount", ""}, exitUsage, "an argument is empty; usage: dsmfs umount MNT"},
		{[]string{"status", ""}, exitUsage, "an argument is empty; usage: dsmfs status"},
		{[]string{"dev", "--nodes", "0", "/a"}, exitUsage, "1 to 64"},
		{[]string{"help", "frobnicate"}, exitUsage, "frobnicate"},
	} {
		code, out, errOut := cli(c.args...)
		if code != c.code || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("dsmfs %v: code %d, printed %q and %q; want code %d and %q", c.args, code, out, errOut, c.code, c.want)
		}
	}
}

func TestHelpNamesEveryVerbAndCode(t *testing.T) {
	code, out, _ := cli("help")
	if code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	for _, v := range verbs() {
		if v.summary == "" {
			continue
		}
		if !strings.Contains(out, "\n  "+v.name+" ") {
			t.Errorf("help does not list %s", v.name)
		}
		if code, text, _ := cli("help", v.name); code != exitOK || !strings.Contains(text, "usage: dsmfs "+v.name) {
			t.Errorf("help %s: code %d, %q", v.name, code, text)
		}
	}
	for code, text := range exitTexts {
		if line := fmt.Sprintf("%2d  %s\n", code, text); text == "" || !strings.Contains(out, line) {
			t.Errorf("help lacks the line %q", line)
		}
	}
}

func TestExitCodesAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "exit-codes.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]*) \|`).FindAllStringSubmatch(string(text), -1)
	if len(rows) != len(exitTexts) {
		t.Fatalf("docs/exit-codes.md has %d codes, the program %d", len(rows), len(exitTexts))
	}
	for _, r := range rows {
		if code, _ := strconv.Atoi(r[1]); code >= len(exitTexts) || strings.TrimSpace(r[2]) != exitTexts[code] {
			t.Errorf("docs/exit-codes.md: code %s is %q", r[1], r[2])
		}
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		if code, out, _ := cli(arg); code != exitOK || !strings.HasPrefix(out, "dsmfs ") {
			t.Errorf("dsmfs %s: code %d, %q", arg, code, out)
		}
	}
}

func TestCodeOf(t *testing.T) {
	inner := fail(exitJoin, "x")
	if got := codeOf(fmt.Errorf("around: %w", inner)); got != exitJoin {
		t.Errorf("wrapped: %d", got)
	}
	if got := codeOf(withCode(exitPoint, inner)); got != exitJoin {
		t.Errorf("a second code replaces the first: %d", got)
	}
	if got := codeOf(errors.New("x")); got != exitOther {
		t.Errorf("plain: %d", got)
	}
	if withCode(exitPoint, nil) != nil {
		t.Error("withCode makes an error of none")
	}
}

// TestBackgroundTellsTheChildsError mounts where it cannot work, in a real child.
func TestBackgroundTellsTheChildsError(t *testing.T) {
	t.Setenv(actVariable, "dsmfs")
	missing := filepath.Join(t.TempDir(), "missing", "mnt")
	code, _, errOut := cli("mount", missing, "--state", t.TempDir())
	if code != exitPoint || !strings.Contains(errOut, missing) || !strings.Contains(errOut, "no such") {
		t.Errorf("code %d, %q", code, errOut)
	}
}

func TestBackgroundShowsACrash(t *testing.T) {
	t.Setenv(actVariable, "crash")
	code, _, errOut := cli("mount", t.TempDir(), "--state", t.TempDir())
	if code != exitDied || !strings.Contains(errOut, "as the test wants") {
		t.Errorf("code %d, %q", code, errOut)
	}
}

func TestSuperviseForwards(t *testing.T) {
	t.Setenv(actVariable, "dsmfs")
	var o, e bytes.Buffer
	p := &program{out: &o, err: &e}
	if err := p.supervise("/mnt", time.Minute, "version"); err != nil || !strings.HasPrefix(o.String(), "dsmfs ") {
		t.Errorf("%v, printed %q", err, o.String())
	}
	if err := p.supervise("/mnt", time.Minute, "frobnicate"); codeOf(err) != exitUsage || !strings.Contains(e.String(), "frobnicate") {
		t.Errorf("%v, printed %q", err, e.String())
	}
}

func TestSuperviseGivesUp(t *testing.T) {
	t.Setenv(actVariable, "hang")
	p := &program{out: new(bytes.Buffer), err: new(bytes.Buffer)}
	err := p.supervise("/mnt/x", time.Millisecond, "version")
	if codeOf(err) != exitSilent || !strings.Contains(err.Error(), "umount --force /mnt/x") {
		t.Errorf("%v", err)
	}
}
