package csi

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// orphansInterval is how often objects are looked for whose claim went while this process did not run.
const orphansInterval = 5 * time.Minute

// runOrphans deletes such objects until ctx ends.
func (d *Driver) runOrphans(ctx context.Context) error {
	ticker := d.options.Clock.NewTicker(orphansInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
		if err := d.discardOrphans(ctx); err != nil && ctx.Err() == nil {
			d.log.Error("delete volumes that were never made, and whose claims are gone; this is tried again", "error", err)
		}
	}
}

// discardOrphans deletes Volume and Replica of each volume of the node that has no head, no claim and no
// PersistentVolume. A volume with a head stays: somebody may have retained it.
func (d *Driver) discardOrphans(ctx context.Context) error {
	replicas := &longhornv1.ReplicaList{}
	if err := d.options.Client.List(ctx, replicas, client.InNamespace(d.options.Namespace)); err != nil {
		return fmt.Errorf("list Replicas: %w", err)
	}
	var failed error
	for i := range replicas.Items {
		r := &replicas.Items[i]
		unmade := r.Status.CurrentState == "" || r.Status.CurrentState == longhornv1.ReplicaStarting
		if r.Spec.NodeID != d.options.Node || !unmade {
			continue
		}
		orphan, err := d.isOrphan(ctx, r)
		if orphan {
			d.log.Info("delete a volume that was never made, and whose claim is gone", "volume", r.Name)
			err = d.deleteVolume(ctx, r.Name, "")
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// isOrphan says whether a volume has no head on its disk, which is open, no claim and no PersistentVolume.
func (d *Driver) isOrphan(ctx context.Context, r *longhornv1.Replica) (bool, error) {
	_, _, err := d.findHead(ctx, r.Name, disk.UID(r.Spec.DiskID))
	if !errors.Is(err, errclass.NotFound) {
		return false, nil // it has a head, or nobody knows that at the moment
	}
	v := &longhornv1.Volume{}
	if err := d.options.Client.Get(ctx, d.objectKey(r.Name), v); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	named := v.Status.KubernetesStatus
	if named.PVCName == "" {
		return false, nil
	}
	core := d.options.Kubernetes.CoreV1()
	claim, err := core.PersistentVolumeClaims(named.Namespace).Get(ctx, named.PVCName, metav1.GetOptions{})
	if err == nil && r.Name == "pvc-"+string(claim.UID) {
		return false, nil
	}
	if err == nil || apierrors.IsNotFound(err) {
		_, err = core.PersistentVolumes().Get(ctx, named.PVName, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}
