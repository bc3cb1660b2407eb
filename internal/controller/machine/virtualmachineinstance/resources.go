package virtualmachineinstance

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/tracking"
)

// kvmResource is the extended resource of a node that has /dev/kvm, as KubeVirt's device plugin names it.
const kvmResource = corev1.ResourceName("devices.kubevirt.io/kvm")

const (
	mib = int64(1) << 20
	// launcherBytes is for varve-launcher, for libvirtd and its files, for QEMU itself, and for the buffers of a
	// backup.
	launcherBytes = 224*mib + pullBytes
	// pullBytes is for serving a pull backup (docs/tunnel.md, Memory): eight reads with 2 MiB of buffers each, once in QEMU and
	// twice in the launcher, whose heap may have as much garbage again, and what requests and connections need. Any disk can be
	// pulled, also one that is not tracked.
	pullBytes = (1+2)*8*2*mib + 2*mib
	// emulationBytes is for code that software emulation has translated.
	emulationBytes = 128 * mib
	// vcpuBytes is for each virtual CPU's thread.
	vcpuBytes = 8 * mib
	// bitmaps is how many bitmaps of a disk are in memory while its overlay is open. StateClaimSize has room for as
	// many.
	bitmaps = tracking.BitmapsPerDisk
	// bitmapGranularity is how much of a disk one bit stands for, in bytes.
	bitmapGranularity = 64 << 10
	// metadataCache is the most that QEMU caches of one overlay's tables, in bytes.
	metadataCache = 32 * mib
	// vcpuMillis is how much CPU is requested for a virtual one, in thousandths: KubeVirt's ratio of 10.
	vcpuMillis = 100
)

// launcherResources returns what the launcher requests. It sets no memory limit: an estimate that is too low must not kill
// a guest.
func launcherResources(in podInput) corev1.ResourceRequirements {
	memory := in.Instance.Spec.Domain.Memory.Guest.Value()
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(vcpuMillis*virtualCPUs(in.Instance), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory+memoryOverhead(in), resource.BinarySI),
	}}
	if !in.UseEmulation {
		kvm := corev1.ResourceList{kvmResource: resource.MustParse("1")}
		r.Limits = kvm
		r.Requests[kvmResource] = kvm[kvmResource]
	}
	return r
}

// memoryOverhead returns the memory in bytes that a launcher pod needs beyond the guest's, rounded up to whole MiB.
func memoryOverhead(in podInput) int64 {
	n := launcherBytes + vcpuBytes*virtualCPUs(in.Instance)
	n += in.Instance.Spec.Domain.Memory.Guest.Value() / 512 // page tables
	if in.UseEmulation {
		n += emulationBytes
	}
	if Tracked(in.Instance) {
		eligible := tracking.EligibleVolumes(&in.Instance.Spec)
		for _, v := range in.Instance.Spec.Volumes {
			if slices.Contains(eligible, v.Name) {
				n += trackedDisk(tracking.ClaimBytes(in.Claims[v.PersistentVolumeClaim.ClaimName]))
			}
		}
	}
	return (n + mib - 1) / mib * mib
}

// trackedDisk returns the memory that an overlay over a disk of this many bytes costs: bitmaps and cached tables.
func trackedDisk(bytes int64) int64 {
	tables := bytes / int64(tracking.ClusterSize(bytes)) * 8
	return bitmaps*(bytes/bitmapGranularity/8) + min(tables, metadataCache)
}

// virtualCPUs returns the number of the guest's virtual CPUs, at least one.
func virtualCPUs(instance *kubevirtv1.VirtualMachineInstance) int64 {
	c := instance.Spec.Domain.CPU
	if c == nil {
		return 1
	}
	return max(1, int64(c.Cores)) * max(1, int64(c.Sockets)) * max(1, int64(c.Threads))
}

func initResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("10m"),
		corev1.ResourceMemory: resource.MustParse("32Mi"),
	}}
}
