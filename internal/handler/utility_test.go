//go:build root

package handler_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/mount/mounttest"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

func TestMain(m *testing.M) {
	mounttest.Main(func() { controlplane.Main(m, &cluster) })
}

// utility is an instance with a utility volume that is attached to the node.
type utility struct {
	*world
	kubelet *mounttest.Kubelet
	// view is the utility directory as the launcher's container sees it; claim the target's root.
	view, claim string
	attachment  types.UID
}

func newUtility(t *testing.T) *utility {
	t.Helper()
	k := mounttest.NewKubelet(t)
	w := newWorld(t, k.PodsDir)
	u := &utility{world: w, kubelet: k, view: k.Launcher(w.pod), attachment: "attachment-" + w.pod}
	u.claim = k.Claim(u.attachment, "kubernetes.io~csi", "pv-target")
	w.claim("target", "pv-target")
	return u
}

// attach plays the controller: the volume is in the spec and its attachment pod runs.
func (u *utility) attach(name string) {
	u.t.Helper()
	controlplane.Update(u.t, u.client, u.vmi, false, func(v *kubevirtv1.VirtualMachineInstance) {
		volume := kubevirtv1.UtilityVolume{Name: name}
		volume.ClaimName = "target"
		v.Spec.UtilityVolumes = append(v.Spec.UtilityVolumes, volume)
	})
	controlplane.Update(u.t, u.client, u.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.VolumeStatus = append(v.Status.VolumeStatus, kubevirtv1.VolumeStatus{
			Name: name, Phase: kubevirtv1.VolumeAttachedToNode, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{AttachPodUID: u.attachment},
		})
	})
}

func (u *utility) untilVolume(name string, check func(kubevirtv1.VolumeStatus) error) {
	u.t.Helper()
	u.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		for _, v := range s.VolumeStatus {
			if v.Name == name {
				return check(v)
			}
		}
		return want(false, "no volume %s in %+v", name, s.VolumeStatus)
	})
}

func (u *utility) untilVolumePhase(name string, phase kubevirtv1.VolumePhase) {
	u.t.Helper()
	u.untilVolume(name, func(v kubevirtv1.VolumeStatus) error {
		return want(v.Phase == phase, "phase %s (%s: %s), want %s", v.Phase, v.Reason, v.Message, phase)
	})
}

func (u *utility) remove() {
	u.t.Helper()
	controlplane.Update(u.t, u.client, u.vmi, false, func(v *kubevirtv1.VirtualMachineInstance) { v.Spec.UtilityVolumes = nil })
}

// mounted says what is mounted below the launcher's utility directory, its cover included.
func (u *utility) mounted() []string {
	u.t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		u.t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], layout.NodeUtilityDir(u.podsDir, u.pod)) {
			found = append(found, f[4])
		}
	}
	return found
}

func TestAUtilityVolumeIsMountedAndUnmounted(t *testing.T) {
	u := newUtility(t)
	u.started()
	u.attach("backup-1")
	u.untilVolumePhase("backup-1", kubevirtv1.VolumeMountedToPod)
	if err := os.WriteFile(filepath.Join(u.view, "backup-1", "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(u.claim, "file")); err != nil {
		t.Errorf("what the launcher writes is not on the claim: %v", err)
	}
	u.restart()
	u.remove()
	u.untilVolumePhase("backup-1", kubevirtv1.VolumeUnMountedFromPod)
	u.until(func() error { return want(len(u.mounted()) == 0, "left mounted: %v", u.mounted()) })
	if entries, err := os.ReadDir(u.view); err != nil || len(entries) != 0 {
		t.Errorf("the launcher still sees %v %v", entries, err)
	}
}

func TestABusyUtilityVolumeIsWaitedFor(t *testing.T) {
	u := newUtility(t)
	u.started()
	u.attach("backup-1")
	u.untilVolumePhase("backup-1", kubevirtv1.VolumeMountedToPod)
	f, err := os.Create(filepath.Join(u.view, "backup-1", "open"))
	if err != nil {
		t.Fatal(err)
	}
	u.remove()
	u.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := u.conditionOf(s, kubevirtv1.ConditionSynchronized)
		return want(c.Reason == "UtilityVolumeMountFailed", "%+v", c)
	})
	f.Close()
	u.untilVolumePhase("backup-1", kubevirtv1.VolumeUnMountedFromPod)
}

func TestALinkInPlaceOfAMountPointIsRefused(t *testing.T) {
	u := newUtility(t)
	u.started()
	victim := t.TempDir()
	// Before the cover is there, and on it.
	if err := os.Symlink(victim, filepath.Join(u.view, "backup-1")); err != nil {
		t.Fatal(err)
	}
	u.attach("backup-1")
	u.untilVolumePhase("backup-1", kubevirtv1.VolumeMountedToPod) // the cover hides it
	if err := os.Symlink(victim, filepath.Join(u.view, "backup-2")); err != nil {
		t.Fatal(err)
	}
	u.attach("backup-2")
	u.untilVolume("backup-2", func(v kubevirtv1.VolumeStatus) error {
		return want(v.Phase == kubevirtv1.VolumeAttachedToNode && strings.Contains(v.Message, "not safe"), "%+v", v)
	})
	if table, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(table), victim) {
		t.Errorf("something is mounted at the victim: %v", err)
	}
}

func TestMountsGoWithTheirInstance(t *testing.T) {
	for _, how := range []string{"final", "gone", "gone while no handler ran"} {
		t.Run(how, func(t *testing.T) {
			u := newUtility(t)
			u.started()
			u.attach("backup-1")
			u.untilVolumePhase("backup-1", kubevirtv1.VolumeMountedToPod)
			if how == "final" {
				u.launcher.kill()
				controlplane.Update(t, u.client, u.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) { v.Status.Phase = kubevirtv1.PhaseFailed })
				u.untilVolumePhase("backup-1", kubevirtv1.VolumeUnMountedFromPod)
			} else {
				if how != "gone" {
					u.stop()
				}
				controlplane.Update(t, u.client, u.vmi, false, func(v *kubevirtv1.VirtualMachineInstance) { v.Finalizers = nil })
				u.delete(u.vmi)
				u.launcher.kill()
				u.until(func() error {
					return want(client.IgnoreNotFound(u.client.Get(t.Context(), client.ObjectKeyFromObject(u.vmi), u.vmi)) == nil, "still there")
				})
				if how != "gone" {
					u.run()
				}
			}
			u.until(func() error { return want(len(u.mounted()) == 0, "left mounted: %v", u.mounted()) })
		})
	}
}

func TestPartialFilesOfADeadGuestAreRemoved(t *testing.T) {
	u := newUtility(t)
	u.started()
	b := u.backup("b1", nil)
	u.begun(1)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: u.ns, Name: layout.AttachmentPod("vm", u.vmi.UID, layout.BackupUtilityVolume(b.UID)),
	}}
	pod.Spec.NodeName = u.node
	pod.Spec.Containers = []corev1.Container{{Name: "hold", Image: "varve"}}
	if err := u.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	// The kubelet names a pod's directory after the UID that the API server gave it.
	claim := u.kubelet.Claim(pod.UID, "kubernetes.io~csi", "pv-target")
	partial := filepath.Join(claim, b.Status.Directory+layout.PartialSuffix)
	if err := os.MkdirAll(partial, 0o755); err != nil {
		t.Fatal(err)
	}
	u.launcher.set(func(s *pb.State) { s.Backup.Phase = pb.Backup_COPYING })
	u.untilPhase(b, backupv1.BackupCopying)
	u.launcher.kill()
	controlplane.Update(t, u.client, u.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) { v.Status.Phase = kubevirtv1.PhaseFailed })
	u.untilPhase(b, backupv1.BackupCopyFailed)
	if _, err := os.Stat(partial); err != nil {
		t.Fatal(err)
	}
	u.prune(b, backupv1.BackupUnsuccessful)
	u.untilPhase(b, backupv1.BackupPruned)
	if _, err := os.Stat(partial); !os.IsNotExist(err) {
		t.Errorf("the partial directory is still there: %v", err)
	}
}
