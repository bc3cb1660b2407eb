package instancepod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

func attachmentPod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: layout.AttachmentPod("vm", "uid", "backup-1")}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm", UID: "uid", Controller: ptr.To(true)}}
	pod.Spec.Volumes = []corev1.Volume{{Name: layout.AttachmentVolume}}
	pod.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "target"}
	return pod
}

func TestIsAttachment_needsNameAndController(t *testing.T) {
	t.Parallel()
	if !IsAttachment(attachmentPod(), "vm", "uid", "backup-1") {
		t.Fatal("the pod that Varve makes is not known")
	}
	for name, forge := range map[string]func(*corev1.Pod){
		"another name":     func(p *corev1.Pod) { p.Name = "mine" },
		"no owner":         func(p *corev1.Pod) { p.OwnerReferences = nil },
		"another instance": func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" },
		"another kind":     func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "VirtualMachine" },
		"another group":    func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.org/v1" },
		"not a controller": func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
		"labels and no more": func(p *corev1.Pod) {
			p.OwnerReferences = nil
			p.Labels = map[string]string{layout.LabelCreatedBy: "uid", layout.LabelAttachment: "backup-1", layout.LabelApp: "varve-attachment"}
		},
	} {
		pod := attachmentPod()
		forge(pod)
		if IsAttachment(pod, "vm", "uid", "backup-1") {
			t.Errorf("%s: taken for an attachment pod", name)
		}
		pod.Name = layout.LauncherPod("vm", "uid")
		if name != "another name" && IsLauncher(pod, "vm", "uid") {
			t.Errorf("%s: taken for a launcher pod", name)
		}
	}
}

func TestHoldsClaim_readsThePlaceTheHandlerUses(t *testing.T) {
	t.Parallel()
	if !HoldsClaim(attachmentPod(), "target") {
		t.Error("the claim is not found")
	}
	pod := attachmentPod()
	pod.Spec.Volumes[0].PersistentVolumeClaim = nil
	pod.Spec.Volumes[0].EmptyDir = &corev1.EmptyDirVolumeSource{}
	if HoldsClaim(attachmentPod(), "other") || HoldsClaim(pod, "target") || HoldsClaim(&corev1.Pod{}, "target") {
		t.Error("another volume is taken for the claim")
	}
}

func TestIsOrphan_needsNameAndFinalizer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want bool
	}{
		"orphaned":     {func(*corev1.Pod) {}, true},
		"another name": {func(p *corev1.Pod) { p.Name = "mine" }, false},
		"no finalizer": {func(p *corev1.Pod) { p.Finalizers = nil }, false},
		"no orphan":    {func(p *corev1.Pod) { p.OwnerReferences = attachmentPod().OwnerReferences }, false},
		"adopted since": {func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "r", Controller: ptr.To(true)}}
		}, true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: layout.LauncherPod("vm", "uid"), Finalizers: []string{layout.FinalizerLauncher}}}
		c.edit(pod)
		if got := IsOrphan(pod, "vm", "uid"); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestActiveLauncher_followsTheGuest(t *testing.T) {
	t.Parallel()
	first := layout.LauncherPod("vm", "uid")
	for name, c := range map[string]struct {
		state *kubevirtv1.MigrationState
		want  string
	}{
		"never moved":        {nil, first},
		"is being moved":     {&kubevirtv1.MigrationState{SourcePod: "a", TargetPod: "b"}, "a"},
		"moved":              {&kubevirtv1.MigrationState{SourcePod: "a", TargetPod: "b", Completed: true}, "b"},
		"could not be moved": {&kubevirtv1.MigrationState{SourcePod: "a", TargetPod: "b", Failed: true}, "a"},
		"completed in vain": {
			&kubevirtv1.MigrationState{SourcePod: "a", TargetPod: "b", Completed: true, Failed: true},
			"a",
		},
		"no target pod so far": {&kubevirtv1.MigrationState{SourcePod: first}, first},
	} {
		vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "uid"}}
		vmi.Status.MigrationState = c.state
		if got := ActiveLauncher(vmi); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestIsLauncher_knowsTargetPods(t *testing.T) {
	t.Parallel()
	target := func() *corev1.Pod {
		pod := attachmentPod()
		pod.Name, pod.Labels = layout.MigrationPod("vm", "uid", "m"), map[string]string{layout.LabelMigrationJob: "m"}
		return pod
	}
	if !IsLauncher(target(), "vm", "uid") || IsMigrationSource(target(), "vm", "uid", "m") {
		t.Error("a target pod is not known")
	}
	for name, forge := range map[string]func(*corev1.Pod){
		"of another migration": func(p *corev1.Pod) { p.Labels[layout.LabelMigrationJob] = "n" },
		"without its label":    func(p *corev1.Pod) { p.Labels = nil },
		"without its owner":    func(p *corev1.Pod) { p.OwnerReferences = nil },
	} {
		pod := target()
		forge(pod)
		if IsLauncher(pod, "vm", "uid") {
			t.Errorf("a pod %s is taken for a target pod", name)
		}
	}
	orphan := target()
	orphan.OwnerReferences, orphan.Finalizers = nil, []string{layout.FinalizerLauncher}
	if !IsOrphan(orphan, "vm", "uid") {
		t.Error("an orphaned target pod is not known")
	}
	source := attachmentPod()
	source.Name = layout.MigrationSourcePod("vm", "uid", "m")
	if !IsMigrationSource(source, "vm", "uid", "m") || IsMigrationSource(source, "vm", "uid", "n") || IsLauncher(source,
		"vm", "uid") {
		t.Error("the pod with the token on the source is not told from others")
	}
}
