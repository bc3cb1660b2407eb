//go:build controlplane

package csi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	driver "github.com/varvebackup/varve/internal/store/csi"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/controlplane"
)

// runSnapshotController runs Kubernetes' own snapshot-controller until the test ends.
func runSnapshotController(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	program := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "snapshot-controller")
	cmd := exec.CommandContext(ctx, program, "--kubeconfig="+cluster.Kubeconfig(tb, controlplane.Admin, "default"),
		"--retry-interval-max=1s")
	cmd.Stderr = tb.Output()
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
}

// bindClaim waits until a claim has its PersistentVolume, and does what Kubernetes' own controllers, which do not run
// here, would do then. It returns the handle.
func bindClaim(tb testing.TB, c client.Client, claim *corev1.PersistentVolumeClaim) string {
	tb.Helper()
	handle := "pvc-" + string(claim.UID)
	pv := &corev1.PersistentVolume{}
	controlplane.Eventually(tb, func() error { return c.Get(tb.Context(), client.ObjectKey{Name: handle}, pv) })
	controlplane.Update(tb, c, pv, true, func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeBound })
	controlplane.Update(tb, c, claim, false, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = handle })
	controlplane.Update(tb, c, claim, true, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, c.Spec.Resources.Requests
		c.Status.AccessModes = c.Spec.AccessModes
	})
	return handle
}

// cloneClaim makes a claim of a data source.
func cloneClaim(
	tb testing.TB, c client.Client, namespace, name, class string, from corev1.TypedLocalObjectReference, node string,
) *corev1.PersistentVolumeClaim {
	tb.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Annotations: map[string]string{
				"volume.kubernetes.io/storage-provisioner": names.Driver, selectedNode: node,
			},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode: ptr.To(corev1.PersistentVolumeBlock), DataSource: &from,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("4Mi")},
			},
		},
	}
	mustMake(tb, c, claim)
	return claim
}

// releaseVolume does what becomes of a PersistentVolume whose claim is deleted.
func releaseVolume(tb testing.TB, c client.Client, claim *corev1.PersistentVolumeClaim) {
	tb.Helper()
	controlplane.Update(tb, c, claim, false, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
	if err := client.IgnoreNotFound(c.Delete(tb.Context(), claim)); err != nil {
		tb.Fatal(err)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID)}}
	controlplane.Update(tb, c, pv, false, func(pv *corev1.PersistentVolume) {
		pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(f string) bool { return f == "kubernetes.io/pv-protection" })
	})
	controlplane.Update(tb, c, pv, true, func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased })
}

// waitForSnapshot waits until a VolumeSnapshot is ready, and returns its content.
func waitForSnapshot(
	tb testing.TB, c client.Client, snapshot *snapshotv1.VolumeSnapshot,
) *snapshotv1.VolumeSnapshotContent {
	tb.Helper()
	content := &snapshotv1.VolumeSnapshotContent{}
	controlplane.Eventually(tb, func() error {
		if err := c.Get(tb.Context(), client.ObjectKeyFromObject(snapshot), snapshot); err != nil {
			return err
		}
		if s := snapshot.Status; s == nil || !ptr.Deref(s.ReadyToUse, false) || s.BoundVolumeSnapshotContentName == nil {
			return fmt.Errorf("the snapshot's status is %+v", s)
		}
		return c.Get(tb.Context(), client.ObjectKey{Name: *snapshot.Status.BoundVolumeSnapshotContentName}, content)
	})
	return content
}

// checkOrphans checks that a snapshot that no content names is reported, and deleted only if a user allows that.
func checkOrphans(t *testing.T, d *driver.Driver, files *memory) {
	t.Helper()
	on := diskset.Disk{Disk: files, Name: "default-disk", UUID: diskUUID}
	orphan := disk.Object{
		Name: "snapshot/pvc-8/snapshot-8", UID: "snapshot-8", Volume: "pvc-8", Kind: disk.KindSnapshot, Bytes: mib,
		State: disk.StateReady,
	}
	files.put(orphan)
	controlplane.Eventually(t, func() error { // snapshot-9 has its content
		got := d.DescribeOrphans(t.Context(), on, map[string]bool{"snapshot-9": true})
		if len(got) != 1 || !strings.HasSuffix(got[0], "has their UIDs: snapshot/pvc-8/snapshot-8") {
			return fmt.Errorf("notes %q", got)
		}
		return nil
	})
	if got := d.DescribeOrphans(t.Context(), on, map[string]bool{"snapshot-8": true}); len(got) != 0 {
		t.Errorf("notes %q", got)
	}
	if files.find(orphan.Name).UID != "" || files.find("snapshot/pvc-9/snapshot-9").UID == "" {
		t.Error("the orphan was not deleted, or more than the orphan was")
	}
}

// checkSnapshotter checks what the driver makes of VolumeSnapshots, with Kubernetes' own snapshot-controller and no
// more rights than deploy/store grants.
func checkSnapshotter(t *testing.T, admin client.Client, files *memory) {
	t.Helper()
	if err := cluster.Apply(t.Context(), "deploy/store/snapshotclass.yaml"); err != nil {
		t.Fatal(err)
	}
	runSnapshotController(t)
	claim := makeClaim(t, admin, "snapped", readyImage, nil)
	handle := bindClaim(t, admin, claim)
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: "snapshot"},
		Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: ptr.To("varve-store"),
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim.Name},
		},
	}
	from := corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: "snapshot",
	}
	early := cloneClaim(t, admin, claim.Namespace, "early", claim.Name, from, nodeName)
	waitForEvent(t, admin, early, `"snapshot" not found`)
	mustMake(t, admin, snapshot)
	content := waitForSnapshot(t, admin, snapshot)
	uid := disk.UID("snapshot-" + string(snapshot.UID))
	made := files.find(names.Snapshot(handle, uid))
	if made.UID != uid || *content.Status.SnapshotHandle != names.SnapshotHandle(diskUUID, uid) ||
		*content.Status.RestoreSize != made.Bytes || content.Status.CreationTime == nil {
		t.Errorf("%+v, and the content's status is %+v", made, content.Status)
	}

	clone := bindClaim(t, admin, early)
	if got := files.find(names.Head(clone)); got.Parent != uid || got.Bytes != 4*mib {
		t.Errorf("the clone is %+v", got)
	}
	other := cloneClaim(t, admin, claim.Namespace, "other", claim.Name,
		corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: claim.Name}, nodeName)
	otherHandle := bindClaim(t, admin, other)
	if got := files.find(names.Head(otherHandle)); got.Parent != "" || got.Bytes != 4*mib {
		t.Errorf("the clone of the volume is %+v", got)
	}

	mustMake(t, admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node9"}})
	// The scheduler chose a node that does not have the source.
	for name, from := range map[string]corev1.TypedLocalObjectReference{
		"elsewhere": from, "elsewhere-too": {Kind: "PersistentVolumeClaim", Name: claim.Name},
	} {
		misplaced := cloneClaim(t, admin, claim.Namespace, name, claim.Name, from, "node9")
		pv := &corev1.PersistentVolume{}
		misplacedHandle := bindClaim(t, admin, misplaced)
		if err := admin.Get(t.Context(), client.ObjectKey{Name: misplacedHandle}, pv); err != nil {
			t.Fatal(err)
		}
		affinity := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
		if !slices.Equal(affinity.Values, []string{nodeName}) {
			t.Errorf("the volume is on %v", affinity)
		}
		releaseVolume(t, admin, misplaced)
		wantNothing(t, admin, files, misplacedHandle)
	}
	if err := admin.Delete(t.Context(), snapshot); err != nil {
		t.Fatal(err)
	}
	controlplane.Eventually(t, func() error {
		err := admin.Get(t.Context(), client.ObjectKeyFromObject(content), content)
		if err == nil && (content.Status.Error == nil || !strings.Contains(*content.Status.Error.Message, "volume/"+clone)) {
			err = fmt.Errorf("the content's error is %+v", content.Status.Error)
		}
		return err
	})
	releaseVolume(t, admin, claim) // the snapshot outlives its volume
	wantNothing(t, admin, files, handle)
	if files.find(names.Snapshot(handle, uid)).UID != uid {
		t.Error("the snapshot went with its volume")
	}
	releaseVolume(t, admin, early)
	controlplane.Eventually(t, func() error {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(content), content); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the content is there: %w, %+v", err, content.Status)
		}
		if files.find(names.Snapshot(handle, uid)).UID != "" {
			return errors.New("the snapshot is on the disk")
		}
		return nil
	})
	releaseVolume(t, admin, other)
	wantNothing(t, admin, files, otherHandle)
}

// A content that names a snapshot gets it, or says which disk is missing. One of another node is left alone.
func checkNamedContents(t *testing.T, admin client.Client, files *memory) {
	t.Helper()
	files.put(disk.Object{
		Name: "snapshot/pvc-9/snapshot-9", UID: "snapshot-9", Volume: "pvc-9", Kind: disk.KindSnapshot, Bytes: mib,
		State: disk.StateReady,
	})
	content := func(name, handle string) *snapshotv1.VolumeSnapshotContent {
		c := &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				Driver: names.Driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain,
				Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "default", Name: name},
			},
		}
		mustMake(t, admin, c)
		return c
	}
	there := content("there", diskUUID+"/snapshot-9")
	missing := content("missing", "disk-9/snapshot-9")
	controlplane.Eventually(t, func() error {
		if err := errors.Join(
			admin.Get(t.Context(), client.ObjectKeyFromObject(there), there),
			admin.Get(t.Context(), client.ObjectKeyFromObject(missing), missing),
		); err != nil {
			return err
		}
		switch {
		case there.Status == nil || !ptr.Deref(there.Status.ReadyToUse, false) || *there.Status.RestoreSize != mib:
			return fmt.Errorf("the content of a snapshot that is there: %+v", there.Status)
		case missing.Status == nil || missing.Status.Error == nil ||
			!strings.Contains(*missing.Status.Error.Message, "disk disk-9 is not open"):
			return fmt.Errorf("the content of a disk that no node has: %+v", missing.Status)
		}
		return nil
	})
}
