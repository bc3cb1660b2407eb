package layering

import (
	"flag"
	"fmt"
	"go/doc"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/varvebackup/varve/test/verdict"
)

var update = flag.Bool("update", false, "write the packages into docs/architecture.md")

const (
	architecture = root + "/docs/architecture.md"
	beginMark    = "<!-- packages: written by `make generate` from the packages' comments -->\n"
	endMark      = "<!-- end of packages -->\n"
)

// TestArchitecture_listsEveryPackage compares the list of packages in docs/architecture.md with the packages.
func TestArchitecture_listsEveryPackage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), beginMark)
	listed, after, ended := strings.Cut(rest, endMark)
	if !found || !ended {
		t.Fatalf("%s lacks the lines %q and %q", architecture, beginMark, endMark)
	}
	want := picture(t)
	t.Log("\n" + want)
	switch {
	case listed == want:
	case *update:
		if err := os.WriteFile(architecture, []byte(before+beginMark+want+endMark+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error(verdict.GoldenMark + "docs/architecture.md lists other packages than there are: run make generate")
	}
}

// pkg is what the picture says about a package.
type pkg struct {
	synopsis string
	imports  map[string]bool
}

// picture lists the packages of the product, from the highest layer to the lowest.
func picture(t *testing.T) string {
	t.Helper()
	all := productPackages(t)
	var b strings.Builder
	for i := len(layers) - 1; i >= 0; i-- {
		var names []string
		for name := range all {
			if layer, _ := place(name); layer == i {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "\n| layer %d | what it is | imports |\n|---|---|---|\n", i+1)
		for _, name := range names {
			imports := slices.Sorted(maps.Keys(all[name].imports))
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, all[name].synopsis, strings.Join(imports, ", "))
		}
	}
	return b.String() + "\n"
}

func productPackages(t *testing.T) map[string]*pkg {
	t.Helper()
	all := map[string]*pkg{}
	for _, f := range files(t) {
		top, _, _ := strings.Cut(f.pkg, "/")
		if strings.HasSuffix(f.path, "_test.go") || top != "api" && top != "cmd" && top != "internal" {
			continue
		}
		p := all[f.pkg]
		if p == nil {
			p = &pkg{imports: map[string]bool{}}
			all[f.pkg] = p
		}
		if f.parsed.Doc != nil && !generated(f.parsed) {
			p.synopsis = synopsis(f.parsed.Doc.Text())
		}
		for _, spec := range f.parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if ours, ok := strings.CutPrefix(path, module); ok {
				all[f.pkg].imports[shortName(f.pkg, ours)] = true
			}
		}
	}
	return all
}

// synopsis returns the first sentence of a package comment without "Package name".
func synopsis(comment string) string {
	s := new(doc.Package).Synopsis(comment)
	for _, prefix := range []string{"Package ", "Command "} {
		if rest, ok := strings.CutPrefix(s, prefix); ok {
			_, s, _ = strings.Cut(rest, " ")
		}
	}
	return strings.ReplaceAll(s, "|", `\|`)
}

// shortName returns the path of an imported package as the list shows it: without "internal/", and without what it has in
// common with the importer.
func shortName(importer, imported string) string {
	if below, ok := strings.CutPrefix(imported, importer+"/"); ok {
		return "./" + below
	}
	return strings.TrimPrefix(imported, "internal/")
}
