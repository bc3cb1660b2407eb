package kubevirtbackup

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/backupevents"
)

func deleted() metav1.ObjectMeta {
	at := metav1.NewTime(time.Unix(1, 0))
	return metav1.ObjectMeta{UID: "vmi", DeletionTimestamp: &at}
}

func forcedStop() *kubevirtv1.VirtualMachineInstance {
	m := deleted()
	m.Annotations = map[string]string{layout.AnnotationForceStop: "true"}
	return &kubevirtv1.VirtualMachineInstance{ObjectMeta: m}
}

func TestOutcome_everyFailureHasItsReason(t *testing.T) {
	t.Parallel()
	runs := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: "vmi"}}
	stops := &kubevirtv1.VirtualMachineInstance{ObjectMeta: deleted()}
	type row struct {
		failure pb.Backup_Failure
		vmi     *kubevirtv1.VirtualMachineInstance
		deleted bool
		want    string
	}
	rows := []row{
		{failure: pb.Backup_FAILURE_UNSPECIFIED, vmi: runs, want: backupv1.ReasonHypervisorError},
		{failure: pb.Backup_ABORTED, vmi: runs, deleted: true, want: backupv1.ReasonAborted},
		{failure: pb.Backup_ABORTED, vmi: runs, want: backupv1.ReasonAborted},
		{failure: pb.Backup_ABORTED, vmi: forcedStop(), want: backupv1.ReasonStopForced},
		{failure: pb.Backup_ABORTED, vmi: forcedStop(), deleted: true, want: backupv1.ReasonAborted},
		{failure: pb.Backup_INSUFFICIENT_SPACE, vmi: runs, want: backupv1.ReasonInsufficientSpace},
		{failure: pb.Backup_TARGET_FULL, vmi: runs, want: backupv1.ReasonTargetFull},
		{failure: pb.Backup_SCRATCH_FULL, vmi: runs, want: backupv1.ReasonScratchFull},
		{failure: pb.Backup_TARGET_INVALID, vmi: runs, want: backupv1.ReasonTargetInvalid},
		{failure: pb.Backup_TARGET_STALLED, vmi: runs, want: backupv1.ReasonTargetStalled},
		{failure: pb.Backup_GUEST_SHUTDOWN, vmi: runs, want: backupv1.ReasonGuestShutdown},
		{failure: pb.Backup_GUEST_CRASHED, vmi: runs, want: backupv1.ReasonGuestCrashed},
		{failure: pb.Backup_HYPERVISOR_ERROR, vmi: runs, want: backupv1.ReasonHypervisorError},
		{failure: pb.Backup_BASE_LOST, vmi: runs, want: backupv1.ReasonHypervisorError},
		{failure: pb.Backup_STOPPED, vmi: runs, want: backupv1.ReasonGuestShutdown},
		{failure: pb.Backup_STOPPED, vmi: stops, want: backupv1.ReasonVMDeleted},
		{failure: pb.Backup_STOPPED, vmi: forcedStop(), want: backupv1.ReasonStopForced},
		{failure: pb.Backup_STOPPED, vmi: nil, want: backupv1.ReasonVMDeleted},
	}
	seen := map[pb.Backup_Failure]bool{}
	for _, r := range rows {
		seen[r.failure] = true
		b := &backupv1.VirtualMachineBackup{}
		if r.deleted {
			b.ObjectMeta = deleted()
		}
		f := stateOfFailure(b, r.vmi, &pb.Backup{Failure: r.failure})
		if f.Reason != r.want || f.Message == "" {
			t.Errorf("%s (deleted %v): %+v, want %s", r.failure, r.deleted, f, r.want)
		}
		// The launcher's message about a target's space contains its own advice.
		space := slices.Contains([]string{backupv1.ReasonInsufficientSpace, backupv1.ReasonTargetFull, backupv1.ReasonScratchFull}, f.Reason)
		if !space && !strings.Contains(f.Message, "create another backup") {
			t.Errorf("%s says %q, and not what to do", f.Reason, f.Message)
		}
		if !backupstate.Writes(backupstate.Handler, f.Reason) {
			t.Errorf("%s is no reason of the handler's", f.Reason)
		}
	}
	for value, name := range pb.Backup_Failure_name {
		if !seen[pb.Backup_Failure(value)] {
			t.Errorf("%s has no row", name)
		}
	}
	if f := stateOfFailure(&backupv1.VirtualMachineBackup{}, runs, &pb.Backup{Failure: pb.Backup_TARGET_FULL, Message: "words"}); f.Message != "words" {
		t.Errorf("the launcher's words are lost: %+v", f)
	}
}

func TestGuestGone_reasons(t *testing.T) {
	t.Parallel()
	b := &backupv1.VirtualMachineBackup{}
	b.Status.InstanceUID = "vmi"
	phase := func(p kubevirtv1.Phase) *kubevirtv1.VirtualMachineInstance {
		return &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: "vmi"}, Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: p}}
	}
	end := func(e pb.State_End) *pb.State { return &pb.State{Phase: pb.State_ENDED, End: e} }
	tests := []struct {
		name  string
		vmi   *kubevirtv1.VirtualMachineInstance
		state *pb.State
		want  string
	}{
		{"runs", phase(kubevirtv1.PhaseRunning), &pb.State{Phase: pb.State_RUNNING}, ""},
		{"unknown", phase(kubevirtv1.PhaseRunning), nil, ""},
		{"no instance", nil, nil, backupv1.ReasonVMDeleted},
		{"another instance", &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: "other"}}, nil, backupv1.ReasonVMDeleted},
		{"succeeded", phase(kubevirtv1.PhaseSucceeded), nil, backupv1.ReasonGuestShutdown},
		{"failed", phase(kubevirtv1.PhaseFailed), nil, backupv1.ReasonGuestCrashed},
		{"the launcher says shutdown", phase(kubevirtv1.PhaseRunning), end(pb.State_GUEST_SHUTDOWN), backupv1.ReasonGuestShutdown},
		{"the launcher says crash", phase(kubevirtv1.PhaseRunning), end(pb.State_CRASHED), backupv1.ReasonGuestCrashed},
		{"killed by force", forcedStop(), end(pb.State_KILLED), backupv1.ReasonStopForced},
		{"stopped", &kubevirtv1.VirtualMachineInstance{ObjectMeta: deleted()}, end(pb.State_REQUESTED_SHUTDOWN), backupv1.ReasonVMDeleted},
	}
	for _, test := range tests {
		f, gone := guestGone(b, test.vmi, test.state)
		if f.Reason != test.want || gone != (test.want != "") {
			t.Errorf("%s: %+v %v, want %q", test.name, f, gone, test.want)
		}
	}
}

func TestMirrorJob_neverShowsARunningJobAsDone(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		phase       pb.Backup_Phase
		total, have uint64
		percent     string
		want        backupv1.BackupPhase
	}{
		{pb.Backup_PREPARING, 0, 0, "", backupv1.BackupStarting},
		{pb.Backup_COPYING, 0, 0, "0%", backupv1.BackupCopying},
		{pb.Backup_COPYING, 200, 50, "25%", backupv1.BackupCopying},
		{pb.Backup_FINISHING, 200, 200, "99%", backupv1.BackupCopying},
		{pb.Backup_COPYING, 200, 300, "99%", backupv1.BackupCopying},
		{pb.Backup_DONE, 0, 0, "100%", backupv1.BackupCopied},
	} {
		b := &backupv1.VirtualMachineBackup{}
		b.Status.Phase = backupv1.BackupStarting
		mirrorJob(b, &pb.Backup{Phase: test.phase, TotalBytes: test.total, ProcessedBytes: test.have})
		var percent string
		if b.Status.Progress != nil {
			percent = b.Status.Progress.Percent
		}
		if percent != test.percent || b.Status.Phase != test.want {
			t.Errorf("%+v: %s %s", test, percent, b.Status.Phase)
		}
		if !backupstate.MayWrite(backupstate.Handler, backupv1.BackupStarting, b.Status.Phase) {
			t.Errorf("a handler may not go from Starting to %s", b.Status.Phase)
		}
	}
}

// TestOutcome_readsLikeTheControllers: the controller has the same test.
func TestOutcome_readsLikeTheControllers(t *testing.T) {
	t.Parallel()
	for _, e := range backupevents.All("b", "vm") {
		vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "vmi"}, Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.PhaseRunning}}
		b := &backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
		b.Status.Phase, b.Status.SourceName, b.Status.InstanceUID = backupv1.BackupCopying, "vm", "vmi"
		vmi = e.Happen(b, vmi)
		end, gone := guestGone(b, vmi, nil)
		if b.DeletionTimestamp != nil {
			end, gone = stateOfFailure(b, vmi, &pb.Backup{Failure: pb.Backup_ABORTED, Message: "the backup was aborted"}), true
		}
		if end != e.Want || !gone {
			t.Errorf("%s: %v, %+v, want %+v", e.Name, gone, end, e.Want)
		}
	}
}

// TestOutcome_ofAShutdownReadsTheSame: the launcher reports it in the job and in its state, and the instance shows it.
func TestOutcome_ofAShutdownReadsTheSame(t *testing.T) {
	t.Parallel()
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "vmi"}}
	b := &backupv1.VirtualMachineBackup{}
	b.Status.SourceName, b.Status.InstanceUID = "vm", "vmi"
	job := stateOfFailure(b, vmi, &pb.Backup{Failure: pb.Backup_GUEST_SHUTDOWN, Message: "the guest shut down during the backup"})
	state, _ := guestGone(b, vmi, &pb.State{Phase: pb.State_ENDED, End: pb.State_GUEST_SHUTDOWN})
	vmi.Status.Phase = kubevirtv1.PhaseSucceeded
	instance, _ := guestGone(b, vmi, nil)
	if job != state || state != instance {
		t.Errorf("%+v\n%+v\n%+v", job, state, instance)
	}
}
