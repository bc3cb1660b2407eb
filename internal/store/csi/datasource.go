package csi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/names"
)

// annotationMode is the annotation of a VolumeSnapshotContent with which an administrator allows that a claim has
// another volume mode than the volume of the snapshot.
const annotationMode = "snapshot.storage.kubernetes.io/allow-volume-mode-change"

// dataSource is what a claim is to be filled from.
type dataSource struct{ group, kind, name, namespace string }

// describeDataSource returns what a claim is to be filled from, or nothing.
func describeDataSource(claim *corev1.PersistentVolumeClaim) dataSource {
	if ref := claim.Spec.DataSourceRef; ref != nil {
		return dataSource{
			group: ptr.Deref(ref.APIGroup, ""), kind: ref.Kind, name: ref.Name,
			namespace: ptr.Deref(ref.Namespace, claim.Namespace),
		}
	}
	if source := claim.Spec.DataSource; source != nil {
		return dataSource{
			group: ptr.Deref(source.APIGroup, ""), kind: source.Kind, name: source.Name, namespace: claim.Namespace,
		}
	}
	return dataSource{}
}

func (s dataSource) isSnapshot() bool {
	return s.group == snapshotv1.GroupName && s.kind == "VolumeSnapshot"
}
func (s dataSource) isClaim() bool { return s.group == "" && s.kind == "PersistentVolumeClaim" }

// findContentSource returns what the volume of a claim is to be made of, or nil. It checks that as external-provisioner
// does. An error is of class Transient if the source is not there yet.
func (p provisioner) findContentSource(
	ctx context.Context, claim *corev1.PersistentVolumeClaim,
) (*csi.VolumeContentSource, error) {
	source := describeDataSource(claim)
	switch {
	case source == (dataSource{}):
		return nil, nil //nolint:nilnil // a claim without a source is as good as one with
	case source.namespace != claim.Namespace:
		return nil, errclass.Errorf(errclass.Invalid, "the data source %s %s is in namespace %s: use one of namespace %s",
			source.kind, source.name, source.namespace, claim.Namespace)
	case source.isSnapshot():
		return p.findSnapshotSource(ctx, claim, source.name)
	}
	return p.findClaimSource(ctx, claim, source.name)
}

func (p provisioner) findSnapshotSource(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, name string,
) (*csi.VolumeContentSource, error) {
	if p.options.Snapshots == nil {
		return nil, errclass.Errorf(errclass.Invalid, "the data source is a VolumeSnapshot, and the driver serves none")
	}
	snapshots := p.options.Snapshots.SnapshotV1()
	snapshot, err := snapshots.VolumeSnapshots(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, errclass.Errorf(errclass.Transient, "get the data source: %w", err)
	}
	bound := ""
	if snapshot.Status != nil {
		bound = ptr.Deref(snapshot.Status.BoundVolumeSnapshotContentName, "")
	}
	switch {
	case snapshot.DeletionTimestamp != nil:
		return nil, errclass.Errorf(errclass.Conflict, "VolumeSnapshot %s is being deleted: use another one", name)
	case bound == "":
		return nil, errclass.Errorf(errclass.Transient, "VolumeSnapshot %s is not made yet", name)
	}
	content, err := snapshots.VolumeSnapshotContents().Get(ctx, bound, metav1.GetOptions{})
	if err != nil {
		return nil, errclass.Errorf(errclass.Transient, "get the data source: %w", err)
	}
	if err := checkContent(claim, snapshot, content); err != nil {
		return nil, err
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: contentHandle(content)},
	}}, nil
}

// checkContent returns an error if a claim may not be made of the content of a VolumeSnapshot.
func checkContent(
	claim *corev1.PersistentVolumeClaim, snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent,
) error {
	owner := content.Spec.VolumeSnapshotRef
	mode, wanted := content.Spec.SourceVolumeMode, ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	switch {
	case owner.UID != snapshot.UID || owner.Name != snapshot.Name || owner.Namespace != snapshot.Namespace:
		return errclass.Errorf(errclass.Invalid, "VolumeSnapshot %s names VolumeSnapshotContent %s, which is another one's",
			snapshot.Name, content.Name)
	case content.Spec.Driver != names.Driver:
		return errclass.Errorf(errclass.Invalid, "VolumeSnapshot %s is of the driver %s: use a StorageClass of that driver",
			snapshot.Name, content.Spec.Driver)
	case contentHandle(content) == "" || !ptr.Deref(content.Status.ReadyToUse, false):
		return errclass.Errorf(errclass.Transient, "VolumeSnapshot %s is not ready to use yet", snapshot.Name)
	case mode != nil && *mode != wanted && content.Annotations[annotationMode] != "true":
		return errclass.Errorf(errclass.Invalid, "the volume of VolumeSnapshot %s has volumeMode %s, and the claim has %s: "+
			"use the same one, or have an administrator set the annotation %s of VolumeSnapshotContent %s to true",
			snapshot.Name, *mode, wanted, annotationMode, content.Name)
	}
	return nil
}

// findClaimSource returns the volume of another claim.
func (p provisioner) findClaimSource(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, name string,
) (*csi.VolumeContentSource, error) {
	core := p.options.Kubernetes.CoreV1()
	other, err := core.PersistentVolumeClaims(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, errclass.Errorf(errclass.Transient, "get the data source: %w", err)
	}
	mode := ptr.Deref(other.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	switch wanted := ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem); {
	case other.DeletionTimestamp != nil:
		return nil, errclass.Errorf(errclass.Conflict, "PersistentVolumeClaim %s is being deleted: use another one", name)
	case other.Status.Phase != corev1.ClaimBound || other.Spec.VolumeName == "":
		return nil, errclass.Errorf(errclass.Transient, "PersistentVolumeClaim %s has no volume yet", name)
	case mode != wanted:
		return nil, errclass.Errorf(errclass.Invalid, "PersistentVolumeClaim %s has volumeMode %s, and the claim has %s: "+
			"use the same one", name, mode, wanted)
	}
	pv, err := core.PersistentVolumes().Get(ctx, other.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errclass.Errorf(errclass.Conflict, "PersistentVolume %s of PersistentVolumeClaim %s is gone",
			other.Spec.VolumeName, name)
	case err != nil:
		return nil, errclass.Errorf(errclass.Transient, "get the data source: %w", err)
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != names.Driver:
		return nil, errclass.Errorf(errclass.Invalid, "the volume of PersistentVolumeClaim %s is not of the driver %s: "+
			"use a StorageClass of its driver", name, names.Driver)
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: pv.Spec.CSI.VolumeHandle},
	}}, nil
}

// findSourceNode returns the node that has what a claim is to be made of, or nothing if that is not known, or if that
// node's store does not report: then the node that the scheduler chose says where the source is.
func (p provisioner) findSourceNode(ctx context.Context, claim *corev1.PersistentVolumeClaim) string {
	if source := describeDataSource(claim); !source.isSnapshot() && !source.isClaim() {
		return ""
	}
	source, err := p.findContentSource(ctx, claim)
	if err != nil {
		return "" // the node that the scheduler chose says why
	}
	var node string
	if handle := source.GetVolume().GetVolumeId(); handle != "" {
		node, err = p.findVolumeNode(ctx, handle)
	} else {
		node, err = p.findSnapshotNode(ctx, source.GetSnapshot().GetSnapshotId())
	}
	if err == nil && node != "" && node != p.options.Node {
		manager := &longhornv1.InstanceManager{}
		err = p.options.Client.Get(ctx, p.objectKey(node), manager)
		if manager.Status.CurrentState != longhornv1.ManagerRunning {
			node = ""
		}
	}
	if client.IgnoreNotFound(err) != nil {
		p.log.Error("find the node of a claim's data source, which is tried again", "claim",
			client.ObjectKeyFromObject(claim), "error", err)
		return ""
	}
	return node
}
