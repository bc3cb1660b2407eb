package harvesterrestore

import (
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// snapshotInput is a restore of a snapshot with the disks root and data, on storage of driver csi.
func snapshotInput() *input {
	b := backup(`{}`)
	b.Spec.Type, b.Status.Location = harvesterv1.Snapshot, nil
	in := &input{
		restore: newRestore(), backup: b, nodes: []corev1.Node{node("node2", "True")},
		waiting:      map[string]bool{"local": true, "fast": false, "other": false},
		provisioners: map[string]string{"local": "csi", "fast": "csi", "other": "another"},
		snapshots:    map[string]*snapshotv1.VolumeSnapshot{},
	}
	in.restore.Namespace = b.Namespace
	for i := range b.Status.VolumeBackups {
		v := &b.Status.VolumeBackups[i]
		v.SnapshotID, v.CSIDriverName, v.VolumeSnapshotName = "", "csi", ptr.To("s-"+v.VolumeName)
		s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: *v.VolumeSnapshotName}}
		s.Status = &snapshotv1.VolumeSnapshotStatus{ReadyToUse: ptr.To(true)}
		in.snapshots[s.Name] = s
	}
	return in
}

func TestPlan_fromSnapshots(t *testing.T) {
	t.Parallel()
	in := snapshotInput()
	in.restore.Annotations = map[string]string{harvesterv1.AnnotationStorageClassMap: "local=fast"}
	s := &harvesterv1.VirtualMachineRestoreStatus{}
	if refused := makePlan(in, s); refused != "" || len(s.VolumeRestores) != 2 || s.Location != nil {
		t.Fatalf("%q %+v", refused, s)
	}
	v := s.VolumeRestores[0]
	claim := v.PersistentVolumeClaim
	if claim.Spec.DataSource == nil || claim.Spec.DataSource.Name != "s-root" || claim.Spec.Selector != nil ||
		v.DataDownload != "" || *claim.Spec.StorageClassName != "fast" {
		t.Errorf("%+v", v)
	}
	// A node for the volume would have it made before the machine is.
	in.restore.Annotations = nil
	if refused := makePlan(in, s); refused != "" {
		t.Fatal(refused)
	}
	if node := s.VolumeRestores[0].PersistentVolumeClaim.ObjectMeta.Annotations[annotationSelectedNode]; node != "" {
		t.Errorf("the volume is made on %s", node)
	}
}

func TestPlan_snapshotIsRefused(t *testing.T) {
	t.Parallel()
	annotate := func(key, value string) func(*input) {
		return func(in *input) { in.restore.Annotations = map[string]string{key: value} }
	}
	for name, c := range map[string]struct {
		edit  func(*input)
		words string
	}{
		"another namespace": {
			func(in *input) { in.restore.Namespace = "lab" },
			"its snapshots are in namespace app and cannot be restored into namespace lab",
		},
		"another driver": {
			annotate(harvesterv1.AnnotationStorageClassMap, "*=other"),
			"StorageClass other is of provisioner another, and VolumeSnapshot s-root of driver csi",
		},
		"smaller":            {annotate(harvesterv1.AnnotationDiskSizes, "data=1Ki"), "has 1Ki as its size"},
		"a snapshot is gone": {func(in *input) { delete(in.snapshots, "s-data") }, `VolumeSnapshot "s-data" does not exist`},
		"a snapshot goes":    {func(in *input) { in.snapshots["s-data"].DeletionTimestamp = ptr.To(metav1.Now()) }, "VolumeSnapshot s-data is being deleted"},
		"a snapshot is not read": {
			func(in *input) { in.snapshots["s-data"].Status = nil },
			"VolumeSnapshot s-data is not ready to use",
		},
		"a Secret is missing": {
			func(in *input) { in.missing = "Secret keys" },
			"no copy of what its machine refers to: Secret keys",
		},
	} {
		in := snapshotInput()
		c.edit(in)
		s := &harvesterv1.VirtualMachineRestoreStatus{}
		if refused := makePlan(in, s); !strings.Contains(refused, c.words) || s.BackupUID != "" {
			t.Errorf("%s: %q, want %q", name, refused, c.words)
		}
	}
	replaced := snapshotInput()
	replaced.restore.Spec.NewVM, replaced.restore.Spec.DeletionPolicy = false, harvesterv1.DeletionPolicyDelete
	if refused := makePlan(replaced, &harvesterv1.VirtualMachineRestoreStatus{}); !strings.HasPrefix(refused,
		"delete policy with backup type snapshot for replacing VM is not supported") {
		t.Errorf("%q", refused)
	}
}

func TestDecideClaim(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		edit            func(*claimState)
		after           time.Duration
		bound           bool
		waiting, failed string
	}{
		"bound": {func(c *claimState) { c.claim.Status.Phase = corev1.ClaimBound }, time.Hour, true, "", ""},
		"bound to another volume": {func(c *claimState) {
			c.claim.Status.Phase, c.volume = corev1.ClaimBound, &corev1.PersistentVolume{}
			c.volume.Name, c.volume.CreationTimestamp = "old", metav1.NewTime(made.Add(-time.Hour))
		}, 0, false, "", "PersistentVolumeClaim c was bound to PersistentVolume old, which was there before it " +
			"and has something else: delete that volume, or map the StorageClass to another one, and restore again"},
		"waits": {
			func(*claimState) {}, 0, false, "PersistentVolumeClaim c to be bound, until 2026-11-29T14:00:00Z",
			"",
		},
		"says so": {
			func(c *claimState) { c.warning = "ProvisioningFailed: full" }, 0, false,
			"PersistentVolumeClaim c to be bound, until 2026-11-29T14:00:00Z: ProvisioningFailed: full", "",
		},
		"too late": {
			func(c *claimState) {
				c.warning = "ProvisioningFailed: full"
				c.snapshot.Status = &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("no pool")}}
			}, 7 * time.Hour, false, "",
			"PersistentVolumeClaim c was not bound within 6h0m0s: no pool: ProvisioningFailed: full",
		},
		"made by the start": {func(c *claimState) { c.waits = true }, time.Hour, true, "", ""},
		"its snapshot is gone": {
			func(c *claimState) { c.waits, c.snapshot = true, nil }, 0, false, "",
			"VolumeSnapshot s was deleted before PersistentVolumeClaim c was bound",
		},
		"deleted": {
			func(c *claimState) { c.claim = nil }, 0, false, "",
			"PersistentVolumeClaim c was deleted by somebody else",
		},
		"lost": {
			func(c *claimState) { c.claim.Status.Phase = corev1.ClaimLost }, 0, false, "",
			"PersistentVolumeClaim c has lost its volume",
		},
	} {
		state := &claimState{
			name: "c", snapshotName: "s", claim: &corev1.PersistentVolumeClaim{},
			snapshot: &snapshotv1.VolumeSnapshot{},
		}
		state.claim.CreationTimestamp = metav1.NewTime(made)
		c.edit(state)
		bound, waiting, failed := state.decide(made.Add(c.after))
		if bound != c.bound || waiting != c.waiting || failed != c.failed {
			t.Errorf("%s: %v %q %q", name, bound, waiting, failed)
		}
	}
}
