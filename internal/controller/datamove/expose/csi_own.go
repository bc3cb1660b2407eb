package expose

import (
	"context"
	"fmt"
	"maps"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/datamove"
)

// Metadata of a content by which the snapshot controllers work. The label says which node's snapshotter manages it, where each node has its
// own. The annotations say which Secret the driver needs to delete the snapshot. No other annotation is copied: one of them would have
// the snapshot deleted.
const (
	labelManagedBy            = "snapshot.storage.kubernetes.io/managed-by"
	annotationSecretName      = "snapshot.storage.kubernetes.io/deletion-secret-name"
	annotationSecretNamespace = "snapshot.storage.kubernetes.io/deletion-secret-namespace"
)

// takeOver makes the own content and the own VolumeSnapshot. It returns what it waits for, or "" when they are ready.
func (e *CSI) takeOver(ctx context.Context, s *snapshotState) (string, error) {
	if s.content == nil {
		if err := e.makeContent(ctx, s); err != nil {
			return "", err
		}
	}
	if s.content.DeletionTimestamp != nil || s.snapshot != nil && s.snapshot.DeletionTimestamp != nil {
		return "", refuse("%s was deleted by somebody else while it was needed: back up the volume again", describe(s.content))
	}
	if s.snapshot == nil {
		if err := e.makeSnapshot(ctx, s); err != nil {
			return "", err
		}
	}
	if waiting, err := e.checkReady(s.snapshot); err != nil || waiting != "" {
		return waiting, err
	}
	if !s.isDeletable() {
		return describe(s.content) + " to be bound, and to have the handle of its snapshot", nil
	}
	return "", nil
}

// isDeletable says that the deletion of the own VolumeSnapshot deletes the snapshot on the storage. Before its content is bound and has its
// status, it would leave it there.
func (s *snapshotState) isDeletable() bool {
	return s.snapshot != nil && s.content != nil && s.content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete &&
		s.content.Spec.VolumeSnapshotRef.UID == s.snapshot.UID && s.content.Status != nil && s.content.Status.SnapshotHandle != nil
}

func (e *CSI) makeContent(ctx context.Context, s *snapshotState) error {
	if len(s.sourceStrangers) > 0 {
		return refuse("%s: back up the volume again", s.sourceStrangers[0])
	}
	source := s.sourceContent
	if source == nil || source.DeletionTimestamp != nil {
		return refuse("VolumeSnapshotContent %s was deleted before its snapshot %s could be taken over: back up the volume again", s.note.Content, s.note.Handle)
	}
	if err := e.setContentPolicy(ctx, source, snapshotv1.VolumeSnapshotContentRetain); err != nil {
		return err
	}
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: childMeta(datamove.Upload, s.upload, ""),
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot", Namespace: e.Namespace, Name: datamove.ChildName(datamove.Upload, s.upload.UID),
			},
			DeletionPolicy:          snapshotv1.VolumeSnapshotContentDelete,
			Driver:                  s.note.Driver,
			VolumeSnapshotClassName: source.Spec.VolumeSnapshotClassName,
			Source:                  snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: ptr.To(s.note.Handle)},
			SourceVolumeMode:        source.Spec.SourceVolumeMode,
		},
	}
	if node, ok := source.Labels[labelManagedBy]; ok {
		content.Labels[labelManagedBy] = node
	}
	for _, key := range []string{annotationSecretName, annotationSecretNamespace} {
		if value, ok := source.Annotations[key]; ok {
			content.Annotations[key] = value
		}
	}
	if err := e.Writer.Create(ctx, content); err != nil {
		return fmt.Errorf("create %s: %w", describe(content), err)
	}
	s.content = content
	return nil
}

func (e *CSI) makeSnapshot(ctx context.Context, s *snapshotState) error {
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: childMeta(datamove.Upload, s.upload, e.Namespace),
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: ptr.To(s.content.Name)},
		},
	}
	if err := e.Writer.Create(ctx, snapshot); err != nil {
		return fmt.Errorf("create %s: %w", describe(snapshot), err)
	}
	s.snapshot = snapshot
	return nil
}

// uploadClass returns the class of the claim that is made from the snapshot. Where the claim is already there, its class may be gone and nil.
func (e *CSI) uploadClass(ctx context.Context, s *snapshotState) (*storagev1.StorageClass, error) {
	if s.upload.Spec.CSISnapshot == nil {
		return nil, refuse("spec.csiSnapshot of the DataUpload is missing: set it")
	}
	if s.claim != nil {
		return e.classOf(ctx, s.claim)
	}
	source := s.upload.Spec.CSISnapshot.StorageClass
	name := source
	if setting := e.options().Classes[source].StorageClass; setting != "" {
		name = setting
	}
	if name == "" {
		return nil, refuse("spec.csiSnapshot.storageClass of the DataUpload is missing: set it")
	}
	return e.findClass(ctx, name)
}

// makeClaim makes the claim, and notes its UID: so its volume is found even if the claim is deleted by somebody else.
func (e *CSI) makeClaim(ctx context.Context, s *snapshotState, class *storagev1.StorageClass) error {
	if s.note.Volume.Claim != "" {
		return refuse("PersistentVolumeClaim %s/%s was deleted by somebody else while it was needed: back up the volume again", e.Namespace, s.content.Name)
	}
	if err := checkDriver(class, s.note.Driver); err != nil {
		return err // the class may be another one by now
	}
	setting := e.options().Classes[s.upload.Spec.CSISnapshot.StorageClass]
	mode := corev1.ReadWriteOnce
	if setting.ReadOnly {
		mode = corev1.ReadOnlyMany
	}
	bytes := max(s.note.Bytes, ptr.Deref(s.content.Status.RestoreSize, 0))
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: childMeta(datamove.Upload, s.upload, e.Namespace),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{mode},
			StorageClassName: ptr.To(class.Name),
			VolumeMode:       ptr.To(s.note.VolumeMode),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)},
			},
			DataSource: &corev1.TypedLocalObjectReference{APIGroup: ptr.To(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: s.snapshot.Name},
		},
	}
	annotations := maps.Clone(setting.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, claim.Annotations)
	claim.Annotations = annotations
	if err := e.Writer.Create(ctx, claim); err != nil {
		return fmt.Errorf("create %s: %w", describe(claim), err)
	}
	s.claim = claim
	s.note.Volume.Claim = claim.UID
	return e.remember(ctx, s.upload, s.note)
}

func (e *CSI) setContentPolicy(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, policy snapshotv1.DeletionPolicy) error {
	if content.Spec.DeletionPolicy == policy {
		return nil
	}
	return change(ctx, e.Access, content, func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.DeletionPolicy = policy })
}
