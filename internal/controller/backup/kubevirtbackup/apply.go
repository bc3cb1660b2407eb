package kubevirtbackup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// applyStep makes one write. Every write carries the resource version that the decision was based on.
func (r *reconciler) applyStep(ctx context.Context, in *input, d decision) error {
	switch d.Step {
	case stepAddFinalizer:
		return patchObject(ctx, r.cached, in.Backup, func(b *backupv1.VirtualMachineBackup) {
			controllerutil.AddFinalizer(b, backupv1.BackupFinalizer)
		})
	case stepRemoveFinalizer:
		return patchObject(ctx, r.cached, in.Backup, releaseBackup)
	case stepProtectTracker:
		return patchObject(ctx, r.cached, in.Tracker, func(t *backupv1.VirtualMachineBackupTracker) {
			controllerutil.AddFinalizer(t, layout.FinalizerTracker)
		})
	case stepAttach:
		return patchObject(ctx, r.cached, in.Instance, func(i *kubevirtv1.VirtualMachineInstance) {
			i.Spec.UtilityVolumes = append(i.Spec.UtilityVolumes, *d.Volume)
		})
	case stepDetach:
		return r.detachTarget(ctx, in, d.Volume)
	case stepLock:
		return r.lockInstance(ctx, in, d.Lock)
	case stepUnlock:
		return unlockInstance(ctx, r.cached, in.Instance)
	case stepMoveTracker:
		return r.moveTracker(ctx, in, d.Checkpoint)
	case stepCreateTunnelSecret:
		return ignoreExists(r.cached.Create(ctx, d.Secret))
	case stepDeleteTunnelSecret:
		return r.deleteObject(ctx, d.Secret)
	case stepCreateExport:
		return r.createExport(ctx, in, d.Export)
	case stepExtendExport:
		return r.extendExport(ctx, in)
	case stepDeleteExport:
		return r.deleteObject(ctx, d.Export, client.PropagationPolicy(metav1.DeletePropagationForeground))
	case stepStatus:
		return r.writeStatus(ctx, in, d)
	default:
		return fmt.Errorf("unknown step %q", d.Step)
	}
}

// releaseBackup makes an ended backup leave the caches, and lets it go if it is deleted.
func releaseBackup(b *backupv1.VirtualMachineBackup) {
	controllerutil.RemoveFinalizer(b, backupv1.BackupFinalizer)
	metav1.SetMetaDataLabel(&b.ObjectMeta, layout.LabelEnded, "true")
}

// patchObject writes the difference that change makes. It fails with a conflict if somebody has written the object in the
// meantime.
func patchObject[T client.Object](ctx context.Context, c client.Client, obj T, change func(T)) error {
	changed := obj.DeepCopyObject().(T)
	change(changed)
	return c.Patch(ctx, changed, reconcile.MergeFrom(obj))
}

// patchStatus is edit for the status subresource.
func patchStatus[T client.Object](ctx context.Context, c client.Client, obj T, change func(T)) error {
	changed := obj.DeepCopyObject().(T)
	change(changed)
	return c.Status().Patch(ctx, changed, reconcile.MergeFrom(obj))
}

func (r *reconciler) detachTarget(ctx context.Context, in *input, volume *kubevirtv1.UtilityVolume) error {
	if err := detachVolume(ctx, r.cached, in.Instance, volume.Name); err != nil {
		return err
	}
	r.events.Eventf(in.Backup, in.Instance, normal, EventDetaching, "Detach", "Detaching PersistentVolumeClaim %s from VirtualMachineInstance %s.", volume.ClaimName, in.Instance.Name)
	return nil
}

func detachVolume(ctx context.Context, c client.Client, instance *kubevirtv1.VirtualMachineInstance, volume string) error {
	return patchObject(ctx, c, instance, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Spec.UtilityVolumes = slices.DeleteFunc(i.Spec.UtilityVolumes, func(u kubevirtv1.UtilityVolume) bool { return u.Name == volume })
	})
}

// lockInstance records the checkpoint's time on the tracker before anybody can see the checkpoint's name. A controller that
// dies in between wastes a name, but never gives one out twice.
func (r *reconciler) lockInstance(ctx context.Context, in *input, lock *kubevirtv1.InstanceBackupStatus) error {
	if lock.CheckpointName != nil {
		err := patchStatus(ctx, r.cached, in.Tracker, func(t *backupv1.VirtualMachineBackupTracker) {
			t.Status.NewestCheckpointTime = lock.StartTimestamp
		})
		if err != nil {
			return fmt.Errorf("record the checkpoint's time on tracker %s: %w", in.Tracker.Name, err)
		}
		if err := r.refuseUsedCheckpoint(ctx, in.Backup, *lock.CheckpointName); err != nil {
			return err
		}
	}
	return patchStatus(ctx, r.cached, in.Instance, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.ChangedBlockTracking.BackupStatus = lock
	})
}

// errCheckpointUsed says that a name cannot be given out. The tracker already has the name's time, so the next
// attempt picks another one.
var errCheckpointUsed = errors.New("another backup has this checkpoint")

// refuseUsedCheckpoint compares a checkpoint's name with those of all other backups in the namespace, including
// ended ones. A name can come up twice only if the tracker has the name of an earlier one and the clock was set
// back.
func (r *reconciler) refuseUsedCheckpoint(ctx context.Context, b *backupv1.VirtualMachineBackup, name string) error {
	var users backupv1.VirtualMachineBackupList
	selector := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector(checkpointField, name)}
	if err := r.live.List(ctx, &users, client.InNamespace(b.Namespace), selector); err != nil {
		return fmt.Errorf("list backups with checkpoint %s: %w", name, err)
	}
	for i := range users.Items {
		if users.Items[i].UID != b.UID {
			return fmt.Errorf("checkpoint %s of backup %s: %w", name, users.Items[i].Name, errCheckpointUsed)
		}
	}
	return nil
}

func unlockInstance(ctx context.Context, c client.Client, instance *kubevirtv1.VirtualMachineInstance) error {
	return patchStatus(ctx, c, instance, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.ChangedBlockTracking.BackupStatus = nil
	})
}

func (r *reconciler) moveTracker(ctx context.Context, in *input, c *backupv1.Checkpoint) error {
	err := patchStatus(ctx, r.cached, in.Tracker, func(t *backupv1.VirtualMachineBackupTracker) {
		t.Status.LatestCheckpoint = c
		t.Status.Discarded = nil
	})
	if err != nil {
		return err
	}
	r.events.Eventf(in.Tracker, in.Backup, normal, EventTrackerMoved, "Move", "The latest checkpoint is now %s, created by VirtualMachineBackup %s.", c.Name, in.Backup.Name)
	return nil
}

func (r *reconciler) writeStatus(ctx context.Context, in *input, d decision) error {
	status := d.Status
	err := patchStatus(ctx, r.cached, in.Backup, func(b *backupv1.VirtualMachineBackup) { b.Status = *status })
	if err != nil {
		return err
	}
	r.granted.recordStatus(in.Backup, status)
	if e := eventFor(&in.Backup.Status, status, d.UserActs); e != nil {
		r.events.Eventf(in.Backup, relatedMachine(in), e.kind, e.reason, e.action, "%s", status.Message)
	}
	if status.Phase.Final() && !in.Backup.Status.Phase.Final() {
		ended := in.Backup.DeepCopy()
		ended.Status = *status
		r.ended(ended)
	}
	return nil
}
