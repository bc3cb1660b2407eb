//go:build controlplane

package admission

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/controlplane"
)

func crds(t *testing.T) []map[string]any {
	t.Helper()
	files, err := filepath.Glob("../../deploy/crd/*.yaml")
	admitted(t, err)
	if len(files) < 6 {
		t.Fatalf("%d CRDs", len(files))
	}
	var all []map[string]any
	for _, f := range files {
		content, err := os.ReadFile(f)
		admitted(t, err)
		crd := map[string]any{}
		admitted(t, yaml.Unmarshal(content, &crd))
		all = append(all, crd)
	}
	return all
}

// schemas returns each CRD's schema by the CRD's name.
func schemas(t *testing.T) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, crd := range crds(t) {
		name, _, _ := unstructured.NestedString(crd, "metadata", "name")
		versions, _, _ := unstructured.NestedSlice(crd, "spec", "versions")
		for _, v := range versions {
			schema, ok, _ := unstructured.NestedMap(v.(map[string]any), "schema", "openAPIV3Schema")
			if !ok {
				t.Fatalf("%s has no schema", name)
			}
			all[name] = schema
		}
	}
	return all
}

// walk visits a schema and everything below it.
func walk(node map[string]any, path string, visit func(path string, node map[string]any)) {
	visit(path, node)
	properties, _ := node["properties"].(map[string]any)
	for name, p := range properties {
		walk(p.(map[string]any), path+"."+name, visit)
	}
	if items, ok := node["items"].(map[string]any); ok {
		walk(items, path+"[]", visit)
	}
	if values, ok := node["additionalProperties"].(map[string]any); ok {
		walk(values, path+"{}", visit)
	}
}

// TestSchema_explainsEveryField makes sure that `kubectl explain` explains every field.
func TestSchema_explainsEveryField(t *testing.T) {
	t.Parallel()
	for crd, schema := range schemas(t) {
		walk(schema, "", func(path string, node map[string]any) {
			properties, _ := node["properties"].(map[string]any)
			for name, p := range properties {
				if path == "" && name == "metadata" {
					continue // the API server's own
				}
				if text, _ := p.(map[string]any)["description"].(string); text == "" {
					t.Errorf("%s: %s.%s has no description", crd, path, name)
				}
			}
		})
	}
}

func TestShortNames(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"virtualmachines.kubevirt.io": "vm", "virtualmachineinstances.kubevirt.io": "vmi", "virtualmachineinstancemigrations.kubevirt.io": "vmim", "kubevirts.kubevirt.io": "kv",
		"virtualmachinebackups.backup.kubevirt.io": "vmbackup", "virtualmachinebackuptrackers.backup.kubevirt.io": "vmbackuptracker",
		"virtualmachineexports.export.kubevirt.io":            "vmexport",
		"virtualmachinesnapshots.snapshot.kubevirt.io":        "vmsnapshot",
		"virtualmachinesnapshotcontents.snapshot.kubevirt.io": "vmsnapshotcontent",
		"virtualmachinebackups.harvesterhci.io":               "machinebackup",
		"virtualmachinerestores.harvesterhci.io":              "machinerestore",
		"schedulevmbackups.harvesterhci.io":                   "svmbackup",
		"backuppolicies.varvebackup.io":                       "vbp",
		"backingimages.longhorn.io":                           "lhbi", "nodes.longhorn.io": "lhn", "instancemanagers.longhorn.io": "lhim",
		"backupbackingimages.longhorn.io": "lhbbi",
		"volumes.longhorn.io":             "lhv", "replicas.longhorn.io": "lhr",
		"datauploads.velero.io": "du", "datadownloads.velero.io": "dd",
		"backupstoragelocations.velero.io": "bsl",
		"backuprepositories.velero.io":     "", "deletebackuprequests.velero.io": "", // none, as Velero has them
	}
	for _, crd := range crds(t) {
		name, _, _ := unstructured.NestedString(crd, "metadata", "name")
		short, _, _ := unstructured.NestedStringSlice(crd, "spec", "names", "shortNames")
		if first, ok := want[name]; !ok || (first != "") != (len(short) > 0) || first != "" && short[0] != first {
			t.Errorf("%s: short names %v, want %q first", name, short, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("no CRDs for %v", want)
	}
}

// Upstream's columns read fields that do not exist and are blank.
func TestSchema_columnsOfCompleteObjectsAreFilled(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	now := metav1.NewTime(time.Now())
	vmi, vm, backup, tracker, export := newInstance(ns), newMachine(ns), newBackup(ns), newTracker(ns), newExport(ns)
	migration := newMigration(ns)
	objects := []client.Object{vmi, vm, backup, tracker, export, migration}
	varve := cluster.Client(t, controlplane.Controller)
	for _, o := range objects {
		admitted(t, varve.Create(t.Context(), o))
	}
	cbt := &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled}
	vmi.Status = kubevirtv1.VirtualMachineInstanceStatus{
		Phase: kubevirtv1.PhaseRunning, NodeName: "node", ChangedBlockTracking: cbt,
		Interfaces: []kubevirtv1.InterfaceStatus{{IP: "10.0.0.1"}},
		Conditions: []kubevirtv1.Condition{{Type: kubevirtv1.ConditionReady, Status: "True", LastTransitionTime: now}},
	}
	migration.Status.Phase = kubevirtv1.MigrationRunning
	vm.Status.Ready, vm.Status.PrintableStatus, vm.Status.ChangedBlockTracking = true, kubevirtv1.VirtualMachineRunning, cbt
	backup.Status = backupv1.VirtualMachineBackupStatus{
		Phase: backupv1.BackupDone, Message: "done", BackupType: backupv1.Full, CheckpointName: "c", SourceName: "vm", MovedBytes: 1, Moved: "1",
		Progress: &backupv1.Progress{TotalBytes: 1, ProcessedBytes: 1, Percent: "100%"}, FrozenMillis: ptr.To[int64](1),
	}
	tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: "c", CreationTime: now}
	export.Status = exportv1.VirtualMachineExportStatus{
		Phase: exportv1.ExportPending, TTLExpirationTime: &now,
		Conditions: []exportv1.Condition{{Type: exportv1.ConditionReady, Status: "False", Reason: exportv1.ReasonPodPending, Message: "waits"}},
	}
	for _, o := range objects {
		admitted(t, varve.Status().Update(t.Context(), o))
		columnsFilled(t, o)
	}
	kv := controlplane.DefaultKubeVirt()
	kv.Namespace = ns
	admitted(t, varve.Create(t.Context(), kv))
	columnsFilled(t, kv)
	for _, o := range completeVeleroObjects(ns, now) {
		admitted(t, varve.Create(t.Context(), o)) // these kinds have no status subresource
		columnsFilled(t, o)
	}
}

func columnsFilled(t *testing.T, o client.Object) {
	t.Helper()
	gvk, err := apiutil.GVKForObject(o, cluster.Scheme)
	admitted(t, err)
	mapping, err := cluster.Client(t, controlplane.Admin).RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	admitted(t, err)
	path := fmt.Sprintf("/apis/%s/%s/namespaces/%s/%s/%s", gvk.Group, gvk.Version, o.GetNamespace(), mapping.Resource.Resource, o.GetName())
	table := tableAt(t, path)
	if len(table.Rows) != 1 || len(table.ColumnDefinitions) < 2 {
		t.Fatalf("%s: %d rows, %d columns", gvk.Kind, len(table.Rows), len(table.ColumnDefinitions))
	}
	for i, column := range table.ColumnDefinitions {
		if cell := table.Rows[0].Cells[i]; cell == nil || cell == "" || cell == "<none>" || cell == "<unknown>" {
			t.Errorf("%s: column %s is %v", gvk.Kind, column.Name, cell)
		}
	}
}

func tableAt(t *testing.T, path string) *metav1.Table {
	t.Helper()
	transport, err := rest.TransportFor(cluster.Config)
	admitted(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(cluster.Config.Host, "/")+path, nil)
	admitted(t, err)
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	response, err := (&http.Client{Transport: transport}).Do(request)
	admitted(t, err)
	defer response.Body.Close()
	table := &metav1.Table{}
	admitted(t, json.NewDecoder(response.Body).Decode(table))
	if table.Kind != "Table" {
		t.Fatalf("%s is answered with a %s", path, table.Kind)
	}
	return table
}

func unstructuredOf(t *testing.T, o client.Object) *unstructured.Unstructured {
	t.Helper()
	u, err := toUnstructured(o)
	admitted(t, err)
	return u
}

func toUnstructured(o client.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	gvk, err := apiutil.GVKForObject(o, cluster.Scheme)
	u.SetGroupVersionKind(gvk)
	return u, err
}
