package templatediff

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

func volume(name, claim string) kubevirtv1.Volume {
	return kubevirtv1.Volume{Name: name, PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}
}

func disk(name, bus string) kubevirtv1.Disk {
	return kubevirtv1.Disk{Name: name, Disk: &kubevirtv1.DiskTarget{Bus: bus}}
}

func guest() *kubevirtv1.VirtualMachineInstanceSpec {
	return &kubevirtv1.VirtualMachineInstanceSpec{
		Domain: kubevirtv1.DomainSpec{
			Memory: &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))},
			Devices: kubevirtv1.Devices{
				Disks:      []kubevirtv1.Disk{disk("root", ""), disk("data", "")},
				Interfaces: []kubevirtv1.Interface{{Name: "default", Masquerade: &kubevirtv1.InterfaceMasquerade{}}},
			},
		},
		Networks: []kubevirtv1.Network{{Name: "default", Pod: &kubevirtv1.PodNetwork{}}},
		Volumes:  []kubevirtv1.Volume{volume("root", "root"), volume("data", "data")},
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	type spec = *kubevirtv1.VirtualMachineInstanceSpec
	for name, c := range map[string]struct {
		edit func(template, running spec)
		want []string
	}{
		"the same": {func(_, _ spec) {}, nil},
		"a utility volume of a backup": {func(_, running spec) {
			running.UtilityVolumes = []kubevirtv1.UtilityVolume{{Name: "backup"}}
		}, nil},
		"defaults that are spelled out": {func(template, _ spec) {
			template.TerminationGracePeriodSeconds = ptr.To(int64(30))
			template.Domain.CPU = &kubevirtv1.CPU{Cores: 1}
			template.Domain.Machine = &kubevirtv1.Machine{Type: "q35"}
			template.Domain.Devices.Disks[0].Disk.Bus, template.Domain.Devices.Disks[1].Shareable = "virtio", ptr.To(false)
			template.Domain.Devices.Interfaces[0].Model = "virtio"
			template.NodeSelector, template.Tolerations = map[string]string{}, []corev1.Toleration{}
		}, nil},
		"the same memory in another unit": {func(template, _ spec) { template.Domain.Memory.Guest = ptr.To(resource.MustParse("1024Mi")) }, nil},
		"memory and cores": {func(template, _ spec) {
			template.Domain.Memory.Guest, template.Domain.CPU = ptr.To(resource.MustParse("2Gi")), &kubevirtv1.CPU{Cores: 2}
		}, []string{"spec.domain.cpu.cores", "spec.domain.memory.guest"}},
		"another disk": {func(template, _ spec) {
			template.Domain.Devices.Disks = append(template.Domain.Devices.Disks, disk("more", ""))
			template.Volumes = append(template.Volumes, volume("more", "more"))
		}, []string{"spec.domain.devices.disks[more]", "spec.volumes[more]"}},
		"no disk any more": {func(template, _ spec) { template.Domain.Devices.Disks, template.Volumes = nil, nil }, []string{"spec.domain.devices.disks", "spec.volumes"}},
		"another claim":    {func(template, _ spec) { template.Volumes[1] = volume("data", "restored") }, []string{"spec.volumes[data].persistentVolumeClaim.claimName"}},
		"another order":    {func(template, _ spec) { d := template.Domain.Devices.Disks; d[0], d[1] = d[1], d[0] }, []string{"spec.domain.devices.disks"}},
		"another bus":      {func(template, _ spec) { template.Domain.Devices.Disks[0].Disk.Bus = "scsi" }, []string{"spec.domain.devices.disks[root].disk.bus"}},
		"a node selector":  {func(template, _ spec) { template.NodeSelector = map[string]string{"a": "b"} }, []string{"spec.nodeSelector"}},
		"tolerations":      {func(template, _ spec) { template.Tolerations = []corev1.Toleration{{Key: "a"}} }, []string{"spec.tolerations"}},
		"a grace period":   {func(template, _ spec) { template.TerminationGracePeriodSeconds = ptr.To(int64(0)) }, []string{"spec.terminationGracePeriodSeconds"}},
		"a kernel":         {func(template, _ spec) { template.Domain.Firmware = &kubevirtv1.Firmware{Serial: "1"} }, []string{"spec.domain.firmware"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			template, running := guest(), guest()
			c.edit(template, running)
			before := [2]spec{template.DeepCopy(), running.DeepCopy()}
			if diff := cmp.Diff(c.want, Fields(template, running)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.want == nil, len(Fields(running, template)) == 0); diff != "" {
				t.Errorf("the other way round: %s", diff)
			}
			if diff := cmp.Diff(before, [2]spec{template, running}); diff != "" {
				t.Errorf("an argument was modified: %s", diff)
			}
		})
	}
}

func TestNewDisks(t *testing.T) {
	t.Parallel()
	template, running := guest(), guest()
	if got := NewDisks(template, running); got != nil {
		t.Errorf("the same disks: %v", got)
	}
	template.Domain.Devices.Disks = []kubevirtv1.Disk{disk("more", ""), disk("data", ""), disk("root", "scsi")}
	template.Volumes = []kubevirtv1.Volume{volume("root", "root"), volume("data", "restored"), volume("more", "more")}
	if diff := cmp.Diff([]string{"more", "data"}, NewDisks(template, running)); diff != "" {
		t.Error(diff)
	}
	template.Domain.Devices.Disks = template.Domain.Devices.Disks[2:]
	if got := NewDisks(template, running); got != nil {
		t.Errorf("a disk that goes is none that is new: %v", got)
	}
}
