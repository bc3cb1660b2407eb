package virtualmachineinstance

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/refusal"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/internal/tracking"
)

// heldRetry is how soon a held instance looks again whether its claims are free.
const heldRetry = 5 * time.Second

// takeClaims writes the instance's run on every claim that its launcher pod mounts writable, and records it as a holder of those that its
// guest writes. It returns the claims as they are then, or why the instance has to wait. Nothing is written while any claim is not free.
//
// Two instances that are created at the same time both find a claim free. The version of the claim decides: the second write is a
// conflict, and whoever lost it finds the other one as a holder. Claims are taken in the order of their names, so that no two instances
// wait for each other. After a crash the same instance takes the same claims again, which changes nothing.
func (r *reconciler) takeClaims(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) (map[string]*corev1.PersistentVolumeClaim, *Obstacle, error) {
	all := uses(instance)
	if o := conflictsWithin(all, instance); o != nil {
		return nil, o, nil
	}
	claims, err := r.claims(ctx, r.live, instance)
	if err != nil {
		return nil, nil, err
	}
	if o := missing(instance, claims); o != nil {
		return nil, o, nil
	}
	pods, err := r.livePods(ctx, instance.Namespace)
	if err != nil {
		return nil, nil, err
	}
	next := map[string]runepoch.Epoch{}
	for _, u := range all {
		if o := attached(u, pods); o != nil {
			return nil, o, nil
		}
		epoch, o, err := r.nextEpoch(ctx, instance, u, claims[u.claim])
		if err != nil || o != nil {
			return nil, o, err
		}
		next[u.claim] = epoch.WithStrangers(strangers(u.claim, pods))
	}
	for _, u := range all {
		if err := r.writeEpoch(ctx, claims[u.claim], next[u.claim]); err != nil {
			return nil, nil, err
		}
	}
	return claims, nil, nil
}

// confirmClaims looks for pods of others once more, when the launcher runs and its guest does not yet: between the run's writing and the mount of the
// claims a pod may have waited for a node for days, and anybody's pod could have the claims. The handler reads the record before it starts the guest.
func (r *reconciler) confirmClaims(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	if !Tracked(instance) {
		return nil // it has no overlay that could be kept
	}
	pods, err := r.livePods(ctx, instance.Namespace)
	if err != nil {
		return err
	}
	return r.editRuns(ctx, instance, func(claim string, epoch runepoch.Epoch) runepoch.Epoch {
		return epoch.WithStrangers(strangers(claim, pods))
	})
}

// livePods are all pods of the namespace, as the API server has them: the cache has Varve's own alone.
func (r *reconciler) livePods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := r.live.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
	}
	return pods.Items, nil
}

// giveBack takes back the runs of an instance that ends before it was handed to its node's handler, or whose launcher says that it was never told to
// start the guest: nobody wrote to its disks, so that what was recorded of the run before still holds. Its launcher pod has ended or is gone.
//
// A claim whose record the API server does not let change keeps the run, which costs a full backup: the instance's end does not wait for it.
func (r *reconciler) giveBack(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	err := r.editRuns(ctx, instance, func(_ string, epoch runepoch.Epoch) runepoch.Epoch {
		return epoch.Undo(runepoch.InstanceRun(instance.UID))
	})
	if !refusal.Is(err) {
		return err
	}
	r.events.Eventf(instance, nil, corev1.EventTypeWarning, ReasonClaimRecordRefused, "Stop",
		"The run, in which no guest was started, cannot be taken back from the machine's claims, so that the next backup is full: %v", err)
	return nil
}

// editRuns changes the records of those of the instance's claims that name its run as their last. Of any other the handler trusts nothing.
func (r *reconciler) editRuns(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, edit func(claim string, epoch runepoch.Epoch) runepoch.Epoch) error {
	claims, err := r.claims(ctx, r.live, instance)
	if err != nil {
		return err
	}
	for _, u := range uses(instance) {
		claim := claims[u.claim]
		if claim == nil {
			continue
		}
		epoch, err := runepoch.Of(claim)
		if err != nil || epoch.Run != runepoch.InstanceRun(instance.UID) {
			continue
		}
		if err := r.writeEpoch(ctx, claim, edit(u.claim, epoch)); err != nil {
			return err
		}
	}
	return nil
}

// nextEpoch is a claim's record once the instance has it, or why it cannot have it.
func (r *reconciler) nextEpoch(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, u use, claim *corev1.PersistentVolumeClaim) (runepoch.Epoch, *Obstacle, error) {
	epoch, err := runepoch.Of(claim)
	if err != nil {
		unreadable := &Obstacle{ReasonClaimRecord, fmt.Sprintf(
			"PersistentVolumeClaim %s has an annotation %s that cannot be read, so nobody knows which machine writes to it. Stop all machines on the claim and delete the annotation.",
			claim.Name, layout.AnnotationRunEpoch)}
		return epoch, unreadable, nil //nolint:nilerr // the obstacle says it
	}
	candidates, err := r.candidates(ctx, instance, u.claim, epoch.Holders)
	if err != nil {
		return epoch, nil, err
	}
	var holders []runepoch.Holder
	for _, h := range candidates {
		gone, err := r.gone(ctx, instance.Namespace, h)
		if err != nil {
			return epoch, nil, err
		}
		if gone {
			continue
		}
		if u.writes && (!u.shared || !h.Shared) {
			return epoch, inUse(claim.Name, h), nil
		}
		holders = append(holders, h)
	}
	if u.writes {
		holders = append(holders, runepoch.Holder{Instance: instance.Name, UID: instance.UID, Shared: u.shared})
	}
	return epoch.Begin(runepoch.InstanceRun(instance.UID)).WithHolders(holders).WithGeneration(claim.Annotations[layout.AnnotationContentGeneration]), nil, nil
}

func inUse(claim string, h runepoch.Holder) *Obstacle {
	return &Obstacle{ReasonClaimInUse, fmt.Sprintf(
		"VirtualMachineInstance %s may write to PersistentVolumeClaim %s; this machine starts when that one has ended. To run both, make the disk shareable in both machines.",
		h.Instance, claim)}
}

// candidates are the other instances that may hold a claim: those of its record, and those that have a launcher pod and are not in it, as after
// an upgrade or when somebody deleted the record.
func (r *reconciler) candidates(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, claim string, recorded []runepoch.Holder) ([]runepoch.Holder, error) {
	others := slices.DeleteFunc(slices.Clone(recorded), func(h runepoch.Holder) bool { return h.UID == instance.UID })
	list := &kubevirtv1.VirtualMachineInstanceList{}
	if err := r.client.List(ctx, list, client.InNamespace(instance.Namespace)); err != nil {
		return nil, fmt.Errorf("list instances in %s: %w", instance.Namespace, err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		phase := other.Status.Phase
		if other.UID == instance.UID || phase == "" || phase == kubevirtv1.PhasePending || phase.Final() ||
			slices.ContainsFunc(others, func(h runepoch.Holder) bool { return h.UID == other.UID }) {
			continue
		}
		for _, u := range uses(other) {
			if u.claim == claim && u.writes {
				others = append(others, runepoch.Holder{Instance: other.Name, UID: other.UID, Shared: u.shared})
			}
		}
	}
	return others, nil
}

// gone says that a holder cannot write any more: its instance has ended or does not exist, and its launcher pod does not run. It asks the
// API server itself.
func (r *reconciler) gone(ctx context.Context, namespace string, h runepoch.Holder) (bool, error) {
	instance := &kubevirtv1.VirtualMachineInstance{}
	err := r.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: h.Instance}, instance)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get instance %s/%s: %w", namespace, h.Instance, err)
	}
	if err == nil && instance.UID == h.UID && !instance.Status.Phase.Final() {
		return false, nil
	}
	pod, err := instancepod.Get(ctx, r.live, namespace, layout.LauncherPod(h.Instance, h.UID))
	return err == nil && (pod == nil || terminal(pod)), err
}

// recordDisks writes on the Filesystem claims of a guest that runs that it has its disks there: a claim that comes up empty later has lost
// one. The record says so once for each generation of the content. A claim that names another run by now is left to that run.
func (r *reconciler) recordDisks(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	if instance.Status.Phase != kubevirtv1.PhaseRunning {
		return nil
	}
	claims, err := r.claims(ctx, r.client, instance)
	if err != nil {
		return err
	}
	for name, claim := range claims {
		epoch, err := runepoch.Of(claim)
		if err != nil || epoch.Run != runepoch.InstanceRun(instance.UID) || tracking.IsBlock(claim.Spec.VolumeMode) || name == layout.StatePVC(instance.Name) {
			continue
		}
		if err := r.writeEpoch(ctx, claim.DeepCopy(), epoch.WithDisk()); err != nil {
			return err
		}
	}
	return nil
}

// writeEpoch writes a claim's record, if it differs and the claim is still as it was read.
func (r *reconciler) writeEpoch(ctx context.Context, claim *corev1.PersistentVolumeClaim, next runepoch.Epoch) error {
	now, err := runepoch.Of(claim)
	if err == nil && now.Equal(next) {
		return nil
	}
	base := claim.DeepCopy()
	if err := next.Write(claim); err != nil {
		return err
	}
	if err := r.client.Patch(ctx, claim, optimistic(base)); err != nil {
		return fmt.Errorf("write the run on claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}
