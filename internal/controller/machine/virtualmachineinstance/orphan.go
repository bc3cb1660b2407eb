package virtualmachineinstance

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// releaseOrphans removes the finalizer of launcher pods that were made for an instance of this name that no longer
// exists. Such an instance went before the pod's end was recorded, for example because somebody removed its
// finalizer. Nobody else would release these pods, because a pod's finalizer is otherwise removed through its
// instance. It does not matter whether the pods have lost their owner since. A pod keeps its finalizer until it has
// ended, because its guest may still write. A positive duration is when to look again.
func (r *reconciler) releaseOrphans(ctx context.Context, name types.NamespacedName) (time.Duration, error) {
	pods := &corev1.PodList{}
	if err := r.cached.List(ctx, pods, client.InNamespace(name.Namespace), client.MatchingLabels{layout.LabelVM: name.Name}); err != nil {
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
			again = shorterWait(again, wait)
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

// madeFor returns the UID of the instance with this name that the launcher pod was made for: its owner or, if the
// pod has lost its owner, the UID that its label and its name agree on.
func madeFor(pod *corev1.Pod, instance string) (types.UID, bool) {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && instancepod.IsLauncher(pod, instance, owner.UID) {
		return owner.UID, true
	}
	uid := types.UID(pod.Labels[layout.LabelCreatedBy])
	return uid, instancepod.IsOrphan(pod, instance, uid)
}

// requestsForLauncher maps a launcher pod to the instance that it was made for, whoever owns the pod and whether or not the
// instance still exists. A pod that has lost its owner would otherwise trigger no reconcile, not even when it
// disappears after its finalizer is gone.
func requestsForLauncher(_ context.Context, o client.Object) []ctrl.Request {
	name := o.GetLabels()[layout.LabelVM]
	pod, ok := o.(*corev1.Pod)
	if !ok || name == "" || pod.Name != instancepod.LauncherName(pod, name, types.UID(pod.Labels[layout.LabelCreatedBy])) {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

// instanceExists asks the API server whether the instance with this UID exists. Another one of the same name does
// not count.
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
	if err := r.cached.Patch(ctx, released, reconcile.MergeFrom(pod)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("release launcher pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// shorterWait returns the shorter of two waits. 0 means no wait.
func shorterWait(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
