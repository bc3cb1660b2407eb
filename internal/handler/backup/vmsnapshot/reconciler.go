package vmsnapshot

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/reconcile"
)

// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots,verbs=get;list;watch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots/status,verbs=patch

// retryInterval is the pause before the handler looks again for a launcher that is not connected.
const retryInterval = 500 * time.Millisecond

// Reconciler freezes and thaws the guests of one node.
type Reconciler struct {
	NodeName string
	// Writer writes to the API server, and Live reads from it: an older state may be one in which the freeze is wanted.
	Writer    client.Client
	Live      client.Reader
	Launchers *launcherclient.Clients
}

// Setup adds the reconciler to mgr, whose cache must have only this node's snapshots.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("handler-snapshot").
		For(&vmsnapshotv1.VirtualMachineSnapshot{}).
		WithOptions(reconcile.Options(reconcile.HandlerWorkers)).
		Complete(turns.New(reconcile.HandlerPlaces).Reconciler(r))
}

// Reconcile does what is asked for, if that is not done.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, err := reconcile.Find(ctx, r.Live, req.NamespacedName, &vmsnapshotv1.VirtualMachineSnapshot{})
	if err != nil || s == nil || s.Status == nil || s.Status.Quiesce == nil || s.Status.NodeName != r.NodeName {
		return ctrl.Result{}, err
	}
	q := s.Status.Quiesce
	freezes := q.Request == vmsnapshotv1.FreezeRequest && q.State == ""
	thaws := q.Request == vmsnapshotv1.ThawRequest && (q.State == "" || q.State == vmsnapshotv1.Frozen)
	if !freezes && !thaws {
		return ctrl.Result{}, nil
	}
	launcher, ended, err := r.findLauncher(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	if launcher == nil && !ended {
		return ctrl.Result{RequeueAfter: retryInterval}, nil // the controller's deadline limits the wait
	}
	a := answer{skipped: "the guest has ended"}
	if !ended {
		a = askLauncher(ctx, launcher, s)
	}
	if a.isLost() {
		return ctrl.Result{}, fmt.Errorf("%s the guest for VirtualMachineSnapshot %s: %w", q.Request,
			req.NamespacedName, a.err)
	}
	base := s.DeepCopy()
	if freezes {
		q.State, q.Message = afterFreeze(a)
	} else {
		q.State, q.Message = afterThaw(q.State, a)
	}
	err = r.Writer.Status().Patch(ctx, s, reconcile.MergeFrom(base))
	return reconcile.RetryConflict(ctrl.Result{}, client.IgnoreNotFound(err))
}

// findLauncher returns the launcher of the guest that the snapshot is of, or nil if it is not connected. ended says that
// the guest is gone.
func (r *Reconciler) findLauncher(ctx context.Context, s *vmsnapshotv1.VirtualMachineSnapshot) (launcher *launcherclient.Client, ended bool, err error) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Spec.Source.Name}
	vmi, err := reconcile.Find(ctx, r.Live, key, &kubevirtv1.VirtualMachineInstance{})
	if err != nil {
		return nil, false, err
	}
	if vmi == nil || vmi.UID != s.Status.InstanceUID || vmi.Status.Phase.Final() {
		return nil, true, nil
	}
	for pod, node := range vmi.Status.ActivePods {
		if node != r.NodeName {
			continue
		}
		if launcher := r.Launchers.Get(pod); launcher != nil {
			return launcher, false, nil
		}
	}
	return nil, false, nil
}

// askLauncher has the launcher do what the snapshot asks for.
func askLauncher(ctx context.Context, launcher *launcherclient.Client, s *vmsnapshotv1.VirtualMachineSnapshot) answer {
	owner := string(s.UID)
	if s.Status.Quiesce.Request == vmsnapshotv1.ThawRequest {
		response, err := launcher.RPC().ThawGuest(ctx, &launcherpb.ThawGuestRequest{Owner: owner})
		return answer{skipped: response.GetSkipped(), err: err}
	}
	// The controller has checked that it is a duration. 0 means the launcher's own limit.
	limit, _ := time.ParseDuration(s.Annotations[vmsnapshotv1.AnnotationFreezeDeadline])
	response, err := launcher.RPC().FreezeGuest(ctx, &launcherpb.FreezeGuestRequest{
		Owner:       owner,
		LimitMillis: limit.Milliseconds(),
	})
	return answer{skipped: response.GetSkipped(), err: err}
}
