package instance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/backup/checkpoint"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/machine/startrequest"
	"github.com/varvebackup/varve/internal/handler/metric"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/reconcile"
)

// retryInterval is the pause before a retry of something that cannot be done now.
const retryInterval = time.Second

// Reconciler drives the instances of one node.
type Reconciler struct {
	NodeName string
	// Namespace is Varve's own namespace, which has the KubeVirt object.
	Namespace string
	// StopWaitsForBackup is how long a stop waits for a running backup at most.
	StopWaitsForBackup time.Duration
	// Cached reads the instances and backups of this node; writes go to the API server.
	Cached client.Client
	// Live reads from the API server.
	Live      client.Reader
	Launchers *launcherclient.Clients
	Mounts    Mounts
	// Requests makes what a launcher gets to start the guest.
	Requests *startrequest.Builder
	Keeper   *checkpoint.Keeper
	Events   events.EventRecorder
	Measures *metric.Set
	Clock    clock.PassiveClock
	Log      logr.Logger

	busy busyMounts
	mu   sync.Mutex
	// written holds when each instance's status was last written.
	written map[types.NamespacedName]time.Time
	// reviewed holds the launcher pods whose checkpoints have been brought into agreement with the trackers.
	reviewed map[types.UID]bool
}

// Reconcile takes one instance one step further.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	err := r.Cached.Get(ctx, req.NamespacedName, vmi)
	if apierrors.IsNotFound(err) {
		return r.cleanUpGone(ctx, req.NamespacedName)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	pod, ok := launcherPod(vmi, r.NodeName)
	if !ok {
		return ctrl.Result{}, nil
	}
	r.Launchers.Retain(req.NamespacedName, pod)
	var result ctrl.Result
	if vmi.Status.Phase.Final() {
		result, err = r.afterEnd(ctx, vmi, pod)
	} else {
		result, err = r.reconcileLive(ctx, vmi, pod)
	}
	if err != nil {
		err = fmt.Errorf("instance %s: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

// launcherPod returns the instance's launcher pod on this node, once the controller has handed the instance over.
func launcherPod(vmi *kubevirtv1.VirtualMachineInstance, node string) (types.UID, bool) {
	if vmi.Status.NodeName != node {
		return "", false
	}
	switch vmi.Status.Phase {
	case kubevirtv1.PhaseScheduled, kubevirtv1.PhaseRunning, kubevirtv1.PhaseSucceeded, kubevirtv1.PhaseFailed:
	default:
		return "", false
	}
	for pod, on := range vmi.Status.ActivePods {
		if on == node {
			return pod, true
		}
	}
	return "", false
}

// cleanUpGone cleans up after an instance that no longer exists.
func (r *Reconciler) cleanUpGone(ctx context.Context, name types.NamespacedName) (ctrl.Result, error) {
	r.Launchers.Retain(name, "")
	r.mu.Lock()
	delete(r.written, name)
	r.mu.Unlock()
	return ctrl.Result{}, r.Sweep(ctx)
}

// afterEnd unmounts the volumes of an instance in a final phase. The controller does everything else.
func (r *Reconciler) afterEnd(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, pod types.UID) (ctrl.Result, error) {
	next := vmi.DeepCopy()
	_, again, err := r.syncVolumes(ctx, vmi, pod, r.Launchers.Get(pod), &next.Status)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again}, r.writeStatus(ctx, vmi, next)
}

// reconcileLive takes an instance that runs, or is to run, one step further.
func (r *Reconciler) reconcileLive(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, pod types.UID) (ctrl.Result, error) {
	l, err := r.Launchers.Ensure(pod, client.ObjectKeyFromObject(vmi))
	if err != nil {
		return ctrl.Result{}, err
	}
	in, holder, err := r.gatherInput(ctx, vmi, l)
	if err != nil {
		return ctrl.Result{}, err
	}
	v := view{Now: in.Now, Launcher: l.Snapshot(), Decision: decide(in)}
	var failed error
	if v.Problem, failed = r.applyDecision(ctx, vmi, l, v.Decision, holder); failed != nil {
		v.Problem = &problem{ReasonLauncherSilent, failed.Error()}
	}
	if err := r.endStrayBackup(ctx, vmi, l); err != nil {
		failed = errors.Join(failed, err)
	}
	next := vmi.DeepCopy()
	if waits, err := r.moveGuest(ctx, vmi, next, l, v.Launcher); err != nil {
		failed = errors.Join(failed, err)
	} else if v.Problem == nil {
		v.Problem = waits
	}
	if v.Decision.Action != exit {
		if err := r.reviewCheckpoints(ctx, vmi, l, v.Launcher); err != nil {
			failed = errors.Join(failed, err)
			if v.Problem == nil {
				v.Problem = &problem{ReasonReviewFailed, fmt.Sprintf("the checkpoints of the machine's trackers could not be validated; the handler keeps trying: %v", err)}
			}
		}
	}
	v.Reviewed = r.isReviewed(pod) || isHeld(vmi)
	trouble, again, err := r.syncVolumes(ctx, vmi, pod, l, &next.Status)
	if err != nil {
		return ctrl.Result{}, errors.Join(failed, err)
	}
	if v.Problem == nil {
		v.Problem = trouble
	} else if again == 0 {
		again = retryInterval
	}
	v.Instance = next
	next.Status = *projectStatus(v)
	wait := r.holdBack(vmi, next)
	if wait == 0 {
		if err := r.writeStatus(ctx, vmi, next); err != nil {
			return ctrl.Result{}, errors.Join(failed, err)
		}
		r.afterWrite(ctx, vmi, l, v)
	}
	return ctrl.Result{RequeueAfter: soonestNonzero(again, wait, r.untilWake(v))}, failed
}

// afterWrite does what must not happen before status is written.
func (r *Reconciler) afterWrite(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client, v view) {
	if v.Decision.Action == exit {
		// The launcher also ends by itself, so an error here is nothing new.
		_, err := l.RPC().Exit(ctx, &launcherpb.ExitRequest{})
		r.Log.V(1).Info("the launcher may exit", "instance", client.ObjectKeyFromObject(vmi), "error", err)
	}
}

// untilWake returns how long it takes until the decision or the status changes by the passage of time alone.
func (r *Reconciler) untilWake(v view) time.Duration {
	var waits []time.Duration
	if !v.Decision.Wake.IsZero() {
		waits = append(waits, max(v.Decision.Wake.Sub(v.Now), time.Millisecond))
	}
	if v.Launcher.Err != nil {
		waits = append(waits, silence)
	}
	return soonestNonzero(waits...)
}

// soonestNonzero returns the least of the nonzero durations.
func soonestNonzero(all ...time.Duration) time.Duration {
	var least time.Duration
	for _, d := range all {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}
