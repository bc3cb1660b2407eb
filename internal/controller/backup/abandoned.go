package backup

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/watch"
	"github.com/varvebackup/varve/internal/layout"
)

// lockReconciler removes from an instance what belongs to a backup that is no more, as when somebody removed its
// finalizer by hand: its lock would keep every later backup and every stop waiting, its volume would stay attached.
type lockReconciler struct{ access }

func setupLocks(mgr ctrl.Manager, opts Options, a access) error {
	r := &lockReconciler{access: a}
	return ctrl.NewControllerManagedBy(mgr).
		Named("backup-lock"+opts.ControllerSuffix).
		For(&kubevirtv1.VirtualMachineInstance{}).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(watch.BackedUp), builder.WithPredicates(lineMoves())).
		Complete(r)
}

// abandoned is what an instance has of backups that are no more.
type abandoned struct {
	lock   bool
	volume string // one at a time; the write brings the next
}

func (a abandoned) any() bool { return a.lock || a.volume != "" }

// findAbandoned compares an instance with the backups of its namespace.
func findAbandoned(instance *kubevirtv1.VirtualMachineInstance, backups []backupv1.VirtualMachineBackup) abandoned {
	var found abandoned
	if lock := lockOf(instance); lock != nil {
		found.lock = true
		for i := range backups {
			b := &backups[i]
			if owns(b, lock) && !b.Status.Phase.Final() {
				found.lock = false
			}
		}
	}
	for _, u := range instance.Spec.UtilityVolumes {
		if u.Type != nil && *u.Type == kubevirtv1.UtilityVolumeBackup && !volumeUsed(u.Name, backups) {
			found.volume = u.Name
		}
	}
	return found
}

func volumeUsed(name string, backups []backupv1.VirtualMachineBackup) bool {
	for i := range backups {
		if layout.BackupUtilityVolume(backups[i].UID) == name && !backups[i].Status.Phase.Final() {
			return true
		}
	}
	return false
}

func (r *lockReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// The cache first: almost always there is nothing to do. Then live, and the instance before the backups: a
	// backup exists before its lock does.
	for _, c := range []client.Reader{r.cached, r.live} {
		instance, err := get(ctx, c, req.NamespacedName, &kubevirtv1.VirtualMachineInstance{})
		if err != nil || instance == nil {
			return ctrl.Result{}, err
		}
		if lockOf(instance) == nil && len(instance.Spec.UtilityVolumes) == 0 {
			return ctrl.Result{}, nil
		}
		var backups backupv1.VirtualMachineBackupList
		if err := c.List(ctx, &backups, client.InNamespace(req.Namespace)); err != nil {
			return ctrl.Result{}, fmt.Errorf("list backups: %w", err)
		}
		found := findAbandoned(instance, backups.Items)
		if !found.any() {
			return ctrl.Result{}, nil
		}
		if c == r.live {
			return r.release(ctx, instance, found)
		}
	}
	return ctrl.Result{}, nil
}

func (r *lockReconciler) release(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, found abandoned) (ctrl.Result, error) {
	if found.lock {
		name := lockOf(instance).BackupName
		if err := unlock(ctx, r.cached, instance); err != nil {
			return retry(fmt.Errorf("release the lock of backup %s: %w", name, err))
		}
		r.events.Eventf(instance, nil, warning, EventLockReleased, "Unlock", "VirtualMachineBackup %s, which held the instance, does not exist any more or has ended.", name)
		return ctrl.Result{}, nil // the write wakes this controller for the volume
	}
	if err := detach(ctx, r.cached, instance, found.volume); err != nil {
		return retry(fmt.Errorf("detach abandoned volume %s: %w", found.volume, err))
	}
	r.events.Eventf(instance, nil, warning, EventVolumeReleased, "Detach", "Utility volume %s belongs to no VirtualMachineBackup that runs.", found.volume)
	return ctrl.Result{}, nil
}
