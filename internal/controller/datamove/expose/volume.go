package expose

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/diagnosis"
)

// examineClaim returns how far a claim in Varve's namespace is. class is the claim's, or nil; topology is where a volume that is not there
// yet will be, if that is known.
func (a Access) examineClaim(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, topology *corev1.NodeSelector,
) (Exposure, error) {
	volume := &Volume{
		Claim: claim.Name, VolumeMode: ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem),
		ReadOnly:     slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}),
		Bytes:        claim.Spec.Resources.Requests.Storage().Value(),
		NodeAffinity: topology,
	}
	switch {
	case claim.DeletionTimestamp != nil:
		return Exposure{}, refuse("%s was deleted by somebody else while it was needed: try again", describe(claim))
	case claim.Status.Phase == corev1.ClaimLost:
		return Exposure{}, refuse("%s has lost its volume %s: try again", describe(claim), claim.Spec.VolumeName)
	case claim.Status.Phase == corev1.ClaimBound:
		bound, waiting, err := a.volumeOf(ctx, claim)
		if err != nil || waiting != "" {
			return Exposure{Waiting: waiting}, err
		}
		volume.NodeAffinity = nodeAffinity(bound)
		return Exposure{Volume: volume}, nil
	case class != nil && waitsForConsumer(class):
		return Exposure{Volume: volume, Diagnosis: diagnosis.LastWarning(ctx, a.Live, claim)}, nil
	}
	return Exposure{Waiting: withDetail(describe(claim)+" to be bound", diagnosis.LastWarning(ctx, a.Live, claim))}, nil
}

// volumeOf returns the volume of a claim in Varve's namespace that is bound, or what it waits for. It refuses a volume that was not made for
// the claim.
func (a Access) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (volume *corev1.PersistentVolume, waiting string, err error) {
	volume, err = a.findVolume(ctx, claim.Spec.VolumeName)
	switch {
	case err != nil:
		return nil, "", err
	case volume == nil || !isVolumeOf(volume, claim):
		return nil, fmt.Sprintf("PersistentVolume %s to be bound to %s", claim.Spec.VolumeName, describe(claim)), nil
	case !wasMadeFor(volume, claim):
		return nil, "", refuse("%s was bound to %s, which was there before or made for something else: remove unclaimed volumes of StorageClass %s, or use a class without them",
			describe(claim), describe(volume), ptr.Deref(claim.Spec.StorageClassName, ""))
	}
	return volume, "", nil
}

func nodeAffinity(volume *corev1.PersistentVolume) *corev1.NodeSelector {
	if volume.Spec.NodeAffinity == nil {
		return nil
	}
	return volume.Spec.NodeAffinity.Required
}

// isVolumeOf says that a volume is bound to a claim from its side.
func isVolumeOf(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.UID == claim.UID
}

// wasMadeFor says that a volume was made for the claim that it is bound to. The cluster binds claims, also those that ask for a
// snapshot's content, to any unclaimed volume that is large enough, and notes on the volume that it chose it. A driver makes a volume that
// has its claim from the beginning.
func wasMadeFor(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	_, chosen := volume.Annotations[annotationBoundByController]
	return isVolumeOf(volume, claim) && !volume.CreationTimestamp.Before(&claim.CreationTimestamp) && (!chosen || volume.Name == provisionedName(claim.UID))
}

// provisionedName returns the name that provisioners give to the volume that they make for a claim.
func provisionedName(claim types.UID) string { return "pvc-" + string(claim) }

// disposeVolume deletes a claim in Varve's namespace, if it is not nil, and its volume with the data on it, whatever the volume's policy
// is. note says what is known of both; save writes it, before what needs it.
func (a Access) disposeVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim, note *volumeNote, save func() error) (Progress, error) {
	if claim != nil {
		return a.disposeClaim(ctx, claim, note, save)
	}
	return a.disposeReleased(ctx, note)
}

func (a Access) disposeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, note *volumeNote, save func() error) (Progress, error) {
	volume, err := a.findVolume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return Progress{}, err
	}
	found := volumeNote{Claim: claim.UID, Policy: note.Policy}
	var left string
	switch {
	case volume == nil:
	case wasMadeFor(volume, claim):
		found.Name, found.UID = volume.Name, volume.UID
	default:
		left = describe(volume) + " was not made for " + describe(claim)
	}
	*note = found
	if err := save(); err != nil {
		return Progress{}, err
	}
	if found.Name != "" {
		if err := a.setPolicy(ctx, volume, corev1.PersistentVolumeReclaimDelete); err != nil {
			return Progress{}, err
		}
	}
	gone, err := a.remove(ctx, claim)
	if err != nil {
		return Progress{}, err
	}
	if !gone {
		return Progress{Waiting: withDetail(describeRemoval(claim), diagnosis.LastWarning(ctx, a.Live, claim)), Left: left}, nil
	}
	progress, err := a.disposeReleased(ctx, note)
	if left != "" {
		progress.Left = left
	}
	return progress, err
}

// disposeReleased waits until the volume of a claim that is gone was deleted by its driver.
func (a Access) disposeReleased(ctx context.Context, note *volumeNote) (Progress, error) {
	if note.Claim == "" {
		return Progress{Done: true}, nil
	}
	name := note.Name
	if name == "" {
		name = provisionedName(note.Claim) // it may be made even after the claim is gone
	}
	volume, err := a.findVolume(ctx, name)
	switch {
	case err != nil:
		return Progress{}, err
	case volume == nil || note.UID != "" && volume.UID != note.UID:
		return Progress{Done: true}, nil
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != note.Claim:
		return Progress{Done: true, Left: describe(volume) + " was given to another claim"}, nil
	}
	if err := a.setPolicy(ctx, volume, corev1.PersistentVolumeReclaimDelete); err != nil {
		return Progress{}, err
	}
	return waitFor(withDetail(describeRemoval(volume)+" by its driver", volume.Status.Message)), nil
}

func (a Access) setPolicy(ctx context.Context, volume *corev1.PersistentVolume, policy corev1.PersistentVolumeReclaimPolicy) error {
	if volume.Spec.PersistentVolumeReclaimPolicy == policy {
		return nil
	}
	return change(ctx, a, volume, func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = policy })
}
