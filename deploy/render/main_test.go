package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

const index = `{"varve":{"ref":"varve.local/varve:0123","digest":"sha256:0123","tar":"/x"},
 "varve-launcher":{"ref":"varve.local/varve-launcher:4567"},"guest":{"ref":"varve.local/guest:1"}}`

// kustomizing is held while kustomize runs: it keeps the schemas of kinds in variables that it does not guard.
var kustomizing sync.Mutex

// renderManifests renders the real manifests with the images of an index, and returns the directory.
func renderManifests(t *testing.T, index string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "images.json")
	if err := os.WriteFile(file, []byte(index), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	if err := run(file, "..", out); err != nil {
		t.Fatal(err)
	}
	return out
}

// build renders the real manifests and builds the result with kustomize itself.
func build(t *testing.T, index string) map[string]string {
	t.Helper()
	out := renderManifests(t, index)
	kustomizing.Lock()
	defer kustomizing.Unlock()
	built, err := buildKustomization(out)
	if err != nil {
		t.Fatal(err)
	}
	store, err := buildKustomization(filepath.Join(out, "store"))
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]string{}
	for _, r := range append(built.Resources(), store.Resources()...) {
		objects[r.GetKind()+"/"+r.GetName()] = r.MustYaml()
	}
	return objects
}

func TestRender(t *testing.T) {
	t.Parallel()
	objects := build(t, index)
	var controller appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(objects["Deployment/varve-controller"]), &controller); err != nil {
		t.Fatal(err)
	}
	c := controller.Spec.Template.Spec.Containers[0]
	if c.Image != "varve.local/varve:0123" || c.ImagePullPolicy != "Never" {
		t.Errorf("controller: image %s, pull %s", c.Image, c.ImagePullPolicy)
	}
	values := map[string]string{}
	for _, e := range c.Env {
		values[e.Name] = e.Value
	}
	if values["VARVE_IMAGE"] != "varve.local/varve:0123" || values["VARVE_LAUNCHER_IMAGE"] != "varve.local/varve-launcher:4567" || values["VARVE_IMAGE_PULL_POLICY"] != "Never" {
		t.Errorf("controller: env %v", values)
	}
	if !slices.Contains(c.Args, "--launcher-image=$(VARVE_LAUNCHER_IMAGE)") {
		t.Errorf("controller: args %v", c.Args)
	}
	var handler appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(objects["DaemonSet/varve-handler"]), &handler); err != nil {
		t.Fatal(err)
	}
	h := handler.Spec.Template.Spec.Containers[0]
	if h.Image != "varve.local/varve:0123" || h.ImagePullPolicy != "Never" || h.SecurityContext == nil || !*h.SecurityContext.Privileged {
		t.Errorf("handler: image %s, pull %s, security %v", h.Image, h.ImagePullPolicy, h.SecurityContext)
	}
	var store appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(objects["DaemonSet/varve-store"]), &store); err != nil {
		t.Fatal(err)
	}
	if c := store.Spec.Template.Spec.Containers[0]; c.Image != "varve.local/varve-launcher:4567" || c.ImagePullPolicy != "Never" {
		t.Errorf("store: image %s, pull %s", c.Image, c.ImagePullPolicy)
	}
}

func TestRenderForARegistry(t *testing.T) {
	t.Parallel()
	objects := build(t, `{"varve":{"ref":"registry.example/varve:v1"},"varve-launcher":{"ref":"registry.example/varve-launcher:v1"}}`)
	if got := objects["DaemonSet/varve-handler"]; !strings.Contains(got, "image: registry.example/varve:v1") || !strings.Contains(got, "imagePullPolicy: IfNotPresent") {
		t.Error(got)
	}
}

func TestRenderNeedsBothImages(t *testing.T) {
	t.Parallel()
	for _, index := range []string{`{}`, `{"varve":{"ref":"a:b"}}`, `[]`} {
		if _, err := decodeIndex([]byte(index)); err == nil {
			t.Errorf("%s was accepted", index)
		}
	}
	if err := run(filepath.Join(t.TempDir(), "none"), "..", t.TempDir()); err == nil || !strings.Contains(err.Error(), "make images") {
		t.Errorf("err = %v", err)
	}
	for _, ref := range []string{"varve", "host:5000/varve", "varve@sha256:00"} {
		if err := writeKustomization(t.TempDir(), "..", references{varve: ref, launcher: "b:c"}, nil); err == nil {
			t.Errorf("%s was accepted", ref)
		}
	}
}
