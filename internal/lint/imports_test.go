package lint

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// imports is who may import whom: a package may import what stands before "<"
// in its line and in the lines of those, directly or not. Read "a b < c d": c and d
// may import a and b. "NONE" is the standard library and golang.org/x/sys.
const imports = `
	NONE
	< internal/dsm internal/invariants internal/lockrank internal/lint internal/mountinfo internal/procs internal/spread internal/hold;

	internal/dsm
	< internal/errs;

	internal/errs internal/invariants internal/lockrank
	< internal/wire;

	internal/errs
	< internal/trust;

	internal/wire internal/trust
	< internal/transport catalog;

	internal/hold
	< catalog pages fs;

	internal/errs internal/lockrank
	< locks;

	locks
	< catalog fs;

	internal/wire
	< groups;

	groups
	< fs/attach;

	internal/errs internal/invariants internal/lockrank
	< membership;

	internal/errs internal/invariants internal/lockrank
	< internal/uffd;

	internal/errs internal/invariants internal/spread
	< pages/merge;

	internal/errs internal/lockrank
	< pages/residency;

	internal/lockrank internal/uffd pages/merge
	< pages;

	internal/errs internal/lockrank
	< internal/head;

	internal/errs internal/lockrank
	< internal/loop;

	internal/loop
	< internal/transport fs/attach;

	internal/wire internal/head pages pages/residency
	< coherence;

	internal/dsm
	< pages/pagetest;

	internal/errs internal/invariants internal/lockrank
	< internal/uffd;

	internal/errs internal/lockrank
	< internal/child fs/errno;

	internal/child fs/errno
	< fs/harvest;

	internal/errs internal/lockrank
	< fs/control;

	internal/uffd internal/child internal/head internal/procs fs/errno
	< fs/attach;

	fs/attach fs/control fs/harvest internal/mountinfo
	< fs;

	internal/transport catalog membership coherence fs
	< cmd/dsmfs;

	NONE
	< integration/harness integration/history;

	internal/dsm integration/harness integration/history
	< integration integration/chaos integration/differential integration/hold bench;

	internal/hold
	< integration/hold;

	NONE
	< bench/barefuse;
`

// libraries is the one package that may import each foreign module.
var libraries = map[string][]string{
	"github.com/vmihailenco/msgpack/v5": {"internal/wire"},
	"github.com/hashicorp/raft":         {"catalog"},
	"github.com/hashicorp/go-hclog":     {"catalog"}, // raft's logger
	"github.com/hashicorp/memberlist":   {"membership"},
	"github.com/hanwen/go-fuse/v2":      {"fs", "bench/barefuse"}, // the yardstick of the benchmark is a bare server
	"github.com/spf13/pflag":            {"cmd/dsmfs"},
	"github.com/cespare/xxhash/v2":      {"pages"},
	"github.com/dgraph-io/ristretto/v2": {"pages/residency"},
	"github.com/anishathalye/porcupine": {"integration/history"}, // the models that tests share
}

// testLibraries are imported by tests, by any, and by what libraries names besides.
var testLibraries = []string{"github.com/anishathalye/porcupine", "go.uber.org/goleak"}

// testExceptions are imports that tests make against the DAG, with the reason.
var testExceptions = map[string][]string{
	"integration":     {"github.com/hanwen/go-fuse/v2"}, // posixtest
	"coherence":       {"pages/pagetest"},
	"pages":           {"pages/pagetest"},
	"pages/merge":     {"pages/pagetest"},
	"pages/residency": {"pages/pagetest"},
	// The tests of the layers above run on the real transport.
	"catalog":    {"internal/transport"},
	"membership": {"internal/transport", "github.com/hashicorp/memberlist"},
}

// allowed returns, for each package, all packages that it may import.
func allowed(t *testing.T, text string) map[string]map[string]bool {
	t.Helper()
	direct := map[string]map[string]bool{}
	for rule := range strings.SplitSeq(text, ";") {
		before, after, ok := strings.Cut(rule, "<")
		if strings.TrimSpace(rule) == "" {
			continue
		}
		if !ok {
			t.Fatalf("the rule %q has no <", rule)
		}
		for _, p := range strings.Fields(after) {
			if direct[p] == nil {
				direct[p] = map[string]bool{}
			}
			for _, q := range strings.Fields(before) {
				if q != "NONE" {
					direct[p][q] = true
				}
			}
		}
	}
	closed := map[string]map[string]bool{}
	for p := range direct {
		reach := map[string]bool{}
		todo := slices.Collect(maps.Keys(direct[p]))
		for len(todo) > 0 {
			q := todo[0]
			todo = todo[1:]
			if reach[q] {
				continue
			}
			reach[q] = true
			if direct[q] == nil {
				t.Errorf("%s may import %s, which has no line", p, q)
			}
			todo = slices.AppendSeq(todo, maps.Keys(direct[q]))
		}
		if reach[p] {
			t.Errorf("%s may import itself", p)
		}
		closed[p] = reach
	}
	return closed
}

func TestImportDAG(t *testing.T) {
	may := allowed(t, imports)
	seen := map[string]bool{}
	for _, p := range ours(t) {
		seen[p.path()] = true
		reach, ok := may[p.path()]
		if !ok {
			t.Errorf("%s has no line in the DAG", p.path())
			continue
		}
		for _, i := range p.Imports {
			if q, inside := strings.CutPrefix(i, module); inside && !reach[q] {
				t.Errorf("%s imports %s: the DAG does not allow it", p.path(), q)
			}
		}
		for _, i := range append(slices.Clone(p.TestImports), p.XTestImports...) {
			q, inside := strings.CutPrefix(i, module)
			if inside && q != p.path() && !reach[q] && !slices.Contains(testExceptions[p.path()], q) {
				t.Errorf("a test of %s imports %s: the DAG does not allow it", p.path(), q)
			}
		}
	}
	for p := range may {
		if !seen[p] {
			t.Errorf("the DAG has a line for %s, which is no package", p)
		}
	}
}

// foreign returns the module of libraries that an import path belongs to, or
// the path itself if it belongs to none; "" for the standard library.
func foreign(path string) string {
	first, _, _ := strings.Cut(path, "/")
	if !strings.Contains(first, ".") || strings.HasPrefix(path, module) || strings.HasPrefix(path, "golang.org/x/sys/") || path == "golang.org/x/sys" {
		return ""
	}
	for m := range libraries {
		if path == m || strings.HasPrefix(path, m+"/") {
			return m
		}
	}
	return path
}

func TestOnePackagePerLibrary(t *testing.T) {
	for _, p := range ours(t) {
		for _, i := range p.Imports {
			if m := foreign(i); m != "" && !slices.Contains(libraries[m], p.path()) {
				t.Errorf("%s imports %s; %v may", p.path(), i, libraries[m])
			}
		}
		for _, i := range append(slices.Clone(p.TestImports), p.XTestImports...) {
			m := foreign(i)
			if m == "" || slices.Contains(libraries[m], p.path()) || slices.Contains(testExceptions[p.path()], m) {
				continue
			}
			if !slices.ContainsFunc(testLibraries, func(l string) bool { return i == l || strings.HasPrefix(i, l+"/") }) {
				t.Errorf("a test of %s imports %s", p.path(), i)
			}
		}
	}
}
