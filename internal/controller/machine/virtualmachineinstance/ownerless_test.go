package virtualmachineinstance

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// hasPod plays both the cache and the API server. They have one pod, and the instance with this UID or none.
type hasPod struct {
	client.Client
	pod      *corev1.Pod
	instance types.UID
	released *bool
}

func (h hasPod) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*corev1.PodList).Items = []corev1.Pod{*h.pod}
	return nil
}

func (h hasPod) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *corev1.Pod:
		h.pod.DeepCopyInto(o)
		return nil
	case *kubevirtv1.VirtualMachineInstance:
		o.UID = h.instance
	}
	if h.instance == "" {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return nil
}

func (h hasPod) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	*h.released = len(o.GetFinalizers()) == 0
	return nil
}

// orphan turns the pod into the launcher pod of the instance "i" after the garbage collector has removed its owner.
func orphan(pod *corev1.Pod) *corev1.Pod {
	instance := instanceIn(running)
	pod.Namespace, pod.Name = instance.Namespace, layout.LauncherPod(instance.Name, instance.UID)
	pod.Labels, pod.Finalizers = podLabels(instance), []string{layout.FinalizerLauncher}
	return pod
}

func edited(pod *corev1.Pod, edit func(*corev1.Pod)) *corev1.Pod {
	edit(pod)
	return pod
}

// adopted does what a ReplicaSet does to ownerless pods that its selector matches. A launcher pod has its machine's
// labels.
func adopted(pod *corev1.Pod) {
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "r", Controller: ptr.To(true)}}
}

func TestReleaseOrphans_withoutAnOwner(t *testing.T) {
	t.Parallel()
	over := func() *corev1.Pod { return orphan(going(terminated(corev1.PodFailed, "", 1), 0, 60)) }
	for name, c := range map[string]struct {
		pod      *corev1.Pod
		instance types.UID
		want     bool
	}{
		"has ended":                          {over(), "", true},
		"has ended, another instance":        {over(), "j", true},
		"has ended, its instance is there":   {over(), "i", false},
		"its guest may run":                  {orphan(going(podIn(corev1.PodRunning), 0, 60)), "", false},
		"nobody deleted it":                  {orphan(podIn(corev1.PodRunning)), "", false},
		"has ended, its name says otherwise": {edited(over(), func(p *corev1.Pod) { p.Labels[layout.LabelCreatedBy] = "j" }), "", false},
		"has ended, was adopted":             {edited(over(), adopted), "", true},
	} {
		released := false
		server := hasPod{pod: c.pod, instance: c.instance, released: &released}
		r := &reconciler{Options: Options{Clock: clocktesting.NewFakePassiveClock(now)}, cached: server, live: server}
		if _, err := r.releaseOrphans(t.Context(), types.NamespacedName{Namespace: "ns", Name: "vm"}); err != nil || released != c.want {
			t.Errorf("%s: released %t, %v", name, released, err)
		}
	}
}

// An instance still sees its pod after the pod has lost its owner: the pod is not gone, and its guest may run.
func TestPods_knowsThePodThatLostItsOwner(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"orphaned":            {orphan(podIn(corev1.PodRunning)), true},
		"not made by Varve":   {edited(orphan(podIn(corev1.PodRunning)), func(p *corev1.Pod) { p.Finalizers = nil }), false},
		"of another instance": {edited(orphan(podIn(corev1.PodRunning)), func(p *corev1.Pod) { p.Name = layout.LauncherPod("vm", "j") }), false},
		"adopted since":       {edited(orphan(podIn(corev1.PodRunning)), adopted), true},
	} {
		server := hasPod{pod: c.pod}
		r := &reconciler{cached: server, live: server}
		in := input{Instance: deletedAgo(instanceIn(running), 0)}
		if err := r.findPods(t.Context(), &in); err != nil || (in.Pod != nil) != c.want {
			t.Errorf("%s: pod %v, %v", name, in.Pod, err)
		}
	}
}

// No owner wakes the controller for a launcher pod that no longer belongs to its instance, so ofLauncher has to.
func TestOfLauncher_wakesTheInstance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"orphaned":       {orphan(podIn(corev1.PodRunning)), true},
		"adopted since":  {edited(orphan(podIn(corev1.PodRunning)), adopted), true},
		"released":       {edited(orphan(podIn(corev1.PodSucceeded)), func(p *corev1.Pod) { p.Finalizers = nil }), true},
		"a pod of a job": {edited(podIn(corev1.PodRunning), adopted), false},
	} {
		if got := requestsForLauncher(t.Context(), c.pod); (len(got) == 1 && got[0].Name == "vm") != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
