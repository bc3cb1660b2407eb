package utilityvolume

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/runepoch"
)

// Reconcile takes the utility volumes of one instance one step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	instance := &kubevirtv1.VirtualMachineInstance{}
	if err := r.cached.Get(ctx, req.NamespacedName, instance); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	in, err := r.gatherInput(ctx, instance)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(in)
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: d.RequeueAfter}, r.applyDecision(ctx, instance, d))
}

// gatherInput reads what decide looks at.
func (r *reconciler) gatherInput(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) (input, error) {
	in := input{Now: r.Clock.Now(), Instance: instance.DeepCopy(), Claims: map[string]*corev1.PersistentVolumeClaim{}}
	pods, err := r.findAttachmentPods(ctx, instance)
	if err != nil {
		return in, err
	}
	in.Pods = pods
	for _, v := range instance.Spec.UtilityVolumes {
		claim := &corev1.PersistentVolumeClaim{}
		err := r.cached.Get(ctx, types.NamespacedName{Namespace: instance.Namespace, Name: v.ClaimName}, claim)
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
	if err := r.cached.List(ctx, backups, client.InNamespace(instance.Namespace)); err != nil {
		return in, fmt.Errorf("list backups in %s: %w", instance.Namespace, err)
	}
	in.Backups = backups.Items
	return in, nil
}

// findAttachmentPods finds the instance's attachment pods by utility volume. Labels only narrow the search; instancepod decides
// which pods are the instance's. If the cache has no pod for a volume, or not the pod that attached it, it asks
// the API server: a cache that is behind does not have the pod yet, or has its predecessor. Believing such a cache
// could lead to another pod, to the end of an entry or to the end of a backup.
func (r *reconciler) findAttachmentPods(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) (map[string]*corev1.Pod, error) {
	list := &corev1.PodList{}
	err := r.cached.List(ctx, list, client.InNamespace(instance.Namespace),
		client.MatchingLabels{layout.LabelCreatedBy: string(instance.UID), layout.LabelApp: holdpod.App})
	if err != nil {
		return nil, fmt.Errorf("list attachment pods of instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		pod := &list.Items[i]
		if volume := pod.Labels[layout.LabelAttachment]; instancepod.IsAttachment(pod, instance.Name, instance.UID, volume) {
			pods[volume] = pod
		}
	}
	for _, s := range instance.Status.VolumeStatus {
		if s.HotplugVolume == nil || s.HotplugVolume.AttachPodName == "" || isRecorded(pods[s.Name], s.HotplugVolume) {
			continue
		}
		delete(pods, s.Name)
		pod, err := r.livePod(ctx, instance, s.Name)
		if err != nil {
			return nil, err
		}
		if pod != nil && instancepod.IsAttachment(pod, instance.Name, instance.UID, s.Name) {
			pods[s.Name] = pod
		}
	}
	return pods, nil
}

// isRecorded reports whether the pod is the one that attached the volume. As long as no pod has attached it, any
// pod will do. The recorded pod ends only once, so a cache that shows its end is right.
func isRecorded(pod *corev1.Pod, recorded *kubevirtv1.HotplugVolumeStatus) bool {
	return pod != nil && (recorded.AttachPodUID == "" || pod.UID == recorded.AttachPodUID)
}

// livePod reads the pod with the name of the volume's attachment pod from the API server, whoever made it. It
// returns nil if there is none.
func (r *reconciler) livePod(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, volume string) (*corev1.Pod, error) {
	return instancepod.Get(ctx, r.live, instance.Namespace, layout.AttachmentPod(instance.Name, instance.UID, volume))
}

// applyDecision writes status and then creates and deletes pods.
func (r *reconciler) applyDecision(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, d decision) error {
	read := instance.ResourceVersion
	if err := r.writeStatus(ctx, instance, d.Status); err != nil {
		return err
	}
	for _, v := range d.Create {
		if err := r.createPod(ctx, instance, v, d.Status); err != nil {
			return err
		}
	}
	if len(d.Delete) > 0 && instance.ResourceVersion == read {
		// Nothing was written, so nothing has shown yet whether the cache is behind.
		if current, err := r.isCurrent(ctx, instance); err != nil || !current {
			return err
		}
	}
	for _, pod := range d.Delete {
		if err := r.cached.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete attachment pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		r.events.Eventf(instance, pod, corev1.EventTypeNormal, "UtilityVolumeDetached", "Detach",
			"Deleted attachment pod %s of utility volume %s.", pod.Name, pod.Labels[layout.LabelAttachment])
	}
	return nil
}

// isCurrent asks the API server whether the instance is as it was read. It returns a conflict if somebody has
// written it since. An instance that is gone is not current: the garbage collector removes its pods.
func (r *reconciler) isCurrent(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) (bool, error) {
	now := &kubevirtv1.VirtualMachineInstance{}
	err := r.live.Get(ctx, client.ObjectKeyFromObject(instance), now)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get instance %s/%s: %w", instance.Namespace, instance.Name, err)
	case now.ResourceVersion != instance.ResourceVersion:
		kind := kubevirtv1.GroupVersion.WithResource("virtualmachineinstances").GroupResource()
		return false, apierrors.NewConflict(kind, instance.Name, errors.New("the cache is behind"))
	}
	return true, nil
}

// createPod creates an attachment pod. If the API server refuses it, it shows the refusal in the volume's status
// and returns the error, so that it is retried.
func (r *reconciler) createPod(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, v kubevirtv1.UtilityVolume, status []kubevirtv1.VolumeStatus) error {
	hostname, err := r.hostnameOfNode(ctx, instance.Status.NodeName)
	if err != nil {
		return err
	}
	if err := r.beginRun(ctx, instance, v, status); err != nil {
		return err
	}
	pod := attachmentPod(instance, v, hostname, r.Image)
	err = r.cached.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return r.refuseForeign(ctx, instance, v, status)
	}
	if err == nil {
		r.events.Eventf(instance, pod, corev1.EventTypeNormal, "UtilityVolumeAttaching", "Attach", "Created attachment pod %s for utility volume %s.", pod.Name, v.Name)
		return nil
	}
	if werr := r.showWhyNotAttached(ctx, instance, v, status, ReasonPodRefused, fmt.Sprintf("The attachment pod was refused: %v", err)); werr != nil {
		return werr
	}
	return fmt.Errorf("create attachment pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// beginRun records on the claim that an attachment pod mounts it next, so that a machine that has the claim as a
// disk does not trust what it recorded before. If the record cannot be read, beginRun leaves it alone: it may name
// a machine that writes to the claim.
func (r *reconciler) beginRun(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, v kubevirtv1.UtilityVolume, status []kubevirtv1.VolumeStatus) error {
	if v.ReadOnly {
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	if err := r.live.Get(ctx, types.NamespacedName{Namespace: instance.Namespace, Name: v.ClaimName}, claim); err != nil {
		return fmt.Errorf("get claim %s/%s: %w", instance.Namespace, v.ClaimName, err)
	}
	epoch, err := runepoch.Of(claim)
	if err != nil {
		message := fmt.Sprintf("PersistentVolumeClaim %s has an annotation %s that cannot be read, so Varve cannot tell which machine writes to it. Stop all machines that use the claim, and delete the annotation.",
			claim.Name, layout.AnnotationRunEpoch)
		if werr := r.showWhyNotAttached(ctx, instance, v, status, ReasonClaimRecord, message); werr != nil {
			return werr
		}
		return fmt.Errorf("write the run on claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	next := epoch.Begin(runepoch.AttachmentRun(instance.UID, v.Name))
	if epoch.Equal(next) {
		return nil
	}
	base := claim.DeepCopy()
	if err := next.Write(claim); err != nil {
		return err
	}
	if err := r.cached.Patch(ctx, claim, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write the run on claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// refuseForeign shows in status that somebody else's pod has the name of the volume's attachment pod. It never
// adopts that pod; the attachment pod is created once it is gone. If the pod is our own and the cache did not have
// it yet, refuseForeign shows nothing.
func (r *reconciler) refuseForeign(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, v kubevirtv1.UtilityVolume, status []kubevirtv1.VolumeStatus) error {
	pod, err := r.livePod(ctx, instance, v.Name)
	if err != nil || pod == nil || instancepod.IsAttachment(pod, instance.Name, instance.UID, v.Name) {
		return err
	}
	message := fmt.Sprintf("Pod %s has the attachment pod's name and was not created by Varve; delete it.", pod.Name)
	if err := r.showWhyNotAttached(ctx, instance, v, status, ReasonPodForeign, message); err != nil {
		return err
	}
	return fmt.Errorf("create attachment pod %s/%s: the name is taken", pod.Namespace, pod.Name)
}

// showWhyNotAttached writes why a volume is not attached.
func (r *reconciler) showWhyNotAttached(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, v kubevirtv1.UtilityVolume, status []kubevirtv1.VolumeStatus, reason, message string) error {
	for i := range status {
		if status[i].Name == v.Name {
			status[i].Reason, status[i].Message = reason, message
		}
	}
	return r.writeStatus(ctx, instance, status)
}

// hostnameOfNode returns the node's hostname label, which may differ from the node's name.
func (r *reconciler) hostnameOfNode(ctx context.Context, name string) (string, error) {
	node := &corev1.Node{}
	if err := r.cached.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
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
	patch := reconcile.MergeFrom(base)
	if err := r.cached.Status().Patch(ctx, instance, patch); err != nil {
		return fmt.Errorf("write status of instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	return nil
}
