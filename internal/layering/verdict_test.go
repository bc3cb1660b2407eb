package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// comparing are the build tags of the tests that must mark wrong data, in lines that begin a file.
var comparing = regexp.MustCompile(`(?m)^//go:build .*\b(beside|box|e2e|soak|peers|root|nbd_interop|spdk_target|libvirt_dlopen)\b`)

// TestWrongData_isMarked: a failure that means wrong data is never run again, so it goes through package verdict, or has its
// mark in another module. This finds the comparisons that fail unless bytes.Equal, or a SHA-256 that is computed in place.
func TestWrongData_isMarked(t *testing.T) {
	t.Parallel()
	found := 0
	for _, f := range files(t) {
		if !strings.HasSuffix(f.path, "_test.go") || !slices.ContainsFunc(f.parsed.Comments, func(c *ast.CommentGroup) bool {
			return slices.ContainsFunc(c.List, func(line *ast.Comment) bool { return comparing.MatchString(line.Text) })
		}) {
			continue
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, filepath.Join(root, f.path), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		comparisons, unmarked := unmarkedFailures(parsed)
		found += comparisons
		for _, at := range unmarked {
			t.Errorf("%s: wrong data without the mark of test/verdict", fset.Position(at))
		}
	}
	if found < 20 {
		t.Errorf("only %d comparisons were found", found)
	}
}

// unmarkedFailures returns how many branches of a file are taken if contents differ, and where they fail without a mark.
func unmarkedFailures(f *ast.File) (comparisons int, unmarked []token.Pos) {
	ast.Inspect(f, func(n ast.Node) bool {
		var conditions []ast.Expr
		var body []ast.Stmt
		switch n := n.(type) {
		case *ast.IfStmt:
			conditions, body = []ast.Expr{n.Cond}, n.Body.List
		case *ast.CaseClause:
			conditions, body = n.List, n.Body
		}
		if !slices.ContainsFunc(conditions, differs) {
			return true
		}
		comparisons++
		for _, s := range body {
			if at := failsWithout(s); at.IsValid() {
				unmarked = append(unmarked, at)
			}
		}
		return true
	})
	return comparisons, unmarked
}

// differs tells whether a condition holds if contents differ.
func differs(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return differs(e.X)
	case *ast.UnaryExpr:
		call, ok := e.X.(*ast.CallExpr)
		return ok && e.Op == token.NOT && is(call.Fun, "bytes", "Equal")
	case *ast.BinaryExpr:
		return e.Op == token.NEQ && (isSum(e.X) || isSum(e.Y)) || (e.Op == token.LOR || e.Op == token.LAND) && (differs(e.X) || differs(e.Y))
	}
	return false
}

func isSum(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && is(call.Fun, "sha256", "Sum256")
}

// failsWithout returns where a statement fails a test, or makes an error, without a mark.
func failsWithout(s ast.Stmt) (at token.Pos) {
	ast.Inspect(s, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt, *ast.SwitchStmt, *ast.FuncLit:
			return false // what is in there has another reason
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || is(called, "verdict", called.Sel.Name) {
				return true
			}
			if slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf", "New"}, called.Sel.Name) && !mentionsMark(n.Args) {
				at = n.Pos()
			}
		}
		return true
	})
	return at
}

func mentionsMark(args []ast.Expr) (found bool) {
	for _, a := range args {
		ast.Inspect(a, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			found = found || ok && (name.Name == "verdict" || name.Name == "wrongData")
			return true
		})
	}
	return found
}

func TestUnmarkedFailures(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`if !bytes.Equal(a, b) { t.Error("x") }`:                               1,
		`if err != nil || !bytes.Equal(a, b) && c { s.t.Fatalf("x %v", err) }`: 1,
		`if sha256.Sum256(a) != sha256.Sum256(b) { return errors.New("x") }`:   1,
		`switch { case !bytes.Equal(a, b): return fmt.Errorf("x") }`:           1,
		`if !bytes.Equal(a, b) { verdict.Errorf(t, "x") }`:                     0,
		`if !bytes.Equal(a, b) { ts.Fatalf(verdict.Mark+"x") }`:                0,
		`if !bytes.Equal(a, b) { t.Error(wrongData + "x") }`:                   0,
		`if bytes.Equal(a, b) { t.Error("x") }`:                                0,
		`if !bytes.Equal(a, b) { wrong = true }`:                               0,
		`if a != b { t.Error("x") }`:                                           0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc f() error {\n"+text+"\n}", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := unmarkedFailures(f); len(got) != want {
			t.Errorf("%s: %d, want %d", text, len(got), want)
		}
	}
}
