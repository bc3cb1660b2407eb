package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// sleeps is how many calls of time.Sleep there are in tests that have no clock of synctest. It only falls: a test waits for
// an event that the product names, because on a busy machine no time is long enough.
const sleeps = 76

func TestTests_doNotSleep(t *testing.T) {
	t.Parallel()
	found := map[string]int{}
	count := 0
	for _, f := range files(t) {
		if !strings.HasSuffix(f.path, "_test.go") || importsPath(f.parsed, "testing/synctest") {
			continue
		}
		whole, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, f.path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(whole, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && isSleep(call.Fun) {
				found[f.path]++
				count++
			}
			return true
		})
	}
	switch {
	case count > sleeps:
		t.Errorf("%d calls of time.Sleep in tests, %d are allowed: wait for an event (test/wait), or use testing/synctest; they are in %v", count, sleeps, found)
	case count < sleeps:
		t.Errorf("%d calls of time.Sleep are left in tests: lower the number in this file from %d", count, sleeps)
	}
}

func isSleep(function ast.Expr) bool {
	selector, ok := function.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != "Sleep" {
		return false
	}
	pkg, ok := selector.X.(*ast.Ident)
	return ok && pkg.Name == "time"
}

func importsPath(f *ast.File, path string) bool {
	for _, spec := range f.Imports {
		if strings.Trim(spec.Path.Value, `"`) == path {
			return true
		}
	}
	return false
}
