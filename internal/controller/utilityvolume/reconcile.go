package utilityvolume

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// conflictDelay is how long the cache is given to catch up after a conflict.
const conflictDelay = 50 * time.Millisecond

// Reconcile brings the utility volumes of one instance one step further.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	instance := &kubevirtv1.VirtualMachineInstance{}
	if err := r.client.Get(ctx, req.NamespacedName, instance); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	in, err := r.gather(ctx, instance)
	if err != nil {
		return reconcile.Result{}, err
	}
	d := Decide(in)
	err = r.apply(ctx, instance, d)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return reconcile.Result{RequeueAfter: d.RequeueAfter}, err
}

// gather reads what Decide looks at.
func (r *reconciler) gather(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) (Input, error) {
	in := Input{Now: r.Clock.Now(), Instance: instance.DeepCopy(), Claims: map[string]*corev1.PersistentVolumeClaim{}}
	pods, err := r.pods(ctx, r.client, instance)
	if err != nil {
		return in, err
	}
	if behind(instance, pods) {
		// That a pod is gone, which leads to another or to the end of an entry, is believed of the API server alone.
		if pods, err = r.pods(ctx, r.live, instance); err != nil {
			return in, err
		}
	}
	in.Pods = pods
	for _, v := range instance.Spec.UtilityVolumes {
		claim := &corev1.PersistentVolumeClaim{}
		err := r.client.Get(ctx, types.NamespacedName{Namespace: instance.Namespace, Name: v.ClaimName}, claim)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return in, fmt.Errorf("get claim %s/%s: %w", instance.Namespace, v.ClaimName, err)
		}
		in.Claims[v.ClaimName] = claim
	}
	if !instance.Status.Phase.Final() {
		return in, nil
	}
	backups := &backupv1.VirtualMachineBackupList{}
	if err := r.client.List(ctx, backups, client.InNamespace(instance.Namespace)); err != nil {
		return in, fmt.Errorf("list backups in %s: %w", instance.Namespace, err)
	}
	in.Backups = backups.Items
	return in, nil
}

func (r *reconciler) pods(ctx context.Context, from client.Reader, instance *kubevirtv1.VirtualMachineInstance) (map[string]*corev1.Pod, error) {
	list := &corev1.PodList{}
	err := from.List(ctx, list, client.InNamespace(instance.Namespace),
		client.MatchingLabels{layout.LabelCreatedBy: string(instance.UID), layout.LabelApp: AppAttachment})
	if err != nil {
		return nil, fmt.Errorf("list attachment pods of instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].Labels[layout.LabelAttachment]] = &list.Items[i]
	}
	return pods, nil
}

// behind says that status names an attachment pod that is not among pods.
func behind(instance *kubevirtv1.VirtualMachineInstance, pods map[string]*corev1.Pod) bool {
	for _, s := range instance.Status.VolumeStatus {
		if s.HotplugVolume != nil && s.HotplugVolume.AttachPodName != "" && pods[s.Name] == nil {
			return true
		}
	}
	return false
}

// apply writes status and then makes and deletes pods.
func (r *reconciler) apply(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, d Decision) error {
	if err := r.writeStatus(ctx, instance, d.Status); err != nil {
		return err
	}
	for _, v := range d.Create {
		if err := r.create(ctx, instance, v, d.Status); err != nil {
			return err
		}
	}
	for _, pod := range d.Delete {
		if err := r.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete attachment pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		r.events.Eventf(instance, pod, corev1.EventTypeNormal, "UtilityVolumeDetached", "Detach",
			"Deleted attachment pod %s of utility volume %s.", pod.Name, pod.Labels[layout.LabelAttachment])
	}
	return nil
}

// create makes an attachment pod. What the API server refuses is shown in the volume's status and tried again.
func (r *reconciler) create(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, v kubevirtv1.UtilityVolume, status []kubevirtv1.VolumeStatus) error {
	hostname, err := r.hostname(ctx, instance.Status.NodeName)
	if err != nil {
		return err
	}
	pod := Pod(instance, v, hostname, r.Image)
	err = r.client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err == nil {
		r.events.Eventf(instance, pod, corev1.EventTypeNormal, "UtilityVolumeAttaching", "Attach", "Created attachment pod %s for utility volume %s.", pod.Name, v.Name)
		return nil
	}
	for i := range status {
		if status[i].Name == v.Name {
			status[i].Reason, status[i].Message = ReasonPodRefused, fmt.Sprintf("The attachment pod was refused: %v", err)
		}
	}
	if werr := r.writeStatus(ctx, instance, status); werr != nil {
		return werr
	}
	return fmt.Errorf("create attachment pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// hostname is the value of the node's hostname label, which need not be the node's name.
func (r *reconciler) hostname(ctx context.Context, name string) (string, error) {
	node := &corev1.Node{}
	if err := r.client.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return "", fmt.Errorf("get node %s: %w", name, err)
	}
	if h := node.Labels[corev1.LabelHostname]; h != "" {
		return h, nil
	}
	return name, nil
}

// writeStatus writes volumeStatus if it differs, and nothing else of the instance's status.
func (r *reconciler) writeStatus(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, status []kubevirtv1.VolumeStatus) error {
	if equality.Semantic.DeepEqual(instance.Status.VolumeStatus, status) {
		return nil
	}
	base := instance.DeepCopy()
	instance.Status.VolumeStatus = nil
	for i := range status {
		instance.Status.VolumeStatus = append(instance.Status.VolumeStatus, *status[i].DeepCopy())
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, instance, patch); err != nil {
		return fmt.Errorf("write status of instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	return nil
}
