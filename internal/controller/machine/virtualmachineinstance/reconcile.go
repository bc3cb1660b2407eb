package virtualmachineinstance

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reconcile takes one instance one step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return reconcile.RetryConflict(r.reconcileInstance(ctx, req.NamespacedName))
}

func (r *reconciler) reconcileInstance(ctx context.Context, name types.NamespacedName) (ctrl.Result, error) {
	again, err := r.releaseOrphans(ctx, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	instance := &kubevirtv1.VirtualMachineInstance{}
	if err := r.cached.Get(ctx, name, instance); err != nil {
		return ctrl.Result{RequeueAfter: again}, client.IgnoreNotFound(err)
	}
	result, err := r.takeStep(ctx, instance)
	result.RequeueAfter = shorterWait(result.RequeueAfter, again)
	return result, err
}

func (r *reconciler) takeStep(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) (ctrl.Result, error) {
	if instance.DeletionTimestamp == nil && !controllerutil.ContainsFinalizer(instance, layout.FinalizerInstance) {
		// The write comes back as an event.
		return ctrl.Result{}, r.patchMetadata(ctx, instance, func() { controllerutil.AddFinalizer(instance, layout.FinalizerInstance) })
	}
	in, err := r.gatherInput(ctx, instance.DeepCopy())
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(in)
	if d.CreatePod {
		if d, err = r.bringUp(ctx, instance, in); err != nil {
			return ctrl.Result{}, err
		}
	}
	if handedOver(d.Status.Phase) && !handedOver(instance.Status.Phase) {
		if err := r.confirmClaims(ctx, instance); err != nil {
			return ctrl.Result{}, r.showRefusedRun(ctx, instance, decision{Status: *instance.Status.DeepCopy()}, in, err)
		}
	}
	if d.NodeLabel != "" && instance.Labels[layout.LabelNodeName] != d.NodeLabel {
		if err := r.patchMetadata(ctx, instance, func() { setLabel(instance, layout.LabelNodeName, d.NodeLabel) }); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.writeDecision(ctx, instance, d); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.endPod(ctx, instance, in.Pod, d); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.endOthers(ctx, instance, d); err != nil {
		return ctrl.Result{}, err
	}
	// This comes after everything that the guest's end depends on: a claim that cannot be written to must not hide
	// the end.
	if err := r.recordDisks(ctx, instance); err != nil {
		return ctrl.Result{}, err
	}
	if d.Released && controllerutil.ContainsFinalizer(instance, layout.FinalizerInstance) {
		return ctrl.Result{}, r.releaseInstance(ctx, instance)
	}
	return ctrl.Result{RequeueAfter: d.RequeueAfter}, nil
}

// writeDecision writes the status. It first takes back a run that started no guest: as long as the instance still
// holds its claims, no other run can follow it.
func (r *reconciler) writeDecision(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, d decision) error {
	if d.GiveBack {
		if err := r.giveBack(ctx, instance); err != nil {
			return err
		}
	}
	return r.writeStatus(ctx, instance, d.Status)
}

// releaseInstance removes the finalizer of an instance that has ended. It takes back the instance's runs if no handler was
// told of it.
func (r *reconciler) releaseInstance(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	if instance.Status.NodeName == "" {
		if err := r.giveBack(ctx, instance); err != nil {
			return err
		}
	}
	err := r.patchMetadata(ctx, instance, func() { controllerutil.RemoveFinalizer(instance, layout.FinalizerInstance) })
	return client.IgnoreNotFound(err)
}

// bringUp takes the instance's claims and then creates its launcher pod, so that no pod mounts a claim that does
// not name its run. The pod is created before the status is written: from Scheduling on, a missing pod counts as
// lost. bringUp returns the decision that is left to apply.
func (r *reconciler) bringUp(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, in input) (decision, error) {
	pods, err := r.livePods(ctx, instance.Namespace)
	if err != nil {
		return decision{}, err
	}
	// A pod that the cache does not show yet already has its claims. Taking them again could hide who had them in
	// between.
	if slices.ContainsFunc(pods, func(p corev1.Pod) bool {
		return p.Name == layout.LauncherPod(instance.Name, instance.UID) && isLauncher(&p, instance)
	}) {
		return decide(in), nil
	}
	claims, obstacle, err := r.takeClaims(ctx, instance, pods)
	if err != nil {
		return decision{}, r.showRefusedRun(ctx, instance, decide(in), in, err)
	}
	if obstacle != nil {
		in.Missing = obstacle
		d := decide(in)
		d.RequeueAfter = heldRetry
		return d, nil
	}
	return decide(in), r.createPod(ctx, instance, in, claims)
}

// showRefusedRun shows in a condition why the run cannot be written on the instance's claims, and returns the error
// so that the write is retried. It does not show a conflict, which is only a lost race.
func (r *reconciler) showRefusedRun(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, d decision, in input, err error) error {
	if apierrors.IsConflict(err) {
		return err
	}
	d.setObstacle(in, kubevirtv1.ConditionSynchronized, &obstacle{ReasonClaimRecordRefused, fmt.Sprintf("The run cannot be recorded on the machine's claims: %v", err)})
	if werr := r.writeStatus(ctx, instance, d.Status); werr != nil {
		return werr
	}
	return err
}

// createPod creates the launcher pod. If the API server refuses it, createPod shows the refusal in a condition and
// returns the error, so that it is retried.
func (r *reconciler) createPod(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, in input, claims map[string]*corev1.PersistentVolumeClaim) error {
	configuration, err := r.readConfiguration(ctx)
	if err != nil {
		return err
	}
	pod := launcherPod(podInput{
		Instance: instance, Claims: claims, Images: r.Images, Configuration: configuration, UseEmulation: useEmulation(configuration),
	})
	err = r.cached.Create(ctx, pod)
	if err == nil {
		r.events.Eventf(instance, pod, corev1.EventTypeNormal, "SuccessfulCreate", "Start", "Created launcher pod %s.", pod.Name)
		return nil
	}
	if apierrors.IsAlreadyExists(err) {
		existing, lerr := r.livePod(ctx, instance)
		if lerr != nil || existing == nil || isLauncher(existing, instance) {
			return lerr // it is ours, and the cache did not have it yet
		}
		// Never adopt it: what runs in it is not one of our guests.
		err = fmt.Errorf("pod %s has the launcher pod's name and was not created by Varve; delete it", pod.Name)
	}
	r.events.Eventf(instance, nil, corev1.EventTypeWarning, ReasonFailedCreate, "Start", "The launcher pod was refused: %v", err)
	in.Missing = &obstacle{Reason: ReasonFailedCreate, Message: fmt.Sprintf("The launcher pod was refused: %v", err)}
	if werr := r.writeStatus(ctx, instance, decide(in).Status); werr != nil {
		return werr
	}
	return fmt.Errorf("create launcher pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// readConfiguration returns the KubeVirt object, or an empty one if there is none.
func (r *reconciler) readConfiguration(ctx context.Context) (*kubevirtv1.KubeVirt, error) {
	kv := &kubevirtv1.KubeVirt{}
	if err := r.cached.Get(ctx, r.Configuration, kv); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get the configuration %s: %w", r.Configuration, err)
	}
	return kv, nil
}

func useEmulation(configuration *kubevirtv1.KubeVirt) bool {
	developer := configuration.Spec.Configuration.DeveloperConfiguration
	return developer != nil && developer.UseEmulation
}

// endPod removes the finalizer of a launcher pod whose end is recorded, and deletes the pod if the decision says
// so.
func (r *reconciler) endPod(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod, d decision) error {
	if pod == nil {
		return nil
	}
	if d.ReleasePod && controllerutil.ContainsFinalizer(pod, layout.FinalizerLauncher) {
		if err := r.releasePod(ctx, pod); err != nil {
			return err
		}
	}
	if !d.DeletePod {
		return nil
	}
	if err := r.cached.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete launcher pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if d.Overdue {
		r.events.Eventf(instance, pod, corev1.EventTypeWarning, "HandlerOverdue", "Stop",
			"The handler of node %s did not stop the guest in time; deleted launcher pod %s, which shuts the guest down.", pod.Spec.NodeName, pod.Name)
	}
	return nil
}

// endOthers removes the finalizers of other pods that have ended, and deletes those that no migration needs. It does
// so only if the API server has the instance as it was read: in the meantime, the guest could have moved into one of
// them.
func (r *reconciler) endOthers(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, d decision) error {
	for _, pod := range d.ReleaseOthers {
		if !controllerutil.ContainsFinalizer(pod, layout.FinalizerLauncher) {
			continue
		}
		if err := r.releasePod(ctx, pod); err != nil {
			return err
		}
	}
	if len(d.DeleteOthers) == 0 {
		return nil
	}
	if err := r.isUnchanged(ctx, instance); err != nil {
		return err
	}
	for _, pod := range d.DeleteOthers {
		if err := r.cached.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return nil
}

// writeStatus writes the decided status if it differs, and emits an event when the instance enters Scheduled or a
// final phase.
func (r *reconciler) writeStatus(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, status kubevirtv1.VirtualMachineInstanceStatus) error {
	if equality.Semantic.DeepEqual(instance.Status, status) {
		return nil
	}
	base := instance.DeepCopy()
	instance.Status = status
	if err := r.cached.Status().Patch(ctx, instance, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write status of instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	if base.Status.Phase == status.Phase {
		return nil
	}
	switch status.Phase {
	case kubevirtv1.PhaseScheduled:
		r.events.Eventf(instance, nil, corev1.EventTypeNormal, "Scheduled", "Start", "The launcher runs on node %s.", status.NodeName)
	case kubevirtv1.PhaseSucceeded:
		r.events.Eventf(instance, nil, corev1.EventTypeNormal, "Stopped", "Stop", "%s", endMessage(status))
	case kubevirtv1.PhaseFailed:
		r.events.Eventf(instance, nil, corev1.EventTypeWarning, "Failed", "Stop", "%s", endMessage(status))
	case kubevirtv1.PhasePending, kubevirtv1.PhaseScheduling, kubevirtv1.PhaseRunning:
		// The conditions show the way to a node, and the node's handler reports the start.
	}
	return nil
}

// patchMetadata changes the instance's metadata.
func (r *reconciler) patchMetadata(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, edit func()) error {
	base := instance.DeepCopy()
	edit()
	if err := r.cached.Patch(ctx, instance, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("update instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	return nil
}

func setLabel(o client.Object, key, value string) {
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	o.SetLabels(labels)
}

// endMessage returns what the Ready condition of an ended instance says.
func endMessage(status kubevirtv1.VirtualMachineInstanceStatus) string {
	if c := condition.Find(status.Conditions, kubevirtv1.ConditionReady); c != nil {
		return c.Message
	}
	return status.Reason
}
