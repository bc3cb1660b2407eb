//go:build controlplane

package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// helm is the program that `make helm` builds.
const helm = "../../build/helm/bin/helm"

// newChart writes the chart with the images of the index.
func newChart(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file, chart := filepath.Join(dir, "images.json"), filepath.Join(dir, "varve")
	if err := os.WriteFile(file, []byte(index), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeChart(file, "..", chart, "v1.2.3-4-gabc"); err != nil {
		t.Fatal(err)
	}
	return chart
}

// runHelm returns what helm prints, in which errors are as well. There is no cluster: this Helm would take it for
// Kubernetes 1.20.
func runHelm(t *testing.T, namespace string, args ...string) (string, error) {
	t.Helper()
	args = append(args, "--namespace", namespace, "--kube-version", "1.30.0")
	c := exec.CommandContext(t.Context(), helm, args...)
	c.Env = append(os.Environ(), "HOME="+t.TempDir(), "KUBECONFIG=/dev/null")
	out, err := c.CombinedOutput()
	return string(out), err
}

// objectsByName are the objects of a text, without the namespace, which is Helm's.
func objectsByName(t *testing.T, texts ...string) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for _, text := range texts {
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			var o object
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				t.Fatalf("%v\n%s", err, document)
			}
			if len(o) == 0 || o["kind"] == "Namespace" {
				continue
			}
			metadata := o["metadata"].(object)
			name := o["apiVersion"].(string) + " " + o["kind"].(string) + " " + metadata["name"].(string)
			if namespace, ok := metadata["namespace"]; ok {
				name += " in " + namespace.(string)
			}
			if _, ok := objects[name]; ok {
				t.Errorf("%s is there twice", name)
			}
			objects[name] = o
		}
	}
	return objects
}

// installed are the objects that install.sh applies: of a directory of the kustomizations, of the store, and the kinds
// but those of the groups that it leaves out.
func installed(t *testing.T, profile string, without ...string) map[string]object {
	t.Helper()
	out := renderManifests(t, index)
	var texts []string
	directories := []string{profile, "store"}
	if slices.Contains(without, ".longhorn.io") {
		directories = []string{profile}
	}
	kustomizing.Lock()
	defer kustomizing.Unlock()
	for _, directory := range directories {
		built, err := buildKustomization(filepath.Join(out, directory))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range built.Resources() {
			if r.GetKind() != "CustomResourceDefinition" {
				texts = append(texts, r.MustYaml())
			}
		}
	}
	kinds, err := filepath.Glob("../crd/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range kinds {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	objects := objectsByName(t, texts...)
	maps.DeleteFunc(objects, func(name string, _ object) bool {
		return strings.Contains(name, " CustomResourceDefinition ") &&
			slices.ContainsFunc(without, func(group string) bool { return strings.HasSuffix(name, group) })
	})
	return objects
}

// The chart has what install.sh applies, object for object, in each profile. Its kinds stay when the release goes.
func TestChart_hasTheObjectsOfTheKustomizations(t *testing.T) {
	t.Parallel()
	chart := newChart(t)
	for name, tt := range map[string]struct {
		profile string
		args    []string
		without []string // groups whose kinds are left out
		more    []string // files with more objects
	}{
		"own":    {profile: "."},
		"beside": {profile: "beside", args: []string{"--set", "profile=beside"}, without: []string{".kubevirt.io"}},
		"with what others have": {
			profile: ".", args: []string{"--set", "present={velero,harvester,longhorn}"},
			without: []string{".velero.io", ".harvesterhci.io", ".longhorn.io"},
		},
		"with snapshots and the Prometheus operator": {
			profile: ".",
			args: []string{
				"--set", "monitoring=true", "--api-versions", "snapshot.storage.k8s.io/v1/VolumeSnapshotClass",
			},
			more: []string{"../store/snapshotclass.yaml", "../monitoring/prometheus-operator.yaml"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := runHelm(t, "varve", append([]string{"template", "varve", chart}, tt.args...)...)
			if err != nil {
				t.Fatal(err, text)
			}
			want := installed(t, tt.profile, tt.without...)
			for _, path := range tt.more {
				more, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				maps.Copy(want, objectsByName(t, string(more)))
			}
			got := objectsByName(t, text)
			delete(got, "v1 ConfigMap varve-chart in varve") // Helm's own: which kinds the release has
			for name, o := range got {
				if !strings.Contains(name, " CustomResourceDefinition ") {
					continue
				}
				annotations := o["metadata"].(object)["annotations"].(object)
				if annotations["helm.sh/resource-policy"] != "keep" {
					t.Errorf("%s goes with the release: %v", name, annotations)
				}
				delete(annotations, "helm.sh/resource-policy")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("install.sh applies -, the chart has +: %s", diff)
			}
			if len(got) < 50 {
				t.Errorf("only %d objects", len(got))
			}
		})
	}
}

// A registry's images and policy go wherever the images of the index would, and lint has nothing to say.
func TestChart_takesImagesFromItsValues(t *testing.T) {
	t.Parallel()
	chart := newChart(t)
	args := []string{
		"--set", "images.varve.repository=registry.example:5000/a/varve", "--set-string", "images.varve.tag=7",
		"--set", "images.launcher.repository=registry.example/launcher", "--set", "images.launcher.tag=v8",
		"--set", "images.pullPolicy=Always",
	}
	text, err := runHelm(t, "varve", append([]string{"template", "varve", chart}, args...)...)
	if err != nil {
		t.Fatal(err, text)
	}
	for _, want := range []string{
		"image: registry.example:5000/a/varve:7\n", "value: registry.example:5000/a/varve:7\n",
		"image: registry.example/launcher:v8\n", "value: registry.example/launcher:v8\n", "value: Always\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q", want)
		}
	}
	for _, unwanted := range []string{"varve.local", "laceholder", ": Never\n", policyPlaceholder} {
		if strings.Contains(text, unwanted) {
			t.Errorf("%q is left", unwanted)
		}
	}
	if out, err := runHelm(t, "varve", append([]string{"lint", "--strict", chart}, args...)...); err != nil {
		t.Errorf("lint: %v\n%s", err, out)
	}
}

// What the values cannot be is refused with the name of the field.
func TestChart_refusesValues(t *testing.T) {
	t.Parallel()
	chart := newChart(t)
	for value, want := range map[string]string{
		"profile=kubevirt":            "/profile",
		"profile=":                    "/profile",
		"images.pullPolicy=never":     "/images/pullPolicy",
		"images.varve.tag=":           "/images/varve/tag",
		"images.varve.tag=7":          "/images/varve/tag", // a number
		"images.launcher.repository=": "/images/launcher/repository",
		"image.tag=v1":                "'image'",
		"images.varve.digest=x":       "'digest'",
		"present={kubevirt}":          "/present/0",
		"monitoring=yes":              "/monitoring",
		"images.varve=null":           "varve",
	} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			out, err := runHelm(t, "varve", "template", "varve", chart, "--set", value)
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("%v does not name %s:\n%.500s", err, want, out)
			}
		})
	}
	out, err := runHelm(t, "backups", "template", "varve", chart)
	if err == nil || !strings.Contains(out, "add --namespace varve") {
		t.Errorf("another namespace: %v\n%.500s", err, out)
	}
}
