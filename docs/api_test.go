// Package docs_test keeps docs/api.md complete: its tables come from the schemas and from the constants' comments, and its
// examples are decoded strictly. `go test ./docs -update`, which make generate calls, writes the tables.
package docs_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/verdict"
)

var update = flag.Bool("update", false, "write the tables of api.md, schedules.md and metrics.md")

// block is a generated part: what, of what, and the text in between.
var block = regexp.MustCompile(`(?s)<!-- begin (\w+)(?: (\w+))? -->\n.*?<!-- end -->`)

func TestAPIReference(t *testing.T) {
	t.Parallel()
	for _, document := range []string{"api.md", "schedules.md"} {
		compareGenerated(t, document)
	}
}

// compareGenerated compares the generated parts of a document with what they would be now, or writes them.
func compareGenerated(t *testing.T, document string) {
	t.Helper()
	have, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want := block.ReplaceAllStringFunc(string(have), func(old string) string {
		m := block.FindStringSubmatch(old)
		name := strings.TrimSpace(m[1] + " " + m[2])
		return fmt.Sprintf("<!-- begin %s -->\n%s<!-- end -->", name, generate(t, m[1], m[2]))
	})
	if *update {
		if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf(verdict.GoldenMark+"docs/%s is out of date, run make generate: %s", document, diff)
	}
}

func generate(t *testing.T, what, of string) string {
	t.Helper()
	switch what {
	case "fields":
		return fields(t, of)
	case "values":
		return values(t, of)
	case "manifest":
		text, err := os.ReadFile("../internal/manifest/testdata/v1.json")
		if err != nil {
			t.Fatal(err)
		}
		return "```json\n" + string(text) + "```\n"
	default:
		t.Fatalf("unknown block %q", what)
		return ""
	}
}

// foreign are fields of types that Kubernetes documents, or that stand elsewhere on the page: the ends of their paths,
// which begin with the kind's plural.
var foreign = map[string]string{
	"tolerations":                        "Kubernetes' tolerations",
	"namespaceLabelSelector":             "a Kubernetes label selector",
	"virtualMachineLabelSelector":        "a Kubernetes label selector",
	"virtualmachines.spec.template.spec": "as spec of VirtualMachineInstance",
	"backuppolicies.status.conditions":   "conditions as Kubernetes has them",
	"template.metadata":                  "",
	"source.spec":                        "as spec of VirtualMachine",
	"spec.selector":                      "a Kubernetes label selector",
	"persistentVolumeClaim.spec":         "as spec of a PersistentVolumeClaim",
	"persistentVolumeClaimSpec.spec":     "as spec of a PersistentVolumeClaim",
}

// fields is the table of a kind's spec and status, from its CRD.
func fields(t *testing.T, plural string) string {
	t.Helper()
	// Two groups have a kind VirtualMachineBackup.
	pattern := "../deploy/crd/*[top].io_" + plural + ".yaml" // kubevirt.io, velero.io and varvebackup.io
	if rest, ok := strings.CutPrefix(plural, "harvester_"); ok {
		pattern = "../deploy/crd/harvesterhci.io_" + rest + ".yaml"
	}
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) != 1 {
		t.Fatalf("CRD of %s: %v %v", plural, paths, err)
	}
	text, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	var b strings.Builder
	b.WriteString("| field | type | what |\n|---|---|---|\n")
	for _, part := range []string{"spec", "status"} {
		if s, ok := schema.Properties[part]; ok {
			rows(t, &b, plural, part, s)
		}
	}
	return b.String()
}

func rows(t *testing.T, b *strings.Builder, plural, path string, s apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := s.Properties[name]
		kind, inner := p.Type, p
		at := path + "." + name
		if p.XIntOrString {
			kind = "quantity"
		}
		if p.Type == "array" {
			inner = *p.Items.Schema
			at, kind = at+"[]", inner.Type+" list"
		}
		what := strings.Join(strings.Fields(p.Description), " ")
		if what == "" {
			t.Errorf("%s: a field without a comment", at)
		}
		note, stop := elsewhere(plural+"."+path, name)
		if note != "" {
			what += " (" + note + ")"
		}
		if p.Default != nil {
			what += " Default: `" + string(p.Default.Raw) + "`."
		}
		if slices.Contains(s.Required, name) {
			kind += ", required"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", at, kind, strings.ReplaceAll(what, "|", `\|`))
		if !stop {
			rows(t, b, plural, at, inner)
		}
	}
}

func elsewhere(path, name string) (note string, stop bool) {
	for key, note := range foreign {
		if key == name || strings.HasSuffix("."+path+"."+name, "."+key) {
			return note, true
		}
	}
	return "", false
}

// sources are where the constants of each table are: the type's constants, or those whose name begins with the prefix.
var sources = map[string]struct{ dir, typ, prefix string }{
	"ChangedBlockTrackingState": {"../api/kubevirt/v1", "ChangedBlockTrackingState", ""},
	"Phase":                     {"../api/kubevirt/v1", "Phase", ""},
	"ConditionType":             {"../api/kubevirt/v1", "ConditionType", ""},
	"VolumePhase":               {"../api/kubevirt/v1", "VolumePhase", ""},
	"MigrationPhase":            {"../api/kubevirt/v1", "MigrationPhase", ""},
	"MigrationCondition":        {"../api/kubevirt/v1", "MigrationConditionType", ""},
	"BackupPhase":               {"../api/backup/v1alpha1", "BackupPhase", ""},
	"FullReason":                {"../api/backup/v1alpha1", "FullReason", ""},
	"ExclusionReason":           {"../api/backup/v1alpha1", "ExclusionReason", ""},
	"MachineExclusion":          {"../api/harvester/v1beta1", "ExclusionReason", ""},
	"MachineCondition":          {"../api/harvester/v1beta1", "ConditionType", ""},
	"Condition":                 {"../api/backup/v1alpha1", "", "Condition"},
	"ExportPhase":               {"../api/export/v1beta1", "VirtualMachineExportPhase", ""},
	"ExportReason":              {"../api/export/v1beta1", "", "Reason"},
	"MovementPhase":             {"../api/velero/v2alpha1", "Phase", ""},
	"RepositoryPhase":           {"../api/velero/v1", "BackupRepositoryPhase", ""},
	"DeletionPhase":             {"../api/velero/v1", "DeleteBackupRequestPhase", ""},
	"Reason":                    {"../api/backup/v1alpha1", "", "Reason"},
}

// values is the table of a set of constants with their comments. Manifest is the fields of the manifest's types instead.
func values(t *testing.T, name string) string {
	t.Helper()
	if name == "Manifest" {
		return manifestFields(t)
	}
	source, ok := sources[name]
	if !ok {
		t.Fatalf("unknown values %q", name)
	}
	var b strings.Builder
	b.WriteString("| value | what |\n|---|---|\n")
	count := 0
	each(t, source.dir, func(spec *ast.ValueSpec) {
		constant := spec.Names[0].Name
		typ, _ := spec.Type.(*ast.Ident)
		if (source.prefix != "" && (spec.Type != nil || !strings.HasPrefix(constant, source.prefix))) || (source.typ != "" && (typ == nil || typ.Name != source.typ)) {
			return
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Doc.Text() == "" {
			t.Errorf("%s: a constant without a comment", constant)
		}
		count++
		fmt.Fprintf(&b, "| `%s` | %s |\n", value, comment(constant, spec.Doc.Text()))
	})
	if count < 3 {
		t.Errorf("only %d constants of %s", count, name)
	}
	return b.String()
}

// comment is a doc comment without the name that it begins with, as a sentence.
func comment(name, doc string) string {
	text := strings.Join(strings.Fields(doc), " ")
	text = strings.TrimLeft(strings.TrimPrefix(text, name), ": ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + strings.ReplaceAll(text[1:], "|", `\|`)
}

// each calls f with every constant of a package that has a value, in the order of files and lines.
func each(t *testing.T, dir string, f func(*ast.ValueSpec)) {
	t.Helper()
	for _, file := range parse(t, dir) {
		for _, decl := range file.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				if v.Doc == nil && !g.Lparen.IsValid() {
					v.Doc = g.Doc
				}
				if len(v.Values) == 1 {
					f(v)
				}
			}
		}
	}
}

func parse(t *testing.T, dir string) []*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// manifestFields is the table of every field of backup.json.
func manifestFields(t *testing.T) string {
	t.Helper()
	structs := map[string]*ast.StructType{}
	for _, file := range parse(t, "../internal/manifest") {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					structs[spec.Name.Name] = s
				}
			}
			return true
		})
	}
	var b strings.Builder
	b.WriteString("| field | what |\n|---|---|\n")
	var walk func(path, typ string)
	walk = func(path, typ string) {
		inherited := ""
		for _, f := range structs[typ].Fields.List {
			tag := regexp.MustCompile(`json:"(\w+)`).FindStringSubmatch(f.Tag.Value)
			if f.Doc.Text() != "" {
				inherited = comment(f.Names[0].Name, f.Doc.Text())
			}
			inner, list := f.Type, ""
			if array, ok := inner.(*ast.ArrayType); ok {
				inner, list = array.Elt, "[]"
			}
			if star, ok := inner.(*ast.StarExpr); ok {
				inner = star.X
			}
			fmt.Fprintf(&b, "| `%s%s%s` | %s |\n", path, tag[1], list, inherited)
			if ident, ok := inner.(*ast.Ident); ok && structs[ident.Name] != nil {
				walk(path+tag[1]+list+".", ident.Name)
			}
		}
	}
	walk("", "Manifest")
	return b.String()
}

// TestExamplesAreValid decodes every example in api.md, pull.md and schedules.md: an unknown field in one would be
// refused by a cluster.
func TestExamplesAreValid(t *testing.T) {
	t.Parallel()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubevirtv1.AddToScheme, backupv1.AddToScheme, exportv1.AddToScheme, vmsnapshotv1.AddToScheme,
		harvesterv1.AddToScheme, varvev1.AddToScheme, velerov1.AddToScheme, velerov2.AddToScheme, corev1.AddToScheme,
	} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	strict := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
	seen := map[string]bool{}
	for _, document := range []string{"api.md", "pull.md", "schedules.md"} {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			for object := range strings.SplitSeq(m[1], "---\n") {
				_, gvk, err := strict.Decode([]byte(object), nil, nil)
				if err != nil {
					t.Errorf("%v in:\n%s", err, object)
					continue
				}
				seen[gvk.Kind] = true
			}
		}
	}
	for _, kind := range []string{
		"KubeVirt", "VirtualMachine", "VirtualMachineInstance", "VirtualMachineBackup",
		"VirtualMachineBackupTracker", "VirtualMachineExport", "DataUpload", "DataDownload", "BackupStorageLocation",
		"ScheduleVMBackup", "BackupPolicy",
	} {
		if !seen[kind] {
			t.Errorf("no example of %s", kind)
		}
	}
}

// TestFields_listTheirValues makes sure that `kubectl explain` lists the values of a field that has a set of them: in the
// schema's enum, or in the comment.
func TestFields_listTheirValues(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, dir := range []string{"../api/backup/v1alpha1", "../api/kubevirt/v1"} {
		known := map[string][]string{} // by type
		each(t, dir, func(spec *ast.ValueSpec) {
			typ, ok := spec.Type.(*ast.Ident)
			if !ok {
				return
			}
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			known[typ.Name] = append(known[typ.Name], value)
		})
		for _, file := range parse(t, dir) {
			dropEnums(file, known)
		}
		for _, file := range parse(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				field, ok := n.(*ast.Field)
				if !ok || len(field.Names) != 1 || field.Doc == nil {
					return true
				}
				values := known[typeName(field.Type)]
				if field.Names[0].Name == "Reason" && typeName(field.Type) == "FullReason" {
					values = []string{"BitmapLost", "DiskReplaced"} // what a tracker's disk is discarded for
				}
				text := strings.Join(strings.Fields(field.Doc.Text()), " ")
				for _, value := range values {
					seen++
					word := regexp.MustCompile(`(^|[^\w/])` + regexp.QuoteMeta(value) + `($|\W)`)
					if !word.MatchString(text) {
						t.Errorf("%s: the comment of %s does not list %s", dir, field.Names[0].Name, value)
					}
				}
				return true
			})
		}
	}
	if seen < 40 {
		t.Errorf("only %d values", seen)
	}
}

// dropEnums drops the types whose values are an enum in the schema.
func dropEnums(file *ast.File, known map[string][]string) {
	for _, decl := range file.Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok || g.Doc == nil {
			continue
		}
		for _, line := range g.Doc.List {
			if spec, ok := g.Specs[0].(*ast.TypeSpec); ok && strings.Contains(line.Text, "+kubebuilder:validation:Enum=") {
				delete(known, spec.Name.Name)
			}
		}
	}
}

// typeName returns the name of a field's type, or of what it points to.
func typeName(e ast.Expr) string {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
