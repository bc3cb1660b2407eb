package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/wait"
)

const kernelArgs = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr"

// System describes what a guest boots.
type System struct {
	// Image is the image with the kernel: a name in build/images/images.json.
	Image          string
	Kernel, Initrd string
	Args           string
	// RootDisk is a qcow2 file in the guest directory, which PopulateRoot writes. It is empty for a guest that runs from its initrd.
	RootDisk string
	Memory   string
}

// Debian is a real Debian that boots from its first disk. TestSystem is a busybox system that runs from its initrd.
var (
	Debian = System{
		Image: "varve-guest-debian", Kernel: "/boot/debian-vmlinuz", Initrd: "/boot/debian-initrd.img",
		Args: kernelArgs + " root=LABEL=root rw", RootDisk: "debian-root.qcow2", Memory: "512Mi",
	}
	TestSystem = System{
		Image: "varve-guest-test", Kernel: "/boot/vmlinux", Initrd: "/boot/initrd-test.img",
		Args: kernelArgs, Memory: "256Mi",
	}
)

// Disk is a disk of a machine. ClaimName is the name of its claim.
type Disk struct {
	Name string
	// Bytes is the claim's size. The disk on a Filesystem claim is somewhat smaller.
	Bytes int64
	Block bool
	Bus   string
	// Shared says that all nodes may write to the claim, as a machine needs that moves.
	Shared bool
}

// ClaimName returns the name of the claim behind a machine's disk: the machine's name with the disk's name appended.
func ClaimName(vm, disk string) string { return vm + "-" + disk }

// Machine returns a virtual machine with Varve's defaults for tests: halted, one core, agent, network. It does not create it.
func (l *Lab) Machine(name string, sys System, labels map[string]string, disks ...Disk) (*kubevirtv1.VirtualMachine, error) {
	image, err := l.Image(sys.Image)
	if err != nil {
		return nil, err
	}
	memory := resource.MustParse(sys.Memory)
	spec := kubevirtv1.VirtualMachineInstanceSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](60),
		Networks:                      []kubevirtv1.Network{{Name: "default", Pod: &kubevirtv1.PodNetwork{}}},
		Domain: kubevirtv1.DomainSpec{
			CPU:    &kubevirtv1.CPU{Cores: 1},
			Memory: &kubevirtv1.Memory{Guest: &memory},
			Firmware: &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{
				KernelArgs: sys.Args,
				Container: &kubevirtv1.KernelBootContainer{
					Image: image, ImagePullPolicy: corev1.PullNever, KernelPath: sys.Kernel, InitrdPath: sys.Initrd,
				},
			}},
			Devices: kubevirtv1.Devices{
				Rng:        &kubevirtv1.Rng{},
				Interfaces: []kubevirtv1.Interface{{Name: "default", Masquerade: &kubevirtv1.InterfaceMasquerade{}}},
			},
		},
	}
	for _, d := range disks {
		bus := d.Bus
		if bus == "" {
			bus = "virtio"
		}
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, kubevirtv1.Disk{
			Name: d.Name, Serial: d.Name, Disk: &kubevirtv1.DiskTarget{Bus: bus},
		})
		source := &kubevirtv1.PersistentVolumeClaimVolumeSource{}
		source.ClaimName = ClaimName(name, d.Name)
		spec.Volumes = append(spec.Volumes, kubevirtv1.Volume{Name: d.Name, PersistentVolumeClaim: source})
	}
	return &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.Namespace, Labels: labels},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: ptr.To(kubevirtv1.RunStrategyHalted),
			Template:    &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: spec},
		},
	}, nil
}

// StartMachine creates a machine that runs, and waits until its guest answers.
func (l *Lab) StartMachine(ctx context.Context, name string, sys System, labels map[string]string, timeout time.Duration, disks ...Disk) error {
	vm, err := l.Machine(name, sys, labels, disks...)
	if err != nil {
		return err
	}
	*vm.Spec.RunStrategy = kubevirtv1.RunStrategyAlways
	if err := l.Create(ctx, vm); err != nil {
		return fmt.Errorf("create virtual machine %s: %w", name, err)
	}
	_, err = l.WaitAgent(ctx, name, timeout)
	return err
}

// StartTracked starts a machine with the label for changed block tracking, and waits until its disks are tracked.
func (l *Lab) StartTracked(ctx context.Context, name string, sys System, timeout time.Duration, disks ...Disk) error {
	if err := l.StartMachine(ctx, name, sys, map[string]string{TrackingLabel: "true"}, timeout, disks...); err != nil {
		return err
	}
	return l.WaitTracking(ctx, name, kubevirtv1.ChangedBlockTrackingEnabled, time.Minute)
}

// CreateClaims creates the claims behind a machine's disks.
func (l *Lab) CreateClaims(ctx context.Context, vm string, disks ...Disk) error {
	for _, d := range disks {
		mode := corev1.PersistentVolumeFilesystem
		if d.Block {
			mode = corev1.PersistentVolumeBlock
		}
		create := l.Claim
		if d.Shared {
			create = l.SharedClaim
		}
		if err := create(ctx, ClaimName(vm, d.Name), d.Bytes, mode); err != nil {
			return err
		}
	}
	return nil
}

// PopulateRoot writes the system's root disk to a machine's Filesystem claim as disk.img.
func (l *Lab) PopulateRoot(ctx context.Context, vm, disk string, sys System) (err error) {
	claim := ClaimName(vm, disk)
	src, err := os.Open(filepath.Join(l.GuestDir, sys.RootDisk))
	if err != nil {
		return fmt.Errorf("root disk (make guest): %w", err)
	}
	defer src.Close() //nolint:errcheck // opened for reading
	t, err := l.Toolbox(ctx, "populate-"+claim, claim)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := t.Close(context.WithoutCancel(ctx)); err == nil {
			err = closeErr
		}
	}()
	script := fmt.Sprintf("cat >/tmp/root.qcow2; qemu-img convert -f qcow2 -O raw /tmp/root.qcow2 /mnt/%[1]s/disk.img; sync -f /mnt/%[1]s/disk.img", claim)
	_, err = t.RunWithInput(ctx, script, src)
	return err
}

// PopulateExt4 makes a sparse raw disk with this size in bytes and an ext4 file system on a machine's Filesystem
// claim. If fillMiB is not 0, the file system has a file "filler" with that many MiB of random data.
func (l *Lab) PopulateExt4(ctx context.Context, vm, disk string, bytes int64, label string, fillMiB int64) (err error) {
	claim := ClaimName(vm, disk)
	t, err := l.Toolbox(ctx, "populate-"+claim, claim)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := t.Close(context.WithoutCancel(ctx)); err == nil {
			err = closeErr
		}
	}()
	_, err = t.Run(ctx, fmt.Sprintf(`f=/mnt/%[1]s/disk.img; d=$(mktemp -d); trap 'rm -rf $d' EXIT
[ %[4]d = 0 ] || head -c %[4]dM /dev/urandom >$d/filler
truncate -s %[2]d $f; mkfs.ext4 -q -L %[3]s -d $d $f; sync -f $f`, claim, bytes, label, fillMiB))
	return err
}

// WaitAgent waits until the machine's guest is running and its agent answers, and returns the instance.
func (l *Lab) WaitAgent(ctx context.Context, vm string, timeout time.Duration) (*kubevirtv1.VirtualMachineInstance, error) {
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: vm}}
	err := wait.For(ctx, timeout, "the guest agent of "+vm, func(ctx context.Context) (bool, string, error) {
		if err := client.IgnoreNotFound(l.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)); err != nil {
			return false, "", err
		}
		seen := fmt.Sprintf("phase %q", vmi.Status.Phase)
		agent := false
		for _, c := range vmi.Status.Conditions {
			seen += fmt.Sprintf(", %s=%s %s %s", c.Type, c.Status, c.Reason, c.Message)
			agent = agent || c.Type == kubevirtv1.ConditionAgentConnected && c.Status == corev1.ConditionTrue
		}
		return agent && vmi.Status.Phase == kubevirtv1.PhaseRunning && vmi.DeletionTimestamp == nil, seen, nil
	})
	return vmi, err
}

// TrackingLabel is the label with which the box's configuration selects machines for changed block tracking.
const TrackingLabel = "changedBlockTracking"

// WatchTracking calls done with the state of changed block tracking at each poll, until done returns true.
func (l *Lab) WatchTracking(ctx context.Context, vm string, timeout time.Duration, done func(kubevirtv1.ChangedBlockTrackingState) bool) error {
	obj := &kubevirtv1.VirtualMachine{}
	return wait.For(ctx, timeout, "changed block tracking of "+vm, func(ctx context.Context) (bool, string, error) {
		if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: vm}, obj); err != nil {
			return false, "", err
		}
		if obj.Status.ChangedBlockTracking == nil {
			return false, "no state", nil
		}
		state := obj.Status.ChangedBlockTracking.State
		return done(state), string(state), nil
	})
}

// WaitTracking waits until changed block tracking of the machine is in this state.
func (l *Lab) WaitTracking(ctx context.Context, vm string, state kubevirtv1.ChangedBlockTrackingState, timeout time.Duration) error {
	err := l.WatchTracking(ctx, vm, timeout, func(s kubevirtv1.ChangedBlockTrackingState) bool { return s == state })
	if err != nil {
		return fmt.Errorf("want %s: %w", state, err)
	}
	return nil
}

// Restart requests a restart as `kubectl varve vm restart` does, and waits until the old instance is gone.
func (l *Lab) Restart(ctx context.Context, vm string) error {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: vm}, vmi); err != nil {
		return err
	}
	obj := &kubevirtv1.VirtualMachine{}
	if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: vm}, obj); err != nil {
		return err
	}
	before := obj.DeepCopy()
	obj.Status.StateChangeRequests = []kubevirtv1.StateChangeRequest{
		{Action: kubevirtv1.StopRequest, UID: &vmi.UID}, {Action: kubevirtv1.StartRequest},
	}
	if err := l.Status().Patch(ctx, obj, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("restart %s: %w", vm, err)
	}
	old := vmi.UID
	return wait.For(ctx, 5*time.Minute, "the old instance of "+vm+" to be gone", func(ctx context.Context) (bool, string, error) {
		err := client.IgnoreNotFound(l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: vm}, vmi))
		return vmi.UID != old, string(vmi.Status.Phase), err
	})
}

// DeleteMachine deletes a machine with its claims, and waits until each of them is gone, for at most the timeout.
func (l *Lab) DeleteMachine(ctx context.Context, name string, timeout time.Duration) error {
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: name}}
	if err := l.Get(ctx, client.ObjectKeyFromObject(vm), vm); err != nil {
		return fmt.Errorf("delete machine %s: %w", name, err)
	}
	volumes := vm.Spec.Template.Spec.Volumes
	if err := l.deleteObject(ctx, vm, timeout); err != nil {
		return err
	}
	for _, v := range volumes {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: l.Namespace, Name: v.PersistentVolumeClaim.ClaimName,
		}}
		if err := l.deleteObject(ctx, claim, timeout); err != nil {
			return err
		}
	}
	return nil
}

// deleteObject deletes an object, and waits until it is gone.
func (l *Lab) deleteObject(ctx context.Context, o client.Object, timeout time.Duration) error {
	if err := l.Delete(ctx, o); err != nil {
		return fmt.Errorf("delete %T %s: %w", o, o.GetName(), err)
	}
	return l.WaitGone(ctx, o, timeout)
}

// Fill returns a shell command that writes a file of mib MiB in a guest: one random MiB sixteen times, then the next,
// because an emulated processor generates random numbers slowly. Different files have nothing in common.
func Fill(file string, mib int) string {
	return fmt.Sprintf(`s=$(mktemp); : >%[1]s; i=0; while [ $i -lt %[2]d ]; do head -c 1048576 /dev/urandom >$s; `+
		`for j in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do cat $s; done >>%[1]s; i=$((i+16)); done; rm $s; `, file, mib)
}
