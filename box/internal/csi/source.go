package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotapi "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// allowModeChange is the annotation of a VolumeSnapshotContent with which an administrator allows that a claim has
// another volume mode than the volume of the snapshot.
const allowModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"

// resolveSource finds what a claim's volume is made from, and checks it as upstream's external-provisioner does. A claim without a
// source has nil.
func (p *provisioner) resolveSource(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*csi.VolumeContentSource, error) {
	ref, source := claim.Spec.DataSourceRef, claim.Spec.DataSource
	if ref != nil && ref.Namespace != nil && *ref.Namespace != claim.Namespace {
		return nil, fmt.Errorf("the data source %s %s is in the namespace %s: only the claim's own is supported", ref.Kind, ref.Name, *ref.Namespace)
	}
	if source == nil && ref != nil { // the API server fills in both, if it knows the kind
		source = &corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}
	}
	if source == nil {
		return nil, nil //nolint:nilnil // no source is no error
	}
	group := ""
	if source.APIGroup != nil {
		group = *source.APIGroup
	}
	switch {
	case source.Kind == "VolumeSnapshot" && group == snapshotapi.GroupName:
		return p.snapshotSource(ctx, claim, source.Name)
	case source.Kind == "PersistentVolumeClaim" && group == "":
		return p.claimSource(ctx, claim, source.Name)
	}
	return nil, fmt.Errorf("the data source %s %s: only a VolumeSnapshot or a PersistentVolumeClaim is supported", source.Kind, source.Name)
}

func (p *provisioner) snapshotSource(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) (*csi.VolumeContentSource, error) {
	snap, err := p.snapshots.VolumeSnapshots(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the data source: %w", err)
	}
	if snap.DeletionTimestamp != nil {
		return nil, fmt.Errorf("the VolumeSnapshot %s is being deleted", name)
	}
	if snap.Status == nil || snap.Status.BoundVolumeSnapshotContentName == nil {
		return nil, fmt.Errorf("the VolumeSnapshot %s has no content yet", name)
	}
	content, err := p.snapshots.VolumeSnapshotContents().Get(ctx, *snap.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the data source: %w", err)
	}
	handle, err := contentHandle(claim, snap, content, p.driver.name)
	if err != nil {
		return nil, fmt.Errorf("the VolumeSnapshot %s: %w", name, err)
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: handle},
	}}, nil
}

// contentHandle returns the ID of the driver's snapshot that a VolumeSnapshot stands for, if the claim may have it.
func contentHandle(
	claim *corev1.PersistentVolumeClaim, snap *snapshotapi.VolumeSnapshot, content *snapshotapi.VolumeSnapshotContent, driver string,
) (string, error) {
	owner := content.Spec.VolumeSnapshotRef
	switch {
	case owner.UID != snap.UID || owner.Name != snap.Name || owner.Namespace != snap.Namespace:
		return "", fmt.Errorf("its content %s is bound to another one", content.Name)
	case content.Spec.Driver != driver:
		return "", fmt.Errorf("its driver is %s, not %s", content.Spec.Driver, driver)
	case content.Status == nil || content.Status.SnapshotHandle == nil || content.Status.ReadyToUse == nil || !*content.Status.ReadyToUse:
		return "", errors.New("it is not ready to use")
	}
	want := volumeMode(claim.Spec.VolumeMode)
	if have := content.Spec.SourceVolumeMode; have != nil && *have != want && content.Annotations[allowModeChange] != "true" {
		return "", fmt.Errorf("its volume had the mode %s, the claim has %s, and its content lacks the annotation %s", *have, want, allowModeChange)
	}
	return *content.Status.SnapshotHandle, nil
}

// claimSource returns the volume of another claim, to be cloned.
func (p *provisioner) claimSource(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) (*csi.VolumeContentSource, error) {
	other, err := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the data source: %w", err)
	}
	switch {
	case other.DeletionTimestamp != nil:
		return nil, fmt.Errorf("the claim %s is being deleted", name)
	case other.Status.Phase != corev1.ClaimBound || other.Spec.VolumeName == "":
		return nil, fmt.Errorf("the claim %s has no volume yet", name)
	case volumeMode(other.Spec.VolumeMode) != volumeMode(claim.Spec.VolumeMode):
		return nil, fmt.Errorf("the claim %s has another volume mode", name)
	}
	pv, err := p.client.CoreV1().PersistentVolumes().Get(ctx, other.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the data source: %w", err)
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != p.driver.name {
		return nil, fmt.Errorf("the volume of the claim %s is not of the driver %s", name, p.driver.name)
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: pv.Spec.CSI.VolumeHandle},
	}}, nil
}
