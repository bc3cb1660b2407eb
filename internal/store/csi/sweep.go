package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
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
		if err := d.sweepReaders(ctx); err != nil && ctx.Err() == nil {
			d.log.Error("look for clones from which images were read, which is tried again", "error", err)
		}
	}
}

// forEachHead calls do for the head of each volume on the node's open disks. An error of one does not keep it from the
// others, nor does a disk that cannot be read.
func (d *Driver) forEachHead(ctx context.Context, do func(on diskset.Disk, handle string) error) error {
	var failed error
	for _, on := range d.options.Disks.All() {
		objects, err := on.List(ctx)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("list the objects of disk %s: %w", on.Name, err))
			continue
		}
		for _, o := range objects {
			if handle, ok := names.IsHead(o.Name); ok && o.Kind == disk.KindHead {
				failed = errors.Join(failed, do(on, handle))
			}
		}
	}
	return failed
}

// sweepVolumes has the status of volumes written that is not what it should be. It deletes each volume that has no
// claim and no PersistentVolume if its head is missing, or was never written. What was written stays: somebody may have
// retained it. Afterwards it makes the objects that an uninstallation has deleted.
func (d *Driver) sweepVolumes(ctx context.Context) error {
	replicas, volumes := &longhornv1.ReplicaList{}, &longhornv1.VolumeList{}
	within := client.InNamespace(d.options.Namespace)
	// A Volume is made before its Replica. In this order, a Replica that is missing was not there when its Volume was.
	if err := errors.Join(
		d.options.Client.List(ctx, volumes, within), d.options.Client.List(ctx, replicas, within),
	); err != nil {
		return fmt.Errorf("list Volumes and Replicas: %w", err)
	}
	hasReplica, withoutReplica := map[string]bool{}, map[string]*longhornv1.Volume{}
	for i := range volumes.Items {
		withoutReplica[volumes.Items[i].Name] = &volumes.Items[i]
	}
	var failed error
	for i := range replicas.Items {
		r := &replicas.Items[i]
		hasReplica[r.Name] = true
		v := withoutReplica[r.Name]
		delete(withoutReplica, r.Name)
		if v == nil { // deleted, or made meanwhile
			v = &longhornv1.Volume{}
		}
		if r.Spec.NodeID == d.options.Node {
			failed = errors.Join(failed, d.sweepVolume(ctx, r, v))
		}
	}
	for _, v := range withoutReplica {
		failed = errors.Join(failed, d.sweepWithoutReplica(ctx, v))
	}
	return errors.Join(failed, d.adoptHeads(ctx, hasReplica))
}

func (d *Driver) sweepVolume(ctx context.Context, r *longhornv1.Replica, v *longhornv1.Volume) error {
	seen, err := d.observeVolume(ctx, r.Name, disk.UID(r.Spec.DiskID))
	if err != nil {
		return err
	}
	volumeStatus, replicaStatus := decideStatus(seen, v.Status, r.Status)
	if volumeStatus != v.Status || replicaStatus != r.Status {
		d.changed.Add(r.Name)
	}
	unmade := r.Status.CurrentState == "" || r.Status.CurrentState == longhornv1.ReplicaStarting
	switch {
	case !seen.diskOpen || seen.headDamaged || seen.hasUser || (!seen.headThere && !unmade):
		return nil
	case seen.headThere:
		blank, err := d.isUnwritten(ctx, r.Name, disk.UID(r.Spec.DiskID))
		if err != nil || !blank {
			return err
		}
	}
	return d.deleteOrphan(ctx, r.Name, v)
}

// sweepWithoutReplica deletes a Volume that lacks its Replica. A crash leaves one before anything is on a disk. Every
// node does that: the Volume does not say whose it is.
func (d *Driver) sweepWithoutReplica(ctx context.Context, v *longhornv1.Volume) error {
	_, _, err := d.findHead(ctx, v.Name, "")
	if !errors.Is(err, errclass.NotFound) {
		return err
	}
	return d.deleteOrphan(ctx, v.Name, v)
}

func (d *Driver) deleteOrphan(ctx context.Context, handle string, v *longhornv1.Volume) error {
	gone, err := d.isClaimGone(ctx, handle, v)
	if err != nil || !gone {
		return err
	}
	d.log.Info("delete a volume that nobody has used, and whose claim is gone", "volume", handle)
	return d.deleteVolume(ctx, handle, "")
}

// isUnwritten says whether a volume has nothing but what it was made with: zeroes, an image or a snapshot. A clone of a
// volume counts as written.
func (d *Driver) isUnwritten(ctx context.Context, handle string, onDisk disk.UID) (bool, error) {
	on, head, err := d.findHead(ctx, handle, onDisk)
	if err != nil {
		return false, err
	}
	var madeOf disk.Name
	if head.Parent != "" {
		objects, err := on.List(ctx)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(objects, func(o disk.Object) bool {
			return o.UID == head.Parent && (o.Kind == disk.KindImage || o.Volume != head.Volume)
		})
		if i < 0 {
			return false, nil // a snapshot of the volume has data
		}
		madeOf = objects[i].Name
	}
	for _, err := range on.Changed(ctx, head.Name, madeOf) {
		if err != nil {
			return false, fmt.Errorf("look whether volume %s was ever written: %w", handle, err)
		}
		return false, nil
	}
	return true, nil
}

// isClaimGone says whether a volume, which is named after the UID of its claim, has no claim and no PersistentVolume.
// It is false if the claim's name is not known.
func (d *Driver) isClaimGone(ctx context.Context, handle string, v *longhornv1.Volume) (bool, error) {
	namespace, name := v.Status.KubernetesStatus.Namespace, v.Status.KubernetesStatus.PVCName
	if name == "" {
		namespace, name, _ = strings.Cut(v.Annotations[names.ClaimAnnotation], "/")
	}
	if name == "" {
		return false, nil
	}
	core := d.options.Kubernetes.CoreV1()
	claim, err := core.PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
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
