package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// sweepInterval is how often Start looks for mounts without an instance.
const sweepInterval = 15 * time.Second

// Start sweeps at once and then every sweepInterval until ctx ends. It is a Runnable of the manager.
func (r *Reconciler) Start(ctx context.Context) error {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		if err := r.Sweep(ctx); err != nil && ctx.Err() == nil {
			r.Log.Error(err, "sweep mounts; trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// NeedLeaderElection returns false: every node's handler sweeps.
func (r *Reconciler) NeedLeaderElection() bool { return false }

// Sweep unmounts what is mounted for launcher pods that no instance of this node names: their instances went away
// while no handler ran. It also counts guests and mounts.
func (r *Reconciler) Sweep(ctx context.Context) error {
	var all kubevirtv1.VirtualMachineInstanceList
	if err := r.Cached.List(ctx, &all); err != nil {
		return fmt.Errorf("list instances: %w", err)
	}
	owned := map[types.UID]bool{}
	guests := map[string]int{}
	for i := range all.Items {
		for pod := range all.Items[i].Status.ActivePods {
			owned[pod] = true
			if l := r.Launchers.Get(pod); l != nil && !all.Items[i].Status.Phase.Final() {
				guests[launcherpb.State_Phase_name[int32(l.Snapshot().State.GetPhase())]]++
			}
		}
	}
	r.Measures.Guests(guests)
	r.forgetReviews(owned)
	mounted, err := r.Mounts.All()
	if err != nil {
		return err
	}
	abandoned, err := r.findAbandonedPods(ctx, mounted, owned)
	if err != nil {
		return err
	}
	var errs []error
	count := 0
	for pod, names := range mounted {
		count += len(names)
		if !abandoned[pod] {
			continue
		}
		errs = append(errs, r.unmountAll(ctx, pod, names))
	}
	r.Measures.Mounts(count)
	return errors.Join(errs...)
}

// findAbandonedPods returns the launcher pods with mounts that no instance names. The cache has only instances with the
// node's label, which may be missing for a moment. So before anything is unmounted, it lists every instance
// in the cluster. That is rare.
func (r *Reconciler) findAbandonedPods(ctx context.Context, mounted map[types.UID][]string, owned map[types.UID]bool) (map[types.UID]bool, error) {
	candidates := map[types.UID]bool{}
	for pod := range mounted {
		if !owned[pod] {
			candidates[pod] = true
		}
	}
	if len(candidates) == 0 {
		return candidates, nil
	}
	var all kubevirtv1.VirtualMachineInstanceList
	if err := r.Live.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list all instances before unmounting: %w", err)
	}
	for i := range all.Items {
		for pod := range all.Items[i].Status.ActivePods {
			delete(candidates, pod)
		}
	}
	return candidates, nil
}

// unmountAll removes everything that is mounted for a pod. It leaves what is busy to the next sweep.
func (r *Reconciler) unmountAll(ctx context.Context, pod types.UID, names []string) error {
	for _, name := range names {
		if err := r.detachVolume(ctx, pod, name, nil); errors.Is(err, mount.ErrBusy) {
			return nil
		} else if err != nil {
			return err
		}
	}
	if err := r.Mounts.Uncover(pod); err != nil && !errors.Is(err, mount.ErrBusy) {
		return err
	}
	return nil
}

func (r *Reconciler) forgetReviews(owned map[types.UID]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pod := range r.reviewed {
		if !owned[pod] {
			delete(r.reviewed, pod)
		}
	}
}
