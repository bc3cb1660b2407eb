package kubevirtbackup

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// maxSteps limits the steps of one Reconcile. From any phase to its next wait a backup takes fewer steps. If it
// takes more, somebody else is undoing them, and it is time for the queue's backoff.
const maxSteps = 16

type reconciler struct {
	access
	clock         clock.PassiveClock
	limits        Limits
	configuration types.NamespacedName
	ended         func(*backupv1.VirtualMachineBackup)
	watchdog      *watchdog
	granted       grantedPlaces
}

// Reconcile takes a backup as far as it can go now.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in, err := r.gatherInput(ctx, r.cached, req.NamespacedName)
	if err != nil || in == nil {
		return ctrl.Result{}, err
	}
	if d := r.observeAndDecide(in); d.Step == stepNone {
		return r.requeueAt(in, d), nil
	}
	for range maxSteps {
		in, err := r.gatherInput(ctx, r.live, req.NamespacedName)
		if err != nil || in == nil {
			return ctrl.Result{}, err
		}
		d := r.observeAndDecide(in)
		if d.Step == stepNone {
			return r.requeueAt(in, d), nil
		}
		if err := r.applyStep(ctx, in, d); err != nil {
			return r.handleRefusal(ctx, in, d, err)
		}
		r.watchdog.recordAttempt(in.Backup.UID, d.Step, nil)
	}
	return ctrl.Result{}, fmt.Errorf("backup %s: no rest after %d steps", req.NamespacedName, maxSteps)
}

// retryLostRace turns a lost race into a quiet retry: somebody wrote or deleted the object between the read and the write, or
// another backup has the checkpoint's name.
func retryLostRace(err error) (ctrl.Result, error) {
	if apierrors.IsNotFound(err) || errors.Is(err, errCheckpointUsed) {
		return reconcile.RetrySoon(), nil
	}
	return reconcile.RetryConflict(ctrl.Result{}, err)
}

func (r *reconciler) observeAndDecide(in *input) decision {
	in.Now = r.clock.Now()
	in.Limits = r.limits
	in.Seen = r.watchdog.observe(in)
	return decide(in)
}

// soonestWake is the shortest wait. A zero would mean none.
const soonestWake = 50 * time.Millisecond

func (r *reconciler) requeueAt(in *input, d decision) ctrl.Result {
	if in.Backup.Status.Phase.Final() {
		r.watchdog.forgetBackup(in.Backup.UID)
	}
	if d.Wake.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(d.Wake.Sub(in.Now), soonestWake)}
}

// gatherInput reads everything that a decision about the backup depends on. It returns nil if the backup does not exist.
func (r *reconciler) gatherInput(ctx context.Context, c client.Reader, key types.NamespacedName) (*input, error) {
	b, err := reconcile.Find(ctx, c, key, &backupv1.VirtualMachineBackup{})
	if err != nil || b == nil {
		return nil, err
	}
	in := &input{Backup: b, ConfigurationName: r.configuration}
	if b.Status.Phase.Final() {
		return in, nil // nothing else matters
	}
	// Nothing races with the configuration, so the cache is as good as the API server.
	if in.Configuration, err = reconcile.Find(ctx, r.cached, r.configuration, &kubevirtv1.KubeVirt{}); err != nil {
		return nil, err
	}
	in.Claim, err = reconcile.Find(ctx, c, types.NamespacedName{Namespace: key.Namespace, Name: b.Spec.PVCName}, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return nil, err
	}
	if in.ClaimUsers, err = r.claimUsers(ctx, key.Namespace, b.Spec.PVCName); err != nil {
		return nil, err
	}
	if name := b.Spec.TrackerName(); name != "" {
		in.Tracker, err = reconcile.Find(ctx, c, types.NamespacedName{Namespace: key.Namespace, Name: name}, &backupv1.VirtualMachineBackupTracker{})
		if err != nil {
			return nil, err
		}
	}
	if err := r.gatherMachine(ctx, c, in); err != nil {
		return nil, err
	}
	return in, r.gatherPull(ctx, c, in)
}

// findMigration looks for a migration of the guest. It counts from when the migration has its turn, which is before
// anything about it is in the instance's status: a target pod that is on its way must not wait for a backup that
// begins now. A cache that is behind does no harm, because a migration looks for a lock once more before it begins.
func findMigration(ctx context.Context, cached client.Reader, in *input) error {
	if in.Instance == nil || !isWaiting(in.Backup) && in.Backup.Status.Phase != backupv1.BackupAttaching {
		return nil
	}
	in.Moves = !in.Instance.Status.MigrationState.Ended()
	list := &kubevirtv1.VirtualMachineInstanceMigrationList{}
	if err := cached.List(ctx, list, client.InNamespace(in.Instance.Namespace)); err != nil {
		return fmt.Errorf("list migrations in %s: %w", in.Instance.Namespace, err)
	}
	for i := range list.Items {
		if m := &list.Items[i]; m.Spec.VMIName == in.Instance.Name && m.Status.Phase.Underway() {
			in.Moves, in.Migration = true, m.Name
		}
	}
	return nil
}

func (r *reconciler) gatherMachine(ctx context.Context, c client.Reader, in *input) error {
	name := in.machineName()
	if name == "" {
		return nil
	}
	key := types.NamespacedName{Namespace: in.Backup.Namespace, Name: name}
	var err error
	if in.VM, err = reconcile.Find(ctx, c, key, &kubevirtv1.VirtualMachine{}); err != nil {
		return err
	}
	if in.Instance, err = reconcile.Find(ctx, c, key, &kubevirtv1.VirtualMachineInstance{}); err != nil {
		return err
	}
	if err := findMigration(ctx, r.cached, in); err != nil {
		return err
	}
	if isWaiting(in.Backup) {
		if in.Ahead, err = r.findAhead(ctx, c, in.Backup, name); err != nil {
			return err
		}
		if in.Ahead == nil && in.Instance != nil {
			in.Node, err = r.readNodeLoad(ctx, in.Backup, in.Instance.Status.NodeName)
		}
	}
	return err
}
