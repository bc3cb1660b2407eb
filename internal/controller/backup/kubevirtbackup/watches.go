package kubevirtbackup

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// requestsExcept returns a request for each of the backups, except for the one that changed itself.
func requestsExcept(ctx context.Context, changed client.Object, backups []backupv1.VirtualMachineBackup, err error) []ctrl.Request {
	if err != nil {
		// The cache fails to list only while it is being stopped.
		log.FromContext(ctx).Error(err, "list unfinished backups", "changed", client.ObjectKeyFromObject(changed))
		return nil
	}
	var all []ctrl.Request
	for i := range backups {
		if b := &backups[i]; b.UID != changed.GetUID() {
			all = append(all, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(b)})
		}
	}
	return all
}

// trackerComesOrGoes passes what decides which machine a tracker's backups are of.
func trackerComesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			(e.ObjectOld.GetDeletionTimestamp() == nil) != (e.ObjectNew.GetDeletionTimestamp() == nil)
	}}
}

// requestsForTrackerStatus wakes the backups that use a tracker which has changed, but for those that wait behind another.
func (r *reconciler) requestsForTrackerStatus(ctx context.Context, o client.Object) []ctrl.Request {
	backups, err := r.listUnfinished(ctx, o.GetNamespace(), byTracker, o.GetName())
	return requestsExcept(ctx, o, dropFollowers(backups), err)
}

// dropFollowers leaves out the backups that wait behind another of their machine. Those look at what they need when it is
// their turn.
func dropFollowers(backups []backupv1.VirtualMachineBackup) []backupv1.VirtualMachineBackup {
	return slices.DeleteFunc(backups, func(b backupv1.VirtualMachineBackup) bool { return waitsBehindAnother(&b) })
}

// requestsForTracker wakes the backups that use a tracker. A backup that uses another tracker of the same machine is
// woken by changes of the backup that it waits for.
func (r *reconciler) requestsForTracker(ctx context.Context, o client.Object) []ctrl.Request {
	backups, err := r.listUnfinished(ctx, o.GetNamespace(), byTracker, o.GetName())
	return requestsExcept(ctx, o, backups, err)
}

// requestsForMachine wakes the backups of a machine, and those whose target claim is one of its disks. o is the machine or
// its instance, which has the same name.
func (r *reconciler) requestsForMachine(ctx context.Context, o client.Object) []ctrl.Request {
	backups, err := r.listUnfinishedOfMachine(ctx, o.GetNamespace(), o.GetName())
	backups = concernedByMachine(backups)
	for _, v := range volumesOf(o) {
		if v.PersistentVolumeClaim != nil && err == nil {
			var toDisk []backupv1.VirtualMachineBackup
			toDisk, err = r.listUnfinished(ctx, o.GetNamespace(), byClaim, v.PersistentVolumeClaim.ClaimName)
			backups = append(backups, toDisk...)
		}
	}
	return requestsExcept(ctx, o, backups, err)
}

// requestsForClaim wakes the backups whose target is the claim.
func (r *reconciler) requestsForClaim(ctx context.Context, o client.Object) []ctrl.Request {
	backups, err := r.listUnfinished(ctx, o.GetNamespace(), byClaim, o.GetName())
	return requestsExcept(ctx, o, dropFollowers(backups), err)
}

// requestsForConfiguration wakes the backups that a change of the configuration can hold back or let go.
func (r *reconciler) requestsForConfiguration(ctx context.Context, o client.Object) []ctrl.Request {
	var all backupv1.VirtualMachineBackupList
	err := r.cached.List(ctx, &all)
	all.Items = slices.DeleteFunc(dropFollowers(all.Items), func(b backupv1.VirtualMachineBackup) bool {
		return !isWaiting(&b) && b.Status.Phase != backupv1.BackupAttaching
	})
	return requestsExcept(ctx, o, all.Items, err)
}

// requestsForSameMachine wakes the backups that stand behind one in the line of their machine. That it has left, too, if its tracker has
// gone or names another machine.
func (r *reconciler) requestsForSameMachine(ctx context.Context, o client.Object) []ctrl.Request {
	b := o.(*backupv1.VirtualMachineBackup)
	machines := []string{r.machineOfBackup(ctx, b), b.Status.SourceName}
	slices.Sort(machines)
	var requests []ctrl.Request
	for _, machine := range slices.Compact(machines) {
		if machine == "" {
			continue
		}
		backups, err := r.listUnfinishedOfMachine(ctx, o.GetNamespace(), machine)
		requests = append(requests, requestsExcept(ctx, o, concernedByLine(b, backups), err)...)
	}
	return requests
}

func (r *reconciler) machineOfBackup(ctx context.Context, b *backupv1.VirtualMachineBackup) string {
	var tracker *backupv1.VirtualMachineBackupTracker
	if name := b.Spec.TrackerName(); name != "" {
		t := &backupv1.VirtualMachineBackupTracker{}
		if err := r.cached.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, t); err == nil {
			tracker = t
		}
	}
	return machineNameOf(b, tracker)
}

// queueMoves passes the updates that can change whose turn it is, but not every progress report of a running backup.
func queueMoves() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*backupv1.VirtualMachineBackup)
		now, also := e.ObjectNew.(*backupv1.VirtualMachineBackup)
		return ok && also && (old.UID != now.UID || old.Status.NodeName != now.Status.NodeName || old.Status.Phase != now.Status.Phase || old.Status.Reason != now.Status.Reason ||
			(old.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil))
	}}
}
