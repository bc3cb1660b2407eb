package expose

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// Dispose removes the claim in Varve's namespace and the volume with its data, in whatever state they are. A volume that the target claim has
// is the target's: it stays, and gets its reclaim policy back.
func (r *Restore) Dispose(ctx context.Context, download *velerov2.DataDownload) (Progress, error) {
	s, err := r.observe(ctx, download)
	if err != nil {
		return Progress{}, err
	}
	progress, err := r.dispose(ctx, s)
	if progress.Left == "" {
		progress.Left = s.stranger
	}
	return progress, err
}

func (r *Restore) dispose(ctx context.Context, s *restoreState) (Progress, error) {
	if s.note == nil {
		return r.disposeVolume(ctx, s.claim, &volumeNote{}, func() error { return nil })
	}
	if s.note.Bound {
		return r.putPolicyBack(ctx, s)
	}
	if given, err := r.findGiven(ctx, s); err != nil {
		return Progress{}, err
	} else if given != nil {
		if s.hasTarget() && (given.Status.Phase == corev1.VolumeBound || s.target.Spec.VolumeName == given.Name) {
			return r.confirmBound(ctx, s, given)
		}
		if err := r.takeBack(ctx, s, given); err != nil {
			return Progress{}, err
		}
	}
	return r.disposeVolume(ctx, s.claim, &s.note.Volume, func() error { return r.remember(ctx, s.download, s.note) })
}

// findGiven returns the volume if its claimRef is already the target's, and nil otherwise.
func (r *Restore) findGiven(ctx context.Context, s *restoreState) (*corev1.PersistentVolume, error) {
	if s.claim != nil {
		return nil, nil
	}
	volume, err := r.findVolume(ctx, s.note.Volume.Name)
	if err != nil || volume == nil || volume.UID != s.note.Volume.UID || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != s.note.Target {
		return nil, err
	}
	return volume, nil
}

// takeBack makes a volume that the target does not have yet, or that it will never have, that of the claim in Varve's namespace again.
// Because that claim is gone, the cluster releases the volume, and its driver deletes it. If the target gets the volume at the same time, the
// API server refuses this.
func (r *Restore) takeBack(ctx context.Context, s *restoreState, volume *corev1.PersistentVolume) error {
	return change(ctx, r.Access, volume, func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: r.Namespace, Name: datamove.ChildName(datamove.Download, s.download.UID), UID: s.note.Volume.Claim,
		}
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	})
}
