package lint

import (
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxLines bounds a file of code: split it before.
const maxLines = 600

// long are the files that may be longer, with the reason.
var long = map[string]string{
	"include/dsmfs.h": "programs copy one file and include it",
}

func TestFilesAreShort(t *testing.T) {
	for _, f := range filesOf(t, ".go", ".py", ".c", ".h", ".sh") {
		if n := strings.Count(f.text, "\n"); n >= maxLines && long[f.path] == "" {
			t.Errorf("%s has %d lines: split it before %d", f.path, n, maxLines)
		}
	}
}

func TestGofmt(t *testing.T) {
	for _, f := range filesOf(t, ".go") {
		want, err := format.Source([]byte(f.text))
		if err != nil {
			t.Errorf("%s: %v", f.path, err)
		} else if string(want) != f.text {
			t.Errorf("%s is not as gofmt has it: run gofmt -w on it", f.path)
		}
	}
}

func TestPackagesSayWhatTheyAre(t *testing.T) {
	for _, p := range ours(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.path())
		}
	}
}

// forbidden are words that have no place in the tree.
var forbidden = []struct {
	what *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`(?i)\b(?:fix` + `me|xx` + `x|ha` + `ck)\b[:(]`), "fix it, or say in plain words what is missing"},
	{regexp.MustCompile(`\bTO` + `DO\b(?:$|[^(]|\(\s*\))`), "say in brackets why it is not done: TO" + "DO(reason)"},
	{regexp.MustCompile(`(?:^|[\s"'=(:])/wo` + `rk/`), "a path of somebody's machine"},
	{regexp.MustCompile(`(?:^|[\s"'=(:])/ho` + `me/`), "a path of somebody's machine"},
	{regexp.MustCompile(`^(?:<{7} |={7}$|>{7} )`), "a conflict that was not resolved"},
}

func TestForbiddenWords(t *testing.T) {
	for _, f := range filesOf(t) {
		number := 0
		for line := range strings.Lines(f.text) {
			number++
			for _, w := range forbidden {
				if m := w.what.FindString(strings.TrimSuffix(line, "\n")); m != "" {
					t.Errorf("%s:%d: %q: %s", f.path, number, strings.TrimSpace(m), w.why)
				}
			}
		}
	}
}

// banned are calls that only some packages or files may make.
var banned = []struct {
	call string // package.Function
	in   []string
	why  string
}{
	{"os.Exit", []string{"cmd/dsmfs/main.go", "bench/main.go", "bench/barefuse/main.go"}, "only main ends the program: return an error"},
	{"log.Fatal", nil, "return an error"},
	{"log.Fatalf", nil, "return an error"},
	{"time.Sleep", []string{
		"cmd/dsmfs/umount.go",            // nothing tells when the kernel's last use of a mount ends
		"integration/harness/prepare.go", // facts of other processes, which no channel tells of
	}, "wait for the event, or a timer with a way out"},
	{"fmt.Println", nil, "print to a writer that was passed in"},
	{"fmt.Printf", []string{"bench/main.go"}, "print to a writer that was passed in"},
}

// benchmarks are programs for measuring, which may do what tests may.
func isBenchmark(file string) bool { return strings.HasPrefix(file, "bench/") }

func TestBannedCalls(t *testing.T) {
	for _, f := range filesOf(t, ".go") {
		if strings.HasSuffix(f.path, "_test.go") || isBenchmark(f.path) && !strings.Contains(f.text, "os.Exit") {
			continue
		}
		for _, use := range calls(t, f) {
			for _, b := range banned {
				if use.name != b.call {
					continue
				}
				ok := isBenchmark(f.path) && b.call != "os.Exit"
				for _, in := range b.in {
					ok = ok || in == f.path
				}
				if !ok {
					t.Errorf("%s:%d: %s: %s", f.path, use.line, b.call, b.why)
				}
			}
		}
	}
}

// mayNap are the functions that sleep and are not themselves in a call of synctest.Test.
var mayNap = map[string]string{
	"catalog/bench_test.go BenchmarkIdle":   "what nodes use that do nothing is measured",
	"membership/real_test.go BenchmarkIdle": "the same",
	"fs/mount_test.go poll":                 "facts of the kernel and of other processes, which no channel tells of",
	"fs/interval_test.go Publish":           "a fake, called in bubbles",
	"fs/streams_test.go pass":               "called in bubbles",
	"membership/membership_test.go stop":    "called in bubbles",
	"membership/membership_test.go within":  "called in bubbles",
	"membership/net_test.go Dial":           "the network of tests in a bubble",
}

// TestSleepsAreOfABubble: where a test sleeps, time is synctest's, in which a sleep ends as soon as
// everybody waits.
func TestSleepsAreOfABubble(t *testing.T) {
	naps := map[string]bool{}
	for _, f := range filesOf(t, ".go") {
		if !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, use := range calls(t, f) {
			if use.name != "time.Sleep" || use.bubble {
				continue
			}
			where := f.path + " " + use.in
			naps[where] = true
			if mayNap[where] == "" {
				t.Errorf("%s:%d: wait for the event, or let time be that of testing/synctest", f.path, use.line)
			}
		}
	}
	for where := range mayNap {
		if !naps[where] {
			t.Errorf("%s does not sleep any more", where)
		}
	}
}

type use struct {
	name   string
	line   int
	in     string // the function or method of the file
	bubble bool   // within a call of synctest.Test
}

// calls returns the functions of imported packages that a file mentions.
func calls(t *testing.T, f file) []use {
	t.Helper()
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, f.path, f.text, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	names := map[string]string{} // in the file -> package
	for _, i := range tree.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if i.Name != nil {
			names[i.Name.Name] = path.Base(p)
		} else {
			names[path.Base(p)] = path.Base(p)
		}
	}
	name := func(e ast.Expr) string {
		if s, ok := e.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && names[x.Name] != "" {
				return names[x.Name] + "." + s.Sel.Name
			}
		}
		return ""
	}
	var uses []use
	for _, d := range tree.Decls {
		var in string
		if f, ok := d.(*ast.FuncDecl); ok {
			in = f.Name.Name
		}
		var bubble token.Pos // the end of the last call of synctest.Test
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if name(n.Fun) == "synctest.Test" {
					bubble = n.End()
				}
			case *ast.SelectorExpr:
				if name := name(n); name != "" {
					uses = append(uses, use{name, set.Position(n.Pos()).Line, in, n.Pos() < bubble})
				}
			}
			return true
		})
	}
	return uses
}

// required are documents that a reader of the tree expects.
var required = []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/design.md", "docs/dependencies.md", "docs/exit-codes.md"}

func TestDocumentsAreThere(t *testing.T) {
	have := map[string]string{}
	for _, f := range filesOf(t, ".md") {
		have[f.path] = f.text
	}
	for _, name := range required {
		if len(strings.TrimSpace(have[name])) < 100 {
			t.Errorf("%s is missing or says nothing", name)
		}
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	all := map[string]bool{}
	for _, f := range filesOf(t) {
		for p := f.path; p != "."; p = path.Dir(p) {
			all[p] = true
		}
	}
	for name, text := range have {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if target := path.Join(path.Dir(name), m[1]); !all[target] && !strings.HasSuffix(target, ".png") && !strings.HasSuffix(target, ".svg") {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	}
}

// TestDependenciesAreExplained compares docs/dependencies.md with go.mod.
func TestDependenciesAreExplained(t *testing.T) {
	text := ""
	for _, f := range filesOf(t, ".md") {
		if f.path == "docs/dependencies.md" {
			text = f.text
		}
	}
	for library := range libraries {
		if !strings.Contains(text, library) {
			t.Errorf("docs/dependencies.md does not say why %s", library)
		}
	}
	for _, library := range testLibraries {
		if !strings.Contains(text, library) {
			t.Errorf("docs/dependencies.md does not say why %s", library)
		}
	}
}
