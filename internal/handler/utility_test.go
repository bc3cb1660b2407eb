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
	"github.com/varvebackup/varve/internal/handler/machine/mount/mounttest"
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
	// view is the utility directory as the launcher's container sees it. claim is the target's root.
	view, claim string
	// target is the claim. volume is the name of its persistent volume.
	target *corev1.PersistentVolumeClaim
	volume string
}

func newUtility(t *testing.T) *utility {
	t.Helper()
	k := mounttest.NewKubelet(t)
	w := newWorld(t, k.PodsDir)
	u := &utility{world: w, kubelet: k, view: k.Launcher(w.pod), volume: "pv-" + w.ns}
	u.target = w.claim("target", u.volume)
	u.bind(u.target)
	return u
}

// bind makes a persistent volume that is bound to the claim.
func (u *utility) bind(claim *corev1.PersistentVolumeClaim) {
	u.t.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName}}
	pv.Spec.AccessModes, pv.Spec.Capacity = claim.Spec.AccessModes, claim.Spec.Resources.Requests
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "test.example", VolumeHandle: claim.Spec.VolumeName}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	if err := cluster.Client(u.t, controlplane.Admin).Create(u.t.Context(), pv); err != nil {
		u.t.Fatal(err)
	}
}

// attachmentPod makes the pod that Varve's controller would make, after edit has changed it, and mounts the volume
// for it as the kubelet does. It returns the pod and the root of the volume.
func (u *utility) attachmentPod(volume string, edit func(*corev1.Pod)) (*corev1.Pod, string) {
	u.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: u.ns, Name: layout.AttachmentPod("vm", u.vmi.UID, volume)}}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(u.vmi, kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance"))}
	pod.Spec.NodeName = u.node
	pod.Spec.Containers = []corev1.Container{{Name: "hold", Image: "varve"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: layout.AttachmentVolume}}
	pod.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "target"}
	if edit != nil {
		edit(pod)
	}
	u.create(pod)
	return pod, u.kubelet.Claim(pod.UID, "kubernetes.io~csi", u.volume)
}

// attach plays the controller: the volume is in the spec and its attachment pod runs.
func (u *utility) attach(name string) {
	u.t.Helper()
	pod, claim := u.attachmentPod(name, nil)
	u.claim = claim
	u.attached(name, pod.UID)
}

// attached plays the controller, or somebody who writes what a controller would: this pod has attached the volume.
func (u *utility) attached(name string, pod types.UID) {
	u.t.Helper()
	controlplane.Update(u.t, u.client, u.vmi, false, func(v *kubevirtv1.VirtualMachineInstance) {
		volume := kubevirtv1.UtilityVolume{Name: name}
		volume.ClaimName = "target"
		v.Spec.UtilityVolumes = append(v.Spec.UtilityVolumes, volume)
	})
	controlplane.Update(u.t, u.client, u.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.VolumeStatus = append(v.Status.VolumeStatus, kubevirtv1.VolumeStatus{
			Name: name, Phase: kubevirtv1.VolumeAttachedToNode, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{AttachPodUID: pod},
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

// mounted returns what is mounted below the launcher's utility directory, including its cover.
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

func TestUtilityVolume_isMountedAndUnmounted(t *testing.T) {
	u := newUtility(t)
	u.started()
	u.attach("backup-1")
	u.untilVolumePhase("backup-1", kubevirtv1.VolumeMountedToPod)
	if err := os.WriteFile(filepath.Join(u.view, "backup-1", "vm", "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(u.claim, "vm", "file")); err != nil {
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

func TestUtilityVolume_isWaitedForWhileBusy(t *testing.T) {
	u := newUtility(t)
	u.started()
	u.attach("backup-1")
	u.untilVolumePhase("backup-1", kubevirtv1.VolumeMountedToPod)
	f, err := os.Create(filepath.Join(u.view, "backup-1", "vm", "open"))
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

func TestUtilityVolume_refusesASymlinkInPlaceOfAMountPoint(t *testing.T) {
	u := newUtility(t)
	u.started()
	victim := t.TempDir()
	// One link is there before the cover, and one is made on the cover.
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

func TestMounts_goWithTheirInstance(t *testing.T) {
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

func TestPartialFiles_ofADeadGuestAreRemoved(t *testing.T) {
	u := newUtility(t)
	u.started()
	b := u.backup("b1", nil)
	u.begun(1)
	_, claim := u.attachmentPod(layout.BackupUtilityVolume(b.UID), nil)
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

// While a target does not answer, a backup says so. It ends when the target is back.
func TestPartialFiles_onATargetThatHangs(t *testing.T) {
	u := newUtility(t)
	u.started()
	b := u.backup("b1", nil)
	u.begun(1)
	_, claim := u.attachmentPod(layout.BackupUtilityVolume(b.UID), nil)
	partial := filepath.Join(claim, b.Status.Directory+layout.PartialSuffix)
	if err := os.MkdirAll(filepath.Join(partial, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	u.launcher.kill()
	controlplane.Update(t, u.client, u.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) { v.Status.Phase = kubevirtv1.PhaseFailed })
	u.untilPhase(b, backupv1.BackupCopyFailed)
	_, restore := u.kubelet.Hang(claim)
	u.prune(b, backupv1.BackupUnsuccessful)
	const silent = "The storage of PersistentVolumeClaim target does not answer"
	u.untilBackup(b, func(s *backupv1.VirtualMachineBackupStatus) error {
		return want(s.Phase == backupv1.BackupPruning && strings.Count(s.Message, silent) == 1, "phase %s: %s", s.Phase, s.Message)
	})
	restore()
	u.untilPhase(b, backupv1.BackupPruned)
	if strings.Contains(b.Status.Message, silent) {
		t.Errorf("the target is back, and the message is %q", b.Status.Message)
	}
	if _, err := os.Stat(partial); !os.IsNotExist(err) {
		t.Errorf("the partial directory is still there: %v", err)
	}
}

func TestMount_refusesWhatVarveDidNotAttach(t *testing.T) {
	for name, forge := range map[string]func(*utility) types.UID{
		"a pod that nobody controls": func(u *utility) types.UID {
			pod, _ := u.attachmentPod("backup-1", func(p *corev1.Pod) { p.OwnerReferences = nil })
			return pod.UID
		},
		"labels alone": func(u *utility) types.UID {
			pod, _ := u.attachmentPod("backup-1", func(p *corev1.Pod) {
				p.Name, p.OwnerReferences = "mine", nil
				p.Labels = map[string]string{layout.LabelCreatedBy: string(u.vmi.UID), layout.LabelAttachment: "backup-1", layout.LabelApp: "varve-attachment"}
			})
			return pod.UID
		},
		"memory in place of the claim": func(u *utility) types.UID {
			pod, _ := u.attachmentPod("backup-1", func(p *corev1.Pod) {
				p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
			})
			return pod.UID
		},
		"memory beside the claim, named like its volume": func(u *utility) types.UID {
			pod, _ := u.attachmentPod("backup-1", func(p *corev1.Pod) {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: u.volume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			})
			return pod.UID
		},
		"a pod on another node": func(u *utility) types.UID {
			pod, _ := u.attachmentPod("backup-1", func(p *corev1.Pod) { p.Spec.NodeName = "elsewhere" })
			return pod.UID
		},
		"a pod of another UID": func(u *utility) types.UID {
			u.attachmentPod("backup-1", nil)
			return "victim"
		},
		"a claim that asks for somebody else's volume": func(u *utility) types.UID {
			admin := cluster.Client(u.t, controlplane.Admin)
			controlplane.Update(u.t, admin, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: u.volume}}, false, func(v *corev1.PersistentVolume) {
				v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "victim", Name: "backups", UID: "victim"}
			})
			pod, _ := u.attachmentPod("backup-1", nil)
			return pod.UID
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUtility(t)
			u.started()
			u.attached("backup-1", forge(u))
			u.untilVolume("backup-1", func(v kubevirtv1.VolumeStatus) error {
				return want(v.Phase == kubevirtv1.VolumeAttachedToNode && v.Reason == "UtilityVolumeMountFailed" && v.Message != "", "%+v", v)
			})
			for _, point := range u.mounted() {
				if filepath.Base(point) == "backup-1" {
					t.Errorf("it is mounted at %s", point)
				}
			}
		})
	}
}
