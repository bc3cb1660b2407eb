package domain

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/errclass"
)

// Disk is the storage behind one disk of the instance.
type Disk struct {
	Volume string
	// RawPath is the raw disk: a file, or a device if Block.
	RawPath string
	Block   bool
	// Overlay is the qcow2 file that tracks the disk. Empty: the disk is not tracked.
	Overlay string
}

// Options are the settings that the instance itself does not contain.
type Options struct {
	// UseEmulation asks for software emulation instead of KVM.
	UseEmulation bool
	// Disks has an entry for each disk of the instance.
	Disks []Disk
	// KernelPath and InitrdPath are files to boot directly. Empty: the guest boots from its disks.
	KernelPath, InitrdPath string
	// SerialLog is a file that receives the guest's output on its first serial console. Empty: the output is not logged.
	SerialLog string
	// AgentSocketDir is the directory of the guest agent's socket; empty: libvirt chooses.
	AgentSocketDir string
}

// DomainXML returns the libvirt document of an instance. The same input always gives the same document: UUID,
// hardware addresses, device names and aliases are derived from the instance's namespace and names. errclass.Invalid: the
// instance asks for something that no domain can provide.
func DomainXML(vmi *kubevirtv1.VirtualMachineInstance, opts Options) (string, error) {
	d, err := domainDocument(vmi, opts)
	if err != nil {
		return "", fmt.Errorf("domain of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	doc, err := d.Marshal()
	if err != nil {
		return "", fmt.Errorf("domain of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	return doc, nil
}

func domainDocument(vmi *kubevirtv1.VirtualMachineInstance, opts Options) (*libvirtxml.Domain, error) {
	spec := &vmi.Spec.Domain
	if spec.Memory == nil || spec.Memory.Guest == nil || spec.Memory.Guest.Value() <= 0 {
		return nil, fmt.Errorf("%w: domain.memory.guest is not set", errclass.Invalid)
	}
	disks, err := domainDisks(spec.Devices.Disks, opts.Disks)
	if err != nil {
		return nil, err
	}
	boot, err := bootOS(spec, opts)
	if err != nil {
		return nil, err
	}
	cpus, cpu := cpuTopology(spec.CPU, opts.UseEmulation)
	d := &libvirtxml.Domain{
		Type:   "kvm",
		Name:   Name(vmi.Namespace, vmi.Name),
		UUID:   UUID(vmi),
		Memory: &libvirtxml.DomainMemory{Value: uint(spec.Memory.Guest.Value()), Unit: "b"},
		VCPU:   &libvirtxml.DomainVCPU{Placement: "static", Value: cpus},
		CPU:    cpu,
		OS:     boot,
		Features: &libvirtxml.DomainFeatureList{
			ACPI: &libvirtxml.DomainFeature{}, // without it no guest sees the power button
			APIC: &libvirtxml.DomainFeatureAPIC{},
		},
		Clock:      &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff: "destroy",
		OnReboot:   "restart",
		OnCrash:    "destroy",
		Devices:    otherDevices(vmi, opts),
	}
	if opts.UseEmulation {
		d.Type = "qemu"
	}
	d.Devices.Disks = disks
	if f := spec.Firmware; f != nil && f.Serial != "" {
		d.OS.SMBios = &libvirtxml.DomainSMBios{Mode: "sysinfo"}
		d.SysInfo = []libvirtxml.DomainSysInfo{{SMBIOS: &libvirtxml.DomainSysInfoSMBIOS{
			System: &libvirtxml.DomainSysInfoSystem{Entry: []libvirtxml.DomainSysInfoEntry{{Name: "serial", Value: f.Serial}}},
		}}}
	}
	return d, nil
}

// cpuTopology returns the number of virtual CPUs and their topology. Unset numbers are 1.
func cpuTopology(cpu *kubevirtv1.CPU, emulation bool) (uint, *libvirtxml.DomainCPU) {
	sockets, cores, threads := uint32(1), uint32(1), uint32(1)
	if cpu != nil {
		sockets, cores, threads = max(1, cpu.Sockets), max(1, cpu.Cores), max(1, cpu.Threads)
	}
	out := &libvirtxml.DomainCPU{
		Topology: &libvirtxml.DomainCPUTopology{Sockets: int(sockets), Cores: int(cores), Threads: int(threads)},
	}
	// Under emulation QEMU emulates its default model; on hardware the guest gets the host's model.
	if !emulation {
		out.Mode = "host-model"
	}
	return uint(sockets) * uint(cores) * uint(threads), out
}

func bootOS(spec *kubevirtv1.DomainSpec, opts Options) (*libvirtxml.DomainOS, error) {
	machine := "q35"
	if spec.Machine != nil && spec.Machine.Type != "" {
		machine = spec.Machine.Type
	}
	out := &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: "x86_64", Machine: machine, Type: "hvm"}}
	if opts.KernelPath == "" && opts.InitrdPath != "" {
		return nil, fmt.Errorf("%w: firmware.kernelBoot names an initial RAM disk without a kernel", errclass.Invalid)
	}
	out.Kernel, out.Initrd = opts.KernelPath, opts.InitrdPath
	if f := spec.Firmware; f != nil && f.KernelBoot != nil && opts.KernelPath != "" {
		out.Cmdline = f.KernelBoot.KernelArgs
	}
	ordered := slices.ContainsFunc(spec.Devices.Disks, func(d kubevirtv1.Disk) bool { return d.BootOrder != nil })
	if !ordered {
		out.BootDevices = []libvirtxml.DomainBootDevice{{Dev: "hd"}}
	}
	return out, nil
}

// otherDevices returns all devices but the disks.
func otherDevices(vmi *kubevirtv1.VirtualMachineInstance, opts Options) *libvirtxml.DomainDeviceList {
	spec := &vmi.Spec.Domain.Devices
	out := &libvirtxml.DomainDeviceList{
		// No USB: its controller wakes the QEMU of an idle guest a thousand times a second.
		Controllers: []libvirtxml.DomainController{{Type: "usb", Model: "none"}},
		MemBalloon:  &libvirtxml.DomainMemBalloon{Model: "none"},
		Panics:      []libvirtxml.DomainPanic{{Model: "isa"}},
		Channels:    []libvirtxml.DomainChannel{agentChannel(opts.AgentSocketDir)},
		Serials:     []libvirtxml.DomainSerial{serialConsole(opts.SerialLog)},
	}
	if slices.ContainsFunc(spec.Disks, func(d kubevirtv1.Disk) bool { return diskBus(d) == "scsi" }) {
		out.Controllers = append(out.Controllers, libvirtxml.DomainController{Type: "scsi", Index: ptr.To(uint(0)), Model: "virtio-scsi"})
	}
	for i := range spec.Interfaces {
		out.Interfaces = append(out.Interfaces, networkInterface(vmi, &spec.Interfaces[i]))
	}
	if spec.Rng != nil {
		out.RNGs = []libvirtxml.DomainRNG{{
			Model:   "virtio",
			Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
		}}
	}
	return out
}

func agentChannel(dir string) libvirtxml.DomainChannel {
	socket := &libvirtxml.DomainChardevSourceUNIX{Mode: "bind"}
	if dir != "" {
		socket.Path = dir + "/" + AgentChannel
	}
	return libvirtxml.DomainChannel{
		Source: &libvirtxml.DomainChardevSource{UNIX: socket},
		Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: AgentChannel}},
	}
}

func serialConsole(log string) libvirtxml.DomainSerial {
	out := libvirtxml.DomainSerial{
		Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
		Target: &libvirtxml.DomainSerialTarget{Port: ptr.To(uint(0))},
	}
	if log != "" {
		out.Log = &libvirtxml.DomainChardevLog{File: log, Append: "on"}
	}
	return out
}

// networkInterface returns an interface behind QEMU's own network stack. The guest reaches whatever the pod reaches,
// through an address translation that needs no privilege, no bridge and no second process. passt would also let
// others reach the guest, but it needs a user namespace, which the runtime's default seccomp profile denies to this pod.
func networkInterface(vmi *kubevirtv1.VirtualMachineInstance, i *kubevirtv1.Interface) libvirtxml.DomainInterface {
	model := i.Model
	if model == "" {
		model = "virtio"
	}
	return libvirtxml.DomainInterface{
		Alias:  &libvirtxml.DomainAlias{Name: aliasPrefix + i.Name},
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: MAC(vmi, i)},
		Source: &libvirtxml.DomainInterfaceSource{User: &libvirtxml.DomainInterfaceSourceUser{}},
		Model:  &libvirtxml.DomainInterfaceModel{Type: model},
		// Nothing boots from the network. Without the ROM the firmware does not wait for it.
		ROM: &libvirtxml.DomainROM{Enabled: "no"},
	}
}
