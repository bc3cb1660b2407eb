// Package layering enforces the order of docs/architecture.md: imports only go downwards, and a component never imports
// another one. It also checks that every package has exactly one package comment.
package layering

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

const (
	root   = "../.."
	module = "github.com/varvebackup/varve/"
)

// layers are listed from the lowest to the highest. A package belongs to the longest entry that is a prefix of its
// path. It may import what is in a lower layer, and packages of its own entry. A package that belongs to no entry fails
// the test: give it a place here and in docs/architecture.md.
var layers = [][]string{
	{
		"api/backup", "api/export", "api/harvester", "api/kubevirt", "api/longhorn", "api/snapshot", "api/varve", "api/velero",
		"internal/durable", "internal/errclass", "internal/guard", "internal/version",
	},
	{
		"internal/condition", "internal/cron", "internal/definition", "internal/diagnosis", "internal/extent",
		"internal/layout",
		"internal/launcher/launcherpb", "internal/manifest", "internal/metricsaccess", "internal/nodeselector",
		"internal/privatesocket",
		"internal/qmp", "internal/reconcile", "internal/reporter", "internal/repository/storage",
		"internal/retention", "internal/sparse", "internal/subresource", "internal/templatediff", "internal/tracking",
	},
	{"internal/backupstate", "internal/datamove", "internal/instancepod", "internal/nbd", "internal/podtool", "internal/repository/table", "internal/runepoch", "internal/schedule", "internal/stateclaim", "internal/store/disk", "internal/store/handover", "internal/store/loop", "internal/store/upload"},
	{"internal/admission", "internal/disk", "internal/domain", "internal/export", "internal/location", "internal/repository/engine", "internal/repository/files", "internal/store/diskguard", "internal/store/diskset", "internal/store/download", "internal/store/names", "internal/store/reflink", "internal/store/spdk"},
	{"internal/repository/image", "internal/repository/verify"},
	{"internal/repository/maintain"},
	{"internal/repository"},
	{"internal/collection", "internal/csichanges", "internal/mover", "internal/repositoryaccess"},
	{"internal/controller/child", "internal/controller/metric"},
	// The wings of the controllers: none of the first three needs another one, and keep stands on them.
	{"internal/controller/backup", "internal/controller/datamove", "internal/controller/machine", "internal/controller/store"},
	{"internal/controller/keep"},
	{"internal/cli", "internal/controller", "internal/handler", "internal/launcher", "internal/moverpod", "internal/store"},
	{"cmd/varve", "cmd/varve-launcher"},
	{"test"},
	{"bench", "demo", "deploy", "docs", "internal/layering"},
}

// place returns a package's layer and its entry.
func place(pkg string) (layer int, entry string) {
	layer = -1
	for i, entries := range layers {
		for _, e := range entries {
			if (pkg == e || strings.HasPrefix(pkg, e+"/")) && len(e) > len(entry) {
				layer, entry = i, e
			}
		}
	}
	return layer, entry
}

// file is a parsed Go file, with its own path and its package's.
type file struct {
	path, pkg string
	parsed    *ast.File
}

// files returns the Go files of this repository, including those of other modules (box, images).
func files(t *testing.T) []file {
	t.Helper()
	var all []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if relative == "build" || d.Name() == "testdata" || (strings.HasPrefix(d.Name(), ".") && relative != ".") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.ImportsOnly)
		if err != nil {
			return err
		}
		all = append(all, file{path: relative, pkg: filepath.ToSlash(filepath.Dir(relative)), parsed: parsed})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d files", len(all))
	}
	return all
}

func TestImportsRunDownwards(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		if strings.HasPrefix(f.pkg, "box/") || strings.HasPrefix(f.pkg, "images/") {
			continue // other modules, which cannot import this one's packages
		}
		layer, entry := place(f.pkg)
		if layer < 0 {
			t.Errorf("%s: package %s has no layer", f.path, f.pkg)
			continue
		}
		for _, spec := range f.parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			imported, ours := strings.CutPrefix(path, module)
			if !ours {
				continue
			}
			below, other := place(imported)
			switch {
			case strings.HasSuffix(f.path, "_test.go") && strings.HasPrefix(imported, "test/"):
				// Test harnesses are above everything that they test.
			case below < 0:
				t.Errorf("%s imports %s, which has no layer", f.path, imported)
			case other != entry && below >= layer:
				t.Errorf("%s imports %s: that is upwards or sideways (%s is in layer %d, %s in layer %d)", f.path, imported, entry, layer, other, below)
			}
		}
	}
}

// What a user downloads must not include the node's data path, and the data path must not include the API's clients.
func TestForbiddenImports(t *testing.T) {
	t.Parallel()
	forbidden := map[string][]string{
		"api/":                         {"sigs.k8s.io/controller-runtime", "k8s.io/client-go"},
		"internal/domain":              {"sigs.k8s.io/controller-runtime", "k8s.io/client-go"},
		"internal/launcher/launcherpb": {"k8s.io/"},
		"internal/cli":                 {"libvirt.org/"},
		"internal/mover":               {"libvirt.org/", "github.com/spf13/", "sigs.k8s.io/controller-runtime", "k8s.io/client-go"},
		"internal/controller":          {"libvirt.org/", module + "internal/launcher"},
		"internal/handler":             {"libvirt.org/"},
		"docs/examples":                {module},
	}
	for _, f := range files(t) {
		for prefix, paths := range forbidden {
			if !strings.HasPrefix(f.pkg+"/", strings.TrimSuffix(prefix, "/")+"/") || strings.HasSuffix(f.path, "_test.go") {
				continue
			}
			for _, spec := range f.parsed.Imports {
				if i := slices.IndexFunc(paths, func(p string) bool { return strings.HasPrefix(strings.Trim(spec.Path.Value, `"`), p) }); i >= 0 {
					t.Errorf("%s imports %s", f.path, spec.Path.Value)
				}
			}
		}
	}
}

// A package without a description, or with two different ones, has no contract.
func TestEveryPackageHasOneComment(t *testing.T) {
	t.Parallel()
	type comments struct{ product, tests, files []string }
	packages := map[string]*comments{}
	for _, f := range files(t) {
		c := packages[f.pkg]
		if c == nil {
			c = &comments{}
			packages[f.pkg] = c
		}
		test := strings.HasSuffix(f.path, "_test.go")
		if !test {
			c.files = append(c.files, f.path)
		}
		if f.parsed.Doc == nil || generated(f.parsed) {
			continue
		}
		if test {
			c.tests = append(c.tests, f.path)
		} else {
			c.product = append(c.product, f.path)
		}
	}
	for pkg, c := range packages {
		said := c.product
		if len(c.files) == 0 {
			said = c.tests
		}
		onlyGenerated := len(c.files) > 0 && !slices.ContainsFunc(c.files, func(p string) bool { return !strings.HasSuffix(p, ".pb.go") })
		if len(said) != 1 && !onlyGenerated {
			t.Errorf("package %s has %d package comments %v, want 1", pkg, len(said), said)
		}
	}
}

func generated(f *ast.File) bool { return ast.IsGenerated(f) }
