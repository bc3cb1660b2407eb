package virtualmachineinstance

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	mark "github.com/varvebackup/varve/test/verdict"
)

var update = flag.Bool("update", false, "write the golden files")

func sizedClaim(size string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeMode: &mode},
		Status: corev1.PersistentVolumeClaimStatus{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
	}
}

func disk(name, claim string, readOnly bool) (kubevirtv1.Disk, kubevirtv1.Volume) {
	return kubevirtv1.Disk{Name: name, Disk: &kubevirtv1.DiskTarget{ReadOnly: readOnly}},
		kubevirtv1.Volume{Name: name, PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: readOnly},
		}}
}

// fullInput uses everything that a pod depends on.
func fullInput() podInput {
	instance := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Name: "vm", Namespace: "ns", UID: "0123",
		Labels:      map[string]string{"app": "db", layout.LabelVM: "vm", layout.LabelNodeName: "old", layout.LabelApp: "forged"},
		Annotations: map[string]string{layout.AnnotationTracking: "true"},
	}}
	instance.Spec.Domain.CPU = &kubevirtv1.CPU{Cores: 2}
	instance.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))}
	instance.Spec.Domain.Firmware = &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{Container: &kubevirtv1.KernelBootContainer{
		Image: "guest:1", ImagePullPolicy: corev1.PullNever, ImagePullSecret: "secret", KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd",
	}}}
	instance.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	instance.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
	instance.Spec.TerminationGracePeriodSeconds = ptr.To[int64](60)
	for _, d := range []struct {
		name, claim string
		readOnly    bool
	}{{"sockets", "root-claim", false}, {"data", "data-claim", false}, {"iso", "iso-claim", true}} {
		disk, volume := disk(d.name, d.claim, d.readOnly)
		instance.Spec.Domain.Devices.Disks = append(instance.Spec.Domain.Devices.Disks, disk)
		instance.Spec.Volumes = append(instance.Spec.Volumes, volume)
	}
	return podInput{
		Instance: instance,
		Claims: map[string]*corev1.PersistentVolumeClaim{
			"root-claim": sizedClaim("10Gi", corev1.PersistentVolumeFilesystem),
			"data-claim": sizedClaim("1Ti", corev1.PersistentVolumeBlock),
			"iso-claim":  sizedClaim("1Gi", corev1.PersistentVolumeFilesystem),

			layout.StatePVC("vm"): {ObjectMeta: metav1.ObjectMeta{Name: layout.StatePVC("vm"), UID: "small"}},
		},
		Images:       Images{Launcher: "varve-launcher:1", Varve: "varve:1", PullPolicy: corev1.PullNever},
		UseEmulation: true,
	}
}

// smallInput uses nothing that is optional.
func smallInput() podInput {
	instance := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "0123"}}
	instance.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}
	return podInput{Instance: instance, Images: Images{Launcher: "varve-launcher:1", Varve: "varve:1"}}
}

func TestLauncherPod_golden(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]podInput{"full": fullInput(), "small": smallInput()} {
		got, err := yaml.Marshal(launcherPod(in))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v: run with -update", err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf(mark.GoldenMark+"%s (run with -update if it is meant): %s", file, diff)
		}
	}
}

// TestLauncherPod_isUnprivileged checks what the threat model says about launcher pods, whatever the golden files contain.
func TestLauncherPod_isUnprivileged(t *testing.T) {
	t.Parallel()
	pod := launcherPod(fullInput())
	s := pod.Spec
	if s.HostNetwork || s.HostPID || s.HostIPC || ptr.Deref(s.ShareProcessNamespace, false) || ptr.Deref(s.AutomountServiceAccountToken, true) {
		t.Errorf("host namespaces or credentials: %+v", s)
	}
	if s.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("seccomp is not RuntimeDefault")
	}
	if ptr.Deref(s.SecurityContext.RunAsUser, 0) != layout.LauncherUser || ptr.Deref(s.SecurityContext.FSGroup, 0) != layout.LauncherGroup || instancepod.RunsAsRoot(pod) {
		t.Errorf("the pod may be root: %+v", s.SecurityContext)
	}
	for _, c := range append(s.InitContainers, s.Containers...) {
		sc := c.SecurityContext
		if sc == nil || ptr.Deref(sc.Privileged, true) || ptr.Deref(sc.AllowPrivilegeEscalation, true) || len(sc.Capabilities.Add) > 0 ||
			!slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) || !ptr.Deref(sc.ReadOnlyRootFilesystem, false) || sc.RunAsUser != nil || sc.RunAsNonRoot != nil {
			t.Errorf("container %s: %+v", c.Name, sc)
		}
	}
	for _, v := range s.Volumes {
		if v.PersistentVolumeClaim == nil && v.EmptyDir == nil {
			t.Errorf("volume %s is neither a claim nor an empty directory", v.Name)
		}
	}
}

// The disk group opens block devices where the runtime does not give them to the container's user, and is in no other pod.
func TestLauncherPod_diskGroupIsForBlockDevices(t *testing.T) {
	t.Parallel()
	if groups := launcherPod(fullInput()).Spec.SecurityContext.SupplementalGroups; !slices.Equal(groups, []int64{diskGroup}) {
		t.Errorf("with a block device: %v", groups)
	}
	if groups := launcherPod(smallInput()).Spec.SecurityContext.SupplementalGroups; len(groups) != 0 {
		t.Errorf("without: %v", groups)
	}
}

func TestLauncherPod_disksAreWhereTheLauncherLooks(t *testing.T) {
	t.Parallel()
	compute := launcherPod(fullInput()).Spec.Containers[0]
	mounts := map[string]bool{}
	for _, m := range compute.VolumeMounts {
		mounts[m.MountPath] = true
	}
	for _, want := range []string{strings.TrimSuffix(layout.DiskFile("sockets"), "/disk.img"), layout.StateDir, layout.UtilityDir, layout.SocketsDir, layout.KernelDir, layout.PrivateDir} {
		if !mounts[want] {
			t.Errorf("nothing at %s", want)
		}
	}
	if len(compute.VolumeDevices) != 1 || compute.VolumeDevices[0].DevicePath != layout.DiskDevice("data") {
		t.Errorf("devices: %+v", compute.VolumeDevices)
	}
}

func TestMemoryOverhead_followsTheDisks(t *testing.T) {
	t.Parallel()
	in := fullInput()
	tracked := memoryOverhead(in)
	in.Instance.Annotations = nil
	plain := memoryOverhead(in)
	// 1 TiB tracked costs 16 bitmaps of 2 MiB and a full cache of 16 MiB; 10 GiB costs a fraction of that. The
	// read-only disk has no overlay.
	if cost := (tracked - plain) / mib; cost < 16*2+16 || cost > 16*2+16+8 {
		t.Errorf("tracking 1 TiB and 10 GiB costs %d MiB", cost)
	}
	if small := memoryOverhead(smallInput()); small < launcherBytes || small > launcherBytes+16*mib {
		t.Errorf("a small guest costs %d bytes", small)
	}
}

// A launcher that serves a pull backup holds what docs/tunnel.md says, whether the disks are tracked or not.
func TestMemoryOverhead_hasRoomForAPull(t *testing.T) {
	t.Parallel()
	const withoutBackups, buffers = 224 * mib, 8 * 2 * mib
	if room := memoryOverhead(smallInput()) - withoutBackups; room < 3*buffers {
		t.Errorf("%d MiB are left for a pull, which needs %d", room/mib, 3*buffers/mib)
	}
}

func TestLauncherPod_requestsKVMUnlessEmulated(t *testing.T) {
	t.Parallel()
	in := smallInput()
	if _, ok := launcherPod(in).Spec.Containers[0].Resources.Limits[kvmResource]; !ok {
		t.Error("the pod does not ask for /dev/kvm")
	}
	in.UseEmulation = true
	if _, ok := launcherPod(in).Spec.Containers[0].Resources.Limits[kvmResource]; ok {
		t.Error("an emulated guest asks for /dev/kvm")
	}
}
