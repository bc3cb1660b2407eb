package kubevirtbackup

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// beginBackup plans a backup and tells the launcher to begin it.
func (r *Reconciler) beginBackup(ctx context.Context, s *gathered) (ctrl.Result, error) {
	defer s.launcher.LockCheckpoints(ctx)()
	if ok, err := r.confirmStarting(ctx, s); err != nil || !ok {
		return ctrl.Result{}, err
	}
	state, err := s.launcher.Fresh(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	s.state = state
	if s.job() != nil {
		return ctrl.Result{RequeueAfter: retryInterval}, nil
	}
	if other := state.GetBackup(); other != nil {
		return r.endEarlierBackup(ctx, s, other)
	}
	if p := state.GetPhase(); p != launcherpb.State_RUNNING && p != launcherpb.State_PAUSED {
		return ctrl.Result{RequeueAfter: retryInterval}, nil
	}
	if s.backup.Spec.IsPull() && !state.GetPullsBackups() {
		return r.failBackup(ctx, s, backupstate.LauncherCannotPull(s.backup.Status.SourceName))
	}
	if s.backup.Spec.IsPulledByDataUploads() && !state.GetOffersSingleVolumes() {
		return r.failBackup(ctx, s, backupstate.LauncherCannotOffer(s.backup.Status.SourceName))
	}
	p, err := r.planBackup(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(p.Volumes) == 0 {
		return r.failBackup(ctx, s, backupstate.NoEligibleDisk(s.backup.Status.SourceName))
	}
	return r.tellLauncher(ctx, s, p)
}

// confirmStarting reads the backup live, so that a cache that is behind does not make the handler begin a backup that has
// ended.
func (r *Reconciler) confirmStarting(ctx context.Context, s *gathered) (bool, error) {
	live := &backupv1.VirtualMachineBackup{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(s.backup), live); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	ok := live.UID == s.backup.UID && live.Status.Phase == backupv1.BackupStarting && live.DeletionTimestamp.IsZero()
	if ok && !holdsInstance(live, s.instance) {
		return false, fmt.Errorf("the backup does not hold instance %s/%s", s.instance.Namespace, s.instance.Name)
	}
	s.backup, s.before = live, live.DeepCopy()
	return ok, nil
}

// holdsInstance reports whether the instance's lock is the backup's.
func holdsInstance(b *backupv1.VirtualMachineBackup, vmi *kubevirtv1.VirtualMachineInstance) bool {
	tracking := vmi.Status.ChangedBlockTracking
	if tracking == nil || tracking.BackupStatus == nil || tracking.BackupStatus.BackupName != b.Name {
		return false
	}
	// An older version took a lock without a UID.
	return tracking.BackupStatus.BackupMsg == nil || *tracking.BackupStatus.BackupMsg == layout.BackupLock(b.UID)
}

// endEarlierBackup ends another backup in the launcher: the lock says that it is over.
func (r *Reconciler) endEarlierBackup(ctx context.Context, s *gathered, other *launcherpb.Backup) (ctrl.Result, error) {
	var err error
	if other.GetPhase() == launcherpb.Backup_DONE || other.GetPhase() == launcherpb.Backup_FAILED {
		_, err = s.launcher.RPC().ForgetBackup(ctx, &launcherpb.ForgetBackupRequest{Uid: other.GetUid()})
	} else {
		_, err = s.launcher.RPC().AbortBackup(ctx, &launcherpb.AbortBackupRequest{Uid: other.GetUid()})
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("end the earlier backup %s: %w", other.GetUid(), err)
	}
	return ctrl.Result{RequeueAfter: beginInterval}, nil
}

// planBackup validates the checkpoints of the machine's trackers and decides how to back up each disk.
func (r *Reconciler) planBackup(ctx context.Context, s *gathered) (plan, error) {
	in := planInput{Spec: s.backup.Spec, Base: s.backup.Status.BaseCheckpoint, TargetUID: s.backup.Status.PVCUID, Disks: s.state.GetDisks(), Instance: s.instance.Spec}
	trackers, err := r.Keeper.Trackers(ctx, types.NamespacedName{Namespace: s.backup.Namespace, Name: s.backup.Status.SourceName})
	if err != nil {
		return plan{}, err
	}
	if trackers, err = r.Keeper.Validate(ctx, s.launcher, s.state, trackers); err != nil {
		return plan{}, err
	}
	for i := range trackers {
		if isPlannedTracker(s.backup, &trackers[i]) {
			in.Tracker = &trackers[i].Status
		}
	}
	return planDisks(in), nil
}

// isPlannedTracker reports whether t is the tracker that the controller planned the backup with, and not a later one of the
// same name.
func isPlannedTracker(b *backupv1.VirtualMachineBackup, t *backupv1.VirtualMachineBackupTracker) bool {
	return t.Name == b.Spec.TrackerName() && (b.Status.TrackerUID == "" || b.Status.TrackerUID == t.UID)
}

// tellLauncher records the plan and calls BeginBackup.
func (r *Reconciler) tellLauncher(ctx context.Context, s *gathered, p plan) (ctrl.Result, error) {
	// Record the plan first: only volumes in the plan are mirrored from the launcher.
	p.recordIn(&s.backup.Status)
	starting := backupstate.Starting(r.NodeName)
	s.backup.Status.Reason, s.backup.Status.Message = starting.Reason, starting.Message
	if err := r.writeStatus(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	s.before = s.backup.DeepCopy()
	job, err := s.launcher.RPC().BeginBackup(ctx, p.beginRequest(s.backup, layout.BackupUtilityVolume(s.backup.UID)))
	switch code := status.Code(err); code {
	case codes.OK:
	case codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented, codes.NotFound, codes.OutOfRange:
		return r.failBackup(ctx, s, backupstate.LauncherRefused(status.Convert(err).Message()))
	default:
		return ctrl.Result{}, fmt.Errorf("begin: %w", err)
	}
	if ph := job.GetPhase(); ph == launcherpb.Backup_DONE || ph == launcherpb.Backup_FAILED {
		// The next pass judges the outcome, with everything in view.
		return ctrl.Result{RequeueAfter: beginInterval}, nil
	}
	mirrorJob(s.backup, job)
	return ctrl.Result{RequeueAfter: beginInterval}, r.writeStatus(ctx, s)
}

// replanWithoutBase handles a base that libvirt refused although it was validated. It discards the disks from the tracker, so
// that the next plan is full for them, and the job is begun again. Each round turns at least one disk full, so the
// number of disks limits the rounds.
func (r *Reconciler) replanWithoutBase(ctx context.Context, s *gathered, job *launcherpb.Backup) (ctrl.Result, error) {
	volumes := disksWithLostBase(s.backup.Status.IncludedVolumes, job)
	if len(volumes) == 0 {
		return r.failBackup(ctx, s, backupstate.BaseLostWithoutIncrement(job.GetMessage()))
	}
	defer s.launcher.LockCheckpoints(ctx)()
	if ok, err := r.confirmStarting(ctx, s); err != nil || !ok {
		return ctrl.Result{}, err
	}
	if err := r.discardDisks(ctx, s, volumes, job.GetMessage()); err != nil {
		return ctrl.Result{}, err
	}
	if _, err := s.launcher.RPC().ForgetBackup(ctx, &launcherpb.ForgetBackupRequest{Uid: string(s.backup.UID)}); err != nil {
		return ctrl.Result{}, fmt.Errorf("forget the attempt: %w", err)
	}
	return ctrl.Result{RequeueAfter: retryInterval}, nil
}

// disksWithLostBase returns the incremental disks whose base is lost: those that the launcher names, or all of them if it
// names none.
func disksWithLostBase(planned []backupv1.IncludedVolume, job *launcherpb.Backup) []string {
	var named, all []string
	for _, v := range planned {
		if v.Type != backupv1.Incremental {
			continue
		}
		all = append(all, v.Name)
		if slices.ContainsFunc(job.GetVolumes(), func(w *launcherpb.BackedUpVolume) bool { return w.GetVolume() == v.Name && w.GetBaseLost() }) {
			named = append(named, v.Name)
		}
	}
	if len(named) > 0 {
		return named
	}
	return all
}

func (r *Reconciler) discardDisks(ctx context.Context, s *gathered, volumes []string, seen string) error {
	trackers, err := r.Keeper.Trackers(ctx, types.NamespacedName{Namespace: s.backup.Namespace, Name: s.backup.Status.SourceName})
	if err != nil || s.backup.Status.BaseCheckpoint == nil {
		return err
	}
	if seen == "" {
		seen = "libvirt refused the bitmap as a base"
	}
	var disks []backupv1.DiscardedDisk
	for _, v := range volumes {
		disks = append(disks, backupv1.DiscardedDisk{Volume: v, Reason: backupv1.FullBitmapLost, Message: seen})
	}
	for i := range trackers {
		if !isPlannedTracker(s.backup, &trackers[i]) {
			continue
		}
		return r.Keeper.Discard(ctx, &trackers[i], s.backup.Status.BaseCheckpoint.Name, disks)
	}
	return nil
}
