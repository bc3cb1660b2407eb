package keptsnapshot

import (
	"context"
	"errors"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/reconcile"
)

// lookup is what one look has found out.
type lookup struct {
	*reconciler

	settings *settings.Settings
	// running are the uploads that run, by claim.
	running map[types.NamespacedName][]types.UID
	// services says which drivers have a service. claims has nil for those that do not exist.
	services map[string]bool
	claims   map[types.NamespacedName]*corev1.PersistentVolumeClaim
	failures []error
}

// read reads what a snapshot itself says.
func (c *candidate) read(o *snapshotv1.VolumeSnapshot) {
	var err error
	c.made = o.CreationTimestamp.Time
	c.kept, err = datamove.DecodeKeptSnapshot(o.Annotations[datamove.AnnotationKeptSnapshot])
	c.unreadable = err != nil || o.Labels[datamove.LabelKeptSnapshot] != c.kept.Key()
}

// examine reads what a snapshot is kept for.
func (l *lookup) examine(ctx context.Context, c *candidate) error {
	if c.unreadable {
		return nil
	}
	upload, err := l.findUpload(ctx, c.kept)
	if err != nil {
		return err
	}
	if upload == nil {
		c.uploadGone = true
	} else if c.phase = upload.Status.Phase; upload.Status.CompletionTimestamp != nil {
		c.completed = upload.Status.CompletionTimestamp.Time
	}
	claim, err := l.findClaim(ctx, c.kept.Claim)
	if err != nil {
		return err
	}
	c.claimGone = claim == nil || claim.UID != c.kept.ClaimUID || claim.DeletionTimestamp != nil
	c.settingOff = l.settings != nil && !l.settings.StorageClasses[c.kept.StorageClass].KeepSnapshot
	c.serviceGone = !l.hasService(ctx, c.kept.Driver)
	c.inUse = slices.ContainsFunc(l.running[c.kept.Claim], func(uid types.UID) bool { return uid != c.kept.UploadUID })
	return nil
}

// findUpload returns the DataUpload of a kept snapshot, or nil if it does not exist or is being deleted. A cache may not have it yet, so only
// the API server says so. What else a cache does not know yet delays a deletion until the look that the change itself sets off.
func (l *lookup) findUpload(ctx context.Context, kept datamove.KeptSnapshot) (*velerov2.DataUpload, error) {
	for _, from := range []client.Reader{l.cached, l.live} {
		upload, err := reconcile.Find(ctx, from, kept.Upload, &velerov2.DataUpload{})
		if err != nil {
			return nil, err
		}
		if upload != nil && upload.UID == kept.UploadUID && upload.DeletionTimestamp == nil {
			return upload, nil
		}
	}
	return nil, nil //nolint:nilnil // documented
}

func (l *lookup) findClaim(ctx context.Context, key types.NamespacedName) (*corev1.PersistentVolumeClaim, error) {
	if claim, known := l.claims[key]; known {
		return claim, nil
	}
	claim, err := reconcile.Find(ctx, l.live, key, &corev1.PersistentVolumeClaim{})
	if err == nil {
		l.claims[key] = claim
	}
	return claim, err
}

// hasService says whether a driver announces a service. One that announces a bad one is about to be corrected. If the API server does not say, it
// counts as if it had one: of several snapshots, the latest is kept in either case.
func (l *lookup) hasService(ctx context.Context, driver string) bool {
	if has, known := l.services[driver]; known {
		return has
	}
	_, err := csichanges.FindService(ctx, l.live, driver)
	if err != nil && !errors.Is(err, errclass.NotFound) && !errors.Is(err, errclass.Invalid) {
		l.failures = append(l.failures, err)
	}
	l.services[driver] = !errors.Is(err, errclass.NotFound)
	return l.services[driver]
}

// runningUploads returns the uploads of CSI snapshots that run, by claim. Each may have been told to count from a kept snapshot.
func (r *reconciler) runningUploads(ctx context.Context) (map[types.NamespacedName][]types.UID, error) {
	var uploads velerov2.DataUploadList
	if err := r.cached.List(ctx, &uploads, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	running := map[types.NamespacedName][]types.UID{}
	for i := range uploads.Items {
		o := &uploads.Items[i]
		if o.Spec.SnapshotType == velerov2.SnapshotCSI && isRunning(o.Status.Phase) {
			claim := types.NamespacedName{Namespace: o.Spec.SourceNamespace, Name: o.Spec.SourcePVC}
			running[claim] = append(running[claim], o.UID)
		}
	}
	return running, nil
}

func isRunning(phase velerov2.Phase) bool {
	switch phase {
	case velerov2.PhaseAccepted, velerov2.PhasePrepared, velerov2.PhaseInProgress, velerov2.PhaseCanceling:
		return true
	default:
		return false
	}
}
