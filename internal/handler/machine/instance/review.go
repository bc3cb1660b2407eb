package instance

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/tracking"
)

// reviewCheckpoints brings libvirt's checkpoints and the machine's trackers into agreement, once after each start of a guest
// and again after a tracker was deleted. It waits until the launcher reports the guest's disks, because without
// them nothing can be validated. It also waits while a backup holds the instance: the backup does the same for
// itself.
func (r *Reconciler) reviewCheckpoints(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client, seen launcherclient.Snapshot) error {
	if !launcherclient.GuestRuns(seen.State) || !reportsDisks(vmi, seen.State) || seen.Err != nil ||
		!vmi.DeletionTimestamp.IsZero() || vmi.Annotations[layout.AnnotationTracking] != "true" {
		return nil
	}
	if isHeld(vmi) || r.isReviewed(l.Launcher()) || !vmi.Status.MigrationState.Ended() {
		return nil
	}
	defer l.LockCheckpoints(ctx)()
	name := client.ObjectKeyFromObject(vmi)
	now := &kubevirtv1.VirtualMachineInstance{}
	if err := r.Live.Get(ctx, name, now); err != nil {
		return client.IgnoreNotFound(err)
	}
	if now.UID != vmi.UID || isHeld(now) {
		return nil
	}
	// A tracker that is deleted from here on triggers another review.
	r.setReviewed(l.Launcher(), true)
	if err := r.alignCheckpoints(ctx, name, l, seen.State); err != nil {
		r.setReviewed(l.Launcher(), false)
		return fmt.Errorf("review checkpoints: %w", err)
	}
	return nil
}

func (r *Reconciler) alignCheckpoints(ctx context.Context, machine types.NamespacedName, l *launcherclient.Client, state *launcherpb.State) error {
	trackers, err := r.Keeper.Trackers(ctx, machine)
	if err != nil {
		return err
	}
	if _, err := r.Keeper.Validate(ctx, l, state, trackers); err != nil {
		return err
	}
	return r.Keeper.Prune(ctx, l, machine)
}

// reportsDisks reports whether the launcher has read the guest's disks. Its first state that says RUNNING has none.
func reportsDisks(vmi *kubevirtv1.VirtualMachineInstance, state *launcherpb.State) bool {
	for _, name := range tracking.EligibleVolumes(&vmi.Spec) {
		if !slices.ContainsFunc(state.GetDisks(), func(d *launcherpb.Disk) bool { return d.GetVolume() == name }) {
			return false
		}
	}
	return true
}

func isHeld(vmi *kubevirtv1.VirtualMachineInstance) bool {
	return vmi.Status.ChangedBlockTracking != nil && vmi.Status.ChangedBlockTracking.BackupStatus != nil
}

func (r *Reconciler) isReviewed(launcher types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reviewed[launcher]
}

func (r *Reconciler) setReviewed(launcher types.UID, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reviewed == nil {
		r.reviewed = map[types.UID]bool{}
	}
	if done {
		r.reviewed[launcher] = true
	} else {
		delete(r.reviewed, launcher)
	}
}
