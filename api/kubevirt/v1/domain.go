package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Memory is the guest's memory.
type Memory struct {
	// guest is the amount that the guest sees.
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !self.matches('[eE][+-]?[0-9]*([.]|[0-9]{3})')",message="must be a quantity, such as 2Gi: the exponent is a number of two digits at most"
	Guest *resource.Quantity `json:"guest"`
}

// Machine is the chipset.
type Machine struct {
	// type is a QEMU machine type: q35 or pc, or a versioned name of these.
	// +kubebuilder:validation:Pattern=`^(q35|pc|pc-q35-[0-9.]+|pc-i440fx-[0-9.]+)$`
	Type string `json:"type"`
}

// Firmware says what the guest boots.
type Firmware struct {
	// uuid is what the firmware reports to the guest. Default: derived from the machine's name.
	// +optional
	UUID types.UID `json:"uuid,omitempty"`
	// serial is the system serial number in SMBIOS.
	// +optional
	Serial string `json:"serial,omitempty"`
	// kernelBoot boots a kernel directly, without a boot loader.
	// +optional
	KernelBoot *KernelBoot `json:"kernelBoot,omitempty"`
}

// KernelBoot boots a kernel directly.
//
// +kubebuilder:validation:XValidation:rule="!has(self.kernelArgs) || size(self.kernelArgs) == 0 || has(self.container)",message="kernelArgs needs a container with a kernel",fieldPath=".kernelArgs"
type KernelBoot struct {
	// kernelArgs is the kernel's command line.
	// +optional
	KernelArgs string `json:"kernelArgs,omitempty"`
	// container is the image that holds the kernel.
	// +optional
	Container *KernelBootContainer `json:"container,omitempty"`
}

// KernelBootContainer is an image that holds a kernel and an initial RAM disk.
//
// +kubebuilder:validation:XValidation:rule="has(self.kernelPath) || has(self.initrdPath)",message="set kernelPath, initrdPath or both"
type KernelBootContainer struct {
	// image is the container image.
	// +kubebuilder:validation:MinLength=1
	Image string `json:"image"`
	// imagePullSecret is the secret to pull it with.
	// +optional
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
	// imagePullPolicy is Always, Never or IfNotPresent.
	// +kubebuilder:validation:Enum=Always;Never;IfNotPresent
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// kernelPath is the kernel's absolute path in the image.
	// +optional
	KernelPath string `json:"kernelPath,omitempty"`
	// initrdPath is the initial RAM disk's absolute path in the image.
	// +optional
	InitrdPath string `json:"initrdPath,omitempty"`
}

// Devices are the guest's disks, interfaces and random number generator.
type Devices struct {
	// disks are what the guest sees of spec.volumes.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Disks []Disk `json:"disks,omitempty"`
	// interfaces are what the guest sees of spec.networks.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1
	Interfaces []Interface `json:"interfaces,omitempty"`
	// rng gives the guest random numbers from the host.
	// +optional
	Rng *Rng `json:"rng,omitempty"`
}

// Rng gives the guest random numbers from the host.
type Rng struct{}

// Disk is a disk in the guest.
//
// +kubebuilder:validation:XValidation:rule="has(self.disk)",message="only disk is supported as a device",fieldPath=".disk"
type Disk struct {
	// name is the name of the volume behind the disk.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// disk attaches the volume as a disk.
	// +optional
	Disk *DiskTarget `json:"disk,omitempty"`
	// bootOrder is this disk's place in the order of boot devices, from 1. Unique.
	// +kubebuilder:validation:Minimum=1
	// +optional
	BootOrder *uint `json:"bootOrder,omitempty"`
	// serial is what the guest reads as the disk's serial number.
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.+-]*$`
	// +optional
	Serial string `json:"serial,omitempty"`
	// shareable allows several guests to write the volume at once; such a disk is never tracked.
	// +optional
	Shareable *bool `json:"shareable,omitempty"`
}

// DiskTarget says how a disk is attached.
type DiskTarget struct {
	// bus is virtio, sata or scsi. Default: virtio.
	// +kubebuilder:validation:Enum=virtio;sata;scsi
	// +optional
	Bus string `json:"bus,omitempty"`
	// readonly keeps the guest from writing; such a disk is never tracked.
	// +optional
	ReadOnly bool `json:"readonly,omitempty"`
}

// Interface is a network interface in the guest.
//
// +kubebuilder:validation:XValidation:rule="has(self.masquerade)",message="only masquerade is supported as a binding",fieldPath=".masquerade"
type Interface struct {
	// name is the name of the network.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// model is virtio or e1000. Default: virtio.
	// +kubebuilder:validation:Enum=virtio;e1000
	// +optional
	Model string `json:"model,omitempty"`
	// macAddress is the interface's hardware address. Default: derived from the machine's name.
	// +kubebuilder:validation:Pattern=`^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$`
	// +optional
	MacAddress string `json:"macAddress,omitempty"`
	// masquerade hides the guest behind the pod's address.
	// +optional
	Masquerade *InterfaceMasquerade `json:"masquerade,omitempty"`
}

// InterfaceMasquerade hides the guest behind the pod's address.
type InterfaceMasquerade struct{}

// Network is what an interface attaches to.
//
// +kubebuilder:validation:XValidation:rule="has(self.pod)",message="only the pod network is supported",fieldPath=".pod"
type Network struct {
	// name is the name that an interface refers to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// pod is the pod network.
	// +optional
	Pod *PodNetwork `json:"pod,omitempty"`
}

// PodNetwork is the pod network.
type PodNetwork struct{}

// Volume is the storage behind a disk.
//
// +kubebuilder:validation:XValidation:rule="has(self.persistentVolumeClaim)",message="only persistentVolumeClaim is supported as a source",fieldPath=".persistentVolumeClaim"
type Volume struct {
	// name is unique among the volumes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// persistentVolumeClaim is a claim in the same namespace: with volumeMode Filesystem the disk is
	// the file disk.img at its root, with volumeMode Block it is the device.
	// +optional
	PersistentVolumeClaim *PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
}

// PersistentVolumeClaimVolumeSource is a claim as the storage behind a disk.
type PersistentVolumeClaimVolumeSource struct {
	corev1.PersistentVolumeClaimVolumeSource `json:",inline"`
}
