package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/test/verdict"
)

const exampleMover = "examples/data-mover"

// embedded is a part of data-movers.md that is a method of the example.
var embedded = regexp.MustCompile(`(?s)<!-- begin example (\w+)\.(\w+) -->\n.*?<!-- end -->`)

// TestDataMovers_showsTheExampleAsItIs keeps the code in data-movers.md equal to that of the example, which a test runs.
func TestDataMovers_showsTheExampleAsItIs(t *testing.T) {
	t.Parallel()
	have, err := os.ReadFile("data-movers.md")
	if err != nil {
		t.Fatal(err)
	}
	methods := exampleMethods(t)
	shown := 0
	want := embedded.ReplaceAllStringFunc(string(have), func(old string) string {
		shown++
		m := embedded.FindStringSubmatch(old)
		code, ok := methods[m[1]+"."+m[2]]
		if !ok {
			t.Errorf("the example has no %s of %s", m[2], m[1])
		}
		return fmt.Sprintf("<!-- begin example %s.%s -->\n```go\n%s\n```\n<!-- end -->", m[1], m[2], code)
	})
	if shown < 2 {
		t.Errorf("%d parts of the example are shown", shown)
	}
	if *update {
		if err := os.WriteFile("data-movers.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf(verdict.GoldenMark+"docs/data-movers.md is out of date, run make generate: %s", diff)
	}
}

// TestDataMovers_exampleIsSmall holds what data-movers.md says of its length, comments and imports not counted.
func TestDataMovers_exampleIsSmall(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(exampleMover, "mover.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(text), "\n)\n")
	lines := 0
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			lines++
		}
	}
	if lines < 50 || lines > 130 {
		t.Errorf("mover.go has %d lines of code", lines)
	}
}

// exampleMethods returns the text of the example's methods by "type.method".
func exampleMethods(t *testing.T) map[string]string {
	t.Helper()
	methods := map[string]string{}
	path := filepath.Join(exampleMover, "mover.go")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv == nil {
			continue
		}
		receiver := f.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name
		methods[receiver+"."+f.Name.Name] = string(text[fset.Position(f.Pos()).Offset:fset.Position(f.End()).Offset])
	}
	return methods
}
