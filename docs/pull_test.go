package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// readPullGuide returns pull.md from a heading to the next one of its level.
func readPullGuide(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile("pull.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("pull.md has no heading %q", heading)
	}
	section, _, _ := strings.Cut(after, "\n## ")
	return section
}

// TestPullGuide_namesEventsThatExist looks for the events of pull.md among the strings of the components.
func TestPullGuide_namesEventsThatExist(t *testing.T) {
	t.Parallel()
	told := map[string]bool{}
	for _, dir := range []string{"../internal/controller", "../internal/handler", "../api"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if value, err := strconv.Unquote(literal.Value); err == nil {
						told[value] = true
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var events [][]string
	for line := range strings.Lines(readPullGuide(t, "Events and metrics")) {
		if row, ok := strings.CutPrefix(line, "| "); ok {
			names, _, _ := strings.Cut(row, " | ")
			events = append(events, regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(names, -1)...)
		}
	}
	for _, m := range events {
		if !told[m[1]] {
			t.Errorf("nobody tells of %s", m[1])
		}
	}
	if len(events) < 11 {
		t.Errorf("only %d events", len(events))
	}
}

// TestPullGuide_dialectsNameFieldsThatExist looks for the fields that pull.md names in the types, and for its conditions and
// reasons in the API's table.
func TestPullGuide_dialectsNameFieldsThatExist(t *testing.T) {
	t.Parallel()
	fields := map[string]bool{}
	collectFields(reflect.TypeFor[backupv1.VirtualMachineBackup](), fields, 0)
	collectFields(reflect.TypeFor[backupv1.VirtualMachineBackupTracker](), fields, 0)
	text, err := os.ReadFile("pull.md")
	if err != nil {
		t.Fatal(err)
	}
	paths := regexp.MustCompile("`(?:status|spec|includedVolumes|latestCheckpoint)(?:\\[\\])?\\.([\\w.\\[\\]]+)`").FindAllStringSubmatch(string(text), -1)
	for _, m := range paths {
		for _, field := range strings.Split(strings.ReplaceAll(m[1], "[]", ""), ".") {
			if !fields[field] {
				t.Errorf("%s: no field %s", m[0], field)
			}
		}
	}
	if len(paths) < 15 {
		t.Errorf("only %d fields are named", len(paths))
	}
	api, err := os.ReadFile("api.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?:ondition|failure,|\\()\\s?`([A-Z]\\w+)`").FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(string(api), "| `"+m[1]+"` |") {
			t.Errorf("api.md has no %s", m[1])
		}
	}
}

// collectFields collects the names that fields have in JSON.
func collectFields(typ reflect.Type, names map[string]bool, depth int) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || depth > 6 {
		return
	}
	for field := range typ.Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names[name] = true
		}
		collectFields(field.Type, names, depth+1)
	}
}
