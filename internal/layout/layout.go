// Package layout says where things are in a launcher pod, on its node and on a backup's target, and how related
// objects are named, and has the defaults that must be the same in two components. The controller, the handler and the
// launcher agree on them through it. The package decides nothing and touches nothing.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// Namespace is where Varve is installed unless a flag says otherwise.
const Namespace = "varve"

// Configuration is the name of the KubeVirt object, in Varve's namespace, that is the cluster's configuration.
const Configuration = "kubevirt"

// StopWaitsForBackup is how long a handler delays a guest's stop for a running backup, unless a flag of the handler
// says otherwise. The controller, which must know when a stop is overdue, has the same flag.
const StopWaitsForBackup = 10 * time.Minute

// Paths inside the launcher pod.
const (
	DisksDir   = "/run/varve/disks"
	DevicesDir = "/dev/varve"
	StateDir   = "/run/varve/state"
	OverlayDir = StateDir + "/cbt"
	// PreviousStateDir and PreviousOverlayDir are the same on the claim that the overlays move away from. They exist only
	// while there is one.
	PreviousStateDir   = "/run/varve/previous-state"
	PreviousOverlayDir = PreviousStateDir + "/cbt"
	UtilityDir         = "/run/varve/utility"
	SocketsDir         = "/run/varve/sockets"
	Socket             = SocketsDir + "/launcher.sock"
	KernelDir          = "/run/varve/kernel"
	// PrivateDir has what the launcher, libvirt and QEMU write that belongs on no claim. It is in memory.
	PrivateDir = "/run/varve/private"
	// NBDSocket is where QEMU serves the disks of a pull backup. Nobody else may enter its directory.
	NBDSocket = PrivateDir + "/nbd/backup.sock"
	// LibvirtConfigDir, LibvirtCacheDir and LibvirtRunDir are the XDG directories of libvirtd, which runs as an
	// ordinary user. In each of them its files are in a directory libvirt.
	LibvirtConfigDir = PrivateDir + "/config"
	LibvirtCacheDir  = PrivateDir + "/cache"
	LibvirtRunDir    = PrivateDir + "/run"
	// LibvirtURI is where libvirtd answers. With a socket in the address no client starts a libvirtd of its own.
	LibvirtURI    = "qemu+unix:///session?socket=" + LibvirtSocket
	LibvirtSocket = LibvirtRunDir + "/libvirt/libvirt-sock"
	// MigrationDir has the sockets of a migration.
	MigrationDir = PrivateDir + "/migration"
	KernelFile   = KernelDir + "/kernel"
	InitrdFile   = KernelDir + "/initrd"
	diskImage    = "disk.img"
	emptyDir     = "volumes/kubernetes.io~empty-dir"
	KubeletPods  = "/var/lib/kubelet/pods"
)

// The user and the group that the launcher, libvirt and QEMU run as: those of user qemu in KubeVirt's images, so that
// disks that were made for KubeVirt fit.
const (
	LauncherUser  = 107
	LauncherGroup = 107
)

// MigrationPort is the TCP port at which the target pod of a migration takes the guest.
const MigrationPort = 49152

// MigrationToken is the key of the token in the Secret of MigrationSecret.
const MigrationToken = "token"

// Names of the launcher pod's emptyDir volumes.
const (
	SocketsVolume = "sockets"
	UtilityVolume = "utility"
)

// AttachmentVolume is the volume of an attachment pod that has the claim.
const AttachmentVolume = "target"

// TunnelVolume is the volume of an attachment pod that has the Secret of TunnelSecret, if there is one.
const TunnelVolume = "tunnel"

// MigrationVolume is the volume that has the Secret of MigrationSecret: in the target pod of a migration, and in the
// pod of MigrationSourcePod. Handlers may not read Secrets; the kubelet brings it to the node.
const MigrationVolume = "migration"

// Labels, annotations and finalizers.
const (
	// Prefix is the prefix of labels and annotations that no spec defines. deploy/admission protects those that
	// users may not set.
	Prefix = "varvebackup.io/"
	// AnnotationTracking is "true" on an instance whose disks are tracked. It is set at creation and never changed.
	AnnotationTracking = "varvebackup.io/changed-block-tracking"
	// AnnotationForceStop is "true" on an instance whose stop must not wait for a backup.
	AnnotationForceStop = "varvebackup.io/force-stop"
	// AnnotationContentGeneration changes on a claim whenever the claim's content is replaced.
	AnnotationContentGeneration = "varvebackup.io/content-generation"
	// AnnotationRunEpoch records on a claim which run mounted it writable last (package runepoch).
	AnnotationRunEpoch = "varvebackup.io/run-epoch"
	// AnnotationMovesFrom on a claim that holds a machine's overlays is the UID of the claim that they move from (package
	// stateclaim).
	AnnotationMovesFrom = "varvebackup.io/moves-from"
	// AnnotationStateGrowth on an instance says how its state claim is being given more room (package stateclaim).
	AnnotationStateGrowth = "varvebackup.io/state-claim-growth"
	// AnnotationSharedFilesystems is "true" on a StorageClass whose claims of mode Filesystem can be ReadWriteMany.
	AnnotationSharedFilesystems = "varvebackup.io/shared-filesystems"
	// AnnotationCopiesPerNode on the KubeVirt object is how many backups may copy on one node at a time. Default:
	// 4.
	AnnotationCopiesPerNode = "varvebackup.io/parallel-backups-per-node"
	// AnnotationMovedBytes is on a backup that DataUploads pull, and that was extended because they moved data: how
	// many bytes they had moved by then.
	AnnotationMovedBytes = "varvebackup.io/data-uploads-moved-bytes"
	// AnnotationStored is "true" on a backup that DataUploads pull once the restore points of all its disks are published. Varve's
	// controller alone may set it (deploy/admission): without it, a deletion of the backup is an abort and its tracker does not move.
	AnnotationStored = "varvebackup.io/data-uploads-stored"
	// LabelAttachment is on an attachment pod; its value is the utility volume's name.
	LabelAttachment = "varvebackup.io/attachment"
	// LabelBackup is on what belongs to a backup in pull mode; its value is the backup's UID.
	LabelBackup = "varvebackup.io/backup"
	// LabelExport is on what belongs to an export; its value is the export's UID.
	LabelExport = "varvebackup.io/export"
	// LabelEnded is "true" on a backup that is Done or Failed and holds nothing any more. Only the controller may set
	// it (deploy/admission), because controllers and handlers do not keep a backup that has it in memory.
	LabelEnded = "varvebackup.io/ended"
	// LabelState is on the claim that holds a machine's overlays; its value is the machine's name.
	LabelState = "varvebackup.io/state-of"
	// LabelNodeName is on an instance from Scheduled on; its value is the node's name.
	LabelNodeName = "kubevirt.io/nodeName"
	// LabelMigrationJob is on a migration's target pod; its value is the migration's UID.
	LabelMigrationJob = "kubevirt.io/migrationJobUID"
	// LabelMigrationTarget is on a migration once its target pod has a node; its value is the node's name.
	LabelMigrationTarget = "kubevirt.io/migrationTargetNodeName"
	// LabelApp is "virt-launcher" on launcher pods, "varve-attachment" on attachment pods and "virt-exporter" on what
	// belongs to an export.
	LabelApp = "kubevirt.io"
	// LabelCreatedBy is the instance's UID on its pods.
	LabelCreatedBy = "kubevirt.io/created-by"
	// LabelVM is the machine's name on its instance and pods.
	LabelVM = "vm.kubevirt.io/name"
	// FinalizerLauncher keeps a launcher pod until its end is recorded in the instance's status.
	FinalizerLauncher = "varvebackup.io/launcher"
	// FinalizerInstance keeps an instance until its pods are gone.
	FinalizerInstance = "foregroundDeleteVirtualMachine"
	// FinalizerTracker keeps a tracker while a backup uses it.
	FinalizerTracker = "backup.kubevirt.io/vmbackuptracker-protection"
)

// DiskFile returns the path of a disk's raw file on a Filesystem claim.
func DiskFile(volume string) string { return path.Join(DisksDir, volume, diskImage) }

// DiskDevice returns the path of a disk's device on a Block claim.
func DiskDevice(volume string) string { return path.Join(DevicesDir, volume) }

// Overlay returns the path of the qcow2 file that tracks a disk.
func Overlay(volume string) string { return path.Join(OverlayDir, volume+".qcow2") }

// OverlayIdentity returns the path of the file that says which disk an overlay belongs to.
func OverlayIdentity(volume string) string { return path.Join(OverlayDir, volume+".json") }

// Utility returns the directory of a utility volume.
func Utility(name string) string { return path.Join(UtilityDir, name) }

// NodeSocket returns the path of the launcher's socket on its node. podsDir is KubeletPods, or where the handler
// sees it.
func NodeSocket(podsDir string, launcherPod types.UID) string {
	return path.Join(podsDir, string(launcherPod), emptyDir, SocketsVolume, path.Base(Socket))
}

// NodeUtilityDir returns the directory on the node below which utility volumes are mounted for a launcher pod.
func NodeUtilityDir(podsDir string, launcherPod types.UID) string {
	return path.Join(podsDir, string(launcherPod), emptyDir, UtilityVolume)
}

// LauncherPod returns the name of an instance's launcher pod. The name is always the same for one instance and
// differs between two instances of the same name.
func LauncherPod(instance string, uid types.UID) string {
	return boundedName("virt-launcher-"+instance, instance+"/"+string(uid))
}

// MigrationPod returns the name of the launcher pod that a migration moves the instance to.
func MigrationPod(instance string, uid, migration types.UID) string {
	return boundedName("virt-launcher-"+instance, instance+"/"+string(uid)+"/"+string(migration))
}

// MigrationSourcePod returns the name of the pod that brings a migration's token to the node that the instance leaves.
func MigrationSourcePod(instance string, uid, migration types.UID) string {
	return boundedName("migrate-"+instance, instance+"/"+string(uid)+"/"+string(migration))
}

// MigrationSecret returns the name of the Secret by which the two launcher pods of a migration know each other.
func MigrationSecret(migration types.UID) string { return "migration-" + string(migration) }

// AttachmentPod returns the name of the pod that brings a utility volume to an instance's node.
func AttachmentPod(instance string, uid types.UID, utilityVolume string) string {
	return boundedName("attach-"+utilityVolume, instance+"/"+string(uid)+"/"+utilityVolume)
}

// BackupBudget returns the name of the PodDisruptionBudget that keeps drains away while an instance is backed up.
func BackupBudget(instance string, uid types.UID) string {
	return boundedName("backup-of-"+instance, instance+"/"+string(uid))
}

// boundedName appends a hash of key to prefix and shortens the prefix so that the result is a DNS label.
func boundedName(prefix, key string) string {
	sum := sha256.Sum256([]byte(key))
	suffix := "-" + hex.EncodeToString(sum[:5])
	prefix = strings.ReplaceAll(prefix, ".", "-")
	if most := 63 - len(suffix); len(prefix) > most {
		prefix = prefix[:most]
	}
	return prefix + suffix
}

// StatePVC returns the name of the claim that holds a machine's overlays at first.
func StatePVC(vm string) string { return "persistent-state-for-" + vm }

// SecondStatePVC returns the name of the claim that a machine's overlays move to when the first one is too small. From there
// they move to one with the first name again. No machine's name makes the two equal.
func SecondStatePVC(vm string) string { return "persistent-state-2-for-" + vm }

// StatePVCs returns the names of the claims that may hold a machine's overlays. Package stateclaim tells which one does.
func StatePVCs(vm string) []string { return []string{StatePVC(vm), SecondStatePVC(vm)} }

// BackupUtilityVolume returns the name of a backup's utility volume.
func BackupUtilityVolume(backup types.UID) string {
	id := strings.ReplaceAll(string(backup), "-", "")
	if len(id) > 8 {
		id = id[:8]
	}
	return "backup-" + id
}

// TunnelSecret returns the name of the Secret by which the launcher of a backup in pull mode and whoever reads the backup
// know each other. utilityVolume is the backup's.
func TunnelSecret(utilityVolume string) string { return utilityVolume + "-tunnel" }

// BackupExport returns the name of the VirtualMachineExport of a backup in pull mode.
func BackupExport(backup string) string { return "backup-export-" + backup }

// BackupLock returns what the lock on an instance says about the backup that holds it, besides the backup's name.
// Only the UID tells a backup from an earlier one of the same name, whatever the clocks say.
func BackupLock(backup types.UID) string {
	return "held by the VirtualMachineBackup with UID " + string(backup)
}

// Checkpoint returns the name of the checkpoint that a tracker's backup makes at t (VEP 25: the tracker's name and
// an RFC 3339 time).
func Checkpoint(tracker string, t time.Time) string {
	return tracker + "-" + t.UTC().Format(time.RFC3339)
}

// PartialSuffix ends the name of a backup's directory until the backup is complete.
const PartialSuffix = ".partial"

// BackupManifest is the file in a backup's directory that describes it.
const BackupManifest = "backup.json"

// BackupDirectory returns the directory of a backup's files, relative to the root of the target volume.
func BackupDirectory(vm, backup string, t time.Time) string {
	return path.Join(vm, backup+"-"+t.UTC().Format("20060102T150405Z"))
}

// BackupFile returns the path of a disk's file in a backup's directory.
func BackupFile(directory, volume string) string { return path.Join(directory, volume+".qcow2") }

// UnfinishedBackups returns a selector for the backups without LabelEnded.
func UnfinishedBackups() labels.Selector {
	missing, err := labels.NewRequirement(LabelEnded, selection.DoesNotExist, nil)
	if err != nil {
		panic(err) // the key is a constant
	}
	return labels.NewSelector().Add(*missing)
}
