package expose

import (
	"context"
	"fmt"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// labelSourceUID is Velero's label with the UID of the claim that a DataUpload is about.
const labelSourceUID = "velero.io/pvc-uid"

// errorGrace is how long a snapshot may have the same error before it counts as failed. The snapshot controllers report lost races of
// their own as errors, and remove them when a retry succeeds.
const errorGrace = time.Minute

// noteSource examines the source and notes it. It returns what it waits for, or "".
func (e *CSI) noteSource(ctx context.Context, s *snapshotState, class *storagev1.StorageClass) (string, error) {
	if s.source == nil {
		return "", refuse("VolumeSnapshot %s/%s does not exist: back up the volume again", s.upload.Spec.SourceNamespace, s.upload.Spec.CSISnapshot.VolumeSnapshot)
	}
	if s.source.DeletionTimestamp != nil {
		return "", refuse("%s is being deleted: back up the volume again", describe(s.source))
	}
	if stranger := compareSource(s.upload, s.source); stranger != "" {
		return "", refuse("%s", stranger)
	}
	if waiting, err := e.checkReady(s.source); err != nil || waiting != "" {
		return waiting, err
	}
	content, err := e.contentOf(ctx, s.source)
	switch {
	case err != nil:
		return "", err
	case content == nil:
		return "", refuse("the VolumeSnapshotContent of %s does not exist: back up the volume again", describe(s.source))
	case content.DeletionTimestamp != nil:
		return "", refuse("%s is being deleted: back up the volume again", describe(content))
	}
	if reason := compareContent(s.source, content); reason != "" {
		return "", refuse("%s", reason)
	}
	if content.Status == nil || content.Status.SnapshotHandle == nil {
		return describe(content) + " to have the handle of its snapshot", nil
	}
	if class != nil {
		if err := checkDriver(class, content.Spec.Driver); err != nil {
			return "", err
		}
	}
	note := noteOf(s.source, content)
	if err := e.noteVolume(ctx, s.upload, s.source, content, note); err != nil {
		return "", err
	}
	if err := e.remember(ctx, s.upload, note); err != nil {
		return "", err
	}
	s.note, s.sourceContent = note, content
	return "", nil
}

// noteOf returns the note of a VolumeSnapshot and its content, which may be nil.
func noteOf(source *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) *snapshotNote {
	note := &snapshotNote{Version: noteVersion, Snapshot: source.UID}
	if content != nil {
		note.Content, note.ContentUID = content.Name, content.UID
		note.Driver, note.Policy, note.VolumeHandle = content.Spec.Driver, content.Spec.DeletionPolicy, ptr.Deref(content.Spec.Source.VolumeHandle, "")
		if content.Status != nil {
			note.Handle, note.Taken = ptr.Deref(content.Status.SnapshotHandle, ""), ptr.Deref(content.Status.CreationTime, 0)
		}
	}
	return note
}

// noteVolume notes what the claim needs that will be made from the snapshot. The claim that the snapshot is of may be gone.
func (e *CSI) noteVolume(
	ctx context.Context, upload *velerov2.DataUpload, source *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent, note *snapshotNote,
) error {
	claim, volume, err := e.findSourceClaim(ctx, upload, content)
	if err != nil {
		return err
	}
	note.VolumeMode = ptr.Deref(content.Spec.SourceVolumeMode, "")
	restoreSize := ptr.Deref(source.Status.RestoreSize, resource.Quantity{})
	note.Bytes = max(restoreSize.Value(), ptr.Deref(content.Status.RestoreSize, 0))
	note.SourceUID = types.UID(upload.Labels[labelSourceUID])
	if claim != nil {
		if note.VolumeMode == "" {
			note.VolumeMode = ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
		}
		if note.Bytes == 0 {
			note.Bytes = max(claim.Status.Capacity.Storage().Value(), claim.Spec.Resources.Requests.Storage().Value())
		}
		if note.SourceUID == "" {
			note.SourceUID = claim.UID
		}
	}
	if volume != nil {
		note.Topology = nodeAffinity(volume)
	}
	if note.VolumeMode == "" || note.Bytes == 0 {
		return refuse("neither %s nor its content tells the size and the mode of the volume, and PersistentVolumeClaim %s/%s is gone: back up the volume again",
			describe(source), upload.Spec.SourceNamespace, upload.Spec.SourcePVC)
	}
	return nil
}

// findSourceClaim returns the claim that the snapshot is of, and its volume. It returns nil for what is gone, and for a claim of the same
// name that has another volume.
func (e *CSI) findSourceClaim(
	ctx context.Context, upload *velerov2.DataUpload, content *snapshotv1.VolumeSnapshotContent,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	claim, err := e.findClaim(ctx, upload.Spec.SourceNamespace, upload.Spec.SourcePVC)
	if err != nil || claim == nil {
		return nil, nil, err
	}
	if uid := upload.Labels[labelSourceUID]; uid != "" && uid != string(claim.UID) {
		return nil, nil, nil
	}
	volume, err := e.findVolume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return nil, nil, err
	}
	if volume == nil || !isVolumeOf(volume, claim) {
		return claim, nil, nil
	}
	handle := content.Spec.Source.VolumeHandle
	if volume.Spec.CSI != nil && handle != nil && volume.Spec.CSI.VolumeHandle != *handle {
		return nil, nil, nil
	}
	return claim, volume, nil
}

// checkReady returns what a VolumeSnapshot is waited for, or "". It refuses one that has failed.
func (e *CSI) checkReady(snapshot *snapshotv1.VolumeSnapshot) (string, error) {
	waiting := describe(snapshot) + " to be ready to use"
	status := snapshot.Status
	if status == nil {
		return waiting, nil
	}
	if ptr.Deref(status.ReadyToUse, false) && status.BoundVolumeSnapshotContentName != nil {
		return "", nil
	}
	if status.Error == nil {
		return waiting, nil
	}
	message := ptr.Deref(status.Error.Message, "its driver does not say why")
	if status.Error.Time != nil && e.Clock.Now().Sub(status.Error.Time.Time) >= errorGrace {
		return "", refuse("%s has failed: %s", describe(snapshot), message)
	}
	return withDetail(waiting, message), nil
}

// contentOf returns the content of a VolumeSnapshot. A content that was made and is not named yet is found by its name.
func (e *CSI) contentOf(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot) (*snapshotv1.VolumeSnapshotContent, error) {
	name := "snapcontent-" + string(snapshot.UID)
	if snapshot.Status != nil && ptr.Deref(snapshot.Status.BoundVolumeSnapshotContentName, "") != "" {
		name = *snapshot.Status.BoundVolumeSnapshotContentName
	}
	return reconcile.Find(ctx, e.Live, types.NamespacedName{Name: name}, &snapshotv1.VolumeSnapshotContent{})
}

// compareSource says why a VolumeSnapshot is not the one that was made for the DataUpload, or "". Velero makes the snapshot first.
func compareSource(upload *velerov2.DataUpload, source *snapshotv1.VolumeSnapshot) string {
	if source.CreationTimestamp.After(upload.CreationTimestamp.Time) {
		return describe(source) + " is younger than the DataUpload, so it is another one than the DataUpload was made for: back up the volume again"
	}
	claim := ptr.Deref(source.Spec.Source.PersistentVolumeClaimName, "")
	if claim != "" && claim != upload.Spec.SourcePVC {
		return fmt.Sprintf("%s is of PersistentVolumeClaim %s, not of %s as the DataUpload says: correct it", describe(source), claim, upload.Spec.SourcePVC)
	}
	theirs, ours := source.Labels[datamove.LabelBackupName], upload.Labels[datamove.LabelBackupName]
	if theirs != "" && ours != "" && theirs != ours {
		return fmt.Sprintf("%s belongs to the backup %s, and the DataUpload to %s: back up the volume again", describe(source), theirs, ours)
	}
	return ""
}

// compareContent says why a content cannot be taken over from a VolumeSnapshot, or "".
func compareContent(source *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) string {
	ref := content.Spec.VolumeSnapshotRef
	switch {
	case ref.UID != source.UID || ref.Namespace != source.Namespace || ref.Name != source.Name:
		return fmt.Sprintf("%s belongs to VolumeSnapshot %s/%s, not to %s: back up the volume again", describe(content), ref.Namespace, ref.Name, describe(source))
	case content.Spec.Source.VolumeHandle == nil:
		return describe(content) + " is of a snapshot that was there before, which others may use, and which would be deleted: take a new snapshot of the volume"
	}
	return ""
}

// checkDriver refuses a class that makes volumes with another driver than a snapshot's: a driver that knows no snapshots makes an empty
// volume. Classes of the drivers that were once part of Kubernetes have other names.
func checkDriver(class *storagev1.StorageClass, driver string) error {
	if class.Provisioner == driver || strings.HasPrefix(class.Provisioner, "kubernetes.io/") {
		return nil
	}
	return refuse("StorageClass %s belongs to the driver %s, and the snapshot to %s: use a class of that driver", class.Name, class.Provisioner, driver)
}
