//go:build controlplane

package backingimage

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

// newRestore creates an image of a restore point, and then its location.
func (w *world) newRestore(store string) (image *longhornv1.BackingImage, disk string) {
	w.Helper()
	disk = w.addStore(store, 50<<30)
	location := &velerov1.BackupStorageLocation{ObjectMeta: w.meta("location")}
	location.Spec.Provider = "aws"
	location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "backups"}
	image = w.newImage("golden")
	image.Spec.SourceType = longhornv1.SourceRestore
	image.Spec.SourceParameters = map[string]longhornv1.ParameterValue{
		longhornv1.ParameterLocation:   longhornv1.ParameterValue(location.Name),
		longhornv1.ParameterSnapshotID: "varve1.disk.0123456789abcdef0123456789abcdef.app",
	}
	w.create(image)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonSourceNotReady, location.Name)
	w.create(location)
	w.lookNow(image)
	return image, disk
}

// lookNow makes an event, so that the controller looks at an image now.
func (w *world) lookNow(image *longhornv1.BackingImage) {
	w.Helper()
	controlplane.Update(w.T, w.admin, image, false, func(i *longhornv1.BackingImage) { i.Spec.MinNumberOfCopies++ })
}

// firstDownload plays the store and the cluster until the DataDownload of an image is there, and takes it as the data
// mover does.
func (w *world) firstDownload(image *longhornv1.BackingImage, store, disk string) *velerov2.DataDownload {
	w.Helper()
	w.hasDisks(image, disk)
	w.reportCopy(store, disk, image, longhornv1.StateInProgress, 0)
	d := &velerov2.DataDownload{ObjectMeta: w.sourceMeta(image)}
	controlplane.Eventually(w.T, func() error {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.sourceMeta(image)}
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(claim), claim)
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(d), d); err == nil {
				w.Error("the DataDownload is made before its claim is bound")
			}
			claim.Status.Phase = corev1.ClaimBound
			err = w.admin.Status().Update(w.Context(), claim)
		}
		if err != nil {
			return err
		}
		return w.admin.Get(w.Context(), client.ObjectKeyFromObject(d), d)
	})
	w.noPod(image)
	controlplane.Update(w.T, w.varve, d, false, func(d *velerov2.DataDownload) {
		d.Finalizers = []string{datamove.Finalizer}
	})
	return d
}

// is plays the data mover.
func (w *world) is(d *velerov2.DataDownload, phase velerov2.Phase, message string) {
	w.Helper()
	controlplane.Update(w.T, w.varve, d, false, func(d *velerov2.DataDownload) {
		d.Status.Phase, d.Status.Message = phase, message
	})
}

// letGo plays the data mover, which lets a DataDownload go that is being deleted. Until then the claim stays.
func (w *world) letGo(d *velerov2.DataDownload, image *longhornv1.BackingImage) {
	w.Helper()
	wait(w, d, func(d *velerov2.DataDownload) error {
		if d.DeletionTimestamp == nil {
			return fmt.Errorf("DataDownload %s is not being deleted", d.Name)
		}
		return nil
	})
	claim := wait(w, &corev1.PersistentVolumeClaim{ObjectMeta: w.sourceMeta(image)}, exists)
	if claim.DeletionTimestamp != nil {
		w.Error("the claim is deleted while the DataDownload is there")
	}
	controlplane.Update(w.T, w.varve, d, false, func(d *velerov2.DataDownload) { d.Finalizers = nil })
}

// imageOfARestorePoint: a restore has a DataDownload instead of a source pod.
func imageOfARestorePoint(w *world) {
	image, disk := w.newRestore("one")
	d := w.firstDownload(image, "one", disk)
	if !metav1.IsControlledBy(d, image) || !datamove.WritesImage(d.Spec.DataMoverConfig) ||
		d.Spec.TargetVolume.PVC != d.Name || d.Spec.DataMover != datamove.Mover {
		w.Errorf("%+v", d)
	}
	w.is(d, velerov2.PhaseAccepted, "waiting for the repository")
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "waiting for the repository")
	w.is(d, velerov2.PhaseInProgress, "")
	w.reportCopy("one", disk, image, longhornv1.StateInProgress, 40)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "40 % of the source were read")
	w.reportCopy("one", disk, image, longhornv1.StateInProgress, 99)
	w.is(d, velerov2.PhaseCompleted, "")
	w.letGo(d, image)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "read back and sealed")
	w.sourceGone(image)
	w.gone(d)
	w.reportCopy("one", disk, image, longhornv1.StateReady, 100)
	w.says(image, metav1.ConditionTrue, longhornv1.ReasonImageReady, "")
	w.must(w.admin.Delete(w.Context(), image))
	w.dropCopy("one", disk, image)
	w.beat(image, "one")
}

// restoreFails: what the data mover says is what the image says, and it is tried again with another DataDownload.
func restoreFails(w *world) {
	image, disk := w.newRestore("one")
	d := w.firstDownload(image, "one", disk)
	w.is(d, velerov2.PhaseFailed, "the restore point was deleted")
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyFailed,
		"attempt 1 failed: DataDownload "+d.Name+" is Failed: the restore point was deleted; the next one begins at ")
	w.letGo(d, image)
	w.hasDisks(image)
	w.sourceGone(image)
	w.dropCopy("one", disk, image)
	controlplane.Update(w.T, w.varve, image, true, func(i *longhornv1.BackingImage) {
		i.Status.FirstCopyRetryTime = ptr.To(metav1.NewTime(time.Now().Add(-time.Minute)))
	})
	w.lookNow(image)
	again := w.firstDownload(image, "one", disk)
	if again.UID == d.UID {
		w.Error("the DataDownload of the attempt that failed is used again")
	}
	controlplane.Update(w.T, w.varve, again, false, func(d *velerov2.DataDownload) { d.Finalizers = nil })
}

// restoreDeleted: an image that is deleted in the middle has its DataDownload go first, then its claim, then its head.
func restoreDeleted(w *world) {
	image, disk := w.newRestore("one")
	d := w.firstDownload(image, "one", disk)
	w.is(d, velerov2.PhaseInProgress, "")
	w.must(w.admin.Delete(w.Context(), image))
	w.letGo(d, image)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonDeleting, "has a copy")
	w.sourceGone(image)
	w.gone(d)
	w.dropCopy("one", disk, image)
	w.beat(image, "one")
}

// restoreNodeDies: the mover pod on a dead node never ends, and is not waited for.
func restoreNodeDies(w *world) {
	image, disk := w.newRestore("one")
	d := w.firstDownload(image, "one", disk)
	w.is(d, velerov2.PhaseInProgress, "")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: datamove.ChildName(datamove.Download, d.UID),
			Labels: map[string]string{datamove.LabelObject: string(d.UID)},
		},
		Spec: corev1.PodSpec{
			NodeName: "dead", ServiceAccountName: datamove.ServiceAccount, AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{
				Name: "mover", Image: "x", Command: []string{"/usr/bin/varve", "mover", "download"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	w.must(w.varve.Create(w.Context(), pod))
	manager := &longhornv1.InstanceManager{ObjectMeta: w.meta("one")}
	controlplane.Update(w.T, w.varve, manager, true, func(m *longhornv1.InstanceManager) {
		m.Status.CurrentState = longhornv1.ManagerUnknown // as package silence has it
		m.Status.BackingImages = nil                      // a change, so that the controller looks now
	})
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyUnknown, "another disk is chosen at ")
	controlplane.Update(w.T, w.varve, image, true, func(i *longhornv1.BackingImage) {
		for _, c := range i.Status.DiskFileStatusMap {
			c.LastStateTransitionTime = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		}
	})
	w.lookNow(image)
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the mover pod is still there (%w)", err)
		}
		return nil
	})
	w.letGo(d, image)
	w.sourceGone(image)
}
