package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineInstance is one run of a guest: from the creation of its launcher pod to its end.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmi;vmis,categories=all
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=varve"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.status.interfaces[0].ipAddress`
// +kubebuilder:printcolumn:name="NodeName",type=string,JSONPath=`.status.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=='Ready')].status`
// +kubebuilder:printcolumn:name="CBT",type=string,JSONPath=`.status.changedBlockTracking.state`,description="State of changed block tracking"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters: it is the value of a label"
type VirtualMachineInstance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is immutable, except for utilityVolumes.
	Spec VirtualMachineInstanceSpec `json:"spec"`
	// +optional
	Status VirtualMachineInstanceStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceList is a list of VirtualMachineInstances.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstance `json:"items"`
}

// VirtualMachineInstanceSpec describes a guest and where it runs.
//
// +kubebuilder:validation:XValidation:rule="!has(self.domain.devices.disks) || self.domain.devices.disks.all(d, has(self.volumes) && self.volumes.exists(v, v.name == d.name))",message="every disk needs a volume of the same name in spec.volumes"
// +kubebuilder:validation:XValidation:rule="!has(self.volumes) || self.volumes.all(v, has(self.domain.devices.disks) && self.domain.devices.disks.exists(d, d.name == v.name))",message="every volume needs a disk of the same name in spec.domain.devices.disks"
// +kubebuilder:validation:XValidation:rule="!has(self.utilityVolumes) || !has(self.volumes) || self.utilityVolumes.all(u, !self.volumes.exists(v, v.name == u.name))",message="a utility volume must not have the name of a volume",fieldPath=".utilityVolumes"
// +kubebuilder:validation:XValidation:rule="!has(self.domain.devices.interfaces) || self.domain.devices.interfaces.all(i, has(self.networks) && self.networks.exists(n, n.name == i.name))",message="every interface needs a network of the same name in spec.networks"
type VirtualMachineInstanceSpec struct {
	// domain describes the guest's hardware.
	Domain DomainSpec `json:"domain"`
	// nodeSelector restricts the nodes that the guest may run on.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations are those of the launcher pod.
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// terminationGracePeriodSeconds is how long a guest has to shut down before it is killed.
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=0
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// volumes are the storage behind the disks.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Volumes []Volume `json:"volumes,omitempty"`
	// networks are what the interfaces attach to.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1
	Networks []Network `json:"networks,omitempty"`
	// utilityVolumes are volumes that Varve's controllers attach to the launcher pod of a running
	// guest; the guest does not see them. Only Varve's service accounts may change this field (VEP 86).
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	UtilityVolumes []UtilityVolume `json:"utilityVolumes,omitempty"`
}

// DomainSpec describes the guest's hardware.
type DomainSpec struct {
	// cpu is the processor topology. Default: one core.
	// +optional
	CPU *CPU `json:"cpu,omitempty"`
	// memory is the guest's memory.
	// +kubebuilder:validation:Required
	Memory *Memory `json:"memory"`
	// machine is the chipset. Default: q35.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// firmware says what the guest boots.
	// +optional
	Firmware *Firmware `json:"firmware,omitempty"`
	// devices are the guest's disks, interfaces and random number generator.
	Devices Devices `json:"devices"`
}

// CPU is the processor topology; the product of its numbers is the number of virtual CPUs.
type CPU struct {
	// cores is the number of cores in a socket.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	// +optional
	Cores uint32 `json:"cores,omitempty"`
	// sockets is the number of sockets.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	// +optional
	Sockets uint32 `json:"sockets,omitempty"`
	// threads is the number of threads in a core.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8
	// +optional
	Threads uint32 `json:"threads,omitempty"`
}

// UtilityVolumeType says what a utility volume is for.
//
// +kubebuilder:validation:Enum=MemoryDump;Backup
type UtilityVolumeType string

// UtilityVolumeBackup receives the output of a backup.
const UtilityVolumeBackup UtilityVolumeType = "Backup"

// UtilityVolume is a volume that is mounted into the launcher pod of a running guest as a directory.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a utility volume is immutable: remove it and add another"
// +kubebuilder:validation:XValidation:rule="size(self.claimName) > 0",message="claimName is required",fieldPath=".claimName"
type UtilityVolume struct {
	// name is unique among volumes and utilityVolumes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// The claim, in the instance's namespace. It must exist and have volumeMode Filesystem.
	corev1.PersistentVolumeClaimVolumeSource `json:",inline"`
	// type says what the volume is for.
	// +optional
	Type *UtilityVolumeType `json:"type,omitempty"`
}

// Phase is where an instance is in its life.
type Phase string

const (
	// PhasePending: the instance was accepted, and what it needs is being created.
	PhasePending Phase = "Pending"
	// PhaseScheduling: the launcher pod exists and waits for a node, its volumes and its image.
	PhaseScheduling Phase = "Scheduling"
	// PhaseScheduled: the launcher pod runs; the node's handler takes over.
	PhaseScheduled Phase = "Scheduled"
	// PhaseRunning: the guest runs.
	PhaseRunning Phase = "Running"
	// PhaseSucceeded: the guest shut down. Final.
	PhaseSucceeded Phase = "Succeeded"
	// PhaseFailed: the guest crashed, or its pod or its node was lost. Final.
	PhaseFailed Phase = "Failed"
)

// Final says that the phase does not change any more.
func (p Phase) Final() bool { return p == PhaseSucceeded || p == PhaseFailed }

// VirtualMachineInstanceStatus is the observed state of an instance. The controller writes phase up to Scheduled, the
// final phases, activePods and the condition LiveMigratable; the handler of the instance's node writes the rest.
type VirtualMachineInstanceStatus struct {
	// nodeName is the node on which the guest runs.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// reason says in one CamelCase word why the instance is in a final phase.
	// +optional
	Reason string `json:"reason,omitempty"`
	// conditions are Ready, AgentConnected, Paused, LiveMigratable, Synchronized, varvebackup.io/StopDelayed,
	// varvebackup.io/MigrationOutcomeUnknown and varvebackup.io/DiskNotTracked.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// phase is where the instance is in its life: Pending, Scheduling, Scheduled, Running, Succeeded or Failed.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// phaseTransitionTimestamps records when each phase was entered.
	// +optional
	// +listType=atomic
	PhaseTransitionTimestamps []PhaseTransitionTimestamp `json:"phaseTransitionTimestamps,omitempty"`
	// interfaces are the guest's network interfaces, as the domain and the guest agent report them.
	// +optional
	// +listType=atomic
	Interfaces []InterfaceStatus `json:"interfaces,omitempty"`
	// guestOSInfo is what the guest agent reports about the operating system.
	// +optional
	GuestOSInfo GuestOSInfo `json:"guestOSInfo,omitempty"`
	// activePods maps the UID of each launcher pod to its node.
	// +optional
	ActivePods map[types.UID]string `json:"activePods,omitempty"`
	// volumeStatus has one entry for each volume and each utility volume.
	// +optional
	// +listType=atomic
	VolumeStatus []VolumeStatus `json:"volumeStatus,omitempty"`
	// fsFreezeStatus is "frozen" while the guest's file systems are frozen for a backup.
	// +optional
	FSFreezeStatus string `json:"fsFreezeStatus,omitempty"`
	// changedBlockTracking is the state of changed block tracking and the backup that holds the instance.
	// +optional
	// +nullable
	ChangedBlockTracking *ChangedBlockTrackingStatus `json:"changedBlockTracking,omitempty"`
	// migrationState is the state of the instance's last migration. The controller creates it, and the handlers of both
	// nodes report in it.
	// +optional
	MigrationState *MigrationState `json:"migrationState,omitempty"`
}

// PhaseTransitionTimestamp says when a phase was entered.
type PhaseTransitionTimestamp struct {
	// phase is the phase that was entered: Pending, Scheduling, Scheduled, Running, Succeeded or Failed.
	Phase Phase `json:"phase,omitempty"`
	// phaseTransitionTimestamp is when it was entered.
	PhaseTransitionTimestamp metav1.Time `json:"phaseTransitionTimestamp,omitempty"`
}

// InterfaceStatus is a guest's network interface.
type InterfaceStatus struct {
	// ipAddress is the address at which others reach the guest. It is empty, because nobody does: a guest behind masquerade
	// reaches what its pod reaches, and accepts no connections.
	// +optional
	IP string `json:"ipAddress,omitempty"`
	// mac is the hardware address.
	// +optional
	MAC string `json:"mac,omitempty"`
	// name is the name of the network.
	// +optional
	Name string `json:"name,omitempty"`
	// ipAddresses are the guest's own addresses, as its agent reports them. They mean nothing outside the guest.
	// +optional
	// +listType=atomic
	IPs []string `json:"ipAddresses,omitempty"`
	// interfaceName is the name inside the guest.
	// +optional
	InterfaceName string `json:"interfaceName,omitempty"`
	// infoSource says who reported it: domain, guest-agent, or both, separated by a comma.
	// +optional
	InfoSource string `json:"infoSource,omitempty"`
}

// GuestOSInfo is what the guest agent reports about the operating system.
type GuestOSInfo struct {
	// name is the name of the system, such as "Debian GNU/Linux".
	// +optional
	Name string `json:"name,omitempty"`
	// kernelRelease is the release of the running kernel.
	// +optional
	KernelRelease string `json:"kernelRelease,omitempty"`
	// version is the version of the system.
	// +optional
	Version string `json:"version,omitempty"`
	// prettyName is name and version in a form for people.
	// +optional
	PrettyName string `json:"prettyName,omitempty"`
	// id is the name of the system in a form for programs, such as "debian".
	// +optional
	ID string `json:"id,omitempty"`
}

// VolumePhase is where a volume is on its way into the launcher pod.
type VolumePhase string

const (
	// VolumePending: the claim is missing or not bound, or the attachment pod does not run yet.
	VolumePending VolumePhase = "Pending"
	// VolumeAttachedToNode: the attachment pod runs on the guest's node.
	VolumeAttachedToNode VolumePhase = "AttachedToNode"
	// VolumeMountedToPod: the launcher sees the volume's directory.
	VolumeMountedToPod VolumePhase = "MountedToPod"
	// VolumeReady: the disk is in the guest.
	VolumeReady VolumePhase = "Ready"
	// VolumeDetaching: the volume is being unmounted from the launcher.
	VolumeDetaching VolumePhase = "Detaching"
	// VolumeUnMountedFromPod: the launcher no longer sees the volume; next the attachment pod is deleted.
	VolumeUnMountedFromPod VolumePhase = "UnMountedFromPod"
)

// VolumeStatus is the state of a volume or of a utility volume.
type VolumeStatus struct {
	// name is the name of the volume or of the utility volume.
	Name string `json:"name"`
	// target is the device in the guest, such as vda. Empty for a utility volume.
	Target string `json:"target"`
	// phase is where the volume is on its way into or out of the launcher pod: Pending, AttachedToNode, MountedToPod, Ready,
	// Detaching or UnMountedFromPod.
	// +optional
	Phase VolumePhase `json:"phase,omitempty"`
	// reason says in one CamelCase word why the volume is in its phase.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what the volume waits for and what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// persistentVolumeClaimInfo is what the node needs to know about the claim.
	// +optional
	PersistentVolumeClaimInfo *PersistentVolumeClaimInfo `json:"persistentVolumeClaimInfo,omitempty"`
	// hotplugVolume is set for a utility volume.
	// +optional
	HotplugVolume *HotplugVolumeStatus `json:"hotplugVolume,omitempty"`
	// size is the disk's virtual size in bytes.
	// +optional
	Size int64 `json:"size,omitempty"`
}

// PersistentVolumeClaimInfo is what the node needs to know about a claim.
type PersistentVolumeClaimInfo struct {
	// claimName is the name of the claim.
	// +optional
	ClaimName string `json:"claimName,omitempty"`
	// accessModes are those of the claim.
	// +optional
	// +listType=atomic
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// volumeMode is Filesystem or Block.
	// +optional
	VolumeMode *corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// capacity is the size of the volume that the claim is bound to.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// requests is the size that the claim asks for.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
}

// HotplugVolumeStatus names the pod that attaches a utility volume to the node.
type HotplugVolumeStatus struct {
	// attachPodName is the name of the attachment pod.
	// +optional
	AttachPodName string `json:"attachPodName,omitempty"`
	// attachPodUID is its UID.
	// +optional
	AttachPodUID types.UID `json:"attachPodUID,omitempty"`
}
