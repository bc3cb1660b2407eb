package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// CreateKubeVirtMachine creates the machine of a manifest such as test/kubevirt/machine.yaml, with its claims, in the
// lab's namespace. edit changes each object before; it may be nil.
func (l *Lab) CreateKubeVirtMachine(
	ctx context.Context, manifest string, edit func(*unstructured.Unstructured) error,
) error {
	image, err := l.Image("varve-guest-test")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	text = bytes.ReplaceAll(text, []byte("image: IMAGE"), []byte("image: "+image))
	objects := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := objects.Decode(&o.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("decode %s: %w", manifest, err)
		}
		o.SetNamespace(l.Namespace)
		if edit != nil {
			if err := edit(o); err != nil {
				return fmt.Errorf("edit %s: %w", o.GetName(), err)
			}
		}
		if err := l.Create(ctx, o); err != nil {
			return fmt.Errorf("create %s: %w", o.GetName(), err)
		}
	}
}
