package expose

import (
	"context"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/datamove"
)

// Most drivers can tell what has changed since a snapshot only as long as they have it. So the settings of a StorageClass may have the snapshot
// of a claim's latest restore point kept. That takes one durable step, which is the last of an upload's disposal: a label on the own
// VolumeSnapshot. From then on it is the controller's (package keptsnapshot), which deletes it when it is of no more use.
//
// Before the label, a process that dies leaves the own VolumeSnapshot to its successor, as ever, and that one labels
// it, or deletes it. After the label, the next call finds it, and has nothing to do. Whether the upload really ends
// as Completed is seen by the controller: it deletes what was kept for any other. At every moment the snapshot has
// its one content, with the policy Delete.

// keepOwn labels the own VolumeSnapshot if it is to be kept, and reports whether it is.
func (e *CSI) keepOwn(ctx context.Context, s *snapshotState) (bool, error) {
	if !e.wantsKept(s) {
		return false, nil
	}
	described, err := e.describeSnapshot(ctx, s)
	if err != nil || described == nil || described.Metadata == nil {
		return false, err // Nobody could count from it.
	}
	u := s.upload
	kept := datamove.KeptSnapshot{
		Upload: types.NamespacedName{Namespace: u.Namespace, Name: u.Name}, UploadUID: u.UID,
		Claim: types.NamespacedName{Namespace: u.Spec.SourceNamespace, Name: u.Spec.SourcePVC}, ClaimUID: s.note.SourceUID,
		StorageClass: u.Spec.CSISnapshot.StorageClass, Driver: s.note.Driver,
		Repository: datamove.RepositoryName(u.Spec.SourceNamespace, datamove.Location{Namespace: u.Namespace, Name: u.Spec.BackupStorageLocation}),
	}
	if s.snapshot.Labels[datamove.LabelKeptSnapshot] == kept.Key() && s.snapshot.Annotations[datamove.AnnotationKeptSnapshot] == kept.Encode() {
		return true, nil
	}
	return true, change(ctx, e.Access, s.snapshot, func(snapshot *snapshotv1.VolumeSnapshot) {
		metav1.SetMetaDataLabel(&snapshot.ObjectMeta, datamove.LabelKeptSnapshot, kept.Key())
		metav1.SetMetaDataAnnotation(&snapshot.ObjectMeta, datamove.AnnotationKeptSnapshot, kept.Encode())
	})
}

// wantsKept says whether an upload's snapshot is kept by the settings and by what the upload has done, as far as the objects tell. Without the
// policy Delete, nothing would delete the snapshot later.
func (e *CSI) wantsKept(s *snapshotState) bool {
	u := s.upload
	if u.DeletionTimestamp != nil || u.Spec.Cancel || u.Spec.CSISnapshot == nil || !e.options().Classes[u.Spec.CSISnapshot.StorageClass].KeepSnapshot {
		return false
	}
	if !s.isDeletable() || s.snapshot.DeletionTimestamp != nil || s.content.DeletionTimestamp != nil || s.note.SourceUID == "" {
		return false
	}
	report, err := datamove.DecodeReport(u.Annotations[datamove.AnnotationReport])
	if err != nil || report.Outcome != datamove.Succeeded {
		return false
	}
	id, err := datamove.ParseSnapshotID(report.SnapshotID)
	return err == nil && id.Form == datamove.Disk
}
