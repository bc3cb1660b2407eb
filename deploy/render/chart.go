package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// These stand in the rendered manifests where the chart's values go.
const (
	varvePlaceholder    = "varve-image:placeholder"
	launcherPlaceholder = "varve-launcher-image:placeholder"
	policyPlaceholder   = "VarvePullPolicy"
)

// fromValues replaces placeholders by what Helm fills in.
var fromValues = strings.NewReplacer(
	varvePlaceholder, `{{ include "varve.image" .Values.images.varve }}`,
	launcherPlaceholder, `{{ include "varve.image" .Values.images.launcher }}`,
	policyPlaceholder, `{{ .Values.images.pullPolicy }}`,
)

// writeChart writes a Helm chart: the files of base/chart, and templates with the objects of the kustomizations and the
// kinds, which are not written down a second time. The images of the index are the defaults of its values.
func writeChart(index, base, out, version string) error {
	images, err := readIndex(index)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return fmt.Errorf("clear the chart %s: %w", out, err)
	}
	if err := os.CopyFS(out, os.DirFS(filepath.Join(base, "chart"))); err != nil {
		return fmt.Errorf("copy %s/chart: %w", base, err)
	}
	objects, err := chartObjects(base)
	if err != nil {
		return err
	}
	kinds, err := chartKinds(base)
	if err != nil {
		return err
	}
	files := map[string]string{"templates/kinds.yaml": kinds.template, "templates/_kinds.tpl": kinds.names}
	for name, text := range objects {
		files["templates/"+name+".yaml"] = text
	}
	defaults, err := os.ReadFile(filepath.Join(base, "chart", "values.yaml"))
	if err != nil {
		return fmt.Errorf("read the chart's values: %w", err)
	}
	if files["values.yaml"], err = fillDefaults(string(defaults), images); err != nil {
		return err
	}
	about, err := os.ReadFile(filepath.Join(base, "chart", "Chart.yaml"))
	if err != nil {
		return fmt.Errorf("read what the chart says about itself: %w", err)
	}
	files["Chart.yaml"] = fmt.Sprintf("%sversion: %s\nappVersion: %q\n", about, chartVersion(version), version)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(out, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write the chart's %s: %w", name, err)
		}
	}
	return nil
}

var semantic = regexp.MustCompile(`^v?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)$`)

// chartVersion makes the version of a build one that Helm takes. A build without a release is 0.0.0.
func chartVersion(version string) string {
	if match := semantic.FindStringSubmatch(version); match != nil {
		return match[1]
	}
	return "0.0.0-" + regexp.MustCompile(`[^0-9A-Za-z-]+`).ReplaceAllString("g"+version, "-")
}

// fillDefaults puts the images of an installation into the chart's values.
func fillDefaults(values string, images references) (string, error) {
	policy := pullPolicy(images)
	var err error
	for _, image := range []struct{ name, ref string }{{"VARVE", images.varve}, {"LAUNCHER", images.launcher}} {
		repository, tag, splitErr := splitReference(image.ref)
		err = errors.Join(err, splitErr)
		values = strings.ReplaceAll(values, image.name+"_REPOSITORY", repository)
		values = strings.ReplaceAll(values, image.name+"_TAG", tag)
	}
	return strings.ReplaceAll(values, "PULL_POLICY", policy), err
}

// chartObjects are the templates of all objects but the kinds and the namespace, which is Helm's: those of one profile,
// those of both, the store, and what only clusters with snapshots or with the Prometheus operator have.
func chartObjects(base string) (map[string]string, error) {
	dir, err := os.MkdirTemp("", "varve-chart-")
	if err != nil {
		return nil, fmt.Errorf("render the kustomizations: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing but files that were generated
	placeholders := references{varve: varvePlaceholder, launcher: launcherPlaceholder}
	if err := writeKustomizations(base, dir, placeholders, policyPlaceholder); err != nil {
		return nil, err
	}
	var own, beside, store []string
	for path, documents := range map[string]*[]string{".": &own, "beside": &beside, "store": &store} {
		built, err := buildKustomization(filepath.Join(dir, path))
		if err != nil {
			return nil, fmt.Errorf("render the kustomization %s: %w", path, err)
		}
		if *documents, err = makeTemplates(built); err != nil {
			return nil, fmt.Errorf("render the kustomization %s: %w", path, err)
		}
	}
	var both []string
	for _, document := range own {
		if slices.Contains(beside, document) {
			both = append(both, document)
		}
	}
	inBoth := func(document string) bool { return slices.Contains(both, document) }
	files := map[string]string{
		"both":   strings.Join(both, "---\n"),
		"own":    onlyIf(`eq .Values.profile "own"`, strings.Join(slices.DeleteFunc(own, inBoth), "---\n")),
		"beside": onlyIf(`eq .Values.profile "beside"`, strings.Join(slices.DeleteFunc(beside, inBoth), "---\n")),
		"store":  onlyIf(withStore, strings.Join(store, "---\n")),
	}
	for _, optional := range []struct{ name, file, condition string }{
		{"snapshotclass", "store/snapshotclass.yaml", "and (" + withStore +
			`) (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1/VolumeSnapshotClass")`},
		{"monitoring", "monitoring/prometheus-operator.yaml", ".Values.monitoring"},
	} {
		text, err := os.ReadFile(filepath.Join(base, optional.file))
		if err != nil {
			return nil, fmt.Errorf("read what the chart has for some clusters: %w", err)
		}
		files[optional.name] = onlyIf(optional.condition, escapeBraces(string(text)))
	}
	return files, nil
}

// buildKustomization returns the objects of a kustomization.
func buildKustomization(dir string) (resmap.ResMap, error) {
	return krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
}

// withStore is the condition of what belongs to the store of images and volumes.
const withStore = `not (include "varve.longhorn" .)`

// onlyIf is text that Helm leaves out unless the condition holds.
func onlyIf(condition, text string) string {
	return "{{- if " + condition + " }}\n" + strings.TrimSuffix(text, "\n") + "\n{{- end }}\n"
}

// escapeBraces keeps Helm from taking braces of the text for its own.
func escapeBraces(text string) string {
	return strings.ReplaceAll(text, "{{", "{{ `{{` }}")
}

// makeTemplates returns the objects of a kustomization as Helm's templates, without kinds and namespaces.
func makeTemplates(built resmap.ResMap) ([]string, error) {
	var documents []string
	for _, r := range built.Resources() {
		if r.GetKind() == "CustomResourceDefinition" || r.GetKind() == "Namespace" {
			continue
		}
		text, err := r.AsYAML()
		if err != nil {
			return nil, fmt.Errorf("write %s %s: %w", r.GetKind(), r.GetName(), err)
		}
		documents = append(documents, fromValues.Replace(escapeBraces(string(text))))
	}
	return documents, nil
}

// kinds are the custom resource definitions of a chart: their template, and their names for its other templates.
type kinds struct{ template, names string }

// chartKinds writes the template of all kinds. They stay when the release goes, because their objects would go with
// them, and each is left as it is where it is somebody else's. Kinds in Helm's own directory, crds/, would never be
// brought up to date.
func chartKinds(base string) (kinds, error) {
	paths, err := filepath.Glob(filepath.Join(base, "crd", "*.yaml"))
	if err != nil || len(paths) == 0 {
		return kinds{}, fmt.Errorf("find the kinds in %s/crd: %w", base, errors.Join(err, os.ErrNotExist))
	}
	var all strings.Builder
	var names []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return kinds{}, fmt.Errorf("read a kind: %w", err)
		}
		const annotations = "\n  annotations:\n"
		if bytes.Count(text, []byte(annotations)) != 1 {
			return kinds{}, fmt.Errorf("%s: want one line with metadata.annotations, to keep the kind", path)
		}
		kept := strings.Replace(string(text), annotations, annotations+"    helm.sh/resource-policy: keep\n", 1)
		group, plural, ok := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".yaml"), "_")
		if !ok {
			return kinds{}, fmt.Errorf("%s: want the name GROUP_PLURAL.yaml", path)
		}
		name := plural + "." + group
		names = append(names, name)
		fmt.Fprintf(&all, "{{- $origin := include \"varve.origin\" (list . %q) }}\n", name)
		all.WriteString(onlyIf(`eq $origin "own"`, escapeBraces(kept)))
		all.WriteString(onlyIf(`eq $origin "theirs"`, fmt.Sprintf("{{ include \"varve.copy\" %q }}", name)))
	}
	return kinds{all.String(), `{{- define "varve.kinds" }}` + strings.Join(names, " ") + "{{ end -}}\n"}, nil
}
