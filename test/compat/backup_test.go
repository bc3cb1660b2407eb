package compat

import (
	"reflect"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// The names that VEP 25 defines. Released KubeVirt has others in this alpha group; here the VEP's are the contract.
func TestBackupFieldsAreTheSpecs(t *testing.T) {
	t.Parallel()
	exactly := []struct {
		typ  reflect.Type
		want []string
	}{
		{reflect.TypeFor[backupv1.VirtualMachineBackupSpec](), []string{"source", "backupTracker", "mode", "pvcName", "skipQuiesce", "forceFullBackup", "tokenSecretRef", "pulledBy", "ttl", "ttlDuration"}},
		{reflect.TypeFor[backupv1.VirtualMachineBackupTrackerSpec](), []string{"source"}},
	}
	for _, c := range exactly {
		if got := jsonNames(c.typ); !slices.Equal(got, c.want) {
			t.Errorf("%s has fields %v, want %v", c.typ, got, c.want)
		}
	}
	// Status may have more fields than the spec says, but not fewer.
	atLeast := []struct {
		typ  reflect.Type
		want []string
	}{
		{reflect.TypeFor[backupv1.VirtualMachineBackupStatus](), []string{"checkpointName", "conditions", "backupType", "cert", "includedVolumes", "pullTunnelSecret"}},
		{reflect.TypeFor[backupv1.IncludedVolume](), []string{"name", "mapEndpoint", "dataEndpoint"}},
		{reflect.TypeFor[backupv1.VirtualMachineBackupTrackerStatus](), []string{"latestCheckpoint"}},
		{reflect.TypeFor[backupv1.Checkpoint](), []string{"name", "creationTime", "disks"}},
	}
	for _, c := range atLeast {
		for _, name := range c.want {
			if !slices.Contains(jsonNames(c.typ), name) {
				t.Errorf("%s has no field %s", c.typ, name)
			}
		}
	}
}

func TestBackupConstantsAreTheSpecs(t *testing.T) {
	t.Parallel()
	got := []string{
		string(backupv1.PushMode), string(backupv1.PullMode), backupv1.ConditionInitializing, backupv1.ConditionProgressing, backupv1.ConditionReady,
		backupv1.ConditionDone, backupv1.ConditionFailed, backupv1.ConditionDeleting, string(backupv1.Full), string(backupv1.Incremental),
	}
	want := []string{"push", "pull", "Initializing", "Progressing", "Ready", "Done", "Failed", "Deleting", "Full", "Incremental"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The documents in the VEP itself.
const trackerDocument = `
apiVersion: backup.kubevirt.io/v1alpha1
kind: VirtualMachineBackupTracker
metadata:
    name: my-backup-tracker
    namespace: ns1
spec:
    source:
        apiGroup: kubevirt.io
        kind: VirtualMachine
        name: my-vm
status:
    latestCheckpoint:
      name: my-backup-tracker-2025-03-03T16:13:28Z
      creationTime: "2025-03-03T16:13:28Z"
      disks:
        - my-volume
`

const backupDocument = `
apiVersion: backup.kubevirt.io/v1alpha1
kind: VirtualMachineBackup
metadata:
    name: backup1
    namespace: ns1
spec:
    backupTracker: my-backup-tracker
    mode: push
    pvcName: backup-output-pvc
status:
    checkpointName: my-backup-tracker-2025-03-03T16:13:28Z
    backupType: full
`

func TestSpecDocumentsDecodeStrictly(t *testing.T) {
	t.Parallel()
	tracker, backup := &backupv1.VirtualMachineBackupTracker{}, &backupv1.VirtualMachineBackup{}
	for document, into := range map[string]any{trackerDocument: tracker, backupDocument: backup} {
		content, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		decodeStrictly(t, content, into)
	}
	latest := tracker.Status.LatestCheckpoint
	if tracker.Spec.Source.Name != "my-vm" || latest == nil || latest.Name != "my-backup-tracker-2025-03-03T16:13:28Z" ||
		latest.CreationTime.UTC().Format("2006-01-02T15:04:05Z") != "2025-03-03T16:13:28Z" || !slices.Equal(latest.Disks, []string{"my-volume"}) {
		t.Errorf("tracker: %+v", tracker)
	}
	if backup.Spec.BackupTracker != "my-backup-tracker" || backup.Spec.Mode != backupv1.PushMode || backup.Spec.PVCName != "backup-output-pvc" ||
		backup.Status.CheckpointName != latest.Name {
		t.Errorf("backup: %+v", backup)
	}
}
