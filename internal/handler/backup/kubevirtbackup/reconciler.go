package kubevirtbackup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/handler/backup/checkpoint"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/handler/metric"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/reconcile"
)

// progressInterval is the minimum time between two writes of a running backup's progress. A change of phase is
// written at once.
const progressInterval = 5 * time.Second

// beginInterval is the pause before the handler looks again at a job that the launcher was just told to begin.
const beginInterval = time.Second

// retryInterval is the pause before the handler asks again a launcher that does not answer. The launcher's client
// wakes the reconciler earlier if it answers.
const retryInterval = 2 * time.Second

// Partial removes what a failed backup left on its target. The implementation works through an attachment pod's
// mount.
type Partial interface {
	// RemovePartial deletes a backup's unfinished directory. It returns mount.ErrNotAttached if the claim is not on
	// this node, mount.ErrUnfinished if it has to be called again, and mount.ErrNotResponding if the claim's storage
	// does not answer.
	RemovePartial(from mount.Source, directory string) error
}

// Secrets reads what the kubelet has brought to the node for a pod.
type Secrets interface {
	// ReadSecret returns a file of a Secret that is a volume of the pod. os.ErrNotExist: it is not there.
	ReadSecret(pod types.UID, volume, key string) ([]byte, error)
}

// Reconciler drives the backups of one node.
type Reconciler struct {
	NodeName string
	// Cached reads the backups and instances of this node; writes go to the API server.
	Cached client.Client
	// Live reads from the API server.
	Live      client.Reader
	Launchers *launcherclient.Clients
	Keeper    *checkpoint.Keeper
	Partial   Partial
	Secrets   Secrets
	Events    events.EventRecorder
	Measures  *metric.Set
	Clock     clock.PassiveClock

	mu      sync.Mutex
	written map[types.UID]time.Time
	// connected has where the launchers were told to offer backups: all volumes, under an empty name, and single ones.
	connected map[types.UID]map[string]farEnd
}

// gathered is everything that one pass depends on.
type gathered struct {
	backup *backupv1.VirtualMachineBackup
	// before is backup as it was read, for the patch.
	before *backupv1.VirtualMachineBackup
	// instance is the instance with the machine's name, or nil. It may not be the one that the backup was started
	// on.
	instance *kubevirtv1.VirtualMachineInstance
	// launcher is nil unless the backup's own instance has a launcher on this node.
	launcher *launcherclient.Client
	state    *launcherpb.State
	err      error
}

// job returns what the launcher reports about this backup, or nil.
func (s *gathered) job() *launcherpb.Backup {
	if j := s.state.GetBackup(); j.GetUid() == string(s.backup.UID) {
		return j
	}
	return nil
}

// Reconcile takes one backup one step further.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	b := &backupv1.VirtualMachineBackup{}
	if err := r.Cached.Get(ctx, req.NamespacedName, b); err != nil {
		if apierrors.IsNotFound(err) {
			r.Measures.PullEnded(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if b.Status.NodeName != r.NodeName || !endedByHandler(b.Status.Phase) {
		r.forgetBackup(b.UID)
		r.Measures.PullEnded(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	s, err := r.gatherInput(ctx, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	var result ctrl.Result
	if b.Status.Phase == backupv1.BackupPruning {
		result, err = r.pruneNode(ctx, s)
	} else {
		result, err = r.superviseJob(ctx, s)
	}
	if err != nil {
		err = fmt.Errorf("backup %s in phase %s: %w", req.NamespacedName, b.Status.Phase, err)
	}
	return reconcile.RetryConflict(result, err)
}

// endedByHandler reports whether it is for the handler to end the phase.
func endedByHandler(p backupv1.BackupPhase) bool {
	return backupstate.FindPhase(p).Owner == backupstate.Handler
}

// gatherInput gathers what the decisions need.
func (r *Reconciler) gatherInput(ctx context.Context, b *backupv1.VirtualMachineBackup) (*gathered, error) {
	s := &gathered{backup: b, before: b.DeepCopy()}
	vmi := &kubevirtv1.VirtualMachineInstance{}
	// Read live: the decisions are about an instance that may end or be replaced at this moment.
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.Status.SourceName}, vmi)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read the instance: %w", err)
	}
	if err == nil {
		s.instance = vmi
	}
	if s.instance == nil || vmi.UID != b.Status.InstanceUID {
		return s, nil
	}
	for pod, node := range vmi.Status.ActivePods {
		if node != r.NodeName {
			continue
		}
		if s.launcher = r.Launchers.Get(pod); s.launcher != nil {
			seen := s.launcher.Snapshot()
			s.state, s.err = seen.State, seen.Err
			break
		}
	}
	return s, nil
}

// superviseJob handles Starting, Copying and Serving.
func (r *Reconciler) superviseJob(ctx context.Context, s *gathered) (ctrl.Result, error) {
	r.measurePull(s)
	switch job := s.job(); {
	case job.GetPhase() == launcherpb.Backup_FAILED && job.GetFailure() == launcherpb.Backup_BASE_LOST && s.backup.Status.Phase == backupv1.BackupStarting && s.err == nil:
		return r.replanWithoutBase(ctx, s, job)
	case job.GetPhase() == launcherpb.Backup_FAILED:
		return r.reportFailure(ctx, s, job)
	case isUnasked(s.backup, job):
		return r.abandonUnasked(ctx, s)
	case job.GetPhase() == launcherpb.Backup_DONE:
		mirrorJob(s.backup, job)
		return ctrl.Result{}, r.writeStatus(ctx, s)
	}
	if end, gone := guestGone(s.backup, s.instance, s.state); gone {
		return r.failBackup(ctx, s, end)
	}
	if s.launcher == nil || s.state == nil || s.err != nil {
		// Nothing is known about the job now. The controller's deadline limits the wait.
		return ctrl.Result{RequeueAfter: retryInterval}, nil //nolint:nilerr // the launcher's client reports its silence
	}
	if s.backup.DeletionTimestamp.IsZero() && targetLost(s.backup, s.instance) {
		return r.abandonTarget(ctx, s)
	}
	if s.job() == nil {
		return r.handleUnknownJob(ctx, s)
	}
	if !s.backup.DeletionTimestamp.IsZero() {
		return r.endDeleted(ctx, s)
	}
	if s.job().GetPhase() == launcherpb.Backup_SERVING {
		return r.superviseReader(ctx, s)
	}
	return r.mirrorProgress(ctx, s)
}

// endDeleted ends the job of a deleted backup.
func (r *Reconciler) endDeleted(ctx context.Context, s *gathered) (ctrl.Result, error) {
	if backupstate.EndsWell(s.backup) {
		_, err := s.launcher.RPC().FinishBackup(ctx, &launcherpb.FinishBackupRequest{Uid: string(s.backup.UID)})
		if err != nil && status.Code(err) != codes.FailedPrecondition { // the job is about to say why it cannot be finished
			return ctrl.Result{}, fmt.Errorf("finish: %w", err)
		}
		return ctrl.Result{RequeueAfter: retryInterval}, nil
	}
	if err := abortJob(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: retryInterval}, nil
}

// abortJob has the launcher abort the backup.
func abortJob(ctx context.Context, s *gathered) error {
	if _, err := s.launcher.RPC().AbortBackup(ctx, &launcherpb.AbortBackupRequest{Uid: string(s.backup.UID)}); err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	return nil
}

// isUnasked reports whether the job of a backup in pull mode does, or has done, what only a deletion asks for. An older
// launcher does so: it pushes to the scratch claim.
func isUnasked(b *backupv1.VirtualMachineBackup, job *launcherpb.Backup) bool {
	if !b.Spec.IsPull() {
		return false
	}
	asked := !b.DeletionTimestamp.IsZero() && backupstate.EndsWell(b)
	return job.GetPhase() == launcherpb.Backup_FINISHING || job.GetPhase() == launcherpb.Backup_DONE && !asked
}

// abandonUnasked fails a backup in pull mode whose job ends, or has ended, without having been asked to.
func (r *Reconciler) abandonUnasked(ctx context.Context, s *gathered) (ctrl.Result, error) {
	if s.job().GetPhase() != launcherpb.Backup_DONE {
		if err := abortJob(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
	}
	return r.failBackup(ctx, s, backupstate.EndedByItself())
}

// reportFailure fails a backup whose job has failed.
func (r *Reconciler) reportFailure(ctx context.Context, s *gathered, job *launcherpb.Backup) (ctrl.Result, error) {
	mirrorJob(s.backup, job)
	if s.backup.DeletionTimestamp.IsZero() && targetLost(s.backup, s.instance) {
		return r.failBackup(ctx, s, backupstate.TargetDetached())
	}
	return r.failBackup(ctx, s, stateOfFailure(s.backup, s.instance, job))
}

// abandonTarget ends a backup whose target is being taken off the node. It aborts the job first: the volume cannot
// be unmounted while QEMU writes to it. It writes the cause at once, because the volume may be attached again
// before the job has ended.
func (r *Reconciler) abandonTarget(ctx context.Context, s *gathered) (ctrl.Result, error) {
	if s.job() != nil {
		if _, err := s.launcher.RPC().AbortBackup(ctx, &launcherpb.AbortBackupRequest{Uid: string(s.backup.UID)}); err != nil {
			return ctrl.Result{}, fmt.Errorf("abort after the target was lost: %w", err)
		}
	}
	return r.failBackup(ctx, s, backupstate.TargetDetached())
}

// handleUnknownJob handles a launcher that answers and does not know the backup.
func (r *Reconciler) handleUnknownJob(ctx context.Context, s *gathered) (ctrl.Result, error) {
	switch {
	case !s.backup.DeletionTimestamp.IsZero():
		return r.failBackup(ctx, s, stateOfAbort(s.backup, s.instance))
	case !s.instance.DeletionTimestamp.IsZero():
		// A backup that has not begun does not delay a stop.
		return r.failBackup(ctx, s, stateOfStop(s.backup, s.instance))
	case s.backup.Status.Phase != backupv1.BackupStarting:
		return r.confirmLost(ctx, s)
	}
	return r.beginBackup(ctx, s)
}

// confirmLost fails a backup in Copying or Serving whose job the launcher does not know, after it has asked the launcher
// again.
func (r *Reconciler) confirmLost(ctx context.Context, s *gathered) (ctrl.Result, error) {
	fresh, err := s.launcher.Fresh(ctx)
	if err != nil || fresh.GetBackup().GetUid() == string(s.backup.UID) {
		return ctrl.Result{RequeueAfter: retryInterval}, nil //nolint:nilerr // the launcher's client reports its silence
	}
	return r.failBackup(ctx, s, backupstate.JobLost())
}

// mirrorProgress mirrors a running job, at most once per progressInterval unless the phase changes.
func (r *Reconciler) mirrorProgress(ctx context.Context, s *gathered) (ctrl.Result, error) {
	mirrorJob(s.backup, s.job())
	if s.backup.Status.Phase == s.before.Status.Phase {
		if wait := r.untilNextProgress(s.backup.UID); wait > 0 {
			return ctrl.Result{RequeueAfter: wait}, nil
		}
	}
	// A stalled job must be noticed even though its launcher has nothing to report.
	return ctrl.Result{RequeueAfter: 30 * time.Second}, r.writeStatus(ctx, s)
}

func (r *Reconciler) failBackup(ctx context.Context, s *gathered, end backupstate.State) (ctrl.Result, error) {
	enterCopyFailed(s.backup, end)
	return ctrl.Result{}, r.writeStatus(ctx, s)
}

func (r *Reconciler) untilNextProgress(uid types.UID) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.written[uid]
	if !ok {
		return 0
	}
	return progressInterval - r.Clock.Since(last)
}

func (r *Reconciler) forgetBackup(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.written, uid)
	delete(r.connected, uid)
}
