//go:build controlplane

package keep

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/controller/keep/condition"
	"github.com/varvebackup/varve/internal/controller/keep/harvesterschedule"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// TestSchedules runs the controller of schedules with the rights that it has in a cluster and a clock that the test
// drives. The test plays the controller of backups.
func TestSchedules(t *testing.T) { //nolint:paralleltest // as TestControlPlane
	scheduleScenarios(t)
}

// TestSchedules_dieAtEachWrite is TestSchedules with a controller that dies after a third of its writes.
func TestSchedules_dieAtEachWrite(t *testing.T) { //nolint:paralleltest // see above
	scheduleScenarios(t, controlplane.LoseAnswers(t))
}

func scheduleScenarios(t *testing.T, edit ...func(*ctrl.Options)) {
	t.Helper()
	if err := errors.Join(cluster.InstallRoles(t.Context()), cluster.InstallSnapshotKinds(t.Context())); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(),
		append(edit, func(o *ctrl.Options) { o.Cache.ByObject = pointdeletion.CachedObjects() })...)
	w := &scheduled{
		world: world{
			T: t, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin),
			varve: cluster.Client(t, controlplane.Controller),
		},
	}
	w.machine("Always")
	w.schedule = gen.Schedule(w.meta("minutes"), "web", func(o *harvesterv1.ScheduleVMBackup) {
		o.Spec.Cron, o.Spec.Retain, o.Spec.MaxFailure = "* * * * *", 3, 2
		o.Annotations = map[string]string{
			harvesterv1.AnnotationSkipCronCheck: "enable", harvesterv1.AnnotationLocation: "drawer",
			harvesterv1.AnnotationExcludeVolumes: "data",
		}
	})
	w.create(w.schedule)
	w.clock = clocktesting.NewFakePassiveClock(w.schedule.CreationTimestamp.Time)
	options := harvesterschedule.Options{Namespace: controlplane.SystemNamespace, Clock: w.clock}
	if err := harvesterschedule.Setup(mgr, options); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	w.says(func(s *harvesterv1.ScheduleVMBackupStatus) error {
		if s.LastScheduleTime == nil || s.NextScheduleTime == nil {
			return fmt.Errorf("the schedule was not looked at: %+v", s)
		}
		return nil
	})
	w.lives()
}

// scheduled is a namespace with a schedule of a machine, and its clock.
type scheduled struct {
	world
	clock    *clocktesting.FakePassiveClock
	schedule *harvesterv1.ScheduleVMBackup
	drawer   *velerov1.BackupStorageLocation
}

func (w *scheduled) says(check func(*harvesterv1.ScheduleVMBackupStatus) error) {
	w.Helper()
	wait(&w.world, w.schedule, func(o *harvesterv1.ScheduleVMBackup) error { return check(&o.Status) })
}

// due lets the next run be due, and returns its backup.
func (w *scheduled) due() *harvesterv1.VirtualMachineBackup {
	w.Helper()
	next := w.clock.Now().Truncate(time.Minute).Add(time.Minute)
	w.clock.SetTime(next.Add(time.Second))
	name := "svmbackup-" + string(w.schedule.UID) + "-" + next.UTC().Format("20060102.1504")
	b := wait(&w.world, &harvesterv1.VirtualMachineBackup{ObjectMeta: w.meta(name)}, exists)
	w.says(func(s *harvesterv1.ScheduleVMBackupStatus) error {
		if !s.LastScheduleTime.Time.Equal(next) || s.Runs[0].Backup != name {
			return fmt.Errorf("the run is not written down: %+v", s)
		}
		return nil
	})
	return b
}

// end plays the controller of backups: a backup ends, and is marked.
func (w *scheduled) end(b *harvesterv1.VirtualMachineBackup, failure string) {
	w.Helper()
	controlplane.Update(w.T, w.varve, b, true, func(b *harvesterv1.VirtualMachineBackup) {
		b.Status.ReadyToUse, b.Status.CreationTime = ptr.To(failure == ""), ptr.To(metav1.NewTime(w.clock.Now()))
		if failure != "" {
			b.Status.Error = &harvesterv1.Error{Message: &failure}
		}
	})
	controlplane.Update(w.T, w.varve, b, false, func(b *harvesterv1.VirtualMachineBackup) {
		metav1.SetMetaDataLabel(&b.ObjectMeta, "varvebackup.io/ended", "true")
	})
	want := harvesterv1.RunSucceeded
	if failure != "" {
		want = harvesterv1.RunFailed
	}
	w.says(func(s *harvesterv1.ScheduleVMBackupStatus) error {
		for _, r := range s.Runs {
			if r.Backup == b.Name && r.Result == want && r.Message == failure {
				return nil
			}
		}
		return fmt.Errorf("the run of %s is not %s: %+v", b.Name, want, s.Runs)
	})
}

// has waits until these are the backups.
func (w *scheduled) has(want ...*harvesterv1.VirtualMachineBackup) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		var list harvesterv1.VirtualMachineBackupList
		if err := w.admin.List(w.Context(), &list, client.InNamespace(w.ns)); err != nil {
			return err
		}
		have := map[string]bool{}
		for i := range list.Items {
			have[list.Items[i].Name] = true
		}
		for _, b := range want {
			if !have[b.Name] {
				return fmt.Errorf("%s is gone", b.Name)
			}
			delete(have, b.Name)
		}
		if len(have) > 0 {
			return fmt.Errorf("there are also %v", have)
		}
		return nil
	})
}

// suspended waits until the schedule is suspended, or not, with these words.
func (w *scheduled) suspended(want bool, words string) {
	w.Helper()
	w.says(func(s *harvesterv1.ScheduleVMBackupStatus) error {
		c := condition.Find(s.Conditions, harvesterv1.ConditionBackupSuspend)
		if s.Suspended != want || c == nil || (c.Status == corev1.ConditionTrue) != want ||
			!strings.Contains(c.Message, words) {
			return fmt.Errorf("suspended %v, condition %+v, want %v %q", s.Suspended, c, want, words)
		}
		return nil
	})
}

func (w *scheduled) setSuspend(suspend bool) {
	w.Helper()
	controlplane.Update(w.T, w.admin, w.schedule, false,
		func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Suspend = suspend })
}

// lives goes through the life of a schedule: backups that are made and removed, failures, a suspension, and that it
// goes on.
func (w *scheduled) lives() {
	first := w.due()
	if first.Labels[harvesterv1.LabelSchedule] != string(w.schedule.UID) ||
		first.Annotations[harvesterv1.AnnotationLocation] != "drawer" ||
		first.Annotations[harvesterv1.AnnotationExcludeVolumes] != "data" || first.Spec.Source.Name != "web" {
		w.Errorf("the backup: %+v %+v", first.ObjectMeta, first.Spec)
	}
	w.end(first, "")
	second := w.due()
	w.end(second, "")
	third := w.due()
	w.end(third, "")
	fourth := w.due()
	w.has(first, second, third, fourth)
	w.end(fourth, "")
	w.has(second, third, fourth)

	w.setSuspend(true)
	w.suspended(true, "Proactive Schedule Suspend")
	w.clock.SetTime(w.clock.Now().Add(2 * time.Minute))
	w.says(func(s *harvesterv1.ScheduleVMBackupStatus) error {
		if r := s.Runs[0]; r.Reason != harvesterv1.SkippedSuspended || r.Count != 2 {
			return fmt.Errorf("the latest run is %+v", r)
		}
		return nil
	})
	w.setSuspend(false)
	w.drawerIs(velerov1.LocationUnavailable)
	w.suspended(true, "BackupStorageLocation drawer is not available (nobody listens there)")
	w.drawerIs(velerov1.LocationAvailable)
	w.suspended(false, "")
	w.has(second, third, fourth)

	fifth := w.due()
	w.end(fifth, "the target is away")
	sixth := w.due()
	w.has(second, third, fourth, fifth, sixth)
	w.end(sixth, "the target is away")
	w.suspended(true, "Reach Max Failure: 2 backups have failed one after the other")
	wait(&w.world, w.schedule, func(o *harvesterv1.ScheduleVMBackup) error {
		if !o.Spec.Suspend {
			return errors.New("spec.suspend is false")
		}
		return nil
	})
	w.has(second, third, fourth, sixth)
	w.setSuspend(false)
	w.suspended(false, "")
	w.has(second, third, fourth)
	w.says(func(s *harvesterv1.ScheduleVMBackupStatus) error {
		if s.Failure != 0 {
			return fmt.Errorf("%d failures", s.Failure)
		}
		return nil
	})
	seventh := w.due()
	w.end(seventh, "")
	w.has(third, fourth, seventh)
	w.adopts(fourth, seventh)
}

// adopts deletes the schedule and makes another one of its name, which takes the backups over, and makes one when it is
// asked to.
func (w *scheduled) adopts(fourth, seventh *harvesterv1.VirtualMachineBackup) {
	w.Helper()
	stranger := &harvesterv1.VirtualMachineBackup{
		ObjectMeta: w.meta("copy"), Spec: *w.schedule.Spec.VMBackupSpec.DeepCopy(),
	}
	stranger.Labels, stranger.Annotations = maps.Clone(seventh.Labels), maps.Clone(seventh.Annotations)
	delete(stranger.Labels, "varvebackup.io/ended") // which the controller alone sets
	w.create(stranger)
	if err := w.admin.Delete(w.Context(), w.schedule); err != nil {
		w.Fatal(err)
	}
	old := w.schedule
	w.schedule = gen.Schedule(w.meta("minutes"), "web", func(o *harvesterv1.ScheduleVMBackup) {
		o.Spec.Cron, o.Spec.Retain, o.Spec.MaxFailure = "0 0 1 1 *", 3, 2
		o.Annotations = map[string]string{harvesterv1.AnnotationAdopt: "true"}
	})
	w.create(w.schedule)
	if w.schedule.UID == old.UID {
		w.Fatal("it is the same schedule")
	}
	w.says(func(s *harvesterv1.ScheduleVMBackupStatus) error {
		if len(s.VMBackupInfo) != 3 || s.LastSuccessfulTime == nil {
			return fmt.Errorf("it has %+v, last good %v", s.VMBackupInfo, s.LastSuccessfulTime)
		}
		return nil
	})
	asked := w.clock.Now().Truncate(time.Minute).Add(2 * time.Minute)
	w.clock.SetTime(asked.Add(time.Second))
	controlplane.Update(w.T, w.admin, w.schedule, false, func(o *harvesterv1.ScheduleVMBackup) {
		o.Annotations[harvesterv1.AnnotationRunAt] = asked.UTC().Format(time.RFC3339)
	})
	name := "svmbackup-" + string(w.schedule.UID) + "-" + asked.UTC().Format("20060102.1504")
	eighth := wait(&w.world, &harvesterv1.VirtualMachineBackup{ObjectMeta: w.meta(name)}, exists)
	w.end(eighth, "")
	w.has(stranger, fourth, seventh, eighth)
}

// drawerIs plays the controller of locations.
func (w *scheduled) drawerIs(phase velerov1.BackupStorageLocationPhase) {
	w.Helper()
	if w.drawer == nil {
		w.drawer = &velerov1.BackupStorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: "drawer"},
			Spec: velerov1.BackupStorageLocationSpec{
				Provider: "aws", StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "b"}},
			},
		}
		if err := w.admin.Create(w.Context(), w.drawer); client.IgnoreAlreadyExists(err) != nil {
			w.Fatal(err)
		}
	}
	controlplane.Update(w.T, w.admin, w.drawer, false, func(l *velerov1.BackupStorageLocation) {
		l.Status.Phase, l.Status.Message = phase, "nobody listens there"
	})
}
