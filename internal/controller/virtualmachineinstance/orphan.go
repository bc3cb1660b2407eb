package virtualmachineinstance

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
)

// releaseOrphans lets go of launcher pods of instances with this name that went before their pod's end was recorded, as when somebody
// took their finalizer away, also if the pods have lost their owner since. Nobody else would: the pod's finalizer is removed through its instance. Until the pod has ended it keeps its finalizer, because
// its guest may still write. A positive duration is when to look again.
func (r *reconciler) releaseOrphans(ctx context.Context, name types.NamespacedName) (time.Duration, error) {
	pods := &corev1.PodList{}
	if err := r.client.List(ctx, pods, client.InNamespace(name.Namespace), client.MatchingLabels{layout.LabelVM: name.Name}); err != nil {
		return 0, fmt.Errorf("list launcher pods of instances named %s: %w", name, err)
	}
	var again time.Duration
	for i := range pods.Items {
		pod := &pods.Items[i]
		uid, ok := madeFor(pod, name.Name)
		if !ok || pod.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(pod, layout.FinalizerLauncher) {
			continue
		}
		over, wait := podOver(pod, r.Clock.Now())
		if !over {
			again = sooner(again, wait)
			continue
		}
		exists, err := r.instanceExists(ctx, name, uid)
		if err != nil {
			return 0, err
		}
		if exists {
			continue
		}
		if err := r.releasePod(ctx, pod); err != nil {
			return 0, err
		}
	}
	return again, nil
}

// madeFor is the UID of the instance with this name that the launcher pod was made for: its owner or, once that was taken away, the one that its label
// and its name agree on.
func madeFor(pod *corev1.Pod, instance string) (types.UID, bool) {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && instancepod.IsLauncher(pod, instance, owner.UID) {
		return owner.UID, true
	}
	uid := types.UID(pod.Labels[layout.LabelCreatedBy])
	return uid, instancepod.IsOrphan(pod, instance, uid)
}

// ofLauncher maps a launcher pod to the instance that it was made for, which may be gone, whoever owns it: no owner wakes anybody for one that has lost its own,
// also when its finalizer has gone and it goes.
func ofLauncher(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[layout.LabelVM]
	if name == "" || o.GetName() != layout.LauncherPod(name, types.UID(o.GetLabels()[layout.LabelCreatedBy])) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

// instanceExists asks the API server whether the instance with this UID is there. Another one of its name is not it.
func (r *reconciler) instanceExists(ctx context.Context, name types.NamespacedName, uid types.UID) (bool, error) {
	instance := &kubevirtv1.VirtualMachineInstance{}
	err := r.live.Get(ctx, name, instance)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get instance %s: %w", name, err)
	}
	return err == nil && instance.UID == uid, nil
}

// releasePod removes the launcher pod's finalizer.
func (r *reconciler) releasePod(ctx context.Context, pod *corev1.Pod) error {
	released := pod.DeepCopy()
	controllerutil.RemoveFinalizer(released, layout.FinalizerLauncher)
	if err := r.client.Patch(ctx, released, optimistic(pod)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("release launcher pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
