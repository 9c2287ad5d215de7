package lockrank

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// exempt are the packages whose locks have no rank: they check the others, or
// are programs for tests and measurements.
var exempt = []string{"internal/lockrank", "internal/lint", "integration", "bench"}

// The types that make a struct one with a lock: those without a rank, and those with one.
var (
	bareTypes   = []string{"sync.Mutex", "sync.RWMutex"}
	rankedTypes = []string{"lockrank.Mutex", "lockrank.RWMutex"}
)

// source is what the tree says of its locks.
type source struct {
	files *token.FileSet
	locks map[Rank]token.Pos // structs and variables that contain a lock
	bare  map[Rank]token.Pos // those whose lock has no rank
	inits map[Rank]token.Pos // what Init is given
}

// TestOrderIsThatOfTheSource keeps the text and the tree equal.
func TestOrderIsThatOfTheSource(t *testing.T) {
	o, err := parse(orderText)
	if err != nil {
		t.Fatal(err)
	}
	s := source{token.NewFileSet(), map[Rank]token.Pos{}, map[Rank]token.Pos{}, map[Rank]token.Pos{}}
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && rel != "." || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			for _, e := range exempt {
				if rel == filepath.FromSlash(e) {
					return filepath.SkipDir
				}
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		return s.read(path)
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, pos := range s.locks {
		if _, ok := o[name]; !ok {
			t.Errorf("%s: %s contains a lock and has no line in order.txt", s.files.Position(pos), name)
		}
	}
	for name, pos := range s.bare {
		t.Errorf("%s: the lock of %s is one of package sync, whose order nothing checks", s.files.Position(pos), name)
	}
	for name, pos := range s.locks {
		if _, ok := s.inits[name]; !ok {
			t.Errorf("%s: no Init(%q) in its package", s.files.Position(pos), name)
		}
	}
	for name := range o {
		if _, ok := s.locks[name]; !ok {
			t.Errorf("order.txt: no struct %s contains a lock", name)
		}
	}
	for name, pos := range s.inits {
		if _, ok := o[name]; !ok {
			t.Errorf("%s: Init(%q): no such line in order.txt", s.files.Position(pos), name)
		}
	}
}

func (s *source) read(path string) error {
	f, err := parser.ParseFile(s.files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	pkg := f.Name.Name
	if pkg == "main" {
		pkg = filepath.Base(filepath.Dir(path))
	}
	note := func(name *ast.Ident, typ ast.Expr) {
		full := Rank(pkg + "." + name.Name)
		if typ != nil && contains(typ, bareTypes) {
			s.bare[full] = name.Pos()
			s.locks[full] = name.Pos()
		}
		if typ != nil && contains(typ, rankedTypes) {
			s.locks[full] = name.Pos()
		}
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				note(spec.Name, spec.Type)
			case *ast.ValueSpec:
				note(spec.Names[0], spec.Type)
			}
		}
	}
	if imports(f, "github.com/dsmfs/dsmfs/internal/lockrank") {
		ast.Inspect(f, func(n ast.Node) bool { return s.init(pkg, n) })
	}
	return nil
}

// init notes a call x.Init("name") of the package.
func (s *source) init(pkg string, n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return true
	}
	fun, ok := call.Fun.(*ast.SelectorExpr)
	arg, literal := call.Args[0].(*ast.BasicLit)
	if ok && literal && fun.Sel.Name == "Init" && arg.Kind == token.STRING {
		if name, err := strconv.Unquote(arg.Value); err == nil && strings.HasPrefix(name, pkg+".") {
			s.inits[Rank(name)] = arg.Pos()
		}
	}
	return true
}

func imports(f *ast.File, path string) bool {
	for _, i := range f.Imports {
		if p, _ := strconv.Unquote(i.Path.Value); p == path {
			return true
		}
	}
	return false
}

// contains reports whether a type written in place contains one of the types: itself,
// or a field of it, or of a struct within it.
func contains(typ ast.Expr, types []string) bool {
	found := false
	ast.Inspect(typ, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncType, *ast.InterfaceType, *ast.MapType, *ast.ArrayType, *ast.ChanType, *ast.StarExpr:
			return false
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(types, x.Name+"."+n.Sel.Name) {
				found = true
			}
		}
		return !found
	})
	return found
}
