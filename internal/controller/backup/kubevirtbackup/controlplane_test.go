//go:build controlplane

package kubevirtbackup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// lab is a namespace with a running machine, the controllers under test, and a test that plays everybody else.
type lab struct {
	*testing.T
	ns            string
	user, handler client.Client
	// varve has the controller's own account. The test uses it to play other controllers' writes.
	varve    client.Client
	registry *prometheus.Registry
	limits   Limits
	stop     func()
	vm       *kubevirtv1.VirtualMachine
	vmi      *kubevirtv1.VirtualMachineInstance
	// cached reads from the controllers' cache.
	cached client.Client
	// configuration is what the controllers read: the cluster's, unless a test has its own.
	configuration types.NamespacedName
	// traffic counts the controllers' requests, unless it is nil.
	traffic *controlplane.Traffic
}

func newLab(t *testing.T, limits Limits) *lab {
	t.Helper()
	l := &lab{T: t, ns: cluster.Namespace(t), limits: limits}
	l.user, l.handler = cluster.Client(t, controlplane.Plain), cluster.Client(t, controlplane.HandlerOn("node-1"))
	l.varve = cluster.Client(t, controlplane.Controller)
	l.start()
	l.vm = gen.VirtualMachine(l.named("vm"), diskSpec())
	l.must(l.user.Create(t.Context(), l.vm))
	l.boot()
	return l
}

func (l *lab) start() {
	l.Helper()
	cfg := cluster.ConfigFor(controlplane.Controller)
	if l.traffic != nil {
		l.traffic.Wrap(cfg)
	}
	mgr := cluster.ManagerFor(l.T, cfg, func(o *ctrl.Options) {
		o.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{l.ns: {}, controlplane.SystemNamespace: {}}, ByObject: map[client.Object]cache.ByObject{
			&backupv1.VirtualMachineBackup{}: {Label: layout.UnfinishedBackups()},
		}}
	})
	l.cached = mgr.GetClient()
	measures := metric.New(mgr.GetClient(), mgr.GetAPIReader(), mgr.Elected())
	l.registry = prometheus.NewRegistry()
	l.must(l.registry.Register(measures))
	l.must(Setup(mgr, Options{Configuration: l.configuration, Limits: l.limits, Ended: measures.CountEnd}))
	l.stop = controlplane.StartManager(l.T, mgr)
}

func (l *lab) restart() { l.Helper(); l.stop(); l.start() }

func (l *lab) named(name string) metav1.ObjectMeta {
	return gen.Meta(l.ns, name)
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// boot makes a new instance that runs and is tracked.
func (l *lab) boot() {
	l.Helper()
	l.vmi = gen.VirtualMachineInstance(l.named("vm"), diskSpec())
	l.must(l.user.Create(l.Context(), l.vmi))
	controlplane.Update(l.T, l.varve, l.vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.Phase, i.Status.NodeName = kubevirtv1.PhaseRunning, "node-1"
		i.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled}
	})
}

func (l *lab) claim(name string, mode corev1.PersistentVolumeMode) {
	l.Helper()
	l.must(l.user.Create(l.Context(), gen.Claim(l.named(name), gen.SetVolumeMode(mode))))
}

func (l *lab) tracker(name string) *backupv1.VirtualMachineBackupTracker {
	l.Helper()
	t := gen.Tracker(l.named(name), "vm")
	l.must(l.user.Create(l.Context(), t))
	return t
}

// backup creates a backup through a tracker, or without one if tracker is empty.
func (l *lab) backup(name, tracker string) *backupv1.VirtualMachineBackup {
	l.Helper()
	b := gen.Backup(l.named(name), gen.SetTracker(tracker))
	l.must(l.user.Create(l.Context(), b))
	return b
}

func (l *lab) read(o client.Object) error {
	return l.user.Get(l.Context(), client.ObjectKeyFromObject(o), o)
}

// reaches waits until the backup has the phase and, unless it is empty, the reason.
func (l *lab) reaches(b *backupv1.VirtualMachineBackup, phase backupv1.BackupPhase, reason string) {
	l.Helper()
	controlplane.Eventually(l.T, func() error {
		if err := l.read(b); err != nil {
			return err
		}
		if b.Status.Phase != phase || reason != "" && b.Status.Reason != reason {
			return fmt.Errorf("%s is %s %s (%s), want %s %s", b.Name, b.Status.Phase, b.Status.Reason, b.Status.Message, phase, reason)
		}
		return nil
	})
}

func (l *lab) goes(o client.Object) {
	l.Helper()
	controlplane.Eventually(l.T, func() error {
		if err := l.read(o); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%T %s is there (%v)", o, o.GetName(), err)
		}
		return nil
	})
}

// mount plays the attachment: it mounts every wanted utility volume and removes every other one.
func (l *lab) mount(want int) {
	l.Helper()
	controlplane.Eventually(l.T, func() error {
		if err := l.read(l.vmi); err != nil {
			return err
		}
		if n := len(l.vmi.Spec.UtilityVolumes); n != want {
			return fmt.Errorf("%d utility volumes, want %d", n, want)
		}
		return nil
	})
	controlplane.Update(l.T, l.varve, l.vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.VolumeStatus = nil
		for _, u := range i.Spec.UtilityVolumes {
			i.Status.VolumeStatus = append(i.Status.VolumeStatus, kubevirtv1.VolumeStatus{Name: u.Name, Phase: kubevirtv1.VolumeMountedToPod})
		}
	})
}

func (l *lab) locked() string {
	l.Helper()
	l.must(l.read(l.vmi))
	if lock := lockOf(l.vmi); lock != nil {
		return lock.BackupName
	}
	return ""
}

// node plays the handler: it edits the backup's status.
func (l *lab) node(b *backupv1.VirtualMachineBackup, edit func(*backupv1.VirtualMachineBackupStatus)) {
	l.Helper()
	controlplane.Update(l.T, l.handler, b, true, func(b *backupv1.VirtualMachineBackup) { edit(&b.Status) })
}

func copying(s *backupv1.VirtualMachineBackupStatus) {
	s.Phase, s.Reason, s.Message = backupv1.BackupCopying, backupv1.ReasonCopying, "data is being copied"
	s.StartTimestamp = &metav1.Time{Time: time.Now()}
	s.Progress = &backupv1.Progress{TotalBytes: 10, ProcessedBytes: 1, Percent: "10%"}
}

func copied(s *backupv1.VirtualMachineBackupStatus) {
	s.Phase, s.Reason, s.Message = backupv1.BackupCopied, backupv1.ReasonFinishing, "all data is on the target"
	s.BackupType, s.MovedBytes, s.FrozenMillis = backupv1.Full, 4096, ptr.To[int64](12)
	if s.BaseCheckpoint != nil {
		s.BackupType = backupv1.Incremental
	}
	s.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: s.BackupType, MovedBytes: 4096}}
}

func pruned(s *backupv1.VirtualMachineBackupStatus) { s.Phase = backupv1.BackupPruned }

func failedWith(reason string) func(*backupv1.VirtualMachineBackupStatus) {
	return func(s *backupv1.VirtualMachineBackupStatus) {
		s.Phase, s.Reason, s.Message = backupv1.BackupCopyFailed, reason, "it failed: "+reason
	}
}

// toStarting takes a new backup as far as the node.
func (l *lab) toStarting(b *backupv1.VirtualMachineBackup) {
	l.Helper()
	l.reaches(b, backupv1.BackupAttaching, backupv1.ReasonAttaching)
	l.mount(1)
	l.reaches(b, backupv1.BackupStarting, "")
}

// finish takes a backup that is Copied or CopyFailed to its end.
func (l *lab) finish(b *backupv1.VirtualMachineBackup, phase backupv1.BackupPhase, reason string) {
	l.Helper()
	l.reaches(b, backupv1.BackupPruning, "")
	l.node(b, pruned)
	l.mount(0)
	l.reaches(b, phase, reason)
	if name := l.locked(); name != "" {
		l.Errorf("%s ended and %s holds the instance", b.Name, name)
	}
}

func (l *lab) event(regarding types.UID, reason string) string {
	l.Helper()
	var note string
	controlplane.Eventually(l.T, func() error {
		var list eventsv1.EventList
		if err := l.user.List(l.Context(), &list, client.InNamespace(l.ns)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.UID == regarding && e.Reason == reason {
				note = e.Note
				return nil
			}
		}
		return fmt.Errorf("no event %s", reason)
	})
	return note
}

func TestBackup_fullThenIncremental(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	l.claim("target", corev1.PersistentVolumeFilesystem)
	tracker := l.tracker("tracker")

	full := l.backup("full", "tracker")
	l.reaches(full, backupv1.BackupAttaching, backupv1.ReasonAttaching)
	if name := l.locked(); name != "" {
		t.Fatalf("the instance is locked by %s before the volume is there", name)
	}
	l.mount(1)
	l.reaches(full, backupv1.BackupStarting, "")
	if l.locked() != "full" {
		t.Fatalf("locked by %q", l.locked())
	}
	if full.Status.NodeName != "node-1" || full.Status.InstanceUID != l.vmi.UID || !strings.HasPrefix(full.Status.CheckpointName, "tracker-20") || full.Status.BaseCheckpoint != nil {
		t.Fatalf("planned as %+v", full.Status)
	}
	l.must(l.read(tracker))
	if !controllerutil.ContainsFinalizer(tracker, layout.FinalizerTracker) || tracker.Status.LatestCheckpoint != nil {
		t.Fatalf("tracker in use: %+v", tracker)
	}
	l.node(full, copying)
	controlplane.Eventually(t, func() error {
		l.must(l.read(full))
		if !meta.IsStatusConditionTrue(full.Status.Conditions, backupv1.ConditionProgressing) {
			return fmt.Errorf("conditions: %v", full.Status.Conditions)
		}
		return nil
	})
	l.node(full, copied)
	l.finish(full, backupv1.BackupDone, backupv1.ReasonCompleted)
	if !meta.IsStatusConditionTrue(full.Status.Conditions, backupv1.ConditionDone) || meta.IsStatusConditionTrue(full.Status.Conditions, backupv1.ConditionFailed) {
		t.Errorf("conditions: %v", full.Status.Conditions)
	}
	l.must(l.read(tracker))
	want := &backupv1.Checkpoint{Name: full.Status.CheckpointName, CreationTime: *full.Status.StartTimestamp, Disks: []string{"root"}, Volumes: []backupv1.CheckpointVolume{{VolumeName: "root"}}, BackupName: "full", BackupUID: full.UID}
	if diff := cmp.Diff(want, tracker.Status.LatestCheckpoint); diff != "" {
		t.Errorf("tracker: %s", diff)
	}
	for _, reason := range []string{EventAttaching, EventStarting, EventFinishing, EventDetaching, EventCompleted} {
		l.event(full.UID, reason)
	}
	l.event(tracker.UID, EventTrackerMoved)

	incremental := l.backup("incremental", "tracker")
	l.toStarting(incremental)
	if diff := cmp.Diff(want, incremental.Status.BaseCheckpoint); diff != "" {
		t.Errorf("base: %s", diff)
	}
	if incremental.Status.CheckpointName == full.Status.CheckpointName {
		t.Error("the checkpoint's name is used twice")
	}
	l.node(incremental, copying)
	l.node(incremental, copied)
	l.finish(incremental, backupv1.BackupDone, backupv1.ReasonCompleted)
	controlplane.Eventually(t, func() error {
		l.must(l.read(tracker))
		if len(tracker.Finalizers) != 0 {
			return fmt.Errorf("finalizers %v", tracker.Finalizers)
		}
		return nil
	})
	for _, kind := range []backupv1.BackupType{backupv1.Full, backupv1.Incremental} {
		if n := l.counter("varve_backups_total", l.ns, "vm", "push", string(kind), "Succeeded", backupv1.ReasonCompleted); n != 1 {
			t.Errorf("%v %s backups counted", n, kind)
		}
		if n := l.counter("varve_backup_moved_bytes_total", l.ns, "vm", "push", string(kind)); n != 4096 {
			t.Errorf("%v bytes of %s backups counted", n, kind)
		}
	}
}

// counter returns the value of the counter with these label values, in any order.
func (l *lab) counter(name string, values ...string) float64 {
	l.Helper()
	families, err := l.registry.Gather()
	l.must(err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var have []string
			for _, p := range m.GetLabel() {
				have = append(have, p.GetValue())
			}
			slices.Sort(have)
			slices.Sort(values)
			if slices.Equal(have, values) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// Upstream takes the lock before it looks for the claim, and a claim that appears wakes nothing there.
func TestPending_waitsWithoutALockAndWakesAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	b := l.backup("b", "tracker")
	l.reaches(b, backupv1.BackupPending, backupv1.ReasonTrackerNotFound)
	l.tracker("tracker")
	l.reaches(b, backupv1.BackupPending, backupv1.ReasonPVCNotFound)
	if left := time.Until(b.Status.PhaseDeadline.Time); left < 23*time.Hour || left > 25*time.Hour {
		t.Errorf("waits for another %s", left)
	}
	if !meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionInitializing) {
		t.Errorf("conditions: %v", b.Status.Conditions)
	}
	if l.locked() != "" || len(l.vmi.Spec.UtilityVolumes) != 0 || len(b.Finalizers) != 0 {
		t.Errorf("a waiting backup holds something: %+v", l.vmi)
	}
	controlplane.Update(t, l.varve, l.vmi, true, func(i *kubevirtv1.VirtualMachineInstance) { i.Status.Phase = kubevirtv1.PhaseScheduled })
	l.reaches(b, backupv1.BackupPending, backupv1.ReasonVMNotRunning)
	controlplane.Update(t, l.varve, l.vmi, true, func(i *kubevirtv1.VirtualMachineInstance) { i.Status.Phase = kubevirtv1.PhaseRunning })
	l.reaches(b, backupv1.BackupPending, backupv1.ReasonPVCNotFound)
	// Let the passes for everything done so far run out: then only the claim itself can wake the backup.
	controlplane.Consistently(t, time.Second, func() error {
		l.reaches(b, backupv1.BackupPending, backupv1.ReasonPVCNotFound)
		return nil
	})
	l.claim("target", corev1.PersistentVolumeFilesystem)
	l.toStarting(b)
}

func TestBlockClaim_failsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	l.claim("target", corev1.PersistentVolumeBlock)
	b := l.backup("b", "")
	l.reaches(b, backupv1.BackupFailed, backupv1.ReasonPVCIsBlock)
	if !meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionFailed) || l.locked() != "" {
		t.Errorf("status: %+v", b.Status)
	}
	if note := l.event(b.UID, EventFailed); !strings.Contains(note, "volumeMode") {
		t.Errorf("event: %s", note)
	}
}

// Upstream lets a second backup with another tracker run into errors in a loop.
func TestBackup_oneAtATimeOnAMachine(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	l.claim("target", corev1.PersistentVolumeFilesystem)
	l.tracker("one")
	l.tracker("two")
	first := l.backup("first", "one")
	l.toStarting(first)
	second, third := l.backup("second", "two"), l.backup("third", "")
	for _, b := range []*backupv1.VirtualMachineBackup{second, third} {
		l.reaches(b, backupv1.BackupPending, backupv1.ReasonOtherBackup)
		if !strings.Contains(b.Status.Message, "first") {
			t.Errorf("%s: %s", b.Name, b.Status.Message)
		}
	}
	l.node(first, failedWith(backupv1.ReasonTargetFull))
	l.finish(first, backupv1.BackupFailed, backupv1.ReasonTargetFull)
	l.toStarting(second)
	l.reaches(third, backupv1.BackupPending, backupv1.ReasonOtherBackup)
	if third.Status.CheckpointName != "" || second.Status.CheckpointName == "" {
		t.Errorf("checkpoints %q and %q", second.Status.CheckpointName, third.Status.CheckpointName)
	}
	l.node(second, copying)
	l.node(second, copied)
	l.finish(second, backupv1.BackupDone, "")
	l.toStarting(third)
	if third.Status.CheckpointName != "" {
		t.Errorf("a backup without a tracker makes checkpoint %s", third.Status.CheckpointName)
	}
}

func TestDeletion_inEachPhase(t *testing.T) {
	t.Parallel()
	for _, phase := range []backupv1.BackupPhase{
		backupv1.BackupPending, backupv1.BackupAttaching, backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupPruning, backupv1.BackupDone,
	} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, Limits{})
			tracker := l.tracker("tracker")
			b := l.backup("b", "tracker")
			l.bring(b, phase)
			l.must(l.user.Delete(t.Context(), b))
			switch phase {
			case backupv1.BackupAttaching:
				l.mount(0)
			case backupv1.BackupStarting, backupv1.BackupCopying:
				l.node(b, failedWith(backupv1.ReasonAborted))
				l.reaches(b, backupv1.BackupPruning, backupv1.ReasonAborted)
				if !meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionDeleting) {
					t.Errorf("conditions: %v", b.Status.Conditions)
				}
				l.node(b, pruned)
				l.mount(0)
			case backupv1.BackupPruning:
				l.node(b, pruned)
				l.mount(0)
			}
			l.goes(b)
			if l.locked() != "" {
				t.Error("the instance stays locked")
			}
			l.must(l.read(tracker))
			succeeded := phase == backupv1.BackupPruning || phase == backupv1.BackupDone
			if moved := tracker.Status.LatestCheckpoint != nil; moved != succeeded {
				t.Errorf("tracker moved: %v", moved)
			}
		})
	}
}

// bring takes a backup to a phase on the way to success.
func (l *lab) bring(b *backupv1.VirtualMachineBackup, phase backupv1.BackupPhase) {
	l.Helper()
	order := []backupv1.BackupPhase{
		backupv1.BackupPending, backupv1.BackupAttaching, backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupPruning, backupv1.BackupDone,
	}
	steps := []func(){
		func() { l.reaches(b, backupv1.BackupPending, "") },
		func() {
			l.claim("target", corev1.PersistentVolumeFilesystem)
			l.reaches(b, backupv1.BackupAttaching, "")
			controlplane.Eventually(l.T, func() error {
				l.must(l.read(l.vmi))
				if len(l.vmi.Spec.UtilityVolumes) == 0 {
					return fmt.Errorf("no volume")
				}
				return nil
			})
		},
		func() { l.mount(1); l.reaches(b, backupv1.BackupStarting, "") },
		func() { l.node(b, copying) },
		func() { l.node(b, copied); l.reaches(b, backupv1.BackupPruning, "") },
		func() { l.finish(b, backupv1.BackupDone, "") },
	}
	for i := 0; i <= slices.Index(order, phase); i++ {
		steps[i]()
	}
}

func TestController_restartsInEachPhase(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	tracker := l.tracker("tracker")
	b := l.backup("b", "tracker")
	l.reaches(b, backupv1.BackupPending, "")
	l.stop()
	l.claim("target", corev1.PersistentVolumeFilesystem)
	l.start()
	l.reaches(b, backupv1.BackupAttaching, "")
	l.restart()
	l.mount(1)
	l.reaches(b, backupv1.BackupStarting, "")
	name := b.Status.CheckpointName
	l.stop()
	l.node(b, copying)
	l.start()
	l.stop()
	l.node(b, copied)
	l.start()
	l.reaches(b, backupv1.BackupPruning, "")
	l.stop()
	l.node(b, pruned)
	l.start()
	l.mount(0)
	l.reaches(b, backupv1.BackupDone, "")
	l.must(l.read(tracker))
	if tracker.Status.LatestCheckpoint == nil || tracker.Status.LatestCheckpoint.Name != name || l.locked() != "" {
		t.Errorf("tracker %+v, locked by %q", tracker.Status, l.locked())
	}
}

func TestGuestEnd_whileTheNodeIsSilent(t *testing.T) {
	t.Parallel()
	limits := Limits{GuestGone: time.Second, PruneWithoutGuest: time.Second}
	cases := []struct {
		name   string
		end    func(*lab)
		reason string
	}{
		{"crash", func(l *lab) {
			controlplane.Update(l.T, l.varve, l.vmi, true, func(i *kubevirtv1.VirtualMachineInstance) { i.Status.Phase = kubevirtv1.PhaseFailed })
		}, backupv1.ReasonGuestCrashed},
		{"shutdown", func(l *lab) {
			controlplane.Update(l.T, l.varve, l.vmi, true, func(i *kubevirtv1.VirtualMachineInstance) { i.Status.Phase = kubevirtv1.PhaseSucceeded })
		}, backupv1.ReasonGuestShutdown},
		{"machine deleted", func(l *lab) {
			l.must(l.user.Delete(l.Context(), l.vm))
			l.must(l.user.Delete(l.Context(), l.vmi))
		}, backupv1.ReasonVMDeleted},
		{"instance replaced", func(l *lab) {
			l.must(l.user.Delete(l.Context(), l.vmi))
			l.boot()
		}, backupv1.ReasonVMDeleted},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, limits)
			tracker := l.tracker("tracker")
			b := l.backup("b", "tracker")
			l.bring(b, backupv1.BackupCopying)
			c.end(l)
			l.reaches(b, backupv1.BackupFailed, c.reason)
			if !strings.Contains(b.Status.Message, ".partial") {
				t.Errorf("the message does not name the files that stay: %s", b.Status.Message)
			}
			l.must(l.read(tracker))
			if tracker.Status.LatestCheckpoint != nil {
				t.Error("the tracker moved")
			}
			if err := l.read(l.vmi); err == nil && l.locked() != "" {
				t.Error("the instance is locked")
			}
		})
	}
}

func TestDeadlines_endABackupOnASilentNode(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{Starting: 10 * time.Second, Pruning: time.Second, Detaching: time.Second})
	b := l.backup("b", "")
	l.bring(b, backupv1.BackupStarting)
	l.reaches(b, backupv1.BackupFailed, backupv1.ReasonDeadlineExceeded)
	for _, part := range []string{"node-1", ".partial", "still attached"} {
		if !strings.Contains(b.Status.Message, part) {
			t.Errorf("%q is not in: %s", part, b.Status.Message)
		}
	}
	if l.locked() != "" {
		t.Error("the instance is locked")
	}
}

// Upstream allows the deletion of a tracker that is in use.
func TestTracker_isHeldWhileInUse(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	tracker := l.tracker("tracker")
	b := l.backup("b", "tracker")
	l.bring(b, backupv1.BackupCopying)
	l.must(l.user.Delete(t.Context(), tracker))
	if note := l.event(tracker.UID, EventTrackerHeld); !strings.Contains(note, "VirtualMachineBackup b") {
		t.Errorf("event: %s", note)
	}
	l.node(b, copied)
	l.finish(b, backupv1.BackupDone, "")
	l.goes(tracker)
}

func TestTracker_doesNotMoveIfReplaced(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	tracker := l.tracker("tracker")
	b := l.backup("b", "tracker")
	l.bring(b, backupv1.BackupCopying)
	l.must(l.user.Delete(t.Context(), tracker))
	controlplane.Update(t, l.user, tracker, false, func(t *backupv1.VirtualMachineBackupTracker) { t.Finalizers = nil })
	l.goes(tracker)
	other := l.tracker("tracker")
	l.node(b, copied)
	l.finish(b, backupv1.BackupFailed, backupv1.ReasonTrackerGone)
	l.must(l.read(other))
	if other.Status.LatestCheckpoint != nil {
		t.Error("a tracker that the backup was not planned with moved")
	}
}

// If a finalizer is removed by hand, the machine must not stay locked forever.
func TestAbandoned_lockAndVolumeAreReleased(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	b := l.backup("b", "")
	l.bring(b, backupv1.BackupCopying)
	l.must(l.user.Delete(t.Context(), b))
	controlplane.Update(t, l.user, b, false, func(b *backupv1.VirtualMachineBackup) { b.Finalizers = nil })
	l.goes(b)
	l.mount(0)
	controlplane.Eventually(t, func() error {
		if name := l.locked(); name != "" {
			return fmt.Errorf("locked by %s", name)
		}
		return nil
	})
	l.event(l.vmi.UID, EventLockReleased)
	l.event(l.vmi.UID, EventVolumeReleased)
	again := l.backup("b", "")
	l.toStarting(again)
}

// The state PVC's and other people's utility volumes are none of this package's business.
func TestForeignUtilityVolumes_stay(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{})
	controlplane.Update(t, l.varve, l.vmi, false, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{{
			Name: "dump", PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "dump"}, Type: ptr.To(kubevirtv1.UtilityVolumeType("MemoryDump")),
		}}
	})
	controlplane.Consistently(t, 500*time.Millisecond, func() error {
		if err := l.user.Get(context.Background(), client.ObjectKeyFromObject(l.vmi), l.vmi); err != nil {
			return err
		}
		if len(l.vmi.Spec.UtilityVolumes) != 1 {
			return fmt.Errorf("utility volumes: %v", l.vmi.Spec.UtilityVolumes)
		}
		return nil
	})
}
