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
	"github.com/varvebackup/varve/internal/store/disk"
)

// sweepInterval is how often all volumes of the node are looked at, for what no call tells: a disk is closed, or a
// claim was deleted while this process did not run.
const sweepInterval = time.Minute

// runSweep does that until ctx ends.
func (d *Driver) runSweep(ctx context.Context) error {
	ticker := d.options.Clock.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
		if err := d.sweepVolumes(ctx); err != nil && ctx.Err() == nil {
			d.log.Error("look at all volumes of the node, which is tried again", "error", err)
		}
	}
}

// sweepVolumes has the status of volumes written that is not what it should be. It deletes Volume and Replica of each
// volume that has no head, no claim and no PersistentVolume. A volume with a head stays: somebody may have retained it.
func (d *Driver) sweepVolumes(ctx context.Context) error {
	replicas, volumes := &longhornv1.ReplicaList{}, &longhornv1.VolumeList{}
	within := client.InNamespace(d.options.Namespace)
	if err := errors.Join(
		d.options.Client.List(ctx, replicas, within), d.options.Client.List(ctx, volumes, within),
	); err != nil {
		return fmt.Errorf("list Volumes and Replicas: %w", err)
	}
	states := map[string]longhornv1.VolumeStatus{}
	for _, v := range volumes.Items {
		states[v.Name] = v.Status
	}
	var failed error
	for i := range replicas.Items {
		r := &replicas.Items[i]
		if r.Spec.NodeID == d.options.Node {
			failed = errors.Join(failed, d.sweepVolume(ctx, r, states[r.Name]))
		}
	}
	return failed
}

func (d *Driver) sweepVolume(ctx context.Context, r *longhornv1.Replica, v longhornv1.VolumeStatus) error {
	seen, err := d.observeVolume(ctx, r.Name, disk.UID(r.Spec.DiskID))
	if err != nil {
		return err
	}
	volumeStatus, replicaStatus := decideStatus(seen, v, r.Status)
	if volumeStatus != v || replicaStatus != r.Status {
		d.changed.Add(r.Name)
	}
	unmade := r.Status.CurrentState == "" || r.Status.CurrentState == longhornv1.ReplicaStarting
	if !unmade || !seen.diskOpen || seen.headThere {
		return nil
	}
	gone, err := d.isClaimGone(ctx, r.Name, v.KubernetesStatus)
	if err != nil || !gone {
		return err
	}
	d.log.Info("delete a volume that was never made, and whose claim is gone", "volume", r.Name)
	return d.deleteVolume(ctx, r.Name, "")
}

// isClaimGone says whether a volume, which is named after the UID of its claim, has no claim and no PersistentVolume.
// It is false if the claim's name is not known.
func (d *Driver) isClaimGone(ctx context.Context, handle string, named longhornv1.KubernetesStatus) (bool, error) {
	if named.PVCName == "" {
		return false, nil
	}
	core := d.options.Kubernetes.CoreV1()
	claim, err := core.PersistentVolumeClaims(named.Namespace).Get(ctx, named.PVCName, metav1.GetOptions{})
	if err == nil && handle == "pvc-"+string(claim.UID) {
		return false, nil
	}
	if err == nil || apierrors.IsNotFound(err) {
		_, err = core.PersistentVolumes().Get(ctx, handle, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}
