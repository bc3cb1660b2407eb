package kubevirtbackup

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
)

// input is everything that a decision depends on. Objects that do not exist are nil.
type input struct {
	Now    time.Time
	Limits Limits
	Backup *backupv1.VirtualMachineBackup
	// Configuration is the cluster's KubeVirt object, or nil. ConfigurationName is where it must be.
	Configuration     *kubevirtv1.KubeVirt
	ConfigurationName types.NamespacedName
	// Tracker is the tracker that the spec names.
	Tracker *backupv1.VirtualMachineBackupTracker
	// VM and Instance are those of the machine to back up.
	VM       *kubevirtv1.VirtualMachine
	Instance *kubevirtv1.VirtualMachineInstance
	// Moves says that a migration moves the guest, and Migration is its name, or empty if it no longer exists.
	Moves     bool
	Migration string
	// Claim is the object that spec.pvcName names.
	Claim *corev1.PersistentVolumeClaim
	// ClaimUsers are the machines that have the claim as a disk, running or not. They are read unless the backup is
	// in a final phase.
	ClaimUsers []claimUser
	// Ahead is the backup that goes directly ahead of this one in the line of their machine. Only a backup in Pending
	// uses it.
	Ahead *backupv1.VirtualMachineBackup
	// Node lists what else copies, or waits to copy, on the instance's node. Only a backup in Pending that nothing is
	// ahead of uses it.
	Node nodeLoad
	// Pull is what only a backup in pull mode depends on.
	Pull pullInput
	// Seen is what the watchdog observed over time.
	Seen observation
}

// machineName returns the name of the virtual machine, or "" while the tracker that names it does not exist.
func (in *input) machineName() string { return machineNameOf(in.Backup, in.Tracker) }

// machineNameOf returns the name of a backup's machine. tracker is the one that the backup names, or nil.
func machineNameOf(b *backupv1.VirtualMachineBackup, tracker *backupv1.VirtualMachineBackupTracker) string {
	switch {
	case b.Status.SourceName != "" && b.Status.Phase != backupv1.BackupPending:
		return b.Status.SourceName // fixed once the backup has left Pending
	case b.Spec.MachineName() != "":
		return b.Spec.MachineName()
	case tracker != nil:
		return tracker.Spec.Source.Name
	default:
		return ""
	}
}

// currentState returns what status says now.
func (in *input) currentState() backupstate.State {
	return backupstate.State{Reason: in.Backup.Status.Reason, Message: in.Backup.Status.Message}
}

func (in *input) isBeingDeleted() bool { return in.Backup.DeletionTimestamp != nil }

func (in *input) hasFinalizer() bool {
	return controllerutil.ContainsFinalizer(in.Backup, backupv1.BackupFinalizer)
}

// ownInstance returns the instance that the backup was started on or, before the start, the present one.
func (in *input) ownInstance() *kubevirtv1.VirtualMachineInstance {
	if in.Instance == nil {
		return nil
	}
	if uid := in.Backup.Status.InstanceUID; uid != "" && uid != in.Instance.UID {
		return nil
	}
	return in.Instance
}

// guestGone reports whether the guest on which the backup was started no longer runs.
func (in *input) guestGone() bool {
	instance := in.ownInstance()
	return instance == nil || instance.Status.Phase.Final()
}

// instanceLock returns the lock on the instance, or nil.
func (in *input) instanceLock() *kubevirtv1.InstanceBackupStatus { return lockOf(in.ownInstance()) }

func lockOf(instance *kubevirtv1.VirtualMachineInstance) *kubevirtv1.InstanceBackupStatus {
	if instance == nil || instance.Status.ChangedBlockTracking == nil {
		return nil
	}
	return instance.Status.ChangedBlockTracking.BackupStatus
}

func (in *input) ownsLock() bool { return lockBelongsTo(in.Backup, in.instanceLock()) }

// lockBelongsTo reports whether the lock is this backup's, and not that of an earlier backup of the same name.
func lockBelongsTo(b *backupv1.VirtualMachineBackup, lock *kubevirtv1.InstanceBackupStatus) bool {
	if lock == nil || lock.BackupName != b.Name {
		return false
	}
	if lock.BackupMsg != nil {
		return *lock.BackupMsg == layout.BackupLock(b.UID)
	}
	// An older version took the lock.
	return lock.StartTimestamp == nil || !lock.StartTimestamp.Time.Before(b.CreationTimestamp.Time)
}

func (in *input) volumeName() string { return layout.BackupUtilityVolume(in.Backup.UID) }

// volumeWanted reports whether the instance's spec has the backup's utility volume.
func (in *input) volumeWanted() bool {
	instance := in.ownInstance()
	if instance == nil {
		return false
	}
	for _, u := range instance.Spec.UtilityVolumes {
		if u.Name == in.volumeName() {
			return true
		}
	}
	return false
}

// volumeStatus returns the status of the backup's utility volume, or nil.
func (in *input) volumeStatus() *kubevirtv1.VolumeStatus {
	instance := in.ownInstance()
	if instance == nil {
		return nil
	}
	for i := range instance.Status.VolumeStatus {
		if instance.Status.VolumeStatus[i].Name == in.volumeName() {
			return &instance.Status.VolumeStatus[i]
		}
	}
	return nil
}

// volumeMounted reports whether the launcher can write to the utility volume.
func (in *input) volumeMounted() bool {
	status := in.volumeStatus()
	return status != nil && status.Phase == kubevirtv1.VolumeMountedToPod
}
