//go:build controlplane

package drive

import (
	"context"
	"fmt"
	"sync"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/test/controlplane"
)

const driveBytes = 1 << 30

// drive plays a storage with its driver, the snapshot controllers and the binder of volumes for the real exposer. All of them act right after
// the write that they wait for, so that nothing depends on how fast they are.
type drive struct {
	t     *testing.T
	admin client.Client
	// driver is also the name of the StorageClass.
	driver string

	mu sync.Mutex
	// snapshots and volumes are what there is on the storage, by handle.
	snapshots, volumes map[string]bool
	faults             []string
}

func (w *world) drive() *drive {
	w.t.Helper()
	kinds, err := controlplane.SnapshotCRDs(w.t.Context())
	if err == nil {
		err = cluster.InstallCRDs(kinds)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	d := &drive{t: w.t, admin: w.admin, driver: "drive." + w.varve, snapshots: map[string]bool{}, volumes: map[string]bool{}}
	w.create(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: d.driver}, Provisioner: d.driver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate), ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete),
	})
	return d
}

// claim makes a machine's claim, and source the snapshot of it that Velero makes before the DataUpload.
func (d *drive) claim(namespace, name string) {
	d.t.Helper()
	d.create(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &d.driver, VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(driveBytes, resource.BinarySI)}},
		},
	})
}

func (d *drive) source(namespace, claim string) *velerov2.CSISnapshotSpec {
	d.t.Helper()
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "velero-" + claim},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
	d.create(snapshot)
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-" + string(snapshot.UID)},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Driver: d.driver, SourceVolumeMode: ptr.To(corev1.PersistentVolumeBlock),
			Source:            snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To("volume-of-" + claim)},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: namespace, Name: snapshot.Name, UID: snapshot.UID},
		},
	}
	d.create(content)
	handle := "snapshot-" + string(snapshot.UID)
	d.snapshots[handle] = true
	if err := d.serve(d.t.Context(), snapshot, content, handle); err != nil {
		d.t.Fatal(err)
	}
	return &velerov2.CSISnapshotSpec{VolumeSnapshot: snapshot.Name, StorageClass: d.driver, Driver: d.driver}
}

func (d *drive) create(o client.Object) {
	d.t.Helper()
	if err := d.admin.Create(d.t.Context(), o); err != nil {
		d.t.Fatal(err)
	}
}

// serve gives a VolumeSnapshot and its content the status that they have when they are ready.
func (d *drive) serve(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent, handle string) error {
	content.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle, ReadyToUse: ptr.To(true), RestoreSize: ptr.To[int64](driveBytes)}
	if err := d.admin.Status().Update(ctx, content); err != nil {
		return err
	}
	snapshot.Status = &snapshotv1.VolumeSnapshotStatus{
		BoundVolumeSnapshotContentName: &content.Name, ReadyToUse: ptr.To(true), RestoreSize: resource.NewQuantity(driveBytes, resource.BinarySI),
	}
	return d.admin.Status().Update(ctx, snapshot)
}

// driveClient is a driver's client to whose writes a drive reacts.
type driveClient struct {
	client.Client
	*drive
}

func (c driveClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := c.Client.Create(ctx, o, opts...); err != nil {
		return err
	}
	switch o := o.(type) {
	case *snapshotv1.VolumeSnapshot:
		return c.bindSnapshot(ctx, o.DeepCopy())
	case *corev1.PersistentVolumeClaim:
		return c.provision(ctx, o.DeepCopy())
	}
	return nil
}

func (c driveClient) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	content, err := c.contentOf(ctx, o)
	if err != nil {
		return err
	}
	if err := c.Client.Delete(ctx, o, opts...); err != nil {
		return err
	}
	if claim, ok := o.(*corev1.PersistentVolumeClaim); ok {
		return c.release(ctx, claim)
	}
	if content == nil || content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		return nil
	}
	c.mu.Lock()
	delete(c.snapshots, *content.Status.SnapshotHandle)
	c.mu.Unlock()
	return client.IgnoreNotFound(c.admin.Delete(ctx, content))
}

// contentOf returns the content that is, or may be, deleted with o; or nil.
func (d *drive) contentOf(ctx context.Context, o client.Object) (*snapshotv1.VolumeSnapshotContent, error) {
	name := o.GetName()
	switch o := o.(type) {
	case *snapshotv1.VolumeSnapshot:
		name = ptr.Deref(o.Spec.Source.VolumeSnapshotContentName, "snapcontent-"+string(o.UID))
	case *snapshotv1.VolumeSnapshotContent:
	default:
		return nil, nil //nolint:nilnil // nothing is deleted with it
	}
	return reconcile.Find(ctx, d.admin, types.NamespacedName{Name: name}, &snapshotv1.VolumeSnapshotContent{})
}

// bindSnapshot binds a VolumeSnapshot to the content that it names.
func (d *drive) bindSnapshot(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot) error {
	content := &snapshotv1.VolumeSnapshotContent{}
	if err := d.admin.Get(ctx, types.NamespacedName{Name: *snapshot.Spec.Source.VolumeSnapshotContentName}, content); err != nil {
		return err
	}
	content.Spec.VolumeSnapshotRef.UID = snapshot.UID
	if err := d.admin.Update(ctx, content); err != nil {
		return err
	}
	return d.serve(ctx, snapshot, content, *content.Spec.Source.SnapshotHandle)
}

// provision makes the volume of a claim, and binds it.
func (d *drive) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	snapshot := &snapshotv1.VolumeSnapshot{}
	if err := d.admin.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Spec.DataSource.Name}, snapshot); err != nil {
		return err
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
			StorageClassName: d.driver, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:               &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: d.driver, VolumeHandle: "volume-" + string(claim.UID)}},
		},
	}
	if err := d.admin.Create(ctx, volume); err != nil {
		return err
	}
	d.mu.Lock()
	d.volumes[volume.Spec.CSI.VolumeHandle] = true
	d.mu.Unlock()
	volume.Status.Phase = corev1.VolumeBound
	if err := d.admin.Status().Update(ctx, volume); err != nil {
		return err
	}
	claim.Spec.VolumeName = volume.Name
	if err := d.admin.Update(ctx, claim); err != nil {
		return err
	}
	claim.Status.Phase, claim.Status.Capacity, claim.Status.AccessModes = corev1.ClaimBound, volume.Spec.Capacity, volume.Spec.AccessModes
	return d.admin.Status().Update(ctx, claim)
}

// release ends a claim that is being deleted, and its volume, if that is not retained.
func (d *drive) release(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	var pods corev1.PodList
	if err := d.admin.List(ctx, &pods, client.InNamespace(claim.Namespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		for _, v := range pods.Items[i].Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name {
				d.mu.Lock()
				d.faults = append(d.faults, fmt.Sprintf("claim %s is deleted while pod %s has it", claim.Name, pods.Items[i].Name))
				d.mu.Unlock()
			}
		}
	}
	if err := d.unprotect(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name}}); err != nil {
		return err
	}
	volume := &corev1.PersistentVolume{}
	if err := d.admin.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, volume); err != nil {
		return err
	}
	volume.Status.Phase = corev1.VolumeReleased
	if err := d.admin.Status().Update(ctx, volume); err != nil || volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return err
	}
	if err := d.admin.Delete(ctx, volume); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.volumes, volume.Spec.CSI.VolumeHandle)
	d.mu.Unlock()
	return d.unprotect(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume.Name}})
}

// unprotect takes away what keeps a claim or a volume as long as it is used.
func (d *drive) unprotect(ctx context.Context, o client.Object) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	return client.IgnoreNotFound(d.admin.Patch(ctx, o, patch))
}
