package instance

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

func tracks(state kubevirtv1.ChangedBlockTrackingState) func(*kubevirtv1.VirtualMachineInstance) {
	return func(v *kubevirtv1.VirtualMachineInstance) {
		v.Annotations = map[string]string{layout.AnnotationTracking: "true"}
		v.Spec.Domain.Devices.Disks = []kubevirtv1.Disk{{Name: "root"}}
		v.Spec.Domain.Devices.Disks[0].Disk = &kubevirtv1.DiskTarget{}
		v.Spec.Volumes = []kubevirtv1.Volume{{Name: "root"}}
		v.Spec.Volumes[0].PersistentVolumeClaim = &kubevirtv1.PersistentVolumeClaimVolumeSource{}
		if state != "" {
			v.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{
				State: state, BackupStatus: &kubevirtv1.InstanceBackupStatus{BackupName: "b"},
			}
		}
	}
}

func TestTrackingStatus_movesOnlyFromInitializingToEnabled(t *testing.T) {
	t.Parallel()
	const none, initializing, enabled, pending = "", kubevirtv1.ChangedBlockTrackingInitializing, kubevirtv1.ChangedBlockTrackingEnabled, kubevirtv1.ChangedBlockTrackingPendingRestart
	up := &pb.State{Phase: pb.State_RUNNING, Disks: []*pb.Disk{{Volume: "root", Tracked: true}}}
	without := &pb.State{Phase: pb.State_RUNNING, Disks: []*pb.Disk{{Volume: "root"}}}
	for _, test := range []struct {
		from, want kubevirtv1.ChangedBlockTrackingState
		state      *pb.State
	}{
		{none, initializing, &pb.State{Phase: pb.State_STARTING}},
		{none, enabled, up},
		{initializing, initializing, without},
		{initializing, initializing, &pb.State{Phase: pb.State_STARTING, Disks: up.GetDisks()}},
		{initializing, enabled, up},
		{enabled, enabled, without},
		{pending, pending, up},
		{kubevirtv1.ChangedBlockTrackingDisabled, kubevirtv1.ChangedBlockTrackingDisabled, up},
	} {
		v := vmi(tracks(test.from))
		got := trackingStatus(view{Instance: v, Launcher: launcherclient.Snapshot{State: test.state}, Reviewed: true})
		if got.State != test.want {
			t.Errorf("from %q: %q, want %q", test.from, got.State, test.want)
		}
		if test.from != none && got.BackupStatus == nil {
			t.Errorf("from %q: the lock is lost", test.from)
		}
	}
	if got := trackingStatus(view{Instance: vmi(tracks(none)), Launcher: launcherclient.Snapshot{State: up}}); got.State != initializing {
		t.Errorf("tracking is %q before the checkpoints were validated", got.State)
	}
	if got := trackingStatus(view{Instance: vmi(), Launcher: launcherclient.Snapshot{State: up}, Reviewed: true}); got != nil {
		t.Errorf("an instance without tracking: %+v", got)
	}
}

func conditions(s *kubevirtv1.VirtualMachineInstanceStatus) map[string]string {
	all := map[string]string{}
	for _, c := range s.Conditions {
		all[string(c.Type)] = string(c.Status) + "/" + c.Reason
	}
	return all
}

func TestConditions_followTheLauncher(t *testing.T) {
	t.Parallel()
	silent := errors.New("connection refused")
	for _, test := range []struct {
		name string
		view view
		want map[string]string
	}{
		{"nothing heard yet", view{}, map[string]string{}},
		{"never answered", view{Launcher: launcherclient.Snapshot{Err: silent}}, map[string]string{"Synchronized": "False/LauncherNotResponding"}},
		{
			"runs",
			view{Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_RUNNING, AgentConnected: true}}},
			map[string]string{"Ready": "True/", "AgentConnected": "True/", "Synchronized": "True/"},
		},
		{
			"paused",
			view{Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_PAUSED}}},
			map[string]string{"Ready": "False/GuestPaused", "Paused": "True/GuestPaused", "Synchronized": "True/"},
		},
		{
			"silent for a moment",
			view{Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_RUNNING}, Err: silent, Since: now}},
			map[string]string{"Ready": "True/", "Synchronized": "False/LauncherNotResponding"},
		},
		{
			"silent for long",
			view{Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_RUNNING}, Err: silent, Since: now.Add(-time.Minute)}},
			map[string]string{"Ready": "False/LauncherNotResponding", "Synchronized": "False/LauncherNotResponding"},
		},
		{
			"a stop that waits",
			view{Decision: decision{Delayed: "b runs"}, Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_RUNNING}}},
			map[string]string{"Ready": "True/", "Synchronized": "True/", "varvebackup.io/StopDelayed": "True/BackupInProgress"},
		},
		{
			"a stop that cancels a migration",
			view{
				Decision: decision{Delayed: "it moves", DelayReason: ReasonMigrationInProgress},
				Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_RUNNING}},
			},
			map[string]string{
				"Ready": "True/", "Synchronized": "True/",
				"varvebackup.io/StopDelayed": "True/MigrationInProgress",
			},
		},
		{
			"moved elsewhere", // the other node's handler reports what the guest does
			view{Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_ENDED, End: pb.State_MIGRATED}}},
			map[string]string{},
		},
		{
			"a disk of an odd size",
			view{Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_RUNNING, Disks: []*pb.Disk{{Volume: "root", NotTracked: "1000 bytes"}}}}},
			map[string]string{
				"Ready": "True/", "Synchronized": "True/",
				"varvebackup.io/DiskNotTracked": "True/DiskSizeNotTrackable",
			},
		},
		{
			"did not start",
			view{Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_ENDED, End: pb.State_START_FAILED, Message: "no disk"}, Err: silent}},
			map[string]string{"Ready": "False/GuestNotRunning", "Synchronized": "False/StartFailed"},
		},
		{
			"a problem",
			view{Problem: &problem{ReasonClaimNotFound, "m"}, Launcher: launcherclient.Snapshot{State: &pb.State{}}},
			map[string]string{"Ready": "False/GuestNotRunning", "Synchronized": "False/ClaimNotFound"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.view.Now, test.view.Instance = now, vmi()
			s := projectStatus(test.view)
			if diff := cmp.Diff(test.want, conditions(s)); diff != "" {
				t.Error(diff)
			}
			// The same view, later, changes nothing, so nothing is written.
			later := test.view
			later.Instance = vmi()
			later.Instance.Status = *s
			if diff := cmp.Diff(s, projectStatus(later)); diff != "" {
				t.Errorf("not stable: %s", diff)
			}
		})
	}
}

func TestStopDelayed_keepsTheTimeWhenItEnds(t *testing.T) {
	t.Parallel()
	v := vmi()
	v.Status.Conditions = []kubevirtv1.Condition{{Type: kubevirtv1.ConditionStopDelayed, Status: corev1.ConditionTrue}}
	s := projectStatus(view{Now: now, Instance: v, Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_SHUTTING_DOWN}}})
	c := condition.Find(s.Conditions, kubevirtv1.ConditionStopDelayed)
	if c == nil || c.Status != corev1.ConditionFalse || !c.LastTransitionTime.Time.Equal(now) {
		t.Errorf("%+v", c)
	}
}

func TestVolumeStatus_keepsUtilityVolumes(t *testing.T) {
	t.Parallel()
	v := vmi(tracks(""))
	utility := kubevirtv1.VolumeStatus{Name: "backup-1", Phase: kubevirtv1.VolumeAttachedToNode, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{AttachPodUID: "p"}}
	v.Status.VolumeStatus = []kubevirtv1.VolumeStatus{utility}
	got := volumeStatus(v, []*pb.Disk{{Volume: "root", Target: "vda", VirtualBytes: 5}, {Volume: "invented", Target: "vdz"}})
	want := []kubevirtv1.VolumeStatus{
		{Name: "root", Target: "vda", Size: 5, Phase: kubevirtv1.VolumeReady, PersistentVolumeClaimInfo: &kubevirtv1.PersistentVolumeClaimInfo{}},
		utility,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestUrgent_isOnlyWhatSomebodyWaitsFor(t *testing.T) {
	t.Parallel()
	old := vmi().Status
	next := old
	next.GuestOSInfo.Name = "Debian"
	if isUrgent(&old, &next) {
		t.Error("the guest's name is not urgent")
	}
	next.Phase = kubevirtv1.PhaseScheduled
	if !isUrgent(&old, &next) {
		t.Error("a phase is urgent")
	}
}

// Whether a guest can be moved is the controller's to say. It waits until what an older handler wrote is gone.
func TestConditions_leaveLiveMigratableToTheController(t *testing.T) {
	t.Parallel()
	for reason, stays := range map[string]bool{"LiveMigrationNotSupported": false, "DisksNotLiveMigratable": true} {
		v := vmi()
		v.Status.Conditions = []kubevirtv1.Condition{{
			Type: kubevirtv1.ConditionLiveMigratable, Status: corev1.ConditionFalse,
			Reason: reason,
		}}
		s := projectStatus(view{
			Now: now, Instance: v,
			Launcher: launcherclient.Snapshot{State: &pb.State{Phase: pb.State_RUNNING}},
		})
		if c := condition.Find(s.Conditions, kubevirtv1.ConditionLiveMigratable); (c != nil) != stays {
			t.Errorf("%s: %+v", reason, c)
		}
	}
}
