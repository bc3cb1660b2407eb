//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/keep/condition"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// TestSchedule_keepsTheNewest has a machine backed up every minute, while it runs and while it is stopped: the oldest
// backups go with their restore points, and the newest one has what the disk has. It is suspended by hand, and by
// itself when its location is away, and goes on when that is back.
func TestSchedule_keepsTheNewest(t *testing.T) {
	s := newScene(t, "schedule")
	ctx := t.Context()
	s.boot(lab.Disk{Name: "blk", Bytes: 16 * mib, Block: true})
	location, err := s.BucketLocation(ctx, "e2e-schedule", os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	t.Cleanup(func() { s.must(location.Remove(context.WithoutCancel(ctx))) })
	const device = `b=/dev/$(grep -lx blk /sys/block/*/serial | cut -d/ -f4); `
	s.guest(device + `head -c 8000000 /dev/urandom | dd of=$b bs=1M conv=notrunc,fsync`)
	sum, _, _ := strings.Cut(strings.TrimSpace(s.guest(device+`sha256sum <$b`)), " ")

	w := &scheduled{scene: s, ScheduleVMBackup: gen.Schedule(gen.Meta(s.Namespace, "minutes"), s.vm,
		func(o *harvesterv1.ScheduleVMBackup) {
			o.Spec.Cron, o.Spec.Retain, o.Spec.MaxFailure = "* * * * *", 3, 2
			o.Annotations = map[string]string{
				harvesterv1.AnnotationSkipCronCheck: "enable", harvesterv1.AnnotationLocation: location.Name,
			}
		})}
	s.must(s.Create(ctx, w.ScheduleVMBackup))
	w.waitSucceeded(4)
	w.setSuspend(true)
	w.wait("a run that is skipped", func() error {
		if r := w.Status.Runs[0]; r.Reason != harvesterv1.SkippedSuspended {
			return fmt.Errorf("the latest run is %+v", r)
		}
		return nil
	})
	w.waitRetained()
	kept := w.Spec.Retain * len(s.disks)
	if n := s.countRestorePoints(client.ObjectKeyFromObject(location.BackupStorageLocation)); n != kept {
		t.Errorf("%d restore points of %d backups with %d disks", n, w.Spec.Retain, len(s.disks))
	}
	snapshots := s.scheduleSnapshots()
	newest := w.newest()
	r, err := s.RestoreMachine(ctx, &lab.MachineBackup{VirtualMachineBackup: newest}, "beside", moveTimeout)
	s.must(err)
	for _, v := range r.Status.VolumeRestores {
		if strings.Contains(v.VolumeName, "blk") {
			s.holds(v.PersistentVolumeClaim, sum)
			sum = ""
		}
	}
	if sum != "" {
		verdict.Errorf(t, "no disk of the restored machine was compared: %+v", r.Status.VolumeRestores)
	}
	s.must(s.DeleteMachine(ctx, "beside", 2*time.Minute))
	snapshots.wait("a snapshot of the running machine", func() error { return snapshots.hasSucceeded(nil) })

	vmi := s.instance()
	s.strategy(kubevirtv1.RunStrategyHalted)
	s.must(s.WaitGone(ctx, vmi, 2*time.Minute))
	halted := snapshots.setCron("*/2 * * * *")
	good := maps.Clone(location.Spec.Config)
	s.pointLocation(location, map[string]string{"s3Url": "https://127.0.0.1:9", "region": good["region"]},
		velerov1.LocationUnavailable)
	w.setSuspend(false)
	w.wait("that its location is away", func() error {
		if c := condition.Find(w.Status.Conditions, harvesterv1.ConditionBackupSuspend); c == nil ||
			!strings.Contains(c.Message, "is not available") {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
	s.pointLocation(location, good, velerov1.LocationAvailable)
	w.wait("to go on", func() error { return w.isSuspended(false) })
	s.pointLocation(location, map[string]string{"s3Url": "https://127.0.0.1:9", "region": good["region"]},
		velerov1.LocationUnavailable)
	w.wait("two failures", func() error {
		c := condition.Find(w.Status.Conditions, harvesterv1.ConditionBackupSuspend)
		if c == nil || !strings.HasPrefix(c.Message, "Reach Max Failure") || !w.Spec.Suspend {
			return fmt.Errorf("spec.suspend %v, condition %+v, runs %+v", w.Spec.Suspend, c, w.Status.Runs)
		}
		return w.isSuspended(true)
	})
	s.pointLocation(location, good, velerov1.LocationAvailable)
	w.setSuspend(false)
	w.wait("to go on", func() error { return w.isSuspended(false) })
	before := w.Status.LastSuccessfulTime
	w.wait("a backup of the stopped machine", func() error {
		if !before.Before(w.Status.LastSuccessfulTime) {
			return fmt.Errorf("runs %+v", w.Status.Runs)
		}
		return nil
	})
	w.waitRetained()
	for _, b := range w.backups() {
		if b.HasFailed() {
			t.Errorf("%s has failed and is left: %s", b.Name, *b.Status.Error.Message)
		}
	}
	snapshots.ofTheStoppedMachine(halted)
	s.must(s.Delete(ctx, w.ScheduleVMBackup))
	if n := len(w.backups()); n < 3 {
		t.Errorf("%d backups are left of a schedule that was deleted", n)
	}
	s.followsPolicy(location)
}

// followsPolicy gives the machine its schedule by a policy, asks that for a backup, and deletes the policy.
func (s *scene) followsPolicy(location *lab.Location) {
	s.t.Helper()
	ctx := s.t.Context()
	often := gen.Schedule(gen.Meta(s.Namespace, "often"), s.vm, func(o *harvesterv1.ScheduleVMBackup) {
		o.Spec.Cron = "*/30 * * * *"
	})
	if err := s.Create(ctx, often); err == nil || !strings.Contains(err.Error(), "backups need 1h0m0s or more") {
		s.t.Errorf("a schedule of every half hour: %v", err)
	}
	policy := gen.Policy(gen.Meta(s.Namespace, "all"), metav1.LabelSelector{}, func(p *varvev1.BackupPolicy) {
		p.Spec.Template.Annotations[harvesterv1.AnnotationLocation] = location.Name
		p.Spec.Template.Spec.Cron = "0 0 1 1 *"
	})
	s.must(s.Create(ctx, policy))
	w := &scheduled{scene: s, ScheduleVMBackup: gen.Schedule(gen.Meta(s.Namespace, "all-"+s.vm), s.vm)}
	s.must(wait.For(ctx, time.Minute, "the schedule of the policy", func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(w.ScheduleVMBackup), w.ScheduleVMBackup)
		return err == nil, "", client.IgnoreNotFound(err)
	}))
	s.must(s.Patch(ctx, w.ScheduleVMBackup, client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
		`{"metadata":{"annotations":{%q:%q}}}`, harvesterv1.AnnotationRunAt, time.Now().UTC().Format(time.RFC3339)))))
	w.wait("the backup that was asked for", func() error {
		if len(w.Status.Runs) == 0 || w.Status.Runs[0].Reason != harvesterv1.RunRequested {
			return fmt.Errorf("runs %+v", w.Status.Runs)
		}
		return w.hasSucceeded(nil)
	})
	s.must(s.Delete(ctx, policy))
	s.must(s.WaitGone(ctx, w.ScheduleVMBackup, time.Minute))
	if n := len(w.backups()); n != 1 {
		s.t.Errorf("%d backups are left of a policy that was deleted, want 1", n)
	}
}

// scheduleSnapshots has snapshots of the machine made every minute.
func (s *scene) scheduleSnapshots() *scheduled {
	s.t.Helper()
	w := &scheduled{scene: s, ScheduleVMBackup: gen.Schedule(gen.Meta(s.Namespace, "snapshots"), s.vm,
		func(o *harvesterv1.ScheduleVMBackup) {
			o.Spec.Cron, o.Spec.Retain, o.Spec.MaxFailure = "* * * * *", 3, 2
			o.Spec.VMBackupSpec.Type = harvesterv1.Snapshot
			o.Annotations = map[string]string{harvesterv1.AnnotationSkipCronCheck: "enable"}
		})}
	s.must(s.Create(s.t.Context(), w.ScheduleVMBackup))
	return w
}

// setCron changes when the schedule is due, and returns the latest run that was due before.
func (w *scheduled) setCron(expression string) time.Time {
	w.t.Helper()
	w.must(w.Patch(w.t.Context(), w.ScheduleVMBackup,
		client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"cron":%q}}`, expression))))
	w.wait("to follow "+expression, func() error {
		if !strings.HasSuffix(w.Status.ObservedCron, expression) {
			return fmt.Errorf("it follows %s", w.Status.ObservedCron)
		}
		return nil
	})
	return w.Status.LastScheduleTime.Time
}

// hasSucceeded says whether a run has succeeded that was due after a time, if one is given.
func (w *scheduled) hasSucceeded(after *time.Time) error {
	for _, r := range w.Status.Runs {
		if r.Result == harvesterv1.RunSucceeded && (after == nil || r.Time.After(*after)) {
			return nil
		}
	}
	return fmt.Errorf("suspended %v, runs %+v", w.Status.Suspended, w.Status.Runs)
}

// ofTheStoppedMachine waits for a snapshot of the stopped machine, made at the times that the schedule has now, and for
// the storage's snapshots to be those of the snapshots that are kept.
func (w *scheduled) ofTheStoppedMachine(halted time.Time) {
	w.t.Helper()
	w.wait("a snapshot of the stopped machine, and enough of them", func() error {
		good := 0
		for _, r := range w.Status.Runs {
			if r.Result == harvesterv1.RunSucceeded {
				good++
			}
		}
		if good < w.Spec.Retain {
			return fmt.Errorf("runs %+v", w.Status.Runs)
		}
		return w.hasSucceeded(&halted)
	})
	w.setSuspend(true)
	w.waitRetained()
	for _, r := range w.Status.Runs {
		if r.Time.After(halted) && r.Count == 0 && r.Time.Minute()%2 != 0 {
			w.t.Errorf("a run of every other minute was due at %s", r.Time)
		}
	}
	var taken snapshotv1.VolumeSnapshotList
	w.must(w.List(w.t.Context(), &taken, client.InNamespace(w.scene.Namespace)))
	if want := w.Spec.Retain * len(w.disks); len(taken.Items) != want {
		w.t.Errorf("%d VolumeSnapshots of %d snapshots with %d disks", len(taken.Items), w.Spec.Retain, len(w.disks))
	}
}

// scheduled is a schedule of a scene.
type scheduled struct {
	*scene
	*harvesterv1.ScheduleVMBackup
}

// wait waits until check is content with the schedule as it is.
func (w *scheduled) wait(what string, check func() error) {
	w.t.Helper()
	w.must(wait.For(w.t.Context(), 6*time.Minute, "the schedule: "+what,
		func(ctx context.Context) (bool, string, error) {
			if err := w.Get(ctx, client.ObjectKeyFromObject(w.ScheduleVMBackup), w.ScheduleVMBackup); err != nil {
				return false, "", err
			}
			if err := check(); err != nil {
				return false, err.Error(), nil //nolint:nilerr // it is waited for
			}
			return true, "", nil
		}))
}

// waitSucceeded waits until so many runs have succeeded, and fails if one did not.
func (w *scheduled) waitSucceeded(n int) {
	w.t.Helper()
	w.wait(fmt.Sprintf("%d backups", n), func() error {
		good := 0
		for _, r := range w.Status.Runs {
			switch r.Result {
			case harvesterv1.RunSucceeded:
				good++
			case harvesterv1.RunFailed, harvesterv1.RunDeleted:
				w.t.Fatalf("a run failed: %+v", r)
			}
		}
		if good < n {
			return fmt.Errorf("runs %+v", w.Status.Runs)
		}
		return nil
	})
	w.t.Logf("runs: %+v", w.Status.Runs)
}

// waitRetained waits until as many backups are there as are to stay, beside one that runs unless the schedule is
// suspended.
func (w *scheduled) waitRetained() {
	w.t.Helper()
	w.wait("the oldest to go", func() error {
		ready, running := 0, 0
		for _, b := range w.backups() {
			if b.IsReady() {
				ready++
			} else if !b.HasFailed() {
				running++
			}
		}
		if ready != w.Spec.Retain || running > 0 && w.Status.Suspended {
			return fmt.Errorf("%d backups are ready, want %d; %d run", ready, w.Spec.Retain, running)
		}
		return nil
	})
}

func (w *scheduled) backups() []harvesterv1.VirtualMachineBackup {
	w.t.Helper()
	var list harvesterv1.VirtualMachineBackupList
	w.must(w.List(w.t.Context(), &list, client.InNamespace(w.scene.Namespace),
		client.MatchingLabels{harvesterv1.LabelSchedule: string(w.UID)}))
	return list.Items
}

// newest returns the newest backup that is ready.
func (w *scheduled) newest() (newest *harvesterv1.VirtualMachineBackup) {
	w.t.Helper()
	all := w.backups()
	for i := range all {
		if all[i].IsReady() &&
			(newest == nil || newest.Labels[harvesterv1.LabelScheduledTime] < all[i].Labels[harvesterv1.LabelScheduledTime]) {
			newest = &all[i]
		}
	}
	if newest == nil {
		w.t.Fatal("no backup is ready")
	}
	return newest
}

func (w *scheduled) isSuspended(want bool) error {
	if w.Status.Suspended != want {
		return fmt.Errorf("suspended %v, conditions %+v", w.Status.Suspended, w.Status.Conditions)
	}
	return nil
}

func (w *scheduled) setSuspend(suspend bool) {
	w.t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%v}}`, suspend))
	w.must(w.Patch(w.t.Context(), w.ScheduleVMBackup, patch))
}

// pointLocation changes where a location is, and waits until it was tried.
func (s *scene) pointLocation(at *lab.Location, config map[string]string, want velerov1.BackupStorageLocationPhase) {
	s.t.Helper()
	ctx := s.t.Context()
	l := at.BackupStorageLocation
	s.must(s.Get(ctx, client.ObjectKeyFromObject(l), l))
	tried := l.Status.LastValidationTime
	l.Spec.Config = config
	s.must(s.Update(ctx, l))
	s.must(wait.For(ctx, 3*time.Minute, "location "+l.Name+" to be "+string(want),
		func(ctx context.Context) (bool, string, error) {
			if err := s.Get(ctx, client.ObjectKeyFromObject(l), l); err != nil {
				return false, "", err
			}
			again := l.Status.LastValidationTime != nil && !l.Status.LastValidationTime.Equal(tried)
			return again && l.Status.Phase == want, fmt.Sprintf("%s %s", l.Status.Phase, l.Status.Message), nil
		}))
}
