package kubevirtbackup

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// lockReconciler removes from an instance what belongs to a backup that no longer exists or has ended, for example
// because somebody removed the backup's finalizer by hand. Its lock would keep every later backup and every stop
// waiting, and its volume would stay attached.
type lockReconciler struct{ access }

func setupLocks(mgr ctrl.Manager, opts Options, a access) error {
	r := &lockReconciler{access: a}
	return ctrl.NewControllerManagedBy(mgr).
		Named("backup-lock"+opts.ControllerSuffix).
		For(&kubevirtv1.VirtualMachineInstance{}).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(reconcile.InstanceOfBackup), builder.WithPredicates(queueMoves())).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// abandoned is what an instance still has from backups that are over.
type abandoned struct {
	lock   bool
	volume string // one at a time; the write triggers the next
}

func (a abandoned) hasAny() bool { return a.lock || a.volume != "" }

// findAbandoned compares an instance with the backups that use it. holder is the backup that the lock names, or
// nil. used has the names of the utility volumes of backups that have not ended.
func findAbandoned(instance *kubevirtv1.VirtualMachineInstance, holder *backupv1.VirtualMachineBackup, used map[string]bool) abandoned {
	var found abandoned
	if lock := lockOf(instance); lock != nil {
		found.lock = holder == nil || holder.Status.Phase.Final() || !lockBelongsTo(holder, lock)
	}
	for _, u := range instance.Spec.UtilityVolumes {
		if u.Type != nil && *u.Type == kubevirtv1.UtilityVolumeBackup && !used[u.Name] {
			found.volume = u.Name
		}
	}
	return found
}

func (r *lockReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// First look in the cache: there is almost always nothing to do. Then read live, and read the instance before
	// the backups, because a backup exists before its lock does.
	for _, c := range []client.Reader{r.cached, r.live} {
		instance, err := reconcile.Find(ctx, c, req.NamespacedName, &kubevirtv1.VirtualMachineInstance{})
		if err != nil || instance == nil {
			return ctrl.Result{}, err
		}
		if lockOf(instance) == nil && len(instance.Spec.UtilityVolumes) == 0 {
			return ctrl.Result{}, nil
		}
		holder, used, err := r.findUsers(ctx, c, instance)
		if err != nil {
			return ctrl.Result{}, err
		}
		found := findAbandoned(instance, holder, used)
		if !found.hasAny() {
			return ctrl.Result{}, nil
		}
		if c == r.live {
			return r.releaseAbandoned(ctx, instance, found)
		}
	}
	return ctrl.Result{}, nil
}

// findUsers returns the backup that the instance's lock names, or nil, and the names of the utility volumes that belong
// to backups that have not ended. With the live reader it lists all those backups. That happens only after somebody
// removed a finalizer by hand.
func (r *lockReconciler) findUsers(ctx context.Context, c client.Reader, instance *kubevirtv1.VirtualMachineInstance) (*backupv1.VirtualMachineBackup, map[string]bool, error) {
	var holder *backupv1.VirtualMachineBackup
	if lock := lockOf(instance); lock != nil {
		var err error
		holder, err = reconcile.Find(ctx, c, types.NamespacedName{Namespace: instance.Namespace, Name: lock.BackupName}, &backupv1.VirtualMachineBackup{})
		if err != nil {
			return nil, nil, err
		}
	}
	used := map[string]bool{}
	if c == r.live {
		var backups backupv1.VirtualMachineBackupList
		unfinished := client.MatchingLabelsSelector{Selector: layout.UnfinishedBackups()}
		if err := c.List(ctx, &backups, client.InNamespace(instance.Namespace), unfinished); err != nil {
			return nil, nil, fmt.Errorf("list backups: %w", err)
		}
		for i := range backups.Items {
			if b := &backups.Items[i]; !b.Status.Phase.Final() {
				used[layout.BackupUtilityVolume(b.UID)] = true
			}
		}
		return holder, used, nil
	}
	for _, u := range instance.Spec.UtilityVolumes {
		backups, err := r.listUnfinished(ctx, instance.Namespace, byVolume, u.Name)
		if err != nil {
			return nil, nil, err
		}
		used[u.Name] = len(backups) > 0
	}
	return holder, used, nil
}

func (r *lockReconciler) releaseAbandoned(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, found abandoned) (ctrl.Result, error) {
	var refused error
	if found.lock {
		err := r.releaseLock(ctx, instance)
		if err == nil || !reconcile.IsRefusal(err) || found.volume == "" {
			return retryLostRace(err) // the write wakes this controller again for the volume
		}
		refused = err // the volume may still be detached
	}
	if err := detachVolume(ctx, r.cached, instance, found.volume); err != nil {
		return retryLostRace(errors.Join(refused, fmt.Errorf("detach abandoned volume %s: %w", found.volume, err)))
	}
	r.events.Eventf(instance, nil, warning, EventVolumeReleased, "Detach", "Detached utility volume %s: no VirtualMachineBackup that runs uses it.", found.volume)
	return retryLostRace(refused)
}

func (r *lockReconciler) releaseLock(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	name := lockOf(instance).BackupName
	err := unlockInstance(ctx, r.cached, instance)
	switch {
	case err == nil:
		r.events.Eventf(instance, nil, warning, EventLockReleased, "Unlock", "Released the lock of VirtualMachineBackup %s, which has ended or no longer exists.", name)
		return nil
	case reconcile.IsRefusal(err):
		r.events.Eventf(instance, nil, warning, EventRefused, "Unlock",
			"%s", backupstate.RequestRefused("Removing the lock of VirtualMachineBackup "+name, rootCause(err)).Message)
	}
	return fmt.Errorf("release the lock of backup %s: %w", name, err)
}
