//go:build controlplane || root

package handler_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

// begun waits until the launcher has been told n times to begin, and returns the last request.
func (w *world) begun(n int) *pb.BeginBackupRequest {
	w.t.Helper()
	var r *pb.BeginBackupRequest
	w.until(func() error {
		w.launcher.view(func() {
			if len(w.launcher.begun) == n {
				r = w.launcher.begun[n-1]
			}
		})
		return want(r != nil, "not begun %d times", n)
	})
	return r
}

func TestBackup_incrementalFromBeginningToEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	tr := w.tracker("tr", "root")
	b := w.backup("b1", tr)
	r := w.begun(1)
	if r.GetBaseCheckpoint() != "tr-1" || r.GetBaseBackupUid() != "b0-uid" || r.GetCheckpoint() != "tr-2" || !r.GetVolumes()[0].GetIncremental() || r.GetDirectory() != b.Status.Directory {
		t.Errorf("begun with %+v", r)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w.launcher.job(func(j *pb.Backup) {
		j.Phase, j.PointInTime, j.Quiesce, j.FrozenMillis = pb.Backup_COPYING, timestamppb.New(at), pb.Backup_FROZEN, 12
		j.TotalBytes, j.ProcessedBytes = 100, 40
	})
	w.untilPhase(b, "Copying")
	s := b.Status
	if s.Progress == nil || s.Progress.Percent != "40%" || !s.StartTimestamp.Time.Equal(at) || s.FrozenMillis == nil || *s.FrozenMillis != 12 || s.BackupType != backupv1.Incremental {
		t.Errorf("%+v", s)
	}
	if !meta.IsStatusConditionTrue(s.Conditions, backupv1.ConditionQuiesced) {
		t.Errorf("%+v", s.Conditions)
	}
	w.restart() // the new handler finds the running job
	w.launcher.job(func(j *pb.Backup) {
		j.Phase, j.ProcessedBytes = pb.Backup_DONE, 100
		j.Volumes = []*pb.BackedUpVolume{{Volume: "root", Incremental: true, VirtualBytes: 1 << 30, MovedBytes: 4096, File: "vm/b1/root.qcow2", Sha256: "ab"}, {Volume: "invented", MovedBytes: 1}}
	})
	w.untilPhase(b, "Copied")
	if s := b.Status; s.MovedBytes != 4096 || s.Moved != "4Ki" || len(s.IncludedVolumes) != 1 || s.IncludedVolumes[0].SHA256 != "ab" || s.Progress.Percent != "100%" {
		t.Errorf("%+v", s)
	}
	// The controller moves the tracker; the old base goes, the new one stays.
	controlplane.Update(t, w.client, tr, true, func(tr *backupv1.VirtualMachineBackupTracker) { tr.Status.LatestCheckpoint.Name = "tr-2" })
	w.prune(b, backupv1.BackupSucceeded)
	w.untilPhase(b, "Pruned")
	w.launcher.view(func() {
		if diff := cmp.Diff([]string{"tr-1"}, w.launcher.deleted); diff != "" {
			t.Error(diff)
		}
		if w.launcher.state.GetBackup() != nil {
			t.Error("the launcher still remembers the job")
		}
	})
	if n := w.launcher.count("BeginBackup"); n != 1 {
		t.Errorf("begun %d times", n)
	}
}

// What a backup costs a handler does not depend on how many backups and trackers there are. docs/scale.md has the
// figures.
func TestScale_costOfABackupDoesNotDependOnHistory(t *testing.T) {
	t.Parallel()
	for _, ended := range []int{0, 5000} {
		t.Run(fmt.Sprintf("%d ended", ended), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			cluster.Seed(t, controlplane.EndedBackups(w.ns, ended))
			w.traffic = &controlplane.Traffic{}
			w.started()
			tr := w.tracker("tr", "root")
			w.traffic.Reset()
			b := w.backup("b1", tr)
			w.begun(1)
			w.launcher.job(func(j *pb.Backup) { j.Phase = pb.Backup_COPYING })
			w.untilPhase(b, "Copying")
			w.launcher.job(func(j *pb.Backup) {
				j.Phase, j.Volumes = pb.Backup_DONE, []*pb.BackedUpVolume{{Volume: "root", Incremental: true}}
			})
			w.untilPhase(b, "Copied")
			w.prune(b, backupv1.BackupSucceeded)
			w.untilPhase(b, "Pruned")
			cost := w.traffic.Cost()
			t.Logf("%d ended: %s", ended, cost)
			// Far above what is usual, because a busy machine once made 46 requests of it. What depends on history costs thousands, or megabytes.
			const requests, bytes, lists = 120, 256 << 10, 8
			if len(cost.Requests) > requests || cost.Bytes > bytes || len(cost.Lists) > lists {
				t.Errorf("more than %d requests, %d bytes or %d lists", requests, bytes, lists)
			}
		})
	}
}

func TestBackup_endsWhenItsTargetIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	b := w.backup("b1", w.tracker("tr", "root"))
	w.begun(1)
	w.launcher.job(func(j *pb.Backup) { j.Phase = pb.Backup_COPYING })
	w.untilPhase(b, "Copying")
	// The controller has seen the attachment pod go.
	target := kubevirtv1.UtilityVolume{Name: layout.BackupUtilityVolume(b.UID)}
	target.ClaimName = "target"
	controlplane.Update(t, w.client, w.vmi, false, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Spec.UtilityVolumes = append(v.Spec.UtilityVolumes, target)
	})
	controlplane.Update(t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.VolumeStatus = append(v.Status.VolumeStatus, kubevirtv1.VolumeStatus{
			Name: target.Name, Phase: kubevirtv1.VolumeDetaching, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{AttachPodUID: "gone"},
		})
	})
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != backupv1.ReasonTargetDetached || w.launcher.count("AbortBackup") == 0 {
		t.Errorf("%s: %s; aborted %d times", b.Status.Reason, b.Status.Message, w.launcher.count("AbortBackup"))
	}
	// The volume is still in the spec, and free for another pod.
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		unmounted := func(v kubevirtv1.VolumeStatus) bool {
			return v.Name == target.Name && v.Phase == kubevirtv1.VolumeUnMountedFromPod
		}
		return want(slices.ContainsFunc(s.VolumeStatus, unmounted), "%+v", s.VolumeStatus)
	})
}

func TestHandler_restartsInEachPhase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.stop()
	b := w.backup("b1", w.tracker("tr"))
	w.run() // Starting, nothing begun
	w.begun(1)
	w.restart() // Starting, begun
	w.launcher.job(func(j *pb.Backup) { j.Phase = pb.Backup_COPYING })
	w.untilPhase(b, "Copying")
	w.stop() // Copying, done while nobody looks
	w.launcher.job(func(j *pb.Backup) { j.Phase = pb.Backup_DONE })
	w.run()
	w.untilPhase(b, "Copied")
	w.stop()
	w.prune(b, backupv1.BackupUnsuccessful)
	w.run()
	w.untilPhase(b, "Pruned")
	w.launcher.view(func() {
		if !slices.Contains(w.launcher.deleted, "tr-2") {
			t.Errorf("the failed backup's checkpoint was not deleted: %v", w.launcher.deleted)
		}
		if len(w.launcher.begun) != 1 {
			t.Errorf("begun %d times", len(w.launcher.begun))
		}
	})
}

func TestLauncher_diesInEachPhase(t *testing.T) {
	t.Parallel()
	for _, phase := range []backupv1.BackupPhase{backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupPruning} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			w.started()
			b := w.backup("b1", w.tracker("tr"))
			w.begun(1)
			if phase != backupv1.BackupStarting {
				w.launcher.job(func(j *pb.Backup) { j.Phase = pb.Backup_COPYING })
				w.untilPhase(b, backupv1.BackupCopying)
			}
			w.launcher.kill()
			if phase == backupv1.BackupPruning {
				w.prune(b, backupv1.BackupUnsuccessful)
			}
			controlplane.Consistently(t, 300*time.Millisecond, func() error {
				if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
					return err
				}
				return want(b.Status.Phase == phase, "left %s for %s before the guest's end is known", phase, b.Status.Phase)
			})
			controlplane.Update(t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) { v.Status.Phase = kubevirtv1.PhaseFailed })
			if phase == backupv1.BackupPruning {
				w.untilPhase(b, backupv1.BackupPruned)
				return
			}
			w.untilPhase(b, backupv1.BackupCopyFailed)
			if b.Status.Reason != "GuestCrashed" {
				t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
			}
		})
	}
}

func TestBackup_launchersLastReportDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	b := w.backup("b1", nil)
	w.begun(1)
	w.launcher.set(func(s *pb.State) {
		s.Phase, s.End = pb.State_ENDED, pb.State_GUEST_SHUTDOWN
		s.Backup.Phase, s.Backup.Failure, s.Backup.Message = pb.Backup_FAILED, pb.Backup_GUEST_SHUTDOWN, "the guest powered off"
	})
	w.untilPhase(b, "CopyFailed")
	if end := backupstate.GuestShutdown(b.Status.SourceName, ""); b.Status.Reason != "GuestShutdown" || b.Status.Message != end.Message {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
	w.until(func() error { return want(w.launcher.count("Exit") > 0, "the launcher is not released") })
}

func TestBackup_isAbortedWhenDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	b := w.backup("b1", nil)
	w.begun(1)
	w.delete(b)
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != "Aborted" || w.launcher.count("AbortBackup") == 0 {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
}

func TestBackup_deletedBeforeItBeganDoesNotBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.stop()
	b := w.backup("b1", nil)
	w.delete(b)
	w.run()
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != "Aborted" || w.launcher.count("BeginBackup") > 0 {
		t.Errorf("%s: %s, begun %d times", b.Status.Reason, b.Status.Message, w.launcher.count("BeginBackup"))
	}
}

func TestBackup_withoutTheLockDoesNotBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.stop()
	b := w.backup("b1", nil)
	controlplane.Update(w.t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.ChangedBlockTracking.BackupStatus.BackupName = "other"
	})
	w.run()
	controlplane.Consistently(t, 3*time.Second, func() error {
		return want(w.launcher.count("BeginBackup") == 0, "a backup that does not hold the instance was begun")
	})
	// When it gets the lock, it goes on.
	controlplane.Update(w.t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.ChangedBlockTracking.BackupStatus.BackupName = b.Name
	})
	w.begun(1)
}

func TestBackup_failsWhenItsInstanceIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.stop()
	b := w.backup("b1", nil)
	controlplane.Update(t, w.client, w.vmi, false, func(v *kubevirtv1.VirtualMachineInstance) { v.Finalizers = nil })
	w.delete(w.vmi)
	w.until(func() error {
		return want(apierrors.IsNotFound(w.client.Get(t.Context(), client.ObjectKeyFromObject(w.vmi), w.vmi)), "it is still there")
	})
	w.run()
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != "VirtualMachineDeleted" {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
}

func TestBackup_lostBitmapIsDiscardedAndTheDiskGoesFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	tr := w.tracker("tr", "root")
	w.launcher.view(func() { w.launcher.lost["root"] = "inconsistent" })
	w.started()
	// The review after the start discards the checkpoint, before any backup.
	w.until(func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(tr), tr); err != nil {
			return err
		}
		return want(tr.Status.LatestCheckpoint == nil && len(tr.Status.Discarded) == 1 && tr.Status.Discarded[0].Reason == backupv1.FullBitmapLost, "%+v", tr.Status)
	})
	w.until(func() error { return w.hasEvent("CheckpointDiscarded") })
	b := w.backup("b1", tr)
	r := w.begun(1)
	if r.GetBaseCheckpoint() != "" || r.GetVolumes()[0].GetFullReason() != "BitmapLost" {
		t.Errorf("begun with %+v", r)
	}
	w.untilBackup(b, func(s *backupv1.VirtualMachineBackupStatus) error {
		return want(len(s.IncludedVolumes) == 1 && s.IncludedVolumes[0].Type == backupv1.Full && s.IncludedVolumes[0].FullReason == backupv1.FullBitmapLost &&
			s.BackupType == backupv1.Full, "%+v", s)
	})
}

// A machine whose claims were deleted and made again has an overlay that is as new as they are. No guest has crashed.
func TestReview_saysThatClaimsWereMadeAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		took   time.Duration // how long ago the checkpoint was
		reason backupv1.FullReason
		says   string
	}{
		"the disk's claim is younger than the checkpoint": {time.Hour, backupv1.FullDiskReplaced, "the disk's claim root was made at "},
		"only the overlay is gone":                        {-time.Hour, backupv1.FullBitmapLost, "no record of changes on claim persistent-state-for-vm any more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			w.claim("persistent-state-for-vm", "pv-state")
			tr := w.tracker("tr", "root")
			controlplane.Update(t, w.client, tr, true, func(tr *backupv1.VirtualMachineBackupTracker) {
				tr.Status.LatestCheckpoint.CreationTime = metav1.NewTime(time.Now().Add(-c.took)).Rfc3339Copy()
			})
			w.launcher.view(func() {
				w.launcher.lost["root"] = "there is no bitmap"
				w.launcher.renewed = "NewOverlay"
			})
			w.started()
			w.until(func() error {
				if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(tr), tr); err != nil {
					return err
				}
				gone := tr.Status.Discarded
				return want(len(gone) == 1 && gone[0].Reason == c.reason && strings.Contains(gone[0].Message, c.says) && strings.HasSuffix(gone[0].Message, "there is no bitmap"), "%+v", gone)
			})
			b := w.backup("b1", tr)
			if r := w.begun(1); r.GetVolumes()[0].GetFullReason() != string(c.reason) {
				t.Errorf("begun with %+v", r)
			}
			w.untilBackup(b, func(s *backupv1.VirtualMachineBackupStatus) error {
				return want(len(s.IncludedVolumes) == 1 && s.IncludedVolumes[0].FullReason == c.reason, "%+v", s)
			})
		})
	}
}

// TestReview_saysWhatKeepsTrackingFromEnabled: backups wait until the checkpoints are validated, and users have to
// learn why.
func TestReview_saysWhatKeepsTrackingFromEnabled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.tracker("tr", "root")
	w.launcher.view(func() { w.launcher.refuseRedefine = errors.New("libvirt is busy") })
	w.run()
	w.guestRuns()
	state := func(s *kubevirtv1.VirtualMachineInstanceStatus) kubevirtv1.ChangedBlockTrackingState {
		if s.ChangedBlockTracking == nil {
			return ""
		}
		return s.ChangedBlockTracking.State
	}
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionSynchronized)
		return want(c.Status == corev1.ConditionFalse && c.Reason == "CheckpointReviewFailed" && strings.Contains(c.Message, "libvirt is busy") &&
			state(s) == kubevirtv1.ChangedBlockTrackingInitializing, "%s, %+v", state(s), c)
	})
	w.launcher.view(func() { w.launcher.refuseRedefine = nil })
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionSynchronized)
		return want(c.Status == corev1.ConditionTrue && state(s) == kubevirtv1.ChangedBlockTrackingEnabled, "%s, %+v", state(s), c)
	})
}

func TestCheckpoints_ofOtherMachinesAreNotValidatedHere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	other := w.trackerOf("another", "foreign", "root")
	tr := w.tracker("tr", "root")
	w.launcher.view(func() { w.launcher.lost["root"] = "it is a bitmap of another machine's disk" })
	w.started()
	w.backup("b1", tr)
	w.begun(1)
	w.launcher.view(func() {
		if slices.Contains(w.launcher.redefined, "foreign-1") || !slices.Contains(w.launcher.redefined, "tr-1") {
			t.Errorf("redefined %v", w.launcher.redefined)
		}
	})
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(other), other); err != nil {
		t.Fatal(err)
	}
	if other.Status.LatestCheckpoint == nil || len(other.Status.Discarded) > 0 {
		t.Errorf("the other machine's tracker lost its base: %+v", other.Status)
	}
}

func (w *world) hasEvent(reason string) error {
	var all corev1.EventList
	if err := w.client.List(w.t.Context(), &all, client.InNamespace(w.ns)); err != nil {
		return err
	}
	return want(slices.ContainsFunc(all.Items, func(e corev1.Event) bool { return e.Reason == reason }), "no event %s", reason)
}

func TestBackup_baseThatLibvirtRefusesIsPlannedAgainAsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	tr := w.tracker("tr", "root")
	w.launcher.view(func() {
		w.launcher.finish = func(r *pb.BeginBackupRequest) *pb.Backup {
			if r.GetBaseCheckpoint() == "" {
				return &pb.Backup{Uid: r.GetUid(), Phase: pb.Backup_DONE}
			}
			return &pb.Backup{Uid: r.GetUid(), Phase: pb.Backup_FAILED, Failure: pb.Backup_BASE_LOST, Volumes: []*pb.BackedUpVolume{{Volume: "root", BaseLost: true}}}
		}
	})
	b := w.backup("b1", tr)
	w.untilPhase(b, "Copied")
	if b.Status.BackupType != backupv1.Full || b.Status.IncludedVolumes[0].FullReason != backupv1.FullBitmapLost {
		t.Errorf("%+v", b.Status)
	}
	if r := w.begun(2); r.GetVolumes()[0].GetIncremental() {
		t.Errorf("begun again with %+v", r)
	}
}

func TestBackup_failsWithoutATrackedDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.launcher.set(func(s *pb.State) { s.Disks[0].Tracked = false })
	b := w.backup("b1", nil)
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != "NoEligibleDisk" {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
}

func TestCheckpoints_ofNobodyAreDeletedOncePerStartAndWithATracker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	tr := w.tracker("tr", "root")
	w.launcher.set(func(s *pb.State) { s.Checkpoints = []*pb.Checkpoint{{Name: "stray"}} })
	w.started()
	w.until(func() error {
		var deleted []string
		w.launcher.view(func() { deleted = slices.Clone(w.launcher.deleted) })
		return want(slices.Equal(deleted, []string{"stray"}), "deleted %v", deleted)
	})
	for range 5 { // passes, each of which is seen to its end
		var connected bool
		w.launcher.set(func(s *pb.State) {
			s.AgentConnected = !s.AgentConnected
			connected = s.AgentConnected
		})
		w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
			return want((w.conditionOf(s, kubevirtv1.ConditionAgentConnected).Status == corev1.ConditionTrue) == connected, "%+v", s.Conditions)
		})
	}
	if n := w.launcher.count("RedefineCheckpoints"); n != 1 {
		t.Errorf("redefined %d times", n)
	}
	w.delete(tr)
	w.until(func() error {
		var deleted []string
		w.launcher.view(func() { deleted = slices.Clone(w.launcher.deleted) })
		return want(slices.Contains(deleted, "tr-1"), "deleted %v", deleted)
	})
}

func TestReview_validatesEveryTrackerBeforeTrackingIsEnabled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	lost, kept := w.tracker("lost", "root"), w.tracker("kept", "root")
	w.launcher.view(func() { w.launcher.lostIn = map[string]string{"lost-1": "the bitmap is not in the overlay"} })
	w.started()
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(lost), lost); err != nil {
		t.Fatal(err)
	}
	if lost.Status.LatestCheckpoint != nil || len(lost.Status.Discarded) != 1 || lost.Status.Discarded[0].Reason != backupv1.FullBitmapLost {
		t.Errorf("tracking is Enabled and the tracker names a checkpoint that is gone: %+v", lost.Status)
	}
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(kept), kept); err != nil {
		t.Fatal(err)
	}
	if kept.Status.LatestCheckpoint == nil {
		t.Errorf("the other tracker lost its checkpoint: %+v", kept.Status)
	}
	var known []string
	w.launcher.view(func() {
		for _, c := range w.launcher.state.GetCheckpoints() {
			known = append(known, c.GetName())
		}
	})
	if !slices.Equal(known, []string{"kept-1"}) {
		t.Errorf("libvirt knows the checkpoints %v", known)
	}
	w.until(func() error { return w.hasEvent("CheckpointDiscarded") })
}

func TestReview_deletesBitmapsThatLibvirtDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.tracker("tr", "root")
	w.launcher.set(func(s *pb.State) { s.StrayBitmaps = []string{"tr-1", "of-a-backup-whose-guest-shut-down"} })
	w.started()
	w.until(func() error {
		var deleted []string
		w.launcher.view(func() { deleted = slices.Clone(w.launcher.deleted) })
		return want(slices.Equal(deleted, []string{"of-a-backup-whose-guest-shut-down"}), "deleted %v", deleted)
	})
}

func TestReview_leavesAHeldInstanceAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	controlplane.Update(t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{
			State: kubevirtv1.ChangedBlockTrackingInitializing, BackupStatus: &kubevirtv1.InstanceBackupStatus{BackupName: "b0"},
		}
	})
	w.launcher.set(func(s *pb.State) { s.Checkpoints = []*pb.Checkpoint{{Name: "of-the-running-backup"}} })
	w.started()
	controlplane.Consistently(t, time.Second, func() error { return want(w.launcher.count("DeleteCheckpoints") == 0, "it was deleted") })
	if w.vmi.Status.ChangedBlockTracking.BackupStatus == nil {
		t.Error("the lock was overwritten")
	}
}
