//go:build soak

package soak

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/test/wait"
)

// watchOver looks at the backups each second until ctx ends, resumes schedules that are suspended, and has the
// repository maintained often. It suspends all schedules once, when the location is unavailable.
func (d *scheduleDay) watchOver(ctx context.Context) {
	maintained := false
	for pause(ctx, time.Second) {
		err := d.noteBackups(ctx)
		if err == nil {
			err = d.resumeSuspended(ctx)
		}
		if err == nil && !maintained {
			maintained, err = d.maintainOften(ctx)
		}
		l := &velerov1.BackupStorageLocation{}
		if err == nil {
			err = d.Get(ctx, client.ObjectKeyFromObject(d.at), l)
			if l.Status.Phase == velerov1.LocationUnavailable && !d.unavailable {
				d.unavailable = true
				d.suspendAll() // they are resumed at once, and wait for the location
			}
		}
		if err != nil && ctx.Err() == nil {
			d.t.Logf("%s look at the schedules: %v", timeOfDay(), err)
		}
	}
}

// noteBackups adds the backups that there are to the history.
func (d *scheduleDay) noteBackups(ctx context.Context) error {
	var list harvesterv1.VirtualMachineBackupList
	if err := d.List(ctx, &list, client.InNamespace(d.Namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		b := &list.Items[i]
		h := d.history[b.Name]
		if h == nil {
			h = &backupHistory{
				schedule: b.Labels[harvesterv1.LabelSchedule], due: b.Labels[harvesterv1.LabelScheduledTime],
			}
			d.history[b.Name] = h
		}
		if !slices.Contains(h.uids, b.UID) {
			h.uids = append(h.uids, b.UID)
		}
		h.ready = h.ready || b.IsReady()
	}
	return nil
}

// resumeSuspended lets schedules go on that are suspended.
func (d *scheduleDay) resumeSuspended(ctx context.Context) error {
	if err := d.readSchedules(ctx); err != nil {
		return err
	}
	for _, o := range d.schedules {
		if !o.Spec.Suspend || !o.Status.Suspended {
			continue
		}
		if err := d.setSuspend(ctx, o, false); err != nil {
			return err
		}
		d.t.Logf("%s resumed %s", timeOfDay(), o.Name)
		d.resumed++
	}
	return nil
}

func (d *scheduleDay) readSchedules(ctx context.Context) error {
	for i, o := range d.schedules {
		read := &harvesterv1.ScheduleVMBackup{}
		if err := d.Get(ctx, client.ObjectKeyFromObject(o), read); err != nil {
			return err
		}
		d.schedules[i] = read
	}
	return nil
}

func (d *scheduleDay) setSuspend(ctx context.Context, o *harvesterv1.ScheduleVMBackup, suspend bool) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%v}}`, suspend))
	return d.Patch(ctx, o, patch)
}

// suspendAll suspends all schedules.
func (d *scheduleDay) suspendAll() {
	d.t.Helper()
	for _, o := range d.schedules {
		if err := d.setSuspend(context.WithoutCancel(d.t.Context()), o, true); err != nil {
			d.t.Errorf("suspend %s: %v", o.Name, err)
		}
	}
}

// maintainOften has the repository maintained often, once there is one, and says whether it does.
func (d *scheduleDay) maintainOften(ctx context.Context) (bool, error) {
	r, err := d.Repository(ctx, client.ObjectKeyFromObject(d.at))
	if err != nil || r == nil {
		return false, err
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"maintenanceFrequency":%q}}`, maintainEvery))
	return true, d.Patch(ctx, r, patch)
}

// describeMaintenance tells how often the repository was maintained, and fails if it never was.
func (d *scheduleDay) describeMaintenance() string {
	d.t.Helper()
	r, err := d.Repository(d.t.Context(), client.ObjectKeyFromObject(d.at))
	d.must(err)
	done := map[velerov1.BackupRepositoryMaintenanceResult]int{}
	for _, run := range r.Status.RecentMaintenance {
		done[run.Result]++
		if run.Result != velerov1.MaintenanceSucceeded {
			d.t.Logf("maintenance at %s: %s", run.StartTimestamp, run.Message)
		}
	}
	if done[velerov1.MaintenanceSucceeded] == 0 {
		d.t.Error("the repository was not maintained")
	}
	return fmt.Sprintf("maintenance %v", done)
}

// settle suspends all schedules, and waits until no run goes on, and each due time until ended is recorded.
func (d *scheduleDay) settle(ended time.Time) {
	d.t.Helper()
	ctx := d.t.Context()
	d.suspendAll()
	d.must(wait.For(ctx, settleTimeout, "all runs to end", func(ctx context.Context) (bool, string, error) {
		if err := d.noteBackups(ctx); err != nil {
			return false, "", err
		}
		if err := d.readSchedules(ctx); err != nil {
			return false, "", err
		}
		for _, o := range d.schedules {
			if open := unsettled(o, ended); open != "" {
				return false, o.Name + ": " + open, nil
			}
		}
		return true, "", nil
	}))
	d.must(d.noteBackups(ctx))
}

// unsettled says what of a schedule goes on, or "".
func unsettled(o *harvesterv1.ScheduleVMBackup, ended time.Time) string {
	if !o.Status.Suspended {
		return "it is not suspended"
	}
	for _, r := range o.Status.Runs {
		if r.Result == harvesterv1.RunStarted || r.Result == harvesterv1.RunRetrying {
			return fmt.Sprintf("the run of %s is %s, by %s", r.Time.UTC(), r.Result, r.Backup)
		}
	}
	if last := o.Status.LastScheduleTime; last == nil || timesOf(o).Next(last.Time).Before(ended) {
		return fmt.Sprintf("the last recorded run was due at %s", last)
	}
	return ""
}

// countRuns tells what became of how many runs.
func (d *scheduleDay) countRuns() string {
	results, all := map[string]int{}, 0
	for _, o := range d.schedules {
		for _, r := range o.Status.Runs {
			n := max(r.Count, 1)
			results[string(r.Result)+r.Reason] += n
			all += n
		}
	}
	return fmt.Sprintf("%d runs: %v", all, results)
}

// explain logs what a person would look at first.
func (d *scheduleDay) explain() {
	ctx := context.WithoutCancel(d.t.Context())
	_ = d.readSchedules(ctx)
	for _, o := range d.schedules {
		d.t.Logf("schedule %s: %d failures in a row, conditions %+v", o.Name, o.Status.Failure, o.Status.Conditions)
		for _, r := range slices.Backward(o.Status.Runs) {
			d.t.Logf("  %s %d %s %s: %s", r.Time.UTC().Format(time.TimeOnly), max(r.Count, 1), r.Result, r.Reason, r.Message)
		}
	}
	var events corev1.EventList
	_ = d.List(ctx, &events, client.InNamespace(d.Namespace))
	for i := range events.Items {
		e := &events.Items[i]
		if e.Type == corev1.EventTypeWarning {
			d.t.Logf("event %s/%s %s: %.200s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
}
