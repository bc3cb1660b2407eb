package expose

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// annotationBoundByController is on a volume that the cluster chose for its claim, and would have it forget the claim.
const annotationBoundByController = "pv.kubernetes.io/bound-by-controller"

// Finish hands the restored volume over to the target claim. It must not be called before the data in it is verified and synced.
func (r *Restore) Finish(ctx context.Context, download *velerov2.DataDownload) (Progress, error) {
	s, err := r.observe(ctx, download)
	if err != nil {
		return Progress{}, err
	}
	if s.note == nil {
		return Progress{}, refuse("nothing was restored for the DataDownload: restore the volume again")
	}
	if s.note.Bound {
		return r.putPolicyBack(ctx, s)
	}
	if !s.hasTarget() || s.target.DeletionTimestamp != nil {
		return Progress{}, refuse("%s was deleted, or replaced by another of that name: restore the volume again", s.describeTarget())
	}
	if s.note.Volume.Name == "" {
		if waiting, err := r.noteVolume(ctx, s); err != nil || waiting != "" {
			return waitFor(waiting), err
		}
	}
	if other := s.target.Spec.VolumeName; other != "" && other != s.note.Volume.Name {
		return Progress{}, refuse("%s was bound to PersistentVolume %s: delete the claim, and restore the volume again", describe(s.target), other)
	}
	volume, err := r.findVolume(ctx, s.note.Volume.Name)
	if err != nil {
		return Progress{}, err
	}
	if volume == nil || volume.UID != s.note.Volume.UID {
		return Progress{}, refuse("PersistentVolume %s with the restored data was deleted by somebody else: restore the volume again", s.note.Volume.Name)
	}
	return r.handOver(ctx, s, volume)
}

// noteVolume notes the restored volume and its reclaim policy, before anything about it is changed.
func (r *Restore) noteVolume(ctx context.Context, s *restoreState) (string, error) {
	if s.claim == nil {
		return "", refuse("PersistentVolumeClaim %s/%s was deleted by somebody else while it was needed: restore the volume again",
			r.Namespace, datamove.ChildName(datamove.Download, s.download.UID))
	}
	if s.claim.Status.Phase != corev1.ClaimBound {
		return describe(s.claim) + " to be bound", nil
	}
	volume, waiting, err := r.volumeOf(ctx, s.claim)
	if err != nil || waiting != "" {
		return waiting, err
	}
	s.note.Volume = volumeNote{Claim: s.claim.UID, Name: volume.Name, UID: volume.UID, Policy: volume.Spec.PersistentVolumeReclaimPolicy}
	return "", r.remember(ctx, s.download, s.note)
}

// handOver makes the next step from a volume that is the own claim's to one that is the target's.
func (r *Restore) handOver(ctx context.Context, s *restoreState, volume *corev1.PersistentVolume) (Progress, error) {
	if isVolumeOf(volume, s.target) {
		return r.confirmBound(ctx, s, volume)
	}
	if ref := volume.Spec.ClaimRef; ref == nil || ref.UID != s.note.Volume.Claim {
		return Progress{}, refuse("%s with the restored data was given to another claim: restore the volume again", describe(volume))
	}
	if err := r.setPolicy(ctx, volume, corev1.PersistentVolumeReclaimRetain); err != nil {
		return Progress{}, err
	}
	if s.claim != nil {
		gone, err := r.remove(ctx, s.claim)
		if err != nil {
			return Progress{}, err
		}
		if !gone {
			return waitFor(describeRemoval(s.claim)), nil
		}
		// The cluster releases the volume now, and so writes to it.
		if volume, err = r.findVolume(ctx, volume.Name); err != nil {
			return Progress{}, err
		}
	}
	// Once the volume is released, its phase tells for certain whether the target has it.
	if volume == nil || volume.Status.Phase == corev1.VolumeBound {
		return waitFor("PersistentVolume " + s.note.Volume.Name + " to be released"), nil
	}
	if err := change(ctx, r.Access, volume, func(v *corev1.PersistentVolume) { giveTo(v, s.target) }); err != nil {
		return Progress{}, err
	}
	return waitFor(describe(s.target) + " to be bound to " + describe(volume)), nil
}

// giveTo makes a volume that of a claim. The label that only the claim's selector asks for is the claim's to choose; others stay, because
// they may say where the volume is.
func giveTo(volume *corev1.PersistentVolume, target *corev1.PersistentVolumeClaim) {
	volume.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: target.Namespace, Name: target.Name, UID: target.UID}
	delete(volume.Annotations, annotationBoundByController)
	if target.Spec.Selector == nil {
		return
	}
	if volume.Labels == nil {
		volume.Labels = map[string]string{}
	}
	for key, value := range target.Spec.Selector.MatchLabels {
		if _, exists := volume.Labels[key]; !exists || key == datamove.LabelRestoredVolume {
			volume.Labels[key] = value
		}
	}
}

// confirmBound notes that the target has the volume, and then puts the policy back.
func (r *Restore) confirmBound(ctx context.Context, s *restoreState, volume *corev1.PersistentVolume) (Progress, error) {
	if s.target.Spec.VolumeName != volume.Name || s.target.Status.Phase != corev1.ClaimBound {
		return waitFor(withDetail(describe(s.target)+" to be bound to "+describe(volume), volume.Status.Message)), nil
	}
	s.note.Bound = true
	if err := r.remember(ctx, s.download, s.note); err != nil {
		return Progress{}, err
	}
	return r.putPolicyBack(ctx, s)
}

// putPolicyBack gives a volume that the target has the reclaim policy that it had when it was made.
func (r *Restore) putPolicyBack(ctx context.Context, s *restoreState) (Progress, error) {
	volume, err := r.findVolume(ctx, s.note.Volume.Name)
	if err != nil {
		return Progress{}, err
	}
	ours := volume != nil && volume.UID == s.note.Volume.UID && volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.UID == s.note.Target
	if ours && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		if err := r.setPolicy(ctx, volume, s.note.Volume.Policy); err != nil {
			return Progress{}, err
		}
	}
	return Progress{Done: true}, nil
}
