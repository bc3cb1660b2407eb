package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// named matches a test, a benchmark or a fuzz test in a text, with the end of its package's path if that is before it,
// and with an asterisk if more may follow: `controller/backup/kubevirtbackup.TestDecide`, `TestClones_*`.
var named = regexp.MustCompile(`(?:\b([\w/-]+)\.)?\b((?:Test|Benchmark|Fuzz)[A-Z]\w*)(\*?)`)

// TestNamedTests_exist keeps documents from pointing at tests that were renamed, moved or removed.
func TestNamedTests_exist(t *testing.T) {
	t.Parallel()
	packages := testFunctions(t, "..")
	documents, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	designs, err := filepath.Glob("design/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, document := range append(documents, designs...) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			seen++
			if !isTest(packages, m[1], m[2], m[3] != "") {
				t.Errorf("%s names %s, which is not there", document, m[0])
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d tests are named", seen)
	}
}

// isTest reports whether a package whose path ends with pkg has a function of that name, or one that begins with it.
func isTest(packages map[string][]string, pkg, name string, prefix bool) bool {
	for dir, functions := range packages {
		if pkg != "" && !strings.HasSuffix("/"+dir, "/"+pkg) {
			continue
		}
		if slices.ContainsFunc(functions, func(f string) bool { return f == name || prefix && strings.HasPrefix(f, name) }) {
			return true
		}
	}
	return false
}

// testFunctions returns the names of all functions in test files below root, by directory. Files of other modules, and
// those behind build tags, count.
func testFunctions(t *testing.T, root string) map[string][]string {
	t.Helper()
	packages := map[string][]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "build" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && name != "." {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				packages[path.Dir(name)] = append(packages[path.Dir(name)], f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 50 {
		t.Fatalf("only %d packages with tests: %v", len(packages), slices.Sorted(maps.Keys(packages)))
	}
	return packages
}
