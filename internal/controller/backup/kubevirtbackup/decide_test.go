package kubevirtbackup

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/backupevents"
)

// TestDecide has a case for every way out of every phase. Each case begins with a tracked backup "b" of a running
// machine that lacks nothing, brought to the phase in question.
func TestDecide(t *testing.T) {
	t.Parallel()
	type expect struct {
		step    step
		phase   backupv1.BackupPhase
		reason  string
		message string        // a part of it
		wake    time.Duration // from now; 0: not checked
	}
	deleted := func(w *world, b *backupv1.VirtualMachineBackup) { b.DeletionTimestamp = &metav1.Time{Time: w.now} }
	pending := func(*world, *backupv1.VirtualMachineBackup) {}
	attaching := func(w *world, b *backupv1.VirtualMachineBackup) { w.settle(b) }
	mounted := func(w *world, b *backupv1.VirtualMachineBackup) { w.settle(b); w.mount() }
	starting := func(w *world, b *backupv1.VirtualMachineBackup) { w.starting(b) }
	copying := func(w *world, b *backupv1.VirtualMachineBackup) {
		w.starting(b)
		b.Status.Phase, b.Status.Reason, b.Status.Message = backupv1.BackupCopying, backupv1.ReasonCopying, "1 of 2 bytes"
		w.settle(b)
	}
	copied := func(w *world, b *backupv1.VirtualMachineBackup) { w.starting(b); w.copied(b) }
	failed := func(w *world, b *backupv1.VirtualMachineBackup) {
		w.starting(b)
		b.Status.Phase, b.Status.Reason, b.Status.Message = backupv1.BackupCopyFailed, backupv1.ReasonTargetFull, "No space is left on the target."
	}
	pruningOK := func(w *world, b *backupv1.VirtualMachineBackup) { copied(w, b); w.settle(b) }
	pruningBad := func(w *world, b *backupv1.VirtualMachineBackup) { failed(w, b); w.settle(b) }
	pruned := func(from func(*world, *backupv1.VirtualMachineBackup)) func(*world, *backupv1.VirtualMachineBackup) {
		return func(w *world, b *backupv1.VirtualMachineBackup) { from(w, b); b.Status.Phase = backupv1.BackupPruned }
	}
	detached := func(from func(*world, *backupv1.VirtualMachineBackup)) func(*world, *backupv1.VirtualMachineBackup) {
		return func(w *world, b *backupv1.VirtualMachineBackup) { pruned(from)(w, b); w.step(b); w.mount() }
	}

	cases := []struct {
		name string
		from func(*world, *backupv1.VirtualMachineBackup)
		then func(*world, *backupv1.VirtualMachineBackup)
		want expect
	}{
		// Pending
		{
			"no tracker", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.tracker = nil },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonTrackerNotFound, "create it", 24 * time.Hour},
		},
		{"tracker goes", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.tracker.DeletionTimestamp = &metav1.Time{Time: w.now}
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonTrackerNotFound, "being deleted", 0}},
		{
			"no machine", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.vm, w.instance = nil, nil },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonVMNotFound, "VirtualMachine vm, which does not exist", 0},
		},
		{
			"machine goes", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.vm.DeletionTimestamp = &metav1.Time{Time: w.now} },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonVMNotFound, "being deleted", 0},
		},
		{
			"no instance", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.instance = nil },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonVMNotRunning, "start it", 0},
		},
		{
			"instance stops", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
				w.instance.DeletionTimestamp = &metav1.Time{Time: w.now}
			},
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonVMNotRunning, "stopping", 0},
		},
		{
			"instance starts", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.instance.Status.Phase = kubevirtv1.PhaseScheduling },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonVMNotRunning, "Scheduling", 0},
		},
		{
			"guest ended", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.instance.Status.Phase = kubevirtv1.PhaseFailed },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonVMNotRunning, "ended (Failed)", 0},
		},
		{
			"not tracked", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.instance.Status.ChangedBlockTracking = nil },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonTrackingNotEnabled, "changedBlockTrackingLabelSelectors", 0},
		},
		{"tracking wants a restart", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.instance.Status.ChangedBlockTracking.State = kubevirtv1.ChangedBlockTrackingPendingRestart
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonTrackingNotEnabled, "restart the machine", 0}},
		{"tracking is made", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.instance.Status.ChangedBlockTracking.State = kubevirtv1.ChangedBlockTrackingInitializing
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonTrackingNotEnabled, "being set up", 0}},
		{"no disk", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.instance.Spec.Domain.Devices.Disks[0].Shareable = ptr.To(true)
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonNoEligibleDisk, "no disk", 0}},
		{
			"no claim", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.claim = nil },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonPVCNotFound, "PersistentVolumeClaim target, which does not exist", 0},
		},
		{
			"claim goes", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
				w.claim.DeletionTimestamp = &metav1.Time{Time: w.now}
			},
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonPVCNotFound, "being deleted", 0},
		},
		{"Block claim, even before the machine exists", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			w.vm = nil
		}, expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonPVCIsBlock, "volumeMode is Filesystem", 0}},
		{
			"the machine's own disk", pending, func(_ *world, b *backupv1.VirtualMachineBackup) { b.Spec.PVCName = "root" },
			expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonTargetInUse, "disk root", 0},
		},
		{
			"a day later", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.claim = nil; w.now = w.now.Add(24 * time.Hour) },
			expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonDeadlineExceeded, "PersistentVolumeClaim target", 0},
		},
		{
			"no configuration", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.configuration = nil },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonGateDisabled, "feature gate IncrementalBackup, which is off: add it to spec.configuration.developerConfiguration.featureGates of KubeVirt varve/kubevirt", 24 * time.Hour},
		},
		{"gate of utility volumes is off", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.configuration.Spec.Configuration.DeveloperConfiguration.FeatureGates = []string{kubevirtv1.IncrementalBackup}
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonGateDisabled, "feature gate UtilityVolumes", 0}},
		{"gate turned off while attaching", attaching, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.configuration.Spec.Configuration.DeveloperConfiguration.FeatureGates = []string{kubevirtv1.IncrementalBackup}
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonGateDisabled, "feature gate UtilityVolumes", 0}},
		{"gate turned off while data moves", copying, func(w *world, _ *backupv1.VirtualMachineBackup) { w.configuration = nil }, expect{step: stepNone, phase: backupv1.BackupCopying}},
		{"node is busy", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.load.Copying = places("ns/1", "ns/2", "ns/3", "ns/4")
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonNodeBusy, "place on node node: 4 of at most 4 backups run there, of this namespace 1, 2, 3, 4, and", 7 * 24 * time.Hour}},
		{"older ones wait for the node", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.load = nodeLoad{Copying: places("ns/1", "ns/2"), Ahead: places("ns/3", "ns/4")}
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonNodeBusy, "and 2 others go first", 0}},
		{"a place for each older one and this one", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.load = nodeLoad{Copying: places("ns/1", "ns/2"), Ahead: places("ns/3")}
		}, expect{step: stepAddFinalizer}},
		{"more are allowed", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.configuration.Annotations = map[string]string{layout.AnnotationCopiesPerNode: "5"}
			w.load.Copying = places("ns/1", "ns/2", "ns/3", "ns/4")
		}, expect{step: stepAddFinalizer}},
		{"fewer are allowed", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.configuration.Annotations = map[string]string{layout.AnnotationCopiesPerNode: "1"}
			w.load.Copying = places("ns/1")
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonNodeBusy, "1 of at most 1", 0}},
		{"a limit that is no number is the default", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.configuration.Annotations = map[string]string{layout.AnnotationCopiesPerNode: "0"}
			w.load.Copying = places("ns/1")
		}, expect{step: stepAddFinalizer}},
		{"an older one of the machine waits for the node", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			a := w.create("a", false)
			a.Status.Phase, a.Status.Reason = backupv1.BackupPending, backupv1.ReasonNodeBusy
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonOtherBackup, "VirtualMachineBackup a", 0}},
		{"the node becomes busy while attaching", attaching, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.load.Copying = places("ns/1", "ns/2", "ns/3", "ns/4")
		}, expect{step: stepNone, phase: backupv1.BackupAttaching}},
		{"deleted while it waits", pending, deleted, expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonAborted, "deleted", 0}},
		{"another runs", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.create("z", false).Status.Phase = backupv1.BackupCopying
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonOtherBackup, "VirtualMachineBackup z", 0}},
		{
			"an older one that nobody has looked at yet", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.create("a", false) },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonOtherBackup, "VirtualMachineBackup a", 0},
		},
		{"an older one in line", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			a := w.create("a", false)
			a.Status.Phase, a.Status.Reason = backupv1.BackupPending, backupv1.ReasonOtherBackup
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonOtherBackup, "VirtualMachineBackup a", 0}},
		{"two older ones in line", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.create("a", false).Status = backupv1.VirtualMachineBackupStatus{Phase: backupv1.BackupPending, Reason: backupv1.ReasonVMNotRunning}
			w.create("aa", false).Status = backupv1.VirtualMachineBackupStatus{Phase: backupv1.BackupPending, Reason: backupv1.ReasonOtherBackup}
			w.instance = nil
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonOtherBackup, "VirtualMachineBackup aa", 24 * time.Hour}},
		{"an older one that waits for its claim", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			a := w.create("a", false)
			a.Status.Phase, a.Status.Reason = backupv1.BackupPending, backupv1.ReasonPVCNotFound
		}, expect{step: stepAddFinalizer}},
		{"a younger one", pending, func(w *world, _ *backupv1.VirtualMachineBackup) { w.create("z", false) }, expect{step: stepAddFinalizer}},
		{"one that ended", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.create("a", false).Status.Phase = backupv1.BackupDone
		}, expect{step: stepAddFinalizer}},
		{"a stranger's lock", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.instance.Status.ChangedBlockTracking.BackupStatus = &kubevirtv1.InstanceBackupStatus{BackupName: "gone"}
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonOtherBackup, "gone", 0}},
		{"a lock of its name from before it existed", pending, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.instance.Status.ChangedBlockTracking.BackupStatus = &kubevirtv1.InstanceBackupStatus{BackupName: "b", StartTimestamp: &metav1.Time{Time: w.now.Add(-time.Minute)}}
		}, expect{stepStatus, backupv1.BackupPending, backupv1.ReasonOtherBackup, "", 0}},
		{"everything there", pending, nil, expect{step: stepAddFinalizer}},
		{
			"held", pending, func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b) },
			expect{stepStatus, backupv1.BackupAttaching, backupv1.ReasonAttaching, "Attaching PersistentVolumeClaim target", 10 * time.Minute},
		},

		// Attaching
		{"tracker first", pending, func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b); w.step(b) }, expect{step: stepProtectTracker}},
		{"then the volume", pending, func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b); w.step(b); w.step(b) }, expect{step: stepAttach}},
		{"volume on its way", attaching, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.mount()
			w.instance.Status.VolumeStatus[0].Phase, w.instance.Status.VolumeStatus[0].Message = kubevirtv1.VolumePending, "the claim is not bound"
		}, expect{stepStatus, backupv1.BackupAttaching, backupv1.ReasonAttaching, "It is Pending: the claim is not bound", 10 * time.Minute}},
		{
			"volume takes too long", attaching, func(w *world, _ *backupv1.VirtualMachineBackup) { w.now = w.now.Add(10 * time.Minute) },
			expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonDeadlineExceeded, "Gave up after 10m0s", 0},
		},
		{"mounted in the last moment", mounted, func(w *world, _ *backupv1.VirtualMachineBackup) { w.now = w.now.Add(10 * time.Minute) }, expect{step: stepLock}},
		{"attaching refused until the deadline", pending, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.step(b)
			w.step(b)
			w.now = w.now.Add(10 * time.Minute)
		}, expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonDeadlineExceeded, "Gave up after 10m0s", 0}},
		{"tracker cannot be protected until the deadline", pending, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.step(b)
			w.now = w.now.Add(10 * time.Minute)
		}, expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonDeadlineExceeded, "Gave up after 10m0s", 0}},
		{"the refusal is in the last message", pending, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.step(b)
			w.step(b)
			w.refuse(b, "the webhook does not answer")
			w.now = w.now.Add(10 * time.Minute)
		}, expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonDeadlineExceeded, "the webhook does not answer", 0}},
		{"refused, and tried again", pending, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.step(b)
			w.step(b)
			w.refuse(b, "the webhook does not answer")
		}, expect{stepAttach, backupv1.BackupAttaching, backupv1.ReasonRequestRefused, "the webhook does not answer", 0}},
		{"attached after a refusal", pending, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.step(b)
			w.step(b)
			w.refuse(b, "the webhook does not answer")
			w.step(b)
		}, expect{stepStatus, backupv1.BackupAttaching, backupv1.ReasonAttaching, "Attaching PersistentVolumeClaim target", 10 * time.Minute}},
		{"the lock is refused until the deadline", mounted, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(10 * time.Minute)
		}, expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonDeadlineExceeded, "a policy denies it", 0}},
		{"the finalizer is refused until the deadline", pending, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(24 * time.Hour)
		}, expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonDeadlineExceeded, "a policy denies it", 0}},
		{"claim becomes a Block one", attaching, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonPVCIsBlock, "", 0}},
		{
			"guest stops before the lock", attaching, func(w *world, _ *backupv1.VirtualMachineBackup) { w.instance = nil },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonVMNotRunning, "", 24 * time.Hour},
		},
		{
			"tracker replaced before the lock", attaching, func(w *world, _ *backupv1.VirtualMachineBackup) { w.track() },
			expect{stepStatus, backupv1.BackupPending, backupv1.ReasonAttaching, "replaced", 0},
		},
		{"back in Pending, the volume goes", attaching, func(w *world, b *backupv1.VirtualMachineBackup) { w.claim = nil; w.step(b) }, expect{step: stepDetach}},
		{"back in Pending, the lock goes", mounted, func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b); w.claim = nil; w.step(b) }, expect{step: stepUnlock}},
		{"deleted while attaching", attaching, deleted, expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonAborted, "deleted", 0}},
		{"mounted", mounted, nil, expect{step: stepLock}},
		{"lost the race for the lock", mounted, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.instance.Status.ChangedBlockTracking.BackupStatus = &kubevirtv1.InstanceBackupStatus{BackupName: "a"}
		}, expect{stepStatus, backupv1.BackupAttaching, backupv1.ReasonOtherBackup, "VirtualMachineBackup a", 24 * time.Hour}},
		{"lost the race for a day", mounted, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.instance.Status.ChangedBlockTracking.BackupStatus = &kubevirtv1.InstanceBackupStatus{BackupName: "a"}
			w.now = w.now.Add(24 * time.Hour)
		}, expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonDeadlineExceeded, "VirtualMachineBackup a", 0}},
		{
			"locked", mounted, func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b) },
			expect{stepStatus, backupv1.BackupStarting, backupv1.ReasonStarting, "Node node", 5 * time.Minute},
		},

		// Starting and Copying
		{"node at work", starting, nil, expect{step: stepNone, phase: backupv1.BackupStarting, wake: 5 * time.Minute}},
		{
			"node does not start", starting, func(w *world, _ *backupv1.VirtualMachineBackup) { w.now = w.now.Add(5 * time.Minute) },
			expect{stepStatus, backupv1.BackupCopyFailed, backupv1.ReasonDeadlineExceeded, "varve-handler", 0},
		},
		{
			"guest gone, the handler has a moment", starting, func(w *world, _ *backupv1.VirtualMachineBackup) { w.instance = nil },
			expect{step: stepNone, phase: backupv1.BackupStarting, wake: 15 * time.Second},
		},
		{"instance gone", copying, gone(func(w *world) { w.instance = nil }), expect{stepStatus, backupv1.BackupCopyFailed, backupv1.ReasonVMDeleted, "VirtualMachineInstance vm was deleted", 0}},
		{"machine gone", copying, gone(func(w *world) { w.instance, w.vm = nil, nil }), expect{stepStatus, backupv1.BackupCopyFailed, backupv1.ReasonVMDeleted, "VirtualMachine vm was deleted", 0}},
		{"instance replaced", copying, gone(func(w *world) { w.boot() }), expect{stepStatus, backupv1.BackupCopyFailed, backupv1.ReasonVMDeleted, "replaced", 0}},
		{"guest shut down", copying, gone(func(w *world) { w.instance.Status.Phase = kubevirtv1.PhaseSucceeded }), expect{stepStatus, backupv1.BackupCopyFailed, backupv1.ReasonGuestShutdown, "shut down", 0}},
		{"guest crashed", copying, gone(func(w *world) {
			w.instance.Status.Phase, w.instance.Status.Reason = kubevirtv1.PhaseFailed, "QEMUDied"
		}), expect{stepStatus, backupv1.BackupCopyFailed, backupv1.ReasonGuestCrashed, "(QEMUDied); its next backup is full", 0}},
		{"copy goes on", copying, nil, expect{step: stepNone, phase: backupv1.BackupCopying, wake: 30 * time.Minute}},
		{
			"copy stalls", copying, func(w *world, _ *backupv1.VirtualMachineBackup) { w.now = w.now.Add(30 * time.Minute) },
			expect{stepStatus, backupv1.BackupCopyFailed, backupv1.ReasonDeadlineExceeded, "no progress for 30m0s", 0},
		},
		{"copy progresses in the last moment", copying, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.now = w.now.Add(30 * time.Minute)
			b.Status.Progress = &backupv1.Progress{ProcessedBytes: 1}
		}, expect{stepStatus, backupv1.BackupCopying, backupv1.ReasonCopying, "1 of 2 bytes", 30 * time.Minute}},
		{"deleted while data moves, the handler has time", copying, deleted, expect{stepStatus, backupv1.BackupCopying, backupv1.ReasonCopying, "", 2 * time.Minute}},
		{"deleted while data moves, the handler is dead", copying, func(w *world, b *backupv1.VirtualMachineBackup) {
			deleted(w, b)
			w.input(b) // the controller sees it
			w.now = w.now.Add(2 * time.Minute)
		}, expect{stepStatus, backupv1.BackupCopyFailed, backupv1.ReasonAborted, "did not confirm the abort", 0}},

		// Copied and CopyFailed
		{"copied", copied, nil, expect{step: stepMoveTracker}},
		{"copied and deleted: too late to abort", copied, deleted, expect{step: stepMoveTracker}},
		{
			"copied and moved", copied, func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b) },
			expect{stepStatus, backupv1.BackupPruning, backupv1.ReasonFinishing, "complete on the target", 5 * time.Minute},
		},
		{
			"tracker gone", copied, func(w *world, _ *backupv1.VirtualMachineBackup) { w.tracker = nil },
			expect{stepStatus, backupv1.BackupPruning, backupv1.ReasonTrackerGone, "was deleted", 0},
		},
		{
			"tracker replaced", copied, func(w *world, _ *backupv1.VirtualMachineBackup) { w.track() },
			expect{stepStatus, backupv1.BackupPruning, backupv1.ReasonTrackerGone, "was replaced", 0},
		},
		{"tracker moved by somebody else", copied, func(w *world, _ *backupv1.VirtualMachineBackup) {
			w.tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: "other", BackupUID: "other"}
		}, expect{stepStatus, backupv1.BackupPruning, backupv1.ReasonTrackerGone, "moved to checkpoint other", 0}},
		{
			"without a tracker", copied, func(_ *world, b *backupv1.VirtualMachineBackup) { b.Spec.BackupTracker = "" },
			expect{stepStatus, backupv1.BackupPruning, backupv1.ReasonFinishing, "", 0},
		},
		{
			"the handler's reason is kept", failed, nil,
			expect{stepStatus, backupv1.BackupPruning, backupv1.ReasonTargetFull, "No space is left", 5 * time.Minute},
		},

		// Pruning and Pruned
		{"node prunes", pruningBad, nil, expect{step: stepNone, phase: backupv1.BackupPruning, wake: 5 * time.Minute}},
		{
			"guest gone, the handler has a moment for the files", pruningBad, func(w *world, _ *backupv1.VirtualMachineBackup) { w.instance = nil },
			expect{step: stepNone, phase: backupv1.BackupPruning, wake: 30 * time.Second},
		},
		{
			"guest gone, the handler too", pruningBad, goneFor(30*time.Second, func(w *world) { w.instance = nil }),
			expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonTargetFull, ".partial on PersistentVolumeClaim target", 0},
		},
		{
			"guest gone after success", pruningOK, goneFor(30*time.Second, func(w *world) { w.instance = nil }),
			expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonFinishing, "complete on the target", 0},
		},
		{
			"node does not prune", pruningBad, func(w *world, _ *backupv1.VirtualMachineBackup) { w.now = w.now.Add(5 * time.Minute) },
			expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonTargetFull, "did not confirm", 0},
		},
		{"pruned: detach", pruned(pruningOK), nil, expect{step: stepDetach}},
		{
			"pruned: wait for the volume", pruned(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b) },
			expect{stepStatus, backupv1.BackupPruned, backupv1.ReasonFinishing, "", 10 * time.Minute},
		},
		{"pruned: volume stays", pruned(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.settle(b)
			w.now = w.now.Add(10 * time.Minute)
		}, expect{step: stepUnlock}},
		{"pruned: detaching refused until the deadline", pruned(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) {
			w.settleUntil(b, stepDetach)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(10 * time.Minute)
		}, expect{step: stepUnlock}},
		{"pruned: unlocking refused", detached(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) {
			w.settleUntil(b, stepUnlock)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(9 * time.Minute)
		}, expect{step: stepUnlock}},
		{"pruned: unlocking refused until the deadline", detached(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) {
			w.settleUntil(b, stepUnlock)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(10 * time.Minute)
		}, expect{stepStatus, backupv1.BackupDone, backupv1.ReasonCompleted, "VirtualMachineInstance vm is still locked", 0}},
		{"pruned: unlocking a failed one refused until the deadline", detached(pruningBad), func(w *world, b *backupv1.VirtualMachineBackup) {
			w.settleUntil(b, stepUnlock)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(10 * time.Minute)
		}, expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonTargetFull, "VirtualMachineInstance vm is still locked", 0}},
		{"pruned: detaching and unlocking refused until the deadline", pruned(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) {
			w.settleUntil(b, stepDetach)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(10 * time.Minute)
			w.refuse(b, "a policy denies it")
		}, expect{stepStatus, backupv1.BackupDone, backupv1.ReasonCompleted, "VirtualMachineInstance vm is still locked", 0}},
		{"back in Pending, unlocking refused until the deadline", mounted, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.claim = nil
			w.step(b)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(24 * time.Hour)
		}, expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonDeadlineExceeded, "a policy denies it", 0}},
		{"deleted in Pending, unlocking refused", mounted, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.claim = nil
			w.step(b)
			w.delete(b)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(9 * time.Minute)
		}, expect{stepUnlock, backupv1.BackupPending, backupv1.ReasonRequestRefused, "a policy denies it", 0}},
		{"deleted in Pending, unlocking refused until the deadline", mounted, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.step(b)
			w.claim = nil
			w.step(b)
			w.delete(b)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(10 * time.Minute)
		}, expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonAborted, "VirtualMachineInstance vm is still locked", 0}},
		{"deleted in Pending, detaching refused until the deadline", attaching, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.claim = nil
			w.step(b)
			w.delete(b)
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(10 * time.Minute)
		}, expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonAborted, "", 0}},
		{"copied: moving the tracker refused until the deadline", copied, func(w *world, b *backupv1.VirtualMachineBackup) {
			w.refuse(b, "a policy denies it")
			w.now = w.now.Add(5 * time.Minute)
		}, expect{stepStatus, backupv1.BackupPruning, backupv1.ReasonTrackerGone, "a policy denies it", 0}},
		{"pruned: unlock", detached(pruningOK), nil, expect{step: stepUnlock}},
		{
			"done", detached(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b) },
			expect{stepStatus, backupv1.BackupDone, backupv1.ReasonCompleted, "vm/b-20260303T16132", 0},
		},
		{
			"failed", detached(pruningBad), func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b) },
			expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonTargetFull, "No space is left", 0},
		},
		{
			"pruned without a guest", pruned(pruningBad), func(w *world, _ *backupv1.VirtualMachineBackup) { w.instance = nil },
			expect{stepStatus, backupv1.BackupFailed, backupv1.ReasonTargetFull, "", 0},
		},

		// Final
		{"the finalizer goes", detached(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) { w.step(b); w.step(b) }, expect{step: stepRemoveFinalizer}},
		{
			"nothing left", detached(pruningOK), func(w *world, b *backupv1.VirtualMachineBackup) { w.settle(b) },
			expect{step: stepNone, phase: backupv1.BackupDone},
		},
		{
			"an unknown phase is left alone", pending, func(_ *world, b *backupv1.VirtualMachineBackup) { b.Status.Phase = "Future" },
			expect{step: stepNone, phase: "Future"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.track()
			w.now = w.now.Add(time.Second)
			b := w.create("b", true)
			c.from(w, b)
			if c.then != nil {
				c.then(w, b)
			}
			d := decide(w.input(b))
			if d.Step != c.want.step {
				t.Fatalf("step %q, want %q (status: %+v)", d.Step, c.want.step, d.Status)
			}
			status := &b.Status
			if d.Status != nil {
				status = d.Status
			}
			if c.want.phase != "" && status.Phase != c.want.phase {
				t.Errorf("phase %s, want %s", status.Phase, c.want.phase)
			}
			if c.want.reason != "" && status.Reason != c.want.reason {
				t.Errorf("reason %s, want %s", status.Reason, c.want.reason)
			}
			if !strings.Contains(status.Message, c.want.message) {
				t.Errorf("message %q lacks %q", status.Message, c.want.message)
			}
			if c.want.wake != 0 && !d.Wake.Equal(w.now.Add(c.want.wake)) {
				t.Errorf("wakes at %s, want %s", d.Wake, w.now.Add(c.want.wake))
			}
		})
	}
}

// gone ends the guest and lets the time pass that the handler has to report it.
func gone(end func(*world)) func(*world, *backupv1.VirtualMachineBackup) {
	return goneFor(15*time.Second, end)
}

func goneFor(span time.Duration, end func(*world)) func(*world, *backupv1.VirtualMachineBackup) {
	return func(w *world, b *backupv1.VirtualMachineBackup) {
		end(w)
		w.input(b) // the watchdog sees it
		w.now = w.now.Add(span)
	}
}

// TestGuestEnd_readsLikeTheHandlers: the handler has the same test.
func TestGuestEnd_readsLikeTheHandlers(t *testing.T) {
	t.Parallel()
	for _, e := range backupevents.All("b", "vm") {
		w := newWorld()
		w.track()
		b := w.create("b", true)
		w.starting(b)
		b.Status.Phase = backupv1.BackupCopying
		w.settle(b)
		goneFor(2*time.Minute, func(w *world) { w.instance = e.Happen(b, w.instance) })(w, b)
		d := decide(w.input(b))
		if d.Status == nil || d.Status.Phase != backupv1.BackupCopyFailed {
			t.Errorf("%s: step %q", e.Name, d.Step)
			continue
		}
		says := d.Status.Message == e.Want.Message
		if b.DeletionTimestamp != nil { // the controller adds that the node did not confirm
			says = strings.HasPrefix(d.Status.Message, e.Want.Message+" ")
		}
		if d.Status.Reason != e.Want.Reason || !says {
			t.Errorf("%s: %s, %q, want %+v", e.Name, d.Status.Reason, d.Status.Message, e.Want)
		}
	}
}

// TestPlan checks what the node finds in status when a backup starts.
func TestPlan(t *testing.T) {
	t.Parallel()
	latest := &backupv1.Checkpoint{Name: "tracker-2026-03-03T16:13:20Z", Disks: []string{"root"}, BackupUID: "before"}
	cases := []struct {
		name                 string
		tracked, force       bool
		latest               *backupv1.Checkpoint
		checkpoint, replaces string
		base                 *backupv1.Checkpoint
	}{
		{name: "no tracker leaves no checkpoint"},
		{name: "first", tracked: true, checkpoint: "tracker-2026-03-03T16:13:29Z"},
		{name: "incremental", tracked: true, latest: latest, checkpoint: "tracker-2026-03-03T16:13:29Z", replaces: latest.Name, base: latest},
		{name: "forced", tracked: true, force: true, latest: latest, checkpoint: "tracker-2026-03-03T16:13:29Z", replaces: latest.Name},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.track()
			w.tracker.Status.LatestCheckpoint = c.latest
			w.now = w.now.Add(time.Second)
			b := w.create("b", c.tracked)
			b.Spec.ForceFullBackup = c.force
			w.starting(b)
			s := b.Status
			if s.CheckpointName != c.checkpoint || s.ReplacesCheckpoint != c.replaces {
				t.Errorf("checkpoint %q replaces %q", s.CheckpointName, s.ReplacesCheckpoint)
			}
			if diff := cmp.Diff(c.base, s.BaseCheckpoint); diff != "" {
				t.Errorf("base: %s", diff)
			}
			if s.InstanceUID != w.instance.UID || s.NodeName != "node" || s.Directory != "vm/b-20260303T161329Z" {
				t.Errorf("instance %q, node %q, directory %q", s.InstanceUID, s.NodeName, s.Directory)
			}
		})
	}
}

// TestCheckpointNames_areFresh aborts two backups and creates a tracker again, all within one second.
func TestCheckpointNames_areFresh(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	seen := map[string]bool{}
	for _, name := range []string{"first", "second", "third"} {
		b := w.create(name, true)
		w.starting(b)
		if seen[b.Status.CheckpointName] {
			t.Fatalf("%s is given out twice", b.Status.CheckpointName)
		}
		seen[b.Status.CheckpointName] = true
		b.Status.Phase, b.Status.Reason = backupv1.BackupCopyFailed, backupv1.ReasonAborted
		w.settle(b)
		b.Status.Phase = backupv1.BackupPruned
		w.settle(b)
		w.mount()
		w.settle(b)
		w.delete(b)
	}
	if len(w.backups) != 0 {
		t.Fatalf("%d backups stay", len(w.backups))
	}
}

func TestMoveTracker(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	w.tracker.Status.Discarded = []backupv1.DiscardedDisk{{Volume: "root", Reason: backupv1.FullBitmapLost}}
	b := w.create("b", true)
	w.starting(b)
	w.copied(b)
	w.step(b)
	want := backupv1.VirtualMachineBackupTrackerStatus{
		LatestCheckpoint: &backupv1.Checkpoint{
			Name: b.Status.CheckpointName, CreationTime: *b.Status.StartTimestamp, Disks: []string{"root"}, Volumes: []backupv1.CheckpointVolume{{VolumeName: "root"}},
			BackupName: "b", BackupUID: b.UID,
			Target: &backupv1.BackupTarget{PVCName: "target", PVCUID: w.claim.UID, Directory: b.Status.Directory, ManifestSHA256: b.Status.ManifestSHA256},
		},
		NewestCheckpointTime: w.tracker.Status.NewestCheckpointTime,
	}
	if diff := cmp.Diff(want, w.tracker.Status); diff != "" {
		t.Error(diff)
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	active := map[backupv1.BackupPhase]string{
		backupv1.BackupPending: backupv1.ConditionInitializing, backupv1.BackupAttaching: backupv1.ConditionInitializing,
		backupv1.BackupStarting: backupv1.ConditionInitializing, backupv1.BackupCopying: backupv1.ConditionProgressing,
		backupv1.BackupCopied: backupv1.ConditionProgressing, backupv1.BackupCopyFailed: backupv1.ConditionProgressing,
		backupv1.BackupPruning: backupv1.ConditionProgressing, backupv1.BackupPruned: backupv1.ConditionProgressing,
		backupv1.BackupDone: backupv1.ConditionComplete, backupv1.BackupFailed: backupv1.ConditionFailed,
	}
	for phase, want := range active {
		s := &backupv1.VirtualMachineBackupStatus{Phase: phase, Reason: "Why", Message: "what"}
		quiesced := metav1.Condition{Type: backupv1.ConditionQuiesced, Status: metav1.ConditionFalse, Reason: backupv1.ReasonAgentAbsent}
		s.Conditions = []metav1.Condition{quiesced}
		setConditions(s, 3, true, false, epoch)
		for _, other := range []string{backupv1.ConditionInitializing, backupv1.ConditionProgressing, backupv1.ConditionComplete, backupv1.ConditionFailed} {
			if got := meta.IsStatusConditionTrue(s.Conditions, other); got != (other == want) {
				t.Errorf("%s: %s is %v", phase, other, got)
			}
		}
		if done := meta.IsStatusConditionTrue(s.Conditions, backupv1.ConditionDone); done != phase.Final() {
			t.Errorf("%s: Done is %v", phase, done)
		}
		if c := meta.FindStatusCondition(s.Conditions, want); c.Message == "" || phase.Final() && (c.Reason != "Why" || c.Message != "what") {
			t.Errorf("%s: %s says %q: %q", phase, want, c.Reason, c.Message)
		}
		if !meta.IsStatusConditionTrue(s.Conditions, backupv1.ConditionDeleting) {
			t.Errorf("%s: not Deleting", phase)
		}
		if diff := cmp.Diff(quiesced, s.Conditions[0]); diff != "" {
			t.Errorf("%s: the handler's condition changed: %s", phase, diff)
		}
		before := s.DeepCopy()
		setConditions(s, 3, true, false, epoch.Add(time.Hour))
		if diff := cmp.Diff(before, s); diff != "" {
			t.Errorf("%s: a second projection changes: %s", phase, diff)
		}
	}
}
