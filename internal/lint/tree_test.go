package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// root is the root of the tree, seen from this directory.
const root = "../.."

const module = "github.com/dsmfs/dsmfs/"

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath   string
	Name, Doc    string
	Standard     bool
	Dir          string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Module       *struct{ Path string }
}

// path is the import path below the module.
func (p *pkg) path() string { return strings.TrimPrefix(p.ImportPath, module) }

// packages returns the packages of the tree. It is the one call of go list.
var packages = sync.OnceValues(func() ([]*pkg, error) {
	out, err := command("go", "list", "-json=ImportPath,Name,Doc,Standard,Dir,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports,Module", "./...")
	if err != nil {
		return nil, err
	}
	var all []*pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(pkg)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func ours(t *testing.T) []*pkg {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// command runs a program in the root of the tree; what it prints is in the error.
func command(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = root
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return out, errors.New(strings.Join(cmd.Args, " ") + ": " + err.Error() + "\n" + string(out) + errOut.String())
	}
	return out, nil
}

// file is a text file of the tree.
type file struct {
	path string // from the root, with slashes
	text string
}

// textTypes are the endings of the files that people write here.
var textTypes = []string{".go", ".c", ".h", ".py", ".sh", ".md", ".txt", ".toml", ".yml", ".yaml"}

// files returns the text files of the tree, those without an ending too.
var files = sync.OnceValues(func() ([]file, error) {
	var all []file
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			// What git ignores: environments and caches, and what make builds.
			if rel != "." && strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" || rel == "bin" ||
				d.Name() == "__pycache__" || strings.HasSuffix(d.Name(), ".egg-info") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		plain := filepath.Ext(d.Name()) == "" || d.Name() == ".gitignore"
		if !d.Type().IsRegular() || !plain && !slices.Contains(textTypes, filepath.Ext(d.Name())) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil && !bytes.Contains(text, []byte{0}) {
			all = append(all, file{filepath.ToSlash(rel), string(text)})
		}
		return err
	})
	return all, err
})

// filesOf returns the files with one of the endings.
func filesOf(t *testing.T, endings ...string) []file {
	t.Helper()
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	var some []file
	for _, f := range all {
		if len(endings) == 0 || slices.Contains(endings, filepath.Ext(f.path)) {
			some = append(some, f)
		}
	}
	return some
}
