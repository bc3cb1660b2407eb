package domain

import (
	"errors"
	"flag"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/verdict"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fullInstance returns an instance with everything that the API supports.
func fullInstance() (*kubevirtv1.VirtualMachineInstance, Options) {
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	vmi.Spec.Domain = kubevirtv1.DomainSpec{
		CPU:     &kubevirtv1.CPU{Sockets: 2, Cores: 3, Threads: 2},
		Memory:  &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))},
		Machine: &kubevirtv1.Machine{Type: "q35"},
		Firmware: &kubevirtv1.Firmware{Serial: "machine-1", KernelBoot: &kubevirtv1.KernelBoot{
			KernelArgs: `console=ttyS0 quiet <&> "x"`,
		}},
		Devices: kubevirtv1.Devices{
			Disks: []kubevirtv1.Disk{
				{Name: "root", Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}, BootOrder: ptr.To(uint(2)), Serial: "root-1"},
				{Name: "data", Disk: &kubevirtv1.DiskTarget{Bus: "scsi"}},
				{Name: "old", Disk: &kubevirtv1.DiskTarget{Bus: "sata"}, BootOrder: ptr.To(uint(1))},
				{Name: "fixed", Disk: &kubevirtv1.DiskTarget{ReadOnly: true}},
				{Name: "shared", Disk: &kubevirtv1.DiskTarget{}, Shareable: ptr.To(true)},
			},
			Interfaces: []kubevirtv1.Interface{{Name: "default", Model: "e1000", Masquerade: &kubevirtv1.InterfaceMasquerade{}}},
			Rng:        &kubevirtv1.Rng{},
		},
	}
	return vmi, Options{
		Disks: []Disk{
			{Volume: "data", RawPath: "/dev/varve/data", Block: true, Overlay: "/state/data.qcow2"},
			{Volume: "root", RawPath: "/disks/root/disk.img", Overlay: "/state/root.qcow2"},
			{Volume: "old", RawPath: "/disks/old/disk.img"},
			{Volume: "fixed", RawPath: "/disks/fixed/disk.img"},
			{Volume: "shared", RawPath: "/dev/varve/shared", Block: true},
		},
		KernelPath: "/kernel/kernel", InitrdPath: "/kernel/initrd",
		SerialLog: "/log/serial", AgentSocketDir: "/sockets",
	}
}

// minimalInstance returns an instance with only what is required.
func minimalInstance() (*kubevirtv1.VirtualMachineInstance, Options) {
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "small"}}
	vmi.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}
	return vmi, Options{UseEmulation: true}
}

func TestXML_isGolden(t *testing.T) {
	t.Parallel()
	for name, instance := range map[string]func() (*kubevirtv1.VirtualMachineInstance, Options){
		"full": fullInstance, "minimal": minimalInstance,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := DomainXML(instance())
			if err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + name + ".xml"
			if *update {
				if err := os.WriteFile(golden, []byte(got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got+"\n"); diff != "" {
				t.Errorf(verdict.GoldenMark+"%s (-want +got), write it anew with -update:\n%s", golden, diff)
			}
		})
	}
}

func TestXML_refuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*kubevirtv1.VirtualMachineInstance, *Options){
		"no memory":             func(v *kubevirtv1.VirtualMachineInstance, _ *Options) { v.Spec.Domain.Memory = nil },
		"disk without a source": func(_ *kubevirtv1.VirtualMachineInstance, o *Options) { o.Disks = o.Disks[1:] },
		"read-only sata disk": func(v *kubevirtv1.VirtualMachineInstance, _ *Options) {
			v.Spec.Domain.Devices.Disks[2].Disk.ReadOnly = true
		},
		"overlay under read-only": func(_ *kubevirtv1.VirtualMachineInstance, o *Options) { o.Disks[3].Overlay = "/x" },
		"overlay under shared":    func(_ *kubevirtv1.VirtualMachineInstance, o *Options) { o.Disks[4].Overlay = "/x" },
		"initrd without a kernel": func(_ *kubevirtv1.VirtualMachineInstance, o *Options) { o.KernelPath = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vmi, opts := fullInstance()
			change(vmi, &opts)
			if _, err := DomainXML(vmi, opts); !errors.Is(err, errclass.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestXML_namesAreStableAndApart(t *testing.T) {
	t.Parallel()
	instance := func(namespace, name string) *kubevirtv1.VirtualMachineInstance {
		return &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	nic := &kubevirtv1.Interface{Name: "default"}
	// Guests have seen these values, so they must never change.
	if got, want := UUID(instance("ns", "vm")), "cfadc38b-ddb4-53f3-ba65-e2d82aa083cc"; got != want {
		t.Errorf("UUID %s, want %s", got, want)
	}
	mac := regexp.MustCompile(`^02(:[0-9a-f]{2}){5}$`)
	seen := map[string]bool{}
	for _, vmi := range []*kubevirtv1.VirtualMachineInstance{instance("ns", "vm"), instance("ns", "vm2"), instance("ns2", "vm")} {
		for _, id := range []string{UUID(vmi), MAC(vmi, nic), MAC(vmi, &kubevirtv1.Interface{Name: "other"}), Name(vmi.Namespace, vmi.Name)} {
			if seen[id] {
				t.Errorf("%s is used twice", id)
			}
			seen[id] = true
		}
		if !mac.MatchString(MAC(vmi, nic)) {
			t.Errorf("MAC %s", MAC(vmi, nic))
		}
	}
	chosen := instance("ns", "vm")
	chosen.Spec.Domain.Firmware = &kubevirtv1.Firmware{UUID: "11111111-2222-3333-4444-555555555555"}
	if got := UUID(chosen); got != "11111111-2222-3333-4444-555555555555" {
		t.Errorf("UUID %s", got)
	}
	if got := MAC(chosen, &kubevirtv1.Interface{MacAddress: "DE:AD:00:00:BE:EF"}); got != "de:ad:00:00:be:ef" {
		t.Errorf("MAC %s", got)
	}
}

func TestXML_targetDevices(t *testing.T) {
	t.Parallel()
	on := func(name, bus string) kubevirtv1.Disk {
		return kubevirtv1.Disk{Name: name, Disk: &kubevirtv1.DiskTarget{Bus: bus}}
	}
	got := TargetDevices([]kubevirtv1.Disk{on("a", "virtio"), on("b", "sata"), on("c", ""), on("d", "scsi"), {Name: "e"}})
	want := map[string]string{"a": "vda", "b": "sda", "c": "vdb", "d": "sdb", "e": "vdc"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for n, want := range map[int]string{0: "a", 25: "z", 26: "aa", 51: "az", 52: "ba", 63: "bl"} {
		if got := diskLetters(n); got != want {
			t.Errorf("disk %d: %s, want %s", n, got, want)
		}
	}
}
