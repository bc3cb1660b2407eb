package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/internal/tracking"
)

// heldRetry is how soon a held instance checks again whether its claims are free.
const heldRetry = 5 * time.Second

// takeClaims writes the instance's run on every claim that its launcher pod mounts writable, and records the
// instance as a holder of the claims that its guest writes. It returns the claims as they are then, or why the
// instance has to wait. It writes nothing unless all claims are free.
//
// Two instances that are created at the same time both find a claim free. The claim's resource version decides: the
// second write is a conflict, and the loser then finds the other instance as a holder. Claims are taken in the
// order of their names, so that two instances never wait for each other. After a crash the instance takes the same
// claims again, which changes nothing.
//
// pods are the namespace's pods, read before, when the instance had no launcher pod.
func (r *reconciler) takeClaims(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, pods []corev1.Pod) (map[string]*corev1.PersistentVolumeClaim, *obstacle, error) {
	all := writableUses(instance)
	if o := conflictsWithin(all, instance); o != nil {
		return nil, o, nil
	}
	claims, err := r.readClaims(ctx, r.live, instance)
	if err != nil {
		return nil, nil, err
	}
	if o := missingClaim(instance, claims); o != nil {
		return nil, o, nil
	}
	claims = mountedClaims(instance, claims)
	all = slices.DeleteFunc(all, func(u use) bool { return claims[u.claim] == nil })
	if err := r.isUnchanged(ctx, instance); err != nil {
		return nil, nil, err
	}
	next := map[string]runepoch.Epoch{}
	for _, u := range all {
		if o := whyAttachedElsewhere(u, pods); o != nil {
			return nil, o, nil
		}
		epoch, o, err := r.nextEpoch(ctx, instance, u, claims[u.claim])
		if err != nil || o != nil {
			return nil, o, err
		}
		next[u.claim] = epoch.WithStrangers(findStrangers(u.claim, pods))
	}
	for _, u := range all {
		if err := r.writeEpoch(ctx, claims[u.claim], next[u.claim]); err != nil {
			return nil, nil, err
		}
	}
	return claims, nil, nil
}

// confirmClaims looks once more for pods that Varve did not make, when the launcher runs and its guest does not
// yet. The launcher pod may have waited days for a node after its run was written, and in that time any pod could
// have had the claims. The handler reads the record before it starts the guest.
func (r *reconciler) confirmClaims(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	if !Tracked(instance) {
		return nil // no overlay to keep
	}
	pods, err := r.livePods(ctx, instance.Namespace)
	if err != nil {
		return err
	}
	return r.editRuns(ctx, instance, func(claim string, epoch runepoch.Epoch) runepoch.Epoch {
		return epoch.WithStrangers(findStrangers(claim, pods))
	})
}

// livePods returns all pods of the namespace from the API server: the cache has only Varve's own.
func (r *reconciler) livePods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := r.live.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
	}
	return pods.Items, nil
}

// giveBack takes back the runs of an instance that ends before it was handed to its node's handler, or whose
// launcher says that it was never told to start the guest. Nobody wrote to its disks, so what was recorded of the
// run before still holds. The launcher pod has ended or is gone.
//
// If the API server refuses to change a claim's record, the claim keeps the run, which costs a full backup. The
// instance's end does not wait for it.
func (r *reconciler) giveBack(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	err := r.editRuns(ctx, instance, func(_ string, epoch runepoch.Epoch) runepoch.Epoch {
		return epoch.Undo(runepoch.InstanceRun(instance.UID))
	})
	if !reconcile.IsRefusal(err) {
		return err
	}
	r.events.Eventf(instance, nil, corev1.EventTypeWarning, ReasonClaimRecordRefused, "Stop",
		"This run started no guest, but its record cannot be removed from the machine's claims, so the next backup is full: %v", err)
	return nil
}

// editRuns changes the records of the instance's claims that name its run as their last one. The handler trusts
// nothing about the other claims anyway. It changes nothing if the instance has changed since it was read.
func (r *reconciler) editRuns(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, edit func(claim string, epoch runepoch.Epoch) runepoch.Epoch) error {
	if err := r.isUnchanged(ctx, instance); err != nil {
		return err
	}
	claims, err := r.readClaims(ctx, r.live, instance)
	if err != nil {
		return err
	}
	for _, u := range writableUses(instance) {
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

// isUnchanged returns a conflict unless the API server has the instance as it was read. A cache that is behind can
// show an instance whose guest has not started while it runs: a pod that ends then wrote beside the guest, and must
// not be recorded as one that ended before it. What was read of pods before this call is older than the guest.
func (r *reconciler) isUnchanged(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	now := &kubevirtv1.VirtualMachineInstance{}
	err := r.live.Get(ctx, client.ObjectKeyFromObject(instance), now)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	if err != nil || now.UID != instance.UID || now.ResourceVersion != instance.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Group: kubevirtv1.GroupVersion.Group, Resource: "virtualmachineinstances"}, instance.Name,
			errors.New("the instance has changed since it was read"))
	}
	return nil
}

// nextEpoch returns the claim's record for when the instance has it, or why the instance cannot have it.
func (r *reconciler) nextEpoch(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, u use, claim *corev1.PersistentVolumeClaim) (runepoch.Epoch, *obstacle, error) {
	epoch, err := runepoch.Of(claim)
	if err != nil {
		unreadable := &obstacle{ReasonClaimRecord, fmt.Sprintf(
			"PersistentVolumeClaim %s has an annotation %s that cannot be read, so Varve cannot tell which machine writes to it. Stop all machines that use the claim, and delete the annotation.",
			claim.Name, layout.AnnotationRunEpoch)}
		return epoch, unreadable, nil //nolint:nilerr // the obstacle says it
	}
	candidates, err := r.findPossibleHolders(ctx, instance, u.claim, epoch.Holders)
	if err != nil {
		return epoch, nil, err
	}
	var holders []runepoch.Holder
	for _, h := range candidates {
		gone, err := r.holderIsGone(ctx, instance.Namespace, h)
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

func inUse(claim string, h runepoch.Holder) *obstacle {
	return &obstacle{ReasonClaimInUse, fmt.Sprintf(
		"VirtualMachineInstance %s may write to PersistentVolumeClaim %s; this machine starts when that one has ended. To run both, make the disk shareable in both machines.",
		h.Instance, claim)}
}

// findPossibleHolders returns the other instances that may hold a claim: those in its record, and those that have a launcher
// pod but are missing from the record, for example after an upgrade or because somebody deleted the record.
func (r *reconciler) findPossibleHolders(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, claim string, recorded []runepoch.Holder) ([]runepoch.Holder, error) {
	others := slices.DeleteFunc(slices.Clone(recorded), func(h runepoch.Holder) bool { return h.UID == instance.UID })
	list := &kubevirtv1.VirtualMachineInstanceList{}
	if err := r.cached.List(ctx, list, client.InNamespace(instance.Namespace)); err != nil {
		return nil, fmt.Errorf("list instances in %s: %w", instance.Namespace, err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		phase := other.Status.Phase
		if other.UID == instance.UID || phase == "" || phase == kubevirtv1.PhasePending || phase.Final() ||
			slices.ContainsFunc(others, func(h runepoch.Holder) bool { return h.UID == other.UID }) {
			continue
		}
		for _, u := range writableUses(other) {
			if u.claim == claim && u.writes {
				others = append(others, runepoch.Holder{Instance: other.Name, UID: other.UID, Shared: u.shared})
			}
		}
	}
	return others, nil
}

// holderIsGone reports whether a holder can no longer write: its instance has ended or does not exist, and its launcher pod
// does not run. It asks the API server itself.
func (r *reconciler) holderIsGone(ctx context.Context, namespace string, h runepoch.Holder) (bool, error) {
	instance := &kubevirtv1.VirtualMachineInstance{}
	err := r.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: h.Instance}, instance)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get instance %s/%s: %w", namespace, h.Instance, err)
	}
	if err == nil && instance.UID == h.UID && !instance.Status.Phase.Final() {
		return false, nil
	}
	pod, err := instancepod.Get(ctx, r.live, namespace, layout.LauncherPod(h.Instance, h.UID))
	if err != nil || pod != nil && !instancepod.HasEnded(pod) {
		return false, err
	}
	return r.launchersEnded(ctx, namespace, h.UID)
}

// launchersEnded reports whether every launcher pod of an instance has ended, also those that a migration made.
func (r *reconciler) launchersEnded(ctx context.Context, namespace string, instance types.UID) (bool, error) {
	pods := &corev1.PodList{}
	err := r.live.List(ctx, pods, client.InNamespace(namespace),
		client.MatchingLabels{layout.LabelCreatedBy: string(instance), layout.LabelApp: AppLauncher})
	if err != nil {
		return false, fmt.Errorf("list launcher pods in %s: %w", namespace, err)
	}
	return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return !instancepod.HasEnded(&p) }), nil
}

// recordDisks notes on the Filesystem claims of a running guest that the guest has disks there. A claim that comes
// up empty later has lost one. The note is made once for each generation of the claim's content. A claim that names
// another run by now is left to that run.
func (r *reconciler) recordDisks(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) error {
	if instance.Status.Phase != kubevirtv1.PhaseRunning {
		return nil
	}
	claims, err := r.readClaims(ctx, r.cached, instance)
	if err != nil {
		return err
	}
	for name, claim := range claims {
		epoch, err := runepoch.Of(claim)
		if err != nil || epoch.Run != runepoch.InstanceRun(instance.UID) || tracking.IsBlock(claim.Spec.VolumeMode) || slices.Contains(layout.StatePVCs(instance.Name), name) {
			continue
		}
		if err := r.writeEpoch(ctx, claim.DeepCopy(), epoch.WithDisk()); err != nil {
			return err
		}
	}
	return nil
}

// writeEpoch writes the claim's record if it differs. The write fails if the claim has changed since it was read.
func (r *reconciler) writeEpoch(ctx context.Context, claim *corev1.PersistentVolumeClaim, next runepoch.Epoch) error {
	now, err := runepoch.Of(claim)
	if err == nil && now.Equal(next) {
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
