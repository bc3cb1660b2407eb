//go:build soak

package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1beta1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cron"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/wait"
)

// timesOf returns when a schedule is due. The API server has taken its expression.
func timesOf(o *harvesterv1.ScheduleVMBackup) *cron.Schedule {
	times, err := cron.Parse(o.Spec.Cron, "")
	if err != nil {
		panic(err)
	}
	return times
}

// checkRuns checks that each due time of the day has exactly one record, that nothing else has one, and that each
// backup was made once, for one record.
func (d *scheduleDay) checkRuns() {
	d.t.Helper()
	for _, o := range d.schedules {
		times, records, backups := timesOf(o), map[int64]int{}, map[string]bool{}
		runs, succeeded := 0, 0
		for _, r := range o.Status.Runs {
			due := r.Time.Time
			for range max(r.Count, 1) {
				records[due.Unix()]++
				runs++
				due = times.Next(due)
			}
			if r.LastTime != nil && !times.Next(r.LastTime.Time).Equal(due) {
				d.t.Errorf("%s: %d runs from %s to %s are recorded", o.Name, r.Count, r.Time.UTC(), r.LastTime.UTC())
			}
			if r.Result == harvesterv1.RunSucceeded {
				succeeded++
			}
			if r.Backup != "" && (backups[r.Backup] || d.history[r.Backup] == nil) {
				d.t.Errorf("%s: backup %s has another run, too, or there was none", o.Name, r.Backup)
			}
			backups[r.Backup] = true
		}
		for due := times.Next(o.CreationTimestamp.Time); !due.After(o.Status.LastScheduleTime.Time); due = times.Next(due) {
			if n := records[due.Unix()]; n != 1 {
				d.t.Errorf("%s: the run of %s has %d records", o.Name, due.UTC().Format(time.TimeOnly), n)
			}
			delete(records, due.Unix())
		}
		for due := range records {
			d.t.Errorf("%s: no run is due at %s, and one is recorded", o.Name, time.Unix(due, 0).UTC())
		}
		d.checkMadeOnce(o, backups)
		if succeeded == 0 && runs >= 4 {
			d.t.Errorf("%s: none of %d runs succeeded", o.Name, runs)
		}
	}
}

// checkMadeOnce checks that each backup of a schedule that was seen was made once, and is that of a run.
func (d *scheduleDay) checkMadeOnce(o *harvesterv1.ScheduleVMBackup, ofRuns map[string]bool) {
	d.t.Helper()
	for name, h := range d.history {
		if h.schedule == string(o.UID) && (len(h.uids) != 1 || !ofRuns[name]) {
			d.t.Errorf("%s: backup %s was made %d times; it has a run: %v", o.Name, name, len(h.uids), ofRuns[name])
		}
	}
}

// checkRetention waits until what is ready is what retention keeps of all that ever was, and returns it.
func (d *scheduleDay) checkRetention() (kept []harvesterv1.VirtualMachineBackup) {
	d.t.Helper()
	var want []string
	for _, o := range d.schedules {
		want = append(want, d.retained(o)...)
	}
	slices.Sort(want)
	d.must(wait.For(d.t.Context(), settleTimeout, "retention", func(ctx context.Context) (bool, string, error) {
		var list harvesterv1.VirtualMachineBackupList
		err := d.List(ctx, &list, client.InNamespace(d.Namespace))
		kept = slices.DeleteFunc(list.Items, func(b harvesterv1.VirtualMachineBackup) bool { return b.HasFailed() })
		var have []string
		for i := range kept {
			have = append(have, kept[i].Name)
		}
		slices.Sort(have)
		return slices.Equal(have, want), fmt.Sprintf("there are %q, want %q", have, want), err
	}))
	return kept
}

// retained returns the names of the backups of a schedule that stay: the newest, and the newest one of each of the
// latest hours that have one.
func (d *scheduleDay) retained(o *harvesterv1.ScheduleVMBackup) (names []string) {
	var ready []string
	for name, h := range d.history {
		if h.schedule == string(o.UID) && h.ready {
			ready = append(ready, name)
		}
	}
	slices.SortFunc(ready, func(a, b string) int { return strings.Compare(d.history[b].due, d.history[a].due) })
	hours := map[string]bool{}
	for i, name := range ready {
		due := d.history[name].due
		hour := due[:len(due)-2]
		byHour := o.Annotations[harvesterv1.AnnotationKeepHourly] != "" && !hours[hour] && len(hours) < scheduleHours
		hours[hour] = true
		if i < scheduleRetain || byHour {
			names = append(names, name)
		}
	}
	return names
}

// waitOnly waits until nothing is there but these backups: no DataUpload, VolumeSnapshot or restore point of others,
// and no pod, claim or object that a backup needs while it runs. deleteAll looks into Varve's own namespace.
func (d *scheduleDay) waitOnly(kept []harvesterv1.VirtualMachineBackup) {
	d.t.Helper()
	own, points := map[string]bool{}, 0
	for i := range kept {
		for _, v := range kept[i].Status.VolumeBackups {
			own[v.DataUpload+ptr.Deref(v.VolumeSnapshotName, "")] = true
			if v.DataUpload != "" {
				points++
			}
		}
	}
	d.must(wait.For(d.t.Context(), settleTimeout, "what is left", func(ctx context.Context) (bool, string, error) {
		left, found, err := d.findOthers(ctx, own)
		if err != nil || len(left) > 0 || found != len(own) {
			return false, fmt.Sprintf("left: %s; %d of %d are there", strings.Join(left, ", "), found, len(own)), err
		}
		n, err := d.CountRestorePoints(ctx, client.ObjectKeyFromObject(d.at))
		return n == points, fmt.Sprintf("%d restore points, want %d", n, points), err
	}))
}

// findOthers returns the names of what is none of own, and how many of those are there. A backup that failed has its
// DataUploads, and no restore points.
func (d *scheduleDay) findOthers(ctx context.Context, own map[string]bool) (left []string, found int, err error) {
	in, varve := client.InNamespace(d.Namespace), client.InNamespace(layout.Namespace)
	failed, err := d.uploadsOfFailed(ctx)
	if err != nil {
		return nil, 0, err
	}
	for list, options := range map[client.ObjectList][]client.ListOption{
		&velerov2.DataUploadList{}: {varve}, &snapshotv1.VolumeSnapshotList{}: {in}, &corev1.PodList{}: {in},
		&corev1.PersistentVolumeClaimList{}: {in}, &backupv1alpha1.VirtualMachineBackupList{}: {in},
		&exportv1beta1.VirtualMachineExportList{}: {in}, &velerov2.DataDownloadList{}: {varve},
	} {
		if err := d.List(ctx, list, options...); err != nil {
			return nil, 0, err
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			switch {
			case own[o.GetName()]:
				found++
			case !d.isBystander(o) && !failed[o.GetName()]:
				left = append(left, fmt.Sprintf("%T %s", o, o.GetName()))
			}
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
	}
	return left, found, nil
}

// uploadsOfFailed returns the names of the DataUploads of backups that failed and are there.
func (d *scheduleDay) uploadsOfFailed(ctx context.Context) (map[string]bool, error) {
	var list harvesterv1.VirtualMachineBackupList
	if err := d.List(ctx, &list, client.InNamespace(d.Namespace)); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i := range list.Items {
		for _, v := range list.Items[i].Status.VolumeBackups {
			if list.Items[i].HasFailed() {
				names[v.DataUpload] = true
			}
		}
	}
	return names, nil
}

// isBystander says that an object is there without any backup.
func (d *scheduleDay) isBystander(o client.Object) bool {
	switch o := o.(type) {
	case *velerov2.DataUpload:
		return o.Spec.SourceNamespace != d.Namespace
	case *velerov2.DataDownload:
		return o.Spec.TargetVolume.Namespace != d.Namespace
	case *corev1.Pod:
		return o.Labels[layout.LabelApp] == "virt-launcher"
	case *corev1.PersistentVolumeClaim:
		return slices.Contains(d.claims, o.Name)
	}
	return false
}

// listClaims returns the names of the claims in the namespace.
func (d *scheduleDay) listClaims() (names []string) {
	d.t.Helper()
	var claims corev1.PersistentVolumeClaimList
	d.must(d.List(d.t.Context(), &claims, client.InNamespace(d.Namespace)))
	for i := range claims.Items {
		names = append(names, claims.Items[i].Name)
	}
	return names
}
