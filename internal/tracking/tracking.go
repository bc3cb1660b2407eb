// Package tracking decides which virtual machines, and which of their disks, are tracked for incremental backup. It
// is pure: the callers gather its input.
package tracking

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// GateEnabled reports whether the configuration lists a feature gate.
func GateEnabled(kv *kubevirtv1.KubeVirt, gate string) bool {
	if kv == nil || kv.Spec.Configuration.DeveloperConfiguration == nil {
		return false
	}
	return slices.Contains(kv.Spec.Configuration.DeveloperConfiguration.FeatureGates, gate)
}

// Selected reports whether the configuration wants a machine with these labels, in a namespace with these labels,
// to be tracked. An invalid selector is an error that names the selector.
func Selected(kv *kubevirtv1.KubeVirt, namespace, machine map[string]string) (bool, error) {
	if !GateEnabled(kv, kubevirtv1.IncrementalBackup) {
		return false, nil
	}
	selectors := kv.Spec.Configuration.ChangedBlockTrackingLabelSelectors
	if selectors == nil {
		return false, nil
	}
	byNamespace, err := matchesSelector(selectors.NamespaceLabelSelector, namespace)
	if err != nil {
		return false, fmt.Errorf("namespaceLabelSelector: %w", err)
	}
	byMachine, err := matchesSelector(selectors.VirtualMachineLabelSelector, machine)
	if err != nil {
		return false, fmt.Errorf("virtualMachineLabelSelector: %w", err)
	}
	return byNamespace || byMachine, nil
}

func matchesSelector(s *metav1.LabelSelector, set map[string]string) (bool, error) {
	// This call already lets a nil selector match nothing and an empty one everything.
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return false, err
	}
	return selector.Matches(labels.Set(set)), nil
}

// EligibleVolumes returns the names of the volumes whose disks can be tracked, in the order of spec.volumes:
// writable disks that are not shared between guests, on a claim of either volume mode.
func EligibleVolumes(spec *kubevirtv1.VirtualMachineInstanceSpec) []string {
	var names []string
	for _, v := range spec.Volumes {
		d := findDisk(spec, v.Name)
		if v.PersistentVolumeClaim == nil || d == nil || d.Disk == nil || IsReadOnly(spec, v.Name) || IsShareable(spec, v.Name) {
			continue
		}
		names = append(names, v.Name)
	}
	return names
}

// IsReadOnly reports whether the guest cannot write to a volume's disk.
func IsReadOnly(spec *kubevirtv1.VirtualMachineInstanceSpec, volume string) bool {
	if d := findDisk(spec, volume); d != nil && d.Disk != nil && d.Disk.ReadOnly {
		return true
	}
	return slices.ContainsFunc(spec.Volumes, func(v kubevirtv1.Volume) bool {
		return v.Name == volume && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
	})
}

// IsShareable reports whether several guests may write to a volume's disk at once.
func IsShareable(spec *kubevirtv1.VirtualMachineInstanceSpec, volume string) bool {
	d := findDisk(spec, volume)
	return d != nil && d.Shareable != nil && *d.Shareable
}

// findDisk returns a volume's disk, or nil.
func findDisk(spec *kubevirtv1.VirtualMachineInstanceSpec, volume string) *kubevirtv1.Disk {
	i := slices.IndexFunc(spec.Domain.Devices.Disks, func(d kubevirtv1.Disk) bool { return d.Name == volume })
	if i < 0 {
		return nil
	}
	return &spec.Domain.Devices.Disks[i]
}

// BitmapsPerDisk is how many bitmaps of each disk StateClaimSize has room for. Each tracker of a machine has one in each of its disks.
const BitmapsPerDisk = 16

// StateClaimSize returns the size in bytes of the claim that holds the overlays and bitmaps of disks with these
// sizes in bytes. It is generous, because a claim that is too small stops the guest. Per disk it has room for twice
// the L2 tables at the overlay's cluster size, BitmapsPerDisk bitmaps at 64 KiB granularity, and the file system's own needs.
func StateClaimSize(diskBytes []int64) int64 {
	const mib = 1 << 20
	size := int64(32 * mib)
	for _, n := range diskBytes {
		tables := n / int64(ClusterSize(n)) * 8
		bitmap := n / (64 << 10) / 8
		size += 2*tables + BitmapsPerDisk*(bitmap+mib) + 16*mib
	}
	size += size / 10
	return (size + mib - 1) / mib * mib
}

// StateClaimRequest returns the size in bytes to request for a claim that must have StateClaimSize of these disks. It is
// twice that, in whole GiB, so that the disks can double, or more disks can be added, in the same claim: a claim of
// 1 GiB has room for eight disks of 1 TiB, and one for 10 TiB takes the place of a ten-thousandth of the disk. Many
// provisioners make no smaller volumes anyway. A claim that has become too small costs the next start a wait, because the
// overlays have to get into a larger one.
func StateClaimRequest(diskBytes []int64) int64 {
	const gib = 1 << 30
	return (2*StateClaimSize(diskBytes) + gib - 1) / gib * gib
}

// ClaimBytes returns the size in bytes of the volume behind a claim, or what the claim requests while it has no
// volume.
func ClaimBytes(claim *corev1.PersistentVolumeClaim) int64 {
	if q, ok := claim.Status.Capacity[corev1.ResourceStorage]; ok {
		return q.Value()
	}
	return claim.Spec.Resources.Requests.Storage().Value()
}

// ClusterSize returns the cluster size in bytes of the overlay over a disk of diskBytes: the smallest power of two
// from 64 KiB to 2 MiB with diskBytes <= 4.5 * cluster^2. Up to that size QEMU recognizes a hole-punched overlay as
// preallocated metadata and asks the raw file for its holes, so that a full backup of a sparse disk stays sparse.
func ClusterSize(diskBytes int64) int {
	const smallest, largest = 64 << 10, 2 << 20
	cluster := int64(smallest)
	for cluster < largest && diskBytes > cluster*cluster*9/2 {
		cluster *= 2
	}
	return int(cluster)
}

// IsBlock reports whether a claim has volume mode Block.
func IsBlock(mode *corev1.PersistentVolumeMode) bool {
	return mode != nil && *mode == corev1.PersistentVolumeBlock
}
