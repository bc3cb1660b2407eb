package instance

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/layout"
)

// mounts are the utility volumes of one launcher. QEMU still writes to those that are busy.
type mounts struct {
	Mounts
	names, busy []string
}

func (m *mounts) Names(types.UID) ([]string, error) { return slices.Clone(m.names), nil }
func (m *mounts) Uncover(types.UID) error           { return nil }

func (m *mounts) Detach(_ types.UID, name string, _ bool) error {
	if slices.Contains(m.busy, name) {
		return mount.ErrBusy
	}
	m.names = slices.DeleteFunc(m.names, func(n string) bool { return n == name })
	return nil
}

// Detaching on a volume in the spec says that its attachment pod is gone. The volume is unmounted as soon as the
// aborted backup has closed its files, and becomes UnMountedFromPod only then.
func TestVolumes_withoutAttachmentPodAreUnmounted(t *testing.T) {
	t.Parallel()
	m := &mounts{names: []string{"kept", "lost"}, busy: []string{"lost"}}
	r := &Reconciler{Mounts: m, Events: events.NewFakeRecorder(10), Clock: clocktesting.NewFakePassiveClock(now)}
	v := vmi(func(v *kubevirtv1.VirtualMachineInstance) {
		for name, phase := range map[string]kubevirtv1.VolumePhase{"kept": kubevirtv1.VolumeMountedToPod, "lost": kubevirtv1.VolumeDetaching} {
			v.Spec.UtilityVolumes = append(v.Spec.UtilityVolumes, kubevirtv1.UtilityVolume{Name: name})
			v.Status.VolumeStatus = append(v.Status.VolumeStatus, kubevirtv1.VolumeStatus{
				Name: name, Phase: phase, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{AttachPodUID: "pod-of-" + types.UID(name)},
			})
		}
	})
	pass := func() (phases map[string]kubevirtv1.VolumePhase, again time.Duration) {
		t.Helper()
		_, again, err := r.syncVolumes(t.Context(), v, "launcher", nil, &v.Status)
		if err != nil {
			t.Fatal(err)
		}
		phases = map[string]kubevirtv1.VolumePhase{}
		for _, s := range v.Status.VolumeStatus {
			phases[s.Name] = s.Phase
		}
		return phases, again
	}
	if phases, again := pass(); phases["lost"] != kubevirtv1.VolumeDetaching || again == 0 {
		t.Errorf("while QEMU writes: %v, and again in %s", phases, again)
	}
	m.busy = nil
	if phases, again := pass(); phases["lost"] != kubevirtv1.VolumeUnMountedFromPod || phases["kept"] != kubevirtv1.VolumeMountedToPod || again != 0 {
		t.Errorf("after QEMU closed it: %v, and again in %s", phases, again)
	}
	if pass(); !slices.Equal(m.names, []string{"kept"}) {
		t.Errorf("mounted are %v", m.names)
	}
}

// Only a pod that is certainly a launcher from before launchers stopped running as root sees a whole claim.
func TestVisibleDirectory_isTheMachines(t *testing.T) {
	t.Parallel()
	v := vmi(func(v *kubevirtv1.VirtualMachineInstance) { v.UID = "uid" })
	for name, test := range map[string]struct {
		edit func(*corev1.Pod)
		want string
	}{
		"a launcher that is root":       {func(*corev1.Pod) {}, ""},
		"a launcher that is not root":   {func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)} }, v.Name},
		"another pod of that name":      {func(p *corev1.Pod) { p.UID = "other" }, v.Name},
		"a pod that nobody controls":    {func(p *corev1.Pod) { p.OwnerReferences = nil }, v.Name},
		"a pod that something else has": {func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }, v.Name},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: layout.LauncherPod(v.Name, v.UID), UID: "launcher"}}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(v, kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance"))}
		pod.Spec.Containers = []corev1.Container{{Name: "compute"}}
		test.edit(pod)
		if got := visibleDirectory(v, "launcher", pod); got != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := visibleDirectory(v, "launcher", nil); got != v.Name {
		t.Errorf("no pod: %q", got)
	}
}
