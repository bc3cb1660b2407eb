package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const runtimeModule = "sigs.k8s.io/controller-runtime"

// TestControllers_retryAtTheSharedPace: controller-runtime's own limiter waits up to 17 minutes, longer than a backup's
// phase may last. So each call chain that builds a controller must have WithOptions with the result of reconcile.Options,
// and nothing else may make a controller or its options. Examples for others are without Varve's packages.
func TestControllers_retryAtTheSharedPace(t *testing.T) {
	t.Parallel()
	// This one has nothing to retry: it reads a cache and writes nothing.
	exempt := []string{"changedblocktracking-selectors"}
	var found int
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, "_test.go") || f.pkg == "internal/reconcile" || strings.HasPrefix(f.pkg, "docs/examples/") || !importsRuntime(f.parsed) {
			continue
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, filepath.Join(root, f.path), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if is(n.Type, "controller", "Options") || is(n.Type, "controller", "TypedOptions") {
					t.Errorf("%s: a controller's options that are not of package reconcile", fset.Position(n.Pos()))
				}
			case *ast.CallExpr:
				for _, name := range []string{"New", "NewTyped", "NewUnmanaged", "NewTypedUnmanaged"} {
					if is(n.Fun, "controller", name) {
						t.Errorf("%s: a controller that no builder makes", fset.Position(n.Pos()))
					}
				}
				calls, built := chain(n)
				if !built || calls["Complete"] == nil && calls["Build"] == nil {
					return true
				}
				found++
				if name := calls["Named"]; name != nil && slices.Contains(exempt, text(name)) {
					return true
				}
				if options := calls["WithOptions"]; options == nil || !paced(options) {
					t.Errorf("%s: a controller without WithOptions(reconcile.Options(…))", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if found < 10 {
		t.Errorf("only %d controllers were found", found)
	}
}

func importsRuntime(f *ast.File) bool {
	return slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool { return strings.HasPrefix(s.Path.Value, `"`+runtimeModule) })
}

// is reports whether an expression is a name of a package.
func is(e ast.Expr, pkg, name string) bool {
	if s, ok := e.(*ast.SelectorExpr); ok {
		x, ok := s.X.(*ast.Ident)
		return ok && x.Name == pkg && s.Sel.Name == name
	}
	return false
}

// chain maps the methods in a chain of calls to the calls. built means that the chain begins with
// ctrl.NewControllerManagedBy.
func chain(last *ast.CallExpr) (calls map[string]*ast.CallExpr, built bool) {
	calls = map[string]*ast.CallExpr{}
	for call := last; ; {
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return calls, false
		}
		calls[s.Sel.Name] = call
		if s.Sel.Name == "NewControllerManagedBy" || s.Sel.Name == "ControllerManagedBy" {
			return calls, true
		}
		if call, ok = s.X.(*ast.CallExpr); !ok {
			return calls, false
		}
	}
}

// text returns the first argument of a call if it is a constant, else "".
func text(call *ast.CallExpr) string {
	if len(call.Args) == 1 {
		if literal, ok := call.Args[0].(*ast.BasicLit); ok {
			s, _ := strconv.Unquote(literal.Value)
			return s
		}
	}
	return ""
}

// paced reports whether reconcile.Options is called somewhere in the arguments of a call.
func paced(call *ast.CallExpr) bool {
	var found bool
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			inner, ok := n.(*ast.CallExpr)
			found = found || ok && is(inner.Fun, "reconcile", "Options")
			return !found
		})
	}
	return found
}
