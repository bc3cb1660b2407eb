//go:build controlplane

package keep

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/verdict"
)

// fromSnapshots waits for the claims of a restore, by the volumes.
func (w *world) fromSnapshots(r *harvesterv1.VirtualMachineRestore) map[string]*corev1.PersistentVolumeClaim {
	w.Helper()
	wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error {
		if len(r.Status.VolumeRestores) == 0 {
			return fmt.Errorf("nothing is planned: %+v", r.Status)
		}
		return nil
	})
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range r.Status.VolumeRestores {
		v := &r.Status.VolumeRestores[i]
		claims[v.VolumeName] = wait(w,
			&corev1.PersistentVolumeClaim{ObjectMeta: w.meta(v.PersistentVolumeClaim.ObjectMeta.Name)}, exists)
	}
	return claims
}

func (w *world) bind(claim *corev1.PersistentVolumeClaim) {
	w.Helper()
	controlplane.Update(w.T, w.admin, claim, true, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase = corev1.ClaimBound
	})
}

// volumeSnapshot returns the VolumeSnapshot of a disk.
func (w *world) volumeSnapshot(b *harvesterv1.VirtualMachineBackup, volume string) *snapshotv1.VolumeSnapshot {
	for _, v := range b.Status.VolumeBackups {
		if v.VolumeName == volume {
			return &snapshotv1.VolumeSnapshot{ObjectMeta: w.meta(*v.VolumeSnapshotName)}
		}
	}
	w.Fatalf("no volume %s in %+v", volume, b.Status.VolumeBackups)
	return nil
}

// snapshotRestored: claims of the VolumeSnapshots, which are waited for, and the machine beside the one that is there. The
// snapshot stays while it is read, and a controller that is killed goes on.
func snapshotRestored(w *world) {
	w.stopped()
	b := w.readySnapshot("monday")
	r := w.newRestore(b, func(s *harvesterv1.VirtualMachineRestoreSpec) {
		s.Target.Name, s.KeepMacAddress = "beside",
			false
	})
	r.Annotations = map[string]string{
		harvesterv1.AnnotationExcludeVolumes: "later", harvesterv1.AnnotationDiskSizes: "data=2Gi",
	}
	w.create(r)
	claims := w.fromSnapshots(r)
	for volume, size := range map[string]int64{"root": 1 << 30, "data": 2 << 30} {
		c := claims[volume]
		if s := c.Spec.DataSource; s == nil || s.Kind != "VolumeSnapshot" || *s.APIGroup != "snapshot.storage.k8s.io" ||
			s.Name != w.volumeSnapshot(b, volume).Name || c.Spec.Selector != nil ||
			c.Spec.Resources.Requests.Storage().Value() != size {
			verdict.Errorf(w.T, "claim of %s: %+v", volume, c.Spec)
		}
	}
	if len(claims) != 2 || r.Status.Location != nil || r.Status.DefinitionDownload != "" {
		w.Errorf("%d claims, status %+v", len(claims), r.Status)
	}
	w.must(w.admin.Delete(w.Context(), b))
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "Deleting",
		"VirtualMachineRestore "+w.ns+"/back to end"))
	w.bind(claims["data"])
	root := claims["root"]
	w.create(&corev1.Event{
		ObjectMeta: w.meta("no-room"), Type: corev1.EventTypeWarning, Reason: "ProvisioningFailed",
		Message: "the pool is full",
		InvolvedObject: corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", Namespace: w.ns, Name: root.Name,
			UID: root.UID,
		},
		LastTimestamp: metav1.Now(),
	})
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"Creating new PVCs: waits for volume root: PersistentVolumeClaim "+root.Name+" to be bound, until "))
	w.restoreSays(r, says(harvesterv1.ConditionReady, corev1.ConditionFalse, "",
		"ProvisioningFailed: the pool is full"))
	controlplane.Update(w.T, w.admin, r, false, func(r *harvesterv1.VirtualMachineRestore) {
		delete(r.Annotations, layout.Prefix+"children-made")
	})
	w.bind(root)
	vm := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("beside")}, exists)
	if volumes := volumesOf(vm); volumes["root"] != root.Name || volumes["data"] != claims["data"].Name ||
		volumes["shared"] != "web-shared" || volumes["later"] != "" {
		verdict.Errorf(w.T, "volumes %v", volumes)
	}
	w.setReady(vm)
	w.complete(r)
	if name := vm.Spec.Template.Spec.Domain.Firmware.KernelBoot.Container.ImagePullSecret; name != "pull" {
		w.Errorf("the machine refers to Secret %q", name)
	}
	w.gone(b)
}

// snapshotReplaced: the volumes are made by the start of the machine, so nobody waits for them. The old claims stay.
func snapshotReplaced(w *world) {
	w.running()
	b := w.readySnapshot("monday")
	vm := w.stop("web")
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns}, Provisioner: "example.com/csi",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	w.create(class)
	deletes := w.replacing("deletes", "web", b, harvesterv1.DeletionPolicyDelete)
	w.create(deletes)
	w.refuses(deletes, "delete policy with backup type snapshot for replacing VM is not supported")
	r := w.replacing("back", "web", b, harvesterv1.DeletionPolicyRetain, harvesterv1.AnnotationStorageClassMap,
		"*="+w.ns)
	controlplane.Eventually(w, func() error { // the class may not have reached the controller yet
		r.ResourceVersion, r.UID = "", ""
		if err := w.admin.Create(w.Context(), r); err != nil {
			return err
		}
		wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error {
			if len(r.Status.Conditions) == 0 {
				return fmt.Errorf("status %+v", r.Status)
			}
			return nil
		})
		if !r.HasFailed() {
			return nil
		}
		w.must(w.admin.Delete(w.Context(), r))
		w.gone(r)
		return fmt.Errorf("failed: %+v", r.Status.Conditions)
	})
	for _, c := range w.fromSnapshots(r) {
		if _, has := c.Annotations["volume.kubernetes.io/selected-node"]; has || *c.Spec.StorageClassName != w.ns {
			w.Errorf("claim %+v", c)
		}
	}
	have := w.onRestoredClaims(vm, r)
	w.setReady(have)
	w.complete(r)
	w.kept("web-root", "web-data")
}

// snapshotNotRestored: what cannot be restored is refused before anything is made.
func snapshotNotRestored(w *world) {
	w.stopped()
	b := w.readySnapshot("monday")
	try := func(name string) *harvesterv1.VirtualMachineRestore {
		r := w.newRestore(b, func(s *harvesterv1.VirtualMachineRestoreSpec) { s.Target.Name = name })
		r.Name = name
		return r
	}
	refuses := func(name, words string) {
		w.Helper()
		r := try(name)
		w.create(r)
		w.refuses(r, words)
		if len(r.Status.VolumeRestores) != 0 {
			w.Errorf("%s: something is planned: %+v", name, r.Status)
		}
	}
	elsewhere := try("elsewhere")
	elsewhere.Namespace = cluster.Namespace(w)
	w.create(elsewhere)
	w.refuses(elsewhere, "its snapshots are in namespace "+w.ns+" and cannot be restored into namespace "+elsewhere.Namespace)

	// A snapshot that is deleted while the storage reads it.
	pending := try("pending")
	w.create(pending)
	claims := w.fromSnapshots(pending)
	later := w.volumeSnapshot(b, "later")
	w.must(w.admin.Delete(w.Context(), later))
	w.refuses(pending, "volume later: VolumeSnapshot "+later.Name+" was deleted before PersistentVolumeClaim "+claims["later"].Name+" was bound")
	w.must(w.admin.Delete(w.Context(), pending))
	w.gone(pending)
	for _, c := range claims {
		w.deleted(c.Name)
	}
	refuses("lost", fmt.Sprintf("volume later of VMBackup %s/monday: VolumeSnapshot %q does not exist", w.ns,
		later.Name))

	root := w.volumeSnapshot(b, "root")
	controlplane.Update(w.T, w.admin, root, true, func(s *snapshotv1.VolumeSnapshot) {
		s.Status.ReadyToUse = ptr.To(false)
		s.Status.Error = &snapshotv1.VolumeSnapshotError{Message: ptr.To("the pool is gone")}
	})
	refuses("broken", "volume root of VMBackup "+w.ns+"/monday: VolumeSnapshot "+root.Name+" is not ready to use: the pool is gone")

	w.must(w.admin.Delete(w.Context(), &corev1.Secret{ObjectMeta: w.meta("pull")}))
	refuses("without-secret",
		"which has no copy of what its machine refers to: Secret pull. Create these in namespace "+w.ns)
}
