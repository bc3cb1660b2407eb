// Package gen makes the API objects that tests begin with. Each builder returns an object that the API server accepts,
// with the least that it needs, and applies changes to it in order:
//
//	gen.VirtualMachine(meta, gen.Guest(gen.Disk("root", "claim")), gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))
//
// It creates nothing in a cluster.
package gen

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// Meta returns the metadata of an object in a namespace.
func Meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func modified[T any](object T, changes []func(T)) T {
	for _, change := range changes {
		change(object)
	}
	return object
}

// VirtualMachine returns a machine that always runs.
func VirtualMachine(meta metav1.ObjectMeta, guest kubevirtv1.VirtualMachineInstanceSpec, changes ...func(*kubevirtv1.VirtualMachine)) *kubevirtv1.VirtualMachine {
	return modified(&kubevirtv1.VirtualMachine{ObjectMeta: meta, Spec: kubevirtv1.VirtualMachineSpec{
		RunStrategy: ptr.To(kubevirtv1.RunStrategyAlways),
		Template:    &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: guest},
	}}, changes)
}

// SetRunStrategy decides when a machine runs.
func SetRunStrategy(s kubevirtv1.RunStrategy) func(*kubevirtv1.VirtualMachine) {
	return func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = &s }
}

// VirtualMachineInstance returns an instance without a status.
func VirtualMachineInstance(meta metav1.ObjectMeta, guest kubevirtv1.VirtualMachineInstanceSpec, changes ...func(*kubevirtv1.VirtualMachineInstance)) *kubevirtv1.VirtualMachineInstance {
	return modified(&kubevirtv1.VirtualMachineInstance{ObjectMeta: meta, Spec: guest}, changes)
}

// Guest returns the spec of a guest with 64 MiB of memory, and disks if they are asked for.
func Guest(changes ...func(*kubevirtv1.VirtualMachineInstanceSpec)) kubevirtv1.VirtualMachineInstanceSpec {
	return *modified(&kubevirtv1.VirtualMachineInstanceSpec{Domain: kubevirtv1.DomainSpec{
		Memory: &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))},
	}}, changes)
}

// Disk adds a virtio disk on a claim, and applies changes to it.
func Disk(name, claim string, changes ...func(*kubevirtv1.Disk)) func(*kubevirtv1.VirtualMachineInstanceSpec) {
	return func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		disk := modified(&kubevirtv1.Disk{Name: name, Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}, changes)
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, *disk)
		source := &kubevirtv1.PersistentVolumeClaimVolumeSource{}
		source.ClaimName = claim
		s.Volumes = append(s.Volumes, kubevirtv1.Volume{Name: name, PersistentVolumeClaim: source})
	}
}

// Source returns a reference to a machine, as backups and trackers have it.
func Source(vm string) *corev1.TypedLocalObjectReference {
	return &corev1.TypedLocalObjectReference{APIGroup: ptr.To(kubevirtv1.GroupVersion.Group), Kind: "VirtualMachine", Name: vm}
}

// Tracker returns a tracker of a machine, without a checkpoint.
func Tracker(meta metav1.ObjectMeta, vm string, changes ...func(*backupv1.VirtualMachineBackupTracker)) *backupv1.VirtualMachineBackupTracker {
	return modified(&backupv1.VirtualMachineBackupTracker{
		ObjectMeta: meta, Spec: backupv1.VirtualMachineBackupTrackerSpec{Source: *Source(vm)},
	}, changes)
}

// Backup returns a backup of the machine "vm", without a tracker, to the claim "target".
func Backup(meta metav1.ObjectMeta, changes ...func(*backupv1.VirtualMachineBackup)) *backupv1.VirtualMachineBackup {
	return modified(&backupv1.VirtualMachineBackup{
		ObjectMeta: meta, Spec: backupv1.VirtualMachineBackupSpec{Source: Source("vm"), PVCName: "target"},
	}, changes)
}

// SetSource makes a backup one of another machine.
func SetSource(vm string) func(*backupv1.VirtualMachineBackup) {
	return func(b *backupv1.VirtualMachineBackup) { b.Spec.Source, b.Spec.BackupTracker = Source(vm), "" }
}

// SetTracker makes a backup one through a tracker, or, if the name is empty, leaves it as it is.
func SetTracker(name string) func(*backupv1.VirtualMachineBackup) {
	return func(b *backupv1.VirtualMachineBackup) {
		if name != "" {
			b.Spec.Source, b.Spec.BackupTracker = nil, name
		}
	}
}

// SetTarget makes a backup go to another claim.
func SetTarget(claim string) func(*backupv1.VirtualMachineBackup) {
	return func(b *backupv1.VirtualMachineBackup) { b.Spec.PVCName = claim }
}

// SetBackupMode sets the mode, which the API server otherwise sets to push.
func SetBackupMode(mode backupv1.BackupMode) func(*backupv1.VirtualMachineBackup) {
	return func(b *backupv1.VirtualMachineBackup) { b.Spec.Mode = mode }
}

// Export returns an export of a source.
func Export(meta metav1.ObjectMeta, source *corev1.TypedLocalObjectReference, changes ...func(*exportv1.VirtualMachineExport)) *exportv1.VirtualMachineExport {
	return modified(&exportv1.VirtualMachineExport{ObjectMeta: meta, Spec: exportv1.VirtualMachineExportSpec{Source: *source}}, changes)
}

// MachineSnapshot returns a snapshot of the machine "vm".
func MachineSnapshot(meta metav1.ObjectMeta, changes ...func(*vmsnapshotv1.VirtualMachineSnapshot)) *vmsnapshotv1.VirtualMachineSnapshot {
	return modified(&vmsnapshotv1.VirtualMachineSnapshot{
		ObjectMeta: meta, Spec: vmsnapshotv1.VirtualMachineSnapshotSpec{Source: *Source("vm")},
	}, changes)
}

// Schedule returns a schedule of a machine: each night, with 8 backups that stay.
func Schedule(meta metav1.ObjectMeta, vm string, changes ...func(*harvesterv1.ScheduleVMBackup)) *harvesterv1.ScheduleVMBackup {
	return modified(&harvesterv1.ScheduleVMBackup{ObjectMeta: meta, Spec: harvesterv1.ScheduleVMBackupSpec{
		Cron: "0 1 * * *", Retain: 8, MaxFailure: 4,
		VMBackupSpec: harvesterv1.VirtualMachineBackupSpec{Source: *Source(vm), Type: harvesterv1.Backup},
	}}, changes)
}

// Policy returns a policy for machines with some labels: each night, into the location shelf.
func Policy(
	meta metav1.ObjectMeta, selector metav1.LabelSelector, changes ...func(*varvev1.BackupPolicy),
) *varvev1.BackupPolicy {
	return modified(&varvev1.BackupPolicy{ObjectMeta: meta, Spec: varvev1.BackupPolicySpec{
		Selector: selector,
		Template: varvev1.ScheduleTemplate{
			Annotations: map[string]string{harvesterv1.AnnotationLocation: "shelf"},
			Spec:        varvev1.ScheduleTemplateSpec{Cron: "0 1 * * *"},
		},
	}}, changes)
}

// Image returns an image that is downloaded.
func Image(meta metav1.ObjectMeta, changes ...func(*longhornv1.BackingImage)) *longhornv1.BackingImage {
	return modified(&longhornv1.BackingImage{
		ObjectMeta: meta,
		Spec: longhornv1.BackingImageSpec{
			DataEngine: longhornv1.DataEngineV2, SourceType: longhornv1.SourceDownload, MinNumberOfCopies: 1,
			SourceParameters: map[string]longhornv1.ParameterValue{longhornv1.ParameterURL: "https://example.com/debian.qcow2"},
		},
	}, changes)
}

// SetTTL sets how long an export exists.
func SetTTL(ttl time.Duration) func(*exportv1.VirtualMachineExport) {
	return func(e *exportv1.VirtualMachineExport) { e.Spec.TTLDuration = &metav1.Duration{Duration: ttl} }
}

// ClaimSource returns a reference to a claim, as exports have it.
func ClaimSource(claim string) *corev1.TypedLocalObjectReference {
	return &corev1.TypedLocalObjectReference{Kind: exportv1.SourceClaim, Name: claim}
}

// BackupSource returns a reference to a backup, as exports have it.
func BackupSource(backup string) *corev1.TypedLocalObjectReference {
	return &corev1.TypedLocalObjectReference{APIGroup: ptr.To(backupv1.GroupVersion.Group), Kind: exportv1.SourceBackup, Name: backup}
}

// Claim returns a claim of 1 GiB that one node may mount.
func Claim(meta metav1.ObjectMeta, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
	}}
	return modified(claim, append([]func(*corev1.PersistentVolumeClaim){SetSize("1Gi")}, changes...))
}

// SetSize sets what a claim requests, as "1Gi".
func SetSize(size string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
}

// SetVolumeMode makes a claim one of a file system or of a block device.
func SetVolumeMode(mode corev1.PersistentVolumeMode) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &mode }
}

// Pod returns a pod with one container, whose image nobody pulls where there is no kubelet.
func Pod(meta metav1.ObjectMeta, changes ...func(*corev1.Pod)) *corev1.Pod {
	return modified(&corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "image"}},
	}}, changes)
}

// MoverPod returns the pod of a DataUpload, as the policies want it. The controller alone may create it.
func MoverPod(namespace string, upload types.UID, changes ...func(*corev1.Pod)) *corev1.Pod {
	return modified(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: datamove.ChildName(datamove.Upload, upload),
			Labels: map[string]string{datamove.LabelObject: string(upload)},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: datamove.ServiceAccount, AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{
				Name: "mover", Image: "varve:test", Command: []string{"/usr/bin/varve", "mover", "upload"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}, changes)
}
