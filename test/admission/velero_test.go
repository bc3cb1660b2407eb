//go:build controlplane

package admission

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

func newSpecifiedUpload(ns string) *velerov2.DataUpload {
	return &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "upload"},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotCSI, CSISnapshot: &velerov2.CSISnapshotSpec{VolumeSnapshot: "snapshot", StorageClass: "class", SnapshotClass: "snapshots", Driver: "driver"},
			SourcePVC: "data", DataMover: "varve", BackupStorageLocation: "default", SourceNamespace: "app",
			DataMoverConfig: map[string]string{"a": "b"}, OperationTimeout: velerov1.Duration{Duration: 10 * time.Minute},
		},
	}
}

func newDownload(ns string) *velerov2.DataDownload {
	return &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "download"},
		Spec: velerov2.DataDownloadSpec{
			TargetVolume: velerov2.TargetVolumeSpec{Namespace: "app", PVC: "data"}, BackupStorageLocation: "default", DataMover: "varve", SnapshotID: "id",
			SourceNamespace: "app", DataMoverConfig: map[string]string{"a": "b"}, OperationTimeout: velerov1.Duration{Duration: 10 * time.Minute},
			NodeOS: velerov2.NodeLinux, SnapshotSize: 1,
		},
	}
}

// completeVeleroObjects returns an object of each of Velero's kinds that has what its columns show.
func completeVeleroObjects(ns string, now metav1.Time) []client.Object {
	progress := velerov2.Progress{TotalBytes: 2, BytesDone: 1}
	du, dd := newSpecifiedUpload(ns), newDownload(ns)
	du.Status = velerov2.DataUploadStatus{Phase: velerov2.PhaseInProgress, StartTimestamp: &now, Progress: progress, IncrementalBytes: 1, Node: "node", Message: "waits"}
	dd.Status = velerov2.DataDownloadStatus{Phase: velerov2.PhaseInProgress, StartTimestamp: &now, Progress: progress, Node: "node", Message: "waits"}
	meta := metav1.ObjectMeta{Namespace: ns, Name: "complete"}
	location := &velerov1.BackupStorageLocation{ObjectMeta: meta}
	location.Spec.Provider, location.Spec.Default = "aws", true
	location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "bucket"}
	location.Status = velerov1.BackupStorageLocationStatus{Phase: velerov1.LocationUnavailable, LastValidationTime: &now, Message: "no answer"}
	repository := &velerov1.BackupRepository{ObjectMeta: meta}
	repository.Spec = velerov1.BackupRepositorySpec{VolumeNamespace: "app", BackupStorageLocation: "default", RepositoryType: velerov1.RepositoryKopia}
	repository.Status = velerov1.BackupRepositoryStatus{Phase: velerov1.RepositoryNotReady, Message: "no answer", LastMaintenanceTime: &now}
	deletion := &velerov1.DeleteBackupRequest{ObjectMeta: meta, Spec: velerov1.DeleteBackupRequestSpec{BackupName: "b1"}}
	deletion.Status.Phase = velerov1.DeletionInProgress
	return []client.Object{du, dd, location, repository, deletion}
}

// minimal is a spec with what is required alone.
const (
	minimalUpload   = `{"snapshotType":"VirtualMachineBackup","sourcePVC":"data","backupStorageLocation":"default","sourceNamespace":"app","operationTimeout":"10m0s"}`
	minimalDownload = `{"targetVolume":{"pvc":"data","pv":"","namespace":"app"},"backupStorageLocation":"default","snapshotID":"id","sourceNamespace":"app","operationTimeout":"10m0s"}`
)

// TestMovement_specIsImmutable changes each field of a spec by itself.
func TestMovement_specIsImmutable(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t, controlplane.Plain)
	ns := cluster.Namespace(t)
	for _, o := range []client.Object{newSpecifiedUpload(ns), newDownload(ns)} {
		admitted(t, c.Create(t.Context(), o))
		u := unstructuredOf(t, o)
		spec := u.Object["spec"].(map[string]any)
		seen := 0
		for _, patch := range changes(spec) {
			seen++
			refused(t, c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))), "spec is immutable, except for cancel", "Required value", "must not be null")
		}
		if seen < 14 {
			t.Errorf("%T: only %d changes", o, seen)
		}
		refused(t, c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"spec":null}`))), "spec is immutable, except for cancel")
		admitted(t, c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"cancel":true},"status":{"phase":"InProgress"}}`))))
	}
}

// changes returns merge patches that change or remove one field of a spec each.
func changes(spec map[string]any) []string {
	var patches []string
	add := func(value any, path ...string) {
		for i := len(path) - 1; i >= 0; i-- {
			value = map[string]any{path[i]: value}
		}
		text, _ := json.Marshal(map[string]any{"spec": value})
		patches = append(patches, string(text))
	}
	var each func(value map[string]any, path ...string)
	each = func(value map[string]any, path ...string) {
		for name, v := range value {
			at := slices.Concat(path, []string{name})
			add(nil, at...)
			switch v := v.(type) {
			case map[string]any:
				each(v, at...)
			case string:
				switch name {
				case "operationTimeout":
					add("11m", at...)
				case "nodeOS":
					add("auto", at...)
				default:
					add(v+"x", at...)
				}
			default:
				add(2, at...)
			}
		}
	}
	each(spec)
	return patches
}

// TestMovement_unsetFieldsAreEqual writes the same spec in the ways in which clients leave a field out.
func TestMovement_unsetFieldsAreEqual(t *testing.T) {
	t.Parallel()
	c := cluster.Client(t, controlplane.Plain)
	for i, form := range []struct {
		kind, minimal, same, message string
	}{
		{"DataUpload", minimalUpload, `{"csiSnapshot":null,"datamover":"","dataMoverConfig":{},"cancel":false,"operationTimeout":"600s"}`, ""},
		{"DataUpload", minimalUpload, `{"dataMoverConfig":null}`, ""},
		{"DataUpload", minimalUpload, `{"csiSnapshot":{"volumeSnapshot":"","storageClass":""}}`, "spec is immutable"},
		{"DataUpload", minimalUpload, `{"dataMoverConfig":{"a":""}}`, "spec is immutable"},
		{"DataDownload", minimalDownload, `{"datamover":"","dataMoverConfig":{},"cancel":false,"snapshotSize":0,"operationTimeout":"10m0.5s"}`, "spec is immutable"},
		{"DataDownload", minimalDownload, `{"datamover":"","dataMoverConfig":{},"cancel":false,"snapshotSize":0,"operationTimeout":"9m60s"}`, ""},
	} {
		t.Run(fmt.Sprint(form.kind, i), func(t *testing.T) {
			t.Parallel()
			first := map[string]any{}
			admitted(t, json.Unmarshal([]byte(form.minimal), &first))
			second := map[string]any{}
			admitted(t, json.Unmarshal([]byte(form.minimal), &second))
			admitted(t, json.Unmarshal([]byte(form.same), &second))
			for _, pair := range [][2]map[string]any{{first, second}, {second, first}} {
				o := unstructuredOf(t, map[string]client.Object{"DataUpload": newSpecifiedUpload(""), "DataDownload": newDownload("")}[form.kind])
				o.SetNamespace(cluster.Namespace(t))
				o.Object["spec"] = pair[0]
				admitted(t, c.Create(t.Context(), o))
				o.Object["spec"] = pair[1]
				err := c.Update(t.Context(), o)
				if form.message != "" {
					refused(t, err, form.message)
				} else {
					admitted(t, err)
				}
			}
		})
	}
	// Fields of the snapshot.
	du := newSpecifiedUpload(cluster.Namespace(t))
	du.Spec.CSISnapshot.SnapshotClass, du.Spec.CSISnapshot.Driver = "", ""
	admitted(t, c.Create(t.Context(), du))
	admitted(t, c.Patch(t.Context(), du, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"csiSnapshot":{"snapshotClass":"","driver":""}}}`))))
	admitted(t, c.Patch(t.Context(), du, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"csiSnapshot":{"snapshotClass":null}}}`))))
}
