package csi

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// The pace at which a status is written again that could not be. It is tried for ever.
const (
	statusRetryFirst = 100 * time.Millisecond
	statusRetryMost  = time.Minute
)

// pending is what is known of a volume that was asked for, and is not in the API.
type pending struct {
	claim   longhornv1.KubernetesStatus
	waiting string // what the last call waited for, or failed at
}

// notePending notes what came of a call that was to make a volume, and has its status written.
func (d *Driver) notePending(v volume, err error) {
	p := pending{claim: v.claim}
	if err != nil {
		p.waiting = err.Error()
	}
	d.mu.Lock()
	d.pending[v.handle] = p
	d.mu.Unlock()
	d.changed.Add(v.handle)
}

func (d *Driver) dropPending(handle string) {
	d.mu.Lock()
	delete(d.pending, handle)
	d.mu.Unlock()
}

func (d *Driver) findPending(handle string) pending {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pending[handle]
}

// runStatus writes the status of volumes that changed until ctx ends. No call waits for it.
func (d *Driver) runStatus(ctx context.Context) error {
	return runQueue(ctx, d.changed, 1, d.writeStatus, func(handle string, err error) {
		d.log.Error("write the status of a volume, which is tried again", "volume", handle, "error", err)
	})
}

// writeStatus writes the status of a volume and of its replica, if they are this node's.
func (d *Driver) writeStatus(ctx context.Context, handle string) error {
	replica, written := &longhornv1.Replica{}, &longhornv1.Volume{}
	err := d.options.Client.Get(ctx, d.objectKey(handle), replica)
	if err == nil {
		err = d.options.Client.Get(ctx, d.objectKey(handle), written)
	}
	if apierrors.IsNotFound(err) {
		return nil // a source, or a volume that is deleted
	}
	if err != nil || replica.Spec.NodeID != d.options.Node {
		return err
	}
	claim, err := d.findClaim(ctx, handle)
	if err != nil {
		return err
	}
	seen, err := d.observeVolume(ctx, handle, disk.UID(replica.Spec.DiskID))
	if err != nil {
		return err
	}
	volumeStatus, replicaStatus := decideStatus(seen, written.Status, replica.Status)
	if claim != (longhornv1.KubernetesStatus{}) {
		volumeStatus.KubernetesStatus = claim
	}
	before, replicaBefore := written.DeepCopy(), replica.DeepCopy()
	written.Status, replica.Status = volumeStatus, replicaStatus
	return errors.Join(
		d.patchStatus(ctx, written, before, equality.Semantic.DeepEqual(before.Status, written.Status)),
		d.patchStatus(ctx, replica, replicaBefore, equality.Semantic.DeepEqual(replicaBefore.Status, replica.Status)),
	)
}

func (d *Driver) patchStatus(ctx context.Context, o, before client.Object, same bool) error {
	if same {
		return nil
	}
	err := d.options.Client.Status().Patch(ctx, o, client.MergeFrom(before))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch the status of %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

// findClaim returns what the volume's objects in Kubernetes are called, or nothing if that is not known.
func (d *Driver) findClaim(ctx context.Context, handle string) (longhornv1.KubernetesStatus, error) {
	if known := d.findPending(handle).claim; known.PVCName != "" {
		return known, nil
	}
	pv := &corev1.PersistentVolume{}
	err := d.options.Client.Get(ctx, client.ObjectKey{Name: handle}, pv)
	if apierrors.IsNotFound(err) {
		return longhornv1.KubernetesStatus{}, nil
	}
	if err != nil {
		return longhornv1.KubernetesStatus{}, fmt.Errorf("get PersistentVolume %s: %w", handle, err)
	}
	status := longhornv1.KubernetesStatus{PVName: handle}
	if ref := pv.Spec.ClaimRef; ref != nil {
		status.Namespace, status.PVCName = ref.Namespace, ref.Name
	}
	return status, nil
}

// markDeleting says that a volume is being deleted. If that fails, the volume is deleted all the same.
func (d *Driver) markDeleting(ctx context.Context, handle string) {
	v := &longhornv1.Volume{}
	err := d.options.Client.Get(ctx, d.objectKey(handle), v)
	if err == nil {
		before := v.DeepCopy()
		v.Status.State = longhornv1.VolumeDeleting
		err = d.patchStatus(ctx, v, before, before.Status.State == v.Status.State)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		d.log.Error("write that a volume is being deleted", "volume", handle, "error", err)
	}
}

// observation is what the node knows of a volume.
type observation struct {
	node                                      string
	diskOpen, headThere, headDamaged, hasUser bool
	waiting                                   string
}

func (d *Driver) observeVolume(ctx context.Context, handle string, on disk.UID) (observation, error) {
	seen := observation{node: d.options.Node, waiting: d.findPending(handle).waiting, hasUser: d.isAttached(handle)}
	_, head, err := d.findHead(ctx, handle, on)
	switch {
	case errors.Is(err, errclass.Transient):
	case errors.Is(err, errclass.NotFound):
		seen.diskOpen = true
	case err != nil:
		return observation{}, err
	default:
		seen.diskOpen, seen.headThere, seen.headDamaged = true, true, head.State != disk.StateWritable
	}
	return seen, nil
}

// decideStatus returns the status of a volume and of its replica.
func decideStatus(
	seen observation, v longhornv1.VolumeStatus, r longhornv1.ReplicaStatus,
) (longhornv1.VolumeStatus, longhornv1.ReplicaStatus) {
	if v.State == longhornv1.VolumeDeleting {
		return v, r
	}
	made := v.State == longhornv1.VolumeAttached || v.State == longhornv1.VolumeDetached
	switch {
	case !seen.diskOpen:
		v.Robustness = longhornv1.RobustnessUnknown
		r.Message = fmt.Sprintf("the disk is not open: look at status.diskStatus of Node %s", seen.node)
		return v, r
	case !seen.headThere && !made:
		v.State, v.Robustness = longhornv1.VolumeCreating, longhornv1.RobustnessUnknown
		return v, longhornv1.ReplicaStatus{CurrentState: longhornv1.ReplicaStarting, Message: seen.waiting}
	case !seen.headThere || seen.headDamaged:
		v.Robustness = longhornv1.RobustnessFaulted
		text := "the disk does not have the volume's data: restore the volume from a backup"
		if seen.headDamaged {
			text = "the volume's data on the disk is damaged: restore the volume from a backup"
		}
		v.State, v.CurrentNodeID = longhornv1.VolumeDetached, ""
		return v, longhornv1.ReplicaStatus{CurrentState: longhornv1.ReplicaError, Message: text}
	case seen.hasUser:
		v.State, v.Robustness, v.CurrentNodeID = longhornv1.VolumeAttached, longhornv1.RobustnessHealthy, seen.node
		return v, longhornv1.ReplicaStatus{CurrentState: longhornv1.ReplicaRunning}
	}
	v.State, v.Robustness, v.CurrentNodeID = longhornv1.VolumeDetached, longhornv1.RobustnessHealthy, ""
	return v, longhornv1.ReplicaStatus{CurrentState: longhornv1.ReplicaStopped}
}
