package backupstate

import (
	"fmt"
	"strings"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// GateDisabled says that a feature gate of the KubeVirt object configuration (namespace/name) is off.
func GateDisabled(gate, configuration string) State {
	return waitForUser(backupv1.ReasonGateDisabled,
		"Waiting for feature gate %s, which is off: add it to spec.configuration.developerConfiguration.featureGates of KubeVirt %s.", gate, configuration)
}

// TrackerNotFound says that the tracker that the backup names does not exist.
func TrackerNotFound(tracker string) State {
	return waitForUser(backupv1.ReasonTrackerNotFound, "Waiting for VirtualMachineBackupTracker %s, which does not exist: create it.", tracker)
}

// TrackerDeleting says that the tracker that the backup names is being deleted.
func TrackerDeleting(tracker string) State {
	return waitForUser(backupv1.ReasonTrackerNotFound, "Waiting for VirtualMachineBackupTracker %s, which is being deleted: create it again when it is gone.", tracker)
}

// MachineNotFound says that the virtual machine does not exist.
func MachineNotFound(machine string) State {
	return waitForUser(backupv1.ReasonVMNotFound, "Waiting for VirtualMachine %s, which does not exist: create it.", machine)
}

// MachineDeleting says that the virtual machine is being deleted.
func MachineDeleting(machine string) State {
	return waitForUser(backupv1.ReasonVMNotFound, "Waiting for VirtualMachine %s, which is being deleted: create it again when it is gone.", machine)
}

// GuestNotStarted says that the virtual machine has no instance.
func GuestNotStarted(machine string) State {
	return waitForUser(backupv1.ReasonVMNotRunning, "Waiting for VirtualMachine %s to run: start it.", machine)
}

// GuestStopping says that the virtual machine's instance is being deleted.
func GuestStopping(machine string) State {
	return waitForUser(backupv1.ReasonVMNotRunning, "Waiting for VirtualMachine %s to run: it is stopping; start it again.", machine)
}

// GuestEnded says that the virtual machine's guest ended before the backup began.
func GuestEnded(machine string, phase kubevirtv1.Phase) State {
	return waitForUser(backupv1.ReasonVMNotRunning, "Waiting for VirtualMachine %s to run: its guest ended (%s); start it again.", machine, phase)
}

// GuestMoves says that a migration moves the virtual machine's guest to another node. An empty name: it no longer
// exists, and is being ended.
func GuestMoves(machine, migration string) State {
	if migration == "" {
		return state(backupv1.ReasonMigration, "Waiting for a migration of VirtualMachine %s to end.", machine)
	}
	return state(backupv1.ReasonMigration, "Waiting for VirtualMachineInstanceMigration %s of VirtualMachine %s to "+
		"end; delete it to abort it.", migration, machine)
}

// GuestComing says that the virtual machine's guest does not run yet.
func GuestComing(machine string, phase kubevirtv1.Phase) State {
	if phase == "" {
		phase = kubevirtv1.PhasePending
	}
	return state(backupv1.ReasonVMNotRunning, "Waiting for VirtualMachine %s to run: its guest is starting (%s).", machine, phase)
}

// TrackingInitializing says that changed block tracking is being set up.
func TrackingInitializing(machine string) State {
	return state(backupv1.ReasonTrackingNotEnabled, "Waiting for changed block tracking of VirtualMachine %s, which is being set up.", machine)
}

// TrackingNeedsRestart says that changed block tracking begins with the machine's next start.
func TrackingNeedsRestart(machine string) State {
	return waitForUser(backupv1.ReasonTrackingNotEnabled, "Waiting for changed block tracking of VirtualMachine %s: restart the machine.", machine)
}

// TrackingNotSelected says that no selector selects the machine for changed block tracking.
func TrackingNotSelected(machine string) State {
	return waitForUser(backupv1.ReasonTrackingNotEnabled,
		"Waiting for changed block tracking of VirtualMachine %s: label the machine or its namespace as changedBlockTrackingLabelSelectors of the KubeVirt object says, then restart the machine.", machine)
}

// NoEligibleDisk says that no disk of the machine can be backed up.
func NoEligibleDisk(machine string) State {
	return waitForUser(backupv1.ReasonNoEligibleDisk,
		"VirtualMachine %s has no disk that can be backed up: give it a writable disk on a PersistentVolumeClaim that is not shareable, and restart it.", machine)
}

// ClaimNotFound says that the target claim does not exist.
func ClaimNotFound(claim string) State {
	return waitForUser(backupv1.ReasonPVCNotFound, "Waiting for PersistentVolumeClaim %s, which does not exist: create it with volumeMode Filesystem.", claim)
}

// ClaimDeleting says that the target claim is being deleted.
func ClaimDeleting(claim string) State {
	return waitForUser(backupv1.ReasonPVCNotFound, "Waiting for PersistentVolumeClaim %s, which is being deleted: create it again when it is gone.", claim)
}

// TokenSecretNotFound says that the Secret with the clients' token does not exist.
func TokenSecretNotFound(secret, key string) State {
	return waitForUser(backupv1.ReasonTokenSecretNotFound, "Waiting for Secret %s, which spec.tokenSecretRef names and which does not exist: create it with the key %s.", secret, key)
}

// TokenSecretEmpty says that the Secret with the clients' token has none.
func TokenSecretEmpty(secret, key string) State {
	return waitForUser(backupv1.ReasonTokenSecretNotFound, "Waiting for Secret %s, which spec.tokenSecretRef names, to have a token: give it the key %s.", secret, key)
}

// TokenTooShort says that the clients' token can be guessed. It has at least minCharacters.
func TokenTooShort(secret, key string, minCharacters int) State {
	return waitForUser(backupv1.ReasonTokenSecretInvalid,
		"Waiting for Secret %s, which spec.tokenSecretRef names, to have a token of at least %d characters: make one with openssl rand -hex 32, and put it under the key %s.",
		secret, minCharacters, key)
}

// TunnelKeyMissing says that the key of the installation does not exist.
func TunnelKeyMissing() State {
	return state(backupv1.ReasonAttaching, "Waiting for the key from which the token of the backup's tunnel is made; the controller is about to create it.")
}

// OtherBackupFirst says that another backup of the machine goes directly before this one.
func OtherBackupFirst(other string) State {
	return state(backupv1.ReasonOtherBackup, "Waiting for VirtualMachineBackup %s of the same virtual machine to end; the oldest goes first.", other)
}

// OtherBackupRuns says that another backup of the machine won the race for the instance.
func OtherBackupRuns(other string) State {
	return state(backupv1.ReasonOtherBackup, "Waiting for VirtualMachineBackup %s of the same virtual machine to end.", other)
}

// InstanceStillLocked says that a backup that is over still has the lock on the instance.
func InstanceStillLocked(instance, holder string) State {
	return state(backupv1.ReasonOtherBackup,
		"Waiting for VirtualMachineInstance %s to be unlocked: VirtualMachineBackup %s, which has ended, still holds the lock. The instance's events say why.", instance, holder)
}

// NodePlaces says who has the places of a node.
type NodePlaces struct {
	Node string
	// Running is how many backups run there, and Limit how many may. Ahead is how many others get a place first.
	Running, Limit, Ahead int
	// Here are the names of those that run and are of the same namespace.
	Here []string
	// Annotation on the KubeVirt object Configuration (namespace/name) sets the limit.
	Annotation, Configuration string
}

// NodeBusy says that a node already runs as many backups as it may.
func NodeBusy(p NodePlaces) State {
	of := ""
	if len(p.Here) > 0 {
		of = ", of this namespace " + strings.Join(p.Here, ", ")
	}
	return state(backupv1.ReasonNodeBusy,
		"Waiting for a place on node %s: %d of at most %d backups run there%s, and %d others go first. The annotation %s of KubeVirt %s sets the limit.",
		p.Node, p.Running, p.Limit, of, p.Ahead, p.Annotation, p.Configuration)
}

// PreviousVolumeAttached says that the volume of the backup's earlier attempt has to be detached first.
func PreviousVolumeAttached(instance string) State {
	return state(backupv1.ReasonAttaching,
		"Waiting for the volume of an earlier attempt to be detached from VirtualMachineInstance %s.", instance)
}

// ReplanForTracker says that the tracker is another one than when the backup was planned.
func ReplanForTracker(tracker string) State {
	return state(backupv1.ReasonAttaching, "VirtualMachineBackupTracker %s was replaced: planning again.", tracker)
}

// ReplanForClaim says that the target claim is another one than when the backup was planned.
func ReplanForClaim(claim string) State {
	return state(backupv1.ReasonAttaching, "PersistentVolumeClaim %s was replaced by another of the same name: planning again.", claim)
}

// Attaching says that the target claim is being attached. volume is the status of the utility volume, or nil.
func Attaching(claim, instance string, volume *kubevirtv1.VolumeStatus) State {
	s := state(backupv1.ReasonAttaching, "Attaching PersistentVolumeClaim %s to VirtualMachineInstance %s.", claim, instance)
	if volume == nil {
		return s
	}
	phase := volume.Phase
	if phase == "" {
		phase = kubevirtv1.VolumePending
	}
	if volume.Message != "" {
		return s.With(fmt.Sprintf("It is %s: %s", phase, volume.Message))
	}
	return s.With(fmt.Sprintf("It is %s.", phase))
}

// RequestRefused says that the API server refused a write. write names it, for example "Locking
// VirtualMachineInstance vm".
func RequestRefused(write string, refusal error) State {
	return state(backupv1.ReasonRequestRefused, "%s was refused and will be retried: %v", write, refusal)
}
