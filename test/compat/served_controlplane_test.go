//go:build controlplane

package compat

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	upstreamv1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	upstreamv2 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// veleroKind is a kind with a full object of Varve's type and one of upstream's, and values for its enums.
type veleroKind struct {
	group        schema.GroupVersion
	name         string
	ours, theirs any
	enums        map[string][]string // from the value to its path
}

func veleroKinds(t *testing.T) []veleroKind {
	t.Helper()
	phase := []string{"status", "phase"}
	return []veleroKind{
		{
			velerov2.GroupVersion, "DataUpload", full[velerov2.DataUpload](t), full[upstreamv2.DataUpload](t),
			map[string][]string{"InProgress": phase, "linux": {"status", "nodeOS"}},
		},
		{
			velerov2.GroupVersion, "DataDownload", full[velerov2.DataDownload](t), full[upstreamv2.DataDownload](t),
			map[string][]string{"InProgress": phase, "linux": {"spec", "nodeOS"}},
		},
		{
			velerov1.GroupVersion, "BackupRepository", full[velerov1.BackupRepository](t), full[upstreamv1.BackupRepository](t),
			map[string][]string{"Ready": phase, "kopia": {"spec", "repositoryType"}, "Succeeded": {"status", "recentMaintenance", "result"}},
		},
		{
			velerov1.GroupVersion, "BackupStorageLocation", full[velerov1.BackupStorageLocation](t), full[upstreamv1.BackupStorageLocation](t),
			map[string][]string{"Available": phase, "ReadOnly": {"spec", "accessMode"}, "ReadWrite": {"status", "accessMode"}},
		},
		{
			velerov1.GroupVersion, "DeleteBackupRequest", full[velerov1.DeleteBackupRequest](t), full[upstreamv1.DeleteBackupRequest](t),
			map[string][]string{"InProgress": phase},
		},
	}
}

// object returns a full value of a type as an object, as the type's owner sends it.
func (k veleroKind) object(t *testing.T, value any, namespace string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: encode(t, value)}
	o.SetGroupVersionKind(k.group.WithKind(k.name))
	o.SetNamespace(namespace)
	o.SetName("full")
	for value, path := range k.enums {
		fields := o.Object[path[0]].(map[string]any)
		if path[1] == "recentMaintenance" {
			fields = fields[path[1]].([]any)[0].(map[string]any)
		}
		if _, ok := fields[path[len(path)-1]].(string); !ok {
			t.Fatalf("%s has no %v", k.name, path)
		}
		fields[path[len(path)-1]] = value
	}
	return o
}

func encode(t *testing.T, value any) map[string]any {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{}
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

// On some clusters Varve's definitions of Velero's kinds are installed, on others Velero's. Full objects of both sides' types must
// be stored whole by either, at creation and at an update.
func TestVeleroKinds_storeFullObjectsOfBothSides(t *testing.T) {
	t.Run("Varve's definitions", fullObjectsAreStored)
	replaceVeleroKinds(t)
	t.Run("Velero's definitions", fullObjectsAreStored)
}

func fullObjectsAreStored(t *testing.T) {
	c := cluster.Client(t, controlplane.Plain)
	for _, kind := range veleroKinds(t) {
		for side, value := range map[string]any{"ours": kind.ours, "theirs": kind.theirs} {
			t.Run(kind.name+" "+side, func(t *testing.T) {
				sent := kind.object(t, value, cluster.Namespace(t))
				stored := sent.DeepCopy()
				if err := c.Create(t.Context(), stored); err != nil {
					t.Fatal(err)
				}
				expectStored(t, c, sent)
				sent.SetResourceVersion(stored.GetResourceVersion())
				sent.SetLabels(map[string]string{"a": "b"})
				if status, ok := sent.Object["status"].(map[string]any); ok && status["message"] != nil {
					status["message"] = "changed"
				}
				if err := c.Update(t.Context(), sent.DeepCopy()); err != nil {
					t.Fatal(err)
				}
				expectStored(t, c, sent)
			})
		}
	}
}

// expectStored compares spec and status of an object with what the API server has.
func expectStored(t *testing.T, c client.Client, sent *unstructured.Unstructured) {
	t.Helper()
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(sent.GroupVersionKind())
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(sent), have); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"spec", "status"} {
		if diff := cmp.Diff(encode(t, sent.Object[part]), encode(t, have.Object[part])); diff != "" {
			t.Errorf("%s: %s", part, diff)
		}
	}
}

// replaceVeleroKinds removes Varve's definitions of Velero's kinds and installs Velero's own.
func replaceVeleroKinds(t *testing.T) {
	t.Helper()
	paths, err := filepath.Glob("../../deploy/crd/velero.io_*.yaml")
	if err != nil || len(paths) != 5 {
		t.Fatalf("definitions: %v, %v", paths, err)
	}
	admin := cluster.Client(t, controlplane.Admin)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &crd.Object); err != nil {
			t.Fatal(err)
		}
		if err := admin.Delete(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
		controlplane.Eventually(t, func() error {
			err := admin.Get(t.Context(), client.ObjectKeyFromObject(crd), crd)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("%s is there: %w", crd.GetName(), err)
		})
	}
	paths, err = controlplane.VeleroCRDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.InstallCRDs(paths); err != nil {
		t.Fatal(err)
	}
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := admin.Get(t.Context(), client.ObjectKey{Name: "datauploads.velero.io"}, crd); err != nil {
		t.Fatal(err)
	}
	if crd.GetLabels()["app.kubernetes.io/part-of"] == "varve" {
		t.Fatal("the definitions are still Varve's")
	}
}
