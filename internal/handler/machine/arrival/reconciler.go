package arrival

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/machine/startrequest"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// retryInterval is the pause before a look at what nobody reports: the instance, which belongs to another node, and
// its target pod.
const retryInterval = time.Second

// Secrets reads what the kubelet brings to pods of this node.
type Secrets interface {
	ReadSecret(pod types.UID, volume, key string) ([]byte, error)
}

// Reconciler drives the targets of one node.
type Reconciler struct {
	NodeName string
	// Cached reads the migrations to this node; writes go to the API server.
	Cached client.Client
	// Live reads from the API server.
	Live client.Reader
	// Launchers are those of targets alone.
	Launchers *launcherclient.Clients
	Secrets   Secrets
	Requests  *startrequest.Builder
	Events    events.EventRecorder
	Clock     clock.PassiveClock
}

// Setup adds the reconciler to mgr, whose cache must have only the migrations to this node.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("handler-arrival").
		For(&kubevirtv1.VirtualMachineInstanceMigration{}).
		WatchesRawSource(source.Func(r.watchLaunchers)).
		WithOptions(reconcile.Options(reconcile.HandlerWorkers)).
		Complete(turns.New(reconcile.HandlerPlaces).Reconciler(r))
}

// watchLaunchers wakes the reconciler whenever a launcher reports something new. A launcher's name here is its
// migration's.
func (r *Reconciler) watchLaunchers(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	r.Launchers.Subscribe(func(migration types.NamespacedName) { queue.Add(ctrl.Request{NamespacedName: migration}) })
	return nil
}

// Reconcile takes one migration to this node one step further.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	m := &kubevirtv1.VirtualMachineInstanceMigration{}
	err := r.Cached.Get(ctx, req.NamespacedName, m)
	if apierrors.IsNotFound(err) {
		// The controller keeps a migration until its target has the guest or is gone.
		r.Launchers.Retain(req.NamespacedName, "")
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	again, err := r.reconcileMigration(ctx, m)
	if err != nil {
		err = fmt.Errorf("migration %s: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: again}, err)
}

func (r *Reconciler) reconcileMigration(
	ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration,
) (time.Duration, error) {
	name := client.ObjectKeyFromObject(m)
	vmi := &kubevirtv1.VirtualMachineInstance{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}, vmi)
	if apierrors.IsNotFound(err) {
		r.Launchers.Retain(name, "")
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the instance: %w", err)
	}
	pod, err := r.findTarget(ctx, m, vmi)
	if err != nil {
		return 0, err
	}
	if pod == nil {
		r.Launchers.Retain(name, "")
		if m.Status.Phase.Final() {
			return 0, nil
		}
		return retryInterval, nil // the controller has not begun yet
	}
	l, err := r.Launchers.Ensure(pod.UID, name)
	if err != nil {
		return 0, err
	}
	seen := l.Snapshot()
	next := vmi.DeepCopy()
	again := retryInterval
	switch decide(input{
		State: vmi.Status.MigrationState, Migration: m.UID, Launcher: seen.State, Answers: seen.Err == nil,
	}) {
	case prepare:
		err = r.prepareLauncher(ctx, m, vmi, pod, l)
	case report:
		err = r.reportReady(ctx, vmi, next, pod)
	case detect:
		next.Status.MigrationState.TargetNodeDomainDetected = true
		err = r.writeStatus(ctx, vmi, next)
	case finish:
		_, err = l.RPC().FinishMigration(ctx, &launcherpb.FinishMigrationRequest{Uid: string(m.UID)})
	case cancel:
		_, err = l.RPC().CancelMigration(ctx, &launcherpb.CancelMigrationRequest{
			Uid:    string(m.UID),
			Reason: vmi.Status.MigrationState.FailureReason,
		})
	case release:
		r.Launchers.Retain(name, "")
		again = 0
	case nothing:
	}
	return again, err
}

// findTarget returns the target pod of the migration if it is the instance's, on this node and alive, or nil.
func (r *Reconciler) findTarget(
	ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration, vmi *kubevirtv1.VirtualMachineInstance,
) (*corev1.Pod, error) {
	state := vmi.Status.MigrationState
	if state == nil || state.MigrationUID != m.UID || state.TargetNode != r.NodeName {
		return nil, nil //nolint:nilnil // nothing is an answer
	}
	pod, err := instancepod.Get(ctx, r.Live, vmi.Namespace, layout.MigrationPod(vmi.Name, vmi.UID, m.UID))
	if err != nil || pod == nil {
		return nil, err
	}
	if pod.Spec.NodeName != r.NodeName || !instancepod.IsLauncher(pod, vmi.Name, vmi.UID) {
		return nil, nil //nolint:nilnil // nothing is an answer
	}
	return pod, nil
}

// prepareLauncher asks the launcher to listen. What it refuses is in an event: the controller gives up a target that
// does not get ready.
func (r *Reconciler) prepareLauncher(
	ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration, vmi *kubevirtv1.VirtualMachineInstance,
	pod *corev1.Pod, l *launcherclient.Client,
) error {
	start, err := r.Requests.Build(ctx, vmi)
	if err != nil {
		return err
	}
	var token []byte
	turns.Outside(ctx, func() {
		token, err = r.Secrets.ReadSecret(pod.UID, layout.MigrationVolume, layout.MigrationToken)
	})
	if err != nil {
		return fmt.Errorf("read the migration's token: %w", err)
	}
	_, err = l.RPC().PrepareMigration(ctx, &launcherpb.PrepareMigrationRequest{
		Uid: string(m.UID), Token: token, Start: start,
	})
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Unimplemented:
		err = errors.New("its launcher is of an older version, which cannot take a guest over")
	default:
		err = errors.New(status.Convert(err).Message())
	}
	r.Events.Eventf(m, nil, corev1.EventTypeWarning, "TargetNotPrepared", "Prepare",
		"The target pod %s cannot take the guest over: %v", pod.Name, err)
	return fmt.Errorf("prepare target pod %s: %w", pod.Name, err)
}

// reportReady writes where the launcher listens.
func (r *Reconciler) reportReady(
	ctx context.Context, vmi, next *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod,
) error {
	if pod.Status.PodIP == "" {
		return nil // the kubelet reports it
	}
	state := next.Status.MigrationState
	state.TargetNodeAddress = net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(layout.MigrationPort))
	state.TargetNodeDomainReadyTimestamp = ptr.To(metav1.NewTime(r.Clock.Now()).Rfc3339Copy())
	return r.writeStatus(ctx, vmi, next)
}

// writeStatus fails if somebody has written the instance since it was read.
func (r *Reconciler) writeStatus(ctx context.Context, old, next *kubevirtv1.VirtualMachineInstance) error {
	return client.IgnoreNotFound(r.Cached.Status().Patch(ctx, next, reconcile.MergeFrom(old)))
}
