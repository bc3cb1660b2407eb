package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/lab"
)

// upload is a group of DataUploads that was stored.
type upload struct {
	objects []*velerov2.DataUpload
	courses []*course
	usage   *usage
	// began is when the first one was created.
	began time.Time
}

// seconds are from the creation of the first one to the last one's Completed.
func (u *upload) seconds() float64 {
	var most float64
	for _, c := range u.courses {
		most = max(most, c.phases[velerov2.PhaseCompleted].Sub(u.began).Seconds())
	}
	return most
}

// dataSeconds are from the first InProgress to the last report.
func (u *upload) dataSeconds() float64 {
	began, reported := u.courses[0].phases[velerov2.PhaseInProgress], u.courses[0].reported
	for _, c := range u.courses {
		if at := c.phases[velerov2.PhaseInProgress]; at.Before(began) {
			began = at
		}
		if c.reported.After(reported) {
			reported = c.reported
		}
	}
	return reported.Sub(began).Seconds()
}

// upload stores disks of the machine at one moment, with cold caches, and waits until the backup is gone. Without a tracker, everything is read.
func (b *bench) upload(ctx context.Context, what string, p *place, tracker bool, disks ...lab.Disk) (*upload, error) {
	b.count++
	u := &upload{}
	group := fmt.Sprintf("%s-%d", namespace, b.count)
	var objects []client.Object
	for _, d := range disks {
		disk := datamove.MachineDisk{Machine: vmName, Volume: d.Name, ScratchClaim: scratch, Group: group, Disks: len(disks)}
		if tracker {
			disk.Tracker = p.tracker.GetName()
		}
		o := &velerov2.DataUpload{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: group + "-" + d.Name},
			Spec: velerov2.DataUploadSpec{
				SnapshotType: velerov2.SnapshotMachineBackup, SourceNamespace: namespace, SourcePVC: lab.ClaimName(vmName, d.Name), DataMover: datamove.Mover,
				BackupStorageLocation: p.Name, OperationTimeout: velerov1.Duration{Duration: 5 * time.Minute}, DataMoverConfig: disk.Config(),
			},
		}
		u.objects, objects = append(u.objects, o), append(objects, o)
	}
	meter, err := b.startMeter(ctx, objects...)
	if err != nil {
		return nil, err
	}
	if err := dropCaches(); err != nil {
		return nil, err
	}
	u.courses, err = b.follow(ctx, &velerov2.DataUploadList{}, objects...)
	u.usage = meter.stop()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	u.began = u.courses[0].created
	for i, o := range u.objects {
		if err := b.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return nil, err
		}
		fmt.Fprintf(b.log, "%s, %s: %.1f MiB new or changed, full because %q; %s\n", what, disks[i].Name, float64(o.Status.IncrementalBytes)/float64(mib),
			o.Status.DataMoverResult["fullReason"], u.courses[i])
	}
	fmt.Fprintf(b.log, "  %s\n", u.usage)
	backup := &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: group}}
	return u, b.WaitGone(ctx, backup, 2*time.Minute)
}
