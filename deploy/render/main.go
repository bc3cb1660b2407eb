// Command render writes the kustomizations that install Varve with the images of an index: build/images/images.json in,
// build/deploy out, with the whole product, beside/ with the profile beside KubeVirt, and store/. `kubectl apply -k`
// does the rest. With -chart it writes both profiles as one Helm chart instead, whose templates are made of the same
// kustomizations.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

func main() {
	index := flag.String("images", "build/images/images.json", "the index of images")
	base := flag.String("base", "deploy", "the kustomization to build on")
	out := flag.String("out", "build/deploy", "the directory to write")
	chart := flag.String("chart", "", "write a Helm chart to this directory, which is emptied first, and nothing else")
	version := flag.String("version", "unknown", "the version of the Helm chart")
	flag.Parse()
	var err error
	if *chart != "" {
		err = writeChart(*index, *base, *chart, *version)
	} else {
		err = run(*index, *base, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(index, base, out string) error {
	images, err := readIndex(index)
	if err != nil {
		return err
	}
	return writeKustomizations(base, out, images, pullPolicy(images))
}

// readIndex reads the images of an installation from an index.
func readIndex(index string) (references, error) {
	text, err := os.ReadFile(index)
	if err != nil {
		return references{}, fmt.Errorf("read the index of images (make images builds them): %w", err)
	}
	images, err := decodeIndex(text)
	if err != nil {
		return references{}, fmt.Errorf("decode %s: %w", index, err)
	}
	return images, nil
}

// writeKustomizations writes those of both profiles and of the store, with images that nodes pull by this policy.
func writeKustomizations(base, out string, images references, policy string) error {
	absolute, err := filepath.Abs(base)
	if err != nil {
		return fmt.Errorf("find %s: %w", base, err)
	}
	target, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("find %s: %w", out, err)
	}
	relative, err := filepath.Rel(target, absolute)
	if err != nil {
		return fmt.Errorf("path from %s to %s: %w", out, base, err)
	}
	store := filepath.Join("..", relative, "store")
	return errors.Join(
		writeKustomization(out, relative, images, append(runtimePatches(policy), controllerPatch(images, policy))),
		writeKustomization(filepath.Join(out, "beside"), filepath.Join("..", relative, "beside"), images,
			[]object{controllerPatch(images, policy)}),
		writeKustomization(filepath.Join(out, "store"), store, images, []object{
			patchContainer("DaemonSet", "varve-store", object{"name": "store", "imagePullPolicy": policy}),
		}))
}

// references are the images of an installation.
type references struct{ varve, launcher string }

// decodeIndex takes what an installation needs from an index; other images in it are no concern of it.
func decodeIndex(text []byte) (references, error) {
	var index map[string]struct {
		Ref string `json:"ref"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return references{}, err
	}
	r := references{varve: index["varve"].Ref, launcher: index["varve-launcher"].Ref}
	if r.varve == "" || r.launcher == "" {
		return references{}, errors.New("it must have the images varve and varve-launcher: make images builds them")
	}
	return r, nil
}

// localRegistry begins the names of images that are imported into the nodes and can be pulled from nowhere.
const localRegistry = "varve.local/"

// pullPolicy is the policy for these images.
func pullPolicy(images references) string {
	if strings.HasPrefix(images.varve, localRegistry) {
		return "Never"
	}
	return "IfNotPresent"
}

// splitReference returns the name and the tag of an image.
func splitReference(ref string) (name, tag string, err error) {
	name, tag, ok := strings.Cut(ref, ":")
	if !ok || strings.Contains(tag, "/") || strings.Contains(ref, "@") {
		return "", "", fmt.Errorf("image %s: want name:tag", ref)
	}
	return name, tag, nil
}

type object = map[string]any

// writeKustomization writes a kustomization into a directory: base with these images and patches.
func writeKustomization(dir, base string, r references, patches []object) error {
	var images []object
	for name, ref := range map[string]string{"varve": r.varve, "varve-launcher": r.launcher} {
		newName, tag, err := splitReference(ref)
		if err != nil {
			return err
		}
		images = append(images, object{"name": name, "newName": newName, "newTag": tag})
	}
	rendered, err := yaml.Marshal(object{
		"apiVersion": "kustomize.config.k8s.io/v1beta1",
		"kind":       "Kustomization",
		"resources":  []string{base},
		"images":     images,
		"patches":    patches,
	})
	if err != nil {
		return fmt.Errorf("write the kustomization of %s: %w", base, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the kustomization of %s: %w", base, err)
	}
	return os.WriteFile(filepath.Join(dir, "kustomization.yaml"), rendered, 0o644)
}

// controllerPatch is the change to the controller.
func controllerPatch(r references, policy string) object {
	env := []object{
		{"name": "VARVE_IMAGE", "value": r.varve},
		{"name": "VARVE_LAUNCHER_IMAGE", "value": r.launcher},
		{"name": "VARVE_IMAGE_PULL_POLICY", "value": policy},
	}
	return patchContainer("Deployment", "varve-controller", object{
		"name": "controller", "imagePullPolicy": policy, "env": env,
	})
}

// runtimePatches are the changes to what only Varve's own runtime has.
func runtimePatches(policy string) []object {
	return []object{
		patchContainer("DaemonSet", "varve-handler", object{"name": "handler", "imagePullPolicy": policy}),
		patchContainer("Deployment", "varve-exportproxy", object{"name": "exportproxy", "imagePullPolicy": policy}),
	}
}

// patchContainer changes one container of a workload.
func patchContainer(kind, name string, container object) object {
	text, err := yaml.Marshal(object{
		"apiVersion": "apps/v1", "kind": kind, "metadata": object{"name": name, "namespace": "varve"},
		"spec": object{"template": object{"spec": object{"containers": []object{container}}}},
	})
	if err != nil {
		panic(err) // Strings, lists and maps always marshal.
	}
	return object{"patch": string(text)}
}
