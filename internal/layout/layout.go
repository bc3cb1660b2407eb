// Package layout says where things are in a launcher pod, on its node and on a backup's target, and
// how the objects that belong together are named. The controller, the handler and the launcher agree
// through it; it decides nothing and touches nothing.
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

// Paths inside the launcher pod.
const (
	DisksDir    = "/run/varve/disks"
	DevicesDir  = "/dev/varve"
	StateDir    = "/run/varve/state"
	OverlayDir  = StateDir + "/cbt"
	UtilityDir  = "/run/varve/utility"
	SocketsDir  = "/run/varve/sockets"
	Socket      = SocketsDir + "/launcher.sock"
	KernelDir   = "/run/varve/kernel"
	KernelFile  = KernelDir + "/kernel"
	InitrdFile  = KernelDir + "/initrd"
	diskImage   = "disk.img"
	emptyDir    = "volumes/kubernetes.io~empty-dir"
	KubeletPods = "/var/lib/kubelet/pods"
)

// Names of the launcher pod's emptyDir volumes.
const (
	SocketsVolume = "sockets"
	UtilityVolume = "utility"
)

// AttachmentVolume is the name of an attachment pod's one volume.
const AttachmentVolume = "target"

// Labels, annotations and finalizers.
const (
	// Prefix is of labels and annotations that no spec defines. deploy/admission protects those that are not a user's.
	Prefix = "varvebackup.io/"
	// AnnotationTracking says "true" on an instance whose disks are tracked. Set at creation, never changed.
	AnnotationTracking = "varvebackup.io/changed-block-tracking"
	// AnnotationForceStop says "true" on an instance whose stop must not wait for a backup.
	AnnotationForceStop = "varvebackup.io/force-stop"
	// AnnotationContentGeneration changes on a claim whenever its content was replaced.
	AnnotationContentGeneration = "varvebackup.io/content-generation"
	// AnnotationRunEpoch says on a claim which run mounted it writable last (package runepoch).
	AnnotationRunEpoch = "varvebackup.io/run-epoch"
	// AnnotationCopiesPerNode is on the KubeVirt object: how many backups copy on one node at a time. Default: 4.
	AnnotationCopiesPerNode = "varvebackup.io/parallel-backups-per-node"
	// LabelAttachment is on an attachment pod; its value is the utility volume's name.
	LabelAttachment = "varvebackup.io/attachment"
	// LabelEnded says "true" on a backup that is Done or Failed and holds nothing any more. Controllers and handlers keep only
	// the other backups in memory, so only they set it.
	LabelEnded = "varvebackup.io/ended"
	// LabelState is on the claim that holds a machine's overlays; its value is the machine's name.
	LabelState = "varvebackup.io/state-of"
	// LabelNodeName is on an instance from Scheduled on; its value is the node.
	LabelNodeName = "kubevirt.io/nodeName"
	// LabelApp is "virt-launcher" on launcher pods and "varve-attachment" on attachment pods.
	LabelApp = "kubevirt.io"
	// LabelCreatedBy is the instance's UID on its pods.
	LabelCreatedBy = "kubevirt.io/created-by"
	// LabelVM is the machine's name on its instance and pods.
	LabelVM = "vm.kubevirt.io/name"
	// FinalizerLauncher keeps a launcher pod until its end is in the instance's status.
	FinalizerLauncher = "varvebackup.io/launcher"
	// FinalizerInstance keeps an instance until its pods are gone.
	FinalizerInstance = "foregroundDeleteVirtualMachine"
	// FinalizerTracker keeps a tracker while a backup uses it.
	FinalizerTracker = "backup.kubevirt.io/vmbackuptracker-protection"
)

// DiskFile is the raw file of a disk on a Filesystem claim.
func DiskFile(volume string) string { return path.Join(DisksDir, volume, diskImage) }

// DiskDevice is the device of a disk on a Block claim.
func DiskDevice(volume string) string { return path.Join(DevicesDir, volume) }

// Overlay is the qcow2 file that tracks a disk.
func Overlay(volume string) string { return path.Join(OverlayDir, volume+".qcow2") }

// OverlayIdentity is the file that says to which disk an overlay belongs.
func OverlayIdentity(volume string) string { return path.Join(OverlayDir, volume+".json") }

// Utility is the directory of a utility volume.
func Utility(name string) string { return path.Join(UtilityDir, name) }

// NodeSocket is the launcher's socket on its node. podsDir is KubeletPods, or where the handler sees it.
func NodeSocket(podsDir string, launcherPod types.UID) string {
	return path.Join(podsDir, string(launcherPod), emptyDir, SocketsVolume, path.Base(Socket))
}

// NodeUtilityDir is the directory on the node below which utility volumes are mounted for a launcher pod.
func NodeUtilityDir(podsDir string, launcherPod types.UID) string {
	return path.Join(podsDir, string(launcherPod), emptyDir, UtilityVolume)
}

// LauncherPod is the name of an instance's launcher pod. It is the same whenever it is asked for one
// instance and differs between two instances of one name.
func LauncherPod(instance string, uid types.UID) string {
	return bounded("virt-launcher-"+instance, instance+"/"+string(uid))
}

// AttachmentPod is the name of the pod that brings a utility volume to an instance's node.
func AttachmentPod(instance string, uid types.UID, utilityVolume string) string {
	return bounded("attach-"+utilityVolume, instance+"/"+string(uid)+"/"+utilityVolume)
}

// BackupBudget is the name of the PodDisruptionBudget that keeps drains away while an instance is backed up.
func BackupBudget(instance string, uid types.UID) string {
	return bounded("backup-of-"+instance, instance+"/"+string(uid))
}

// bounded appends a hash of key to prefix and keeps the result a DNS label.
func bounded(prefix, key string) string {
	sum := sha256.Sum256([]byte(key))
	suffix := "-" + hex.EncodeToString(sum[:5])
	prefix = strings.ReplaceAll(prefix, ".", "-")
	if most := 63 - len(suffix); len(prefix) > most {
		prefix = prefix[:most]
	}
	return prefix + suffix
}

// StatePVC is the name of the claim that holds a machine's overlays.
func StatePVC(vm string) string { return "persistent-state-for-" + vm }

// BackupUtilityVolume is the name of the utility volume of a backup.
func BackupUtilityVolume(backup types.UID) string {
	id := strings.ReplaceAll(string(backup), "-", "")
	if len(id) > 8 {
		id = id[:8]
	}
	return "backup-" + id
}

// BackupLock is what the lock on an instance says of the backup that holds it, beside its name. Only the UID tells
// a backup from an earlier one of the same name, whatever the clocks say.
func BackupLock(backup types.UID) string {
	return "held by the VirtualMachineBackup with UID " + string(backup)
}

// Checkpoint is the name of the checkpoint that a tracker's backup makes at t (VEP 25: the tracker's
// name and an RFC 3339 time).
func Checkpoint(tracker string, t time.Time) string {
	return tracker + "-" + t.UTC().Format(time.RFC3339)
}

// PartialSuffix is on the name of a backup's directory until the backup is complete.
const PartialSuffix = ".partial"

// BackupManifest is the file in a backup's directory that describes it.
const BackupManifest = "backup.json"

// BackupDirectory is where a backup's files are, relative to the root of the target volume.
func BackupDirectory(vm, backup string, t time.Time) string {
	return path.Join(vm, backup+"-"+t.UTC().Format("20060102T150405Z"))
}

// BackupFile is a disk's file in a backup's directory.
func BackupFile(directory, volume string) string { return path.Join(directory, volume+".qcow2") }

// UnfinishedBackups selects the backups that do not have LabelEnded.
func UnfinishedBackups() labels.Selector {
	missing, err := labels.NewRequirement(LabelEnded, selection.DoesNotExist, nil)
	if err != nil {
		panic(err) // the key is a constant
	}
	return labels.NewSelector().Add(*missing)
}
