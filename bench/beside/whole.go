package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/keep/harvesterbackup"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/wait"
)

// measureWhole measures Varve's backups of the whole machine, and a restore. Each round has a repository of its own.
func (b *bench) measureWhole(ctx context.Context) error {
	for i := range b.rounds {
		if err := b.runWholeRound(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) runWholeRound(ctx context.Context, i int) error {
	at, err := b.BucketLocation(ctx, fmt.Sprintf("%s-%d", namespace, i), b.boxDir)
	if err != nil {
		return err
	}
	full, err := b.backUp(ctx, "beside-backup", fmt.Sprintf("full-%d", i), at)
	if err != nil {
		return err
	}
	read, err := b.countReadBytes(ctx, full)
	if err != nil {
		return err
	}
	b.addFigure("beside-sparse", float64(read)/float64(mib))
	if full, err = b.backUp(ctx, "beside-backup-empty", fmt.Sprintf("empty-%d", i), at); err != nil {
		return err
	}
	began, again := time.Now(), fmt.Sprintf("again-%d", i)
	if _, err := b.RestoreMachine(ctx, full, again, stepTimeout); err != nil {
		return err
	}
	b.addFigure("beside-restore", time.Since(began).Seconds())
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: gen.Meta(namespace, again)}
	if err := b.Delete(ctx, vm); err != nil {
		return fmt.Errorf("delete machine %s: %w", again, err)
	}
	return b.WaitGone(ctx, vm, deleteTimeout)
}

func (b *bench) backUp(ctx context.Context, id, name string, at *lab.Location) (*lab.MachineBackup, error) {
	began := time.Now()
	backup, err := b.BackUpAsItIs(ctx, name, vmName, nil, stepTimeout, at)
	if err != nil {
		return nil, err
	}
	b.addFigure(id, time.Since(began).Seconds())
	return backup, nil
}

// countReadBytes returns how much was read of the disks for a backup.
func (b *bench) countReadBytes(ctx context.Context, of *lab.MachineBackup) (int64, error) {
	var list velerov2.DataUploadList
	if err := b.List(ctx, &list, client.InNamespace(layout.Namespace),
		client.MatchingLabels{harvesterbackup.LabelBackup: string(of.UID)}); err != nil {
		return 0, err
	}
	var read int64
	for i := range list.Items {
		r, err := datamove.DecodeReport(list.Items[i].Annotations[datamove.AnnotationReport])
		if err != nil {
			return 0, fmt.Errorf("report of DataUpload %s: %w", list.Items[i].Name, err)
		}
		read += r.ReadBytes
	}
	if read == 0 {
		return 0, fmt.Errorf("backup %s has %d DataUploads, which read nothing", of.Name, len(list.Items))
	}
	return read, nil
}

// Modes as both runtimes know them.
const (
	pushMode backupv1.BackupMode = "Push"
	pullMode backupv1.BackupMode = "Pull"
)

// measurePush measures empty incremental push backups, after a full one.
func (b *bench) measurePush(ctx context.Context) error {
	if err := b.Claim(ctx, "target", 6<<30, corev1.PersistentVolumeFilesystem); err != nil {
		return err
	}
	if err := b.Create(ctx, b.newTracker("push")); err != nil {
		return fmt.Errorf("create the tracker: %w", err)
	}
	for i := range b.rounds + 1 {
		backup := b.newBackup(fmt.Sprintf("push-%d", i), "push", pushMode, "target")
		began := time.Now()
		if err := b.Create(ctx, backup); err != nil {
			return fmt.Errorf("create push backup %s: %w", backup.Name, err)
		}
		if err := b.waitCondition(ctx, backup, backupv1.ConditionDone); err != nil {
			return err
		}
		if i > 0 {
			b.addFigure("beside-empty-push", time.Since(began).Seconds())
		}
	}
	return nil
}

func (b *bench) newTracker(name string) *backupv1.VirtualMachineBackupTracker {
	return b.Tracker(name, vmName)
}

// newBackup returns a backup that both runtimes know.
func (b *bench) newBackup(name, tracker string, mode backupv1.BackupMode, claim string) *backupv1.VirtualMachineBackup {
	group := backupv1.GroupVersion.Group
	return &backupv1.VirtualMachineBackup{
		ObjectMeta: gen.Meta(namespace, name),
		Spec: backupv1.VirtualMachineBackupSpec{
			Source: &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: backupv1.SourceKindTracker, Name: tracker},
			Mode:   mode, PVCName: claim,
		},
	}
}

// waitCondition waits until a condition of a backup is True. A backup that has failed is an error.
func (b *bench) waitCondition(ctx context.Context, backup *backupv1.VirtualMachineBackup, condition string) error {
	what := fmt.Sprintf("backup %s to be %s", backup.Name, condition)
	return wait.For(ctx, stepTimeout, what, func(ctx context.Context) (bool, string, error) {
		if err := b.Get(ctx, client.ObjectKeyFromObject(backup), backup); err != nil {
			return false, "", err
		}
		done := apimeta.FindStatusCondition(backup.Status.Conditions, backupv1.ConditionDone)
		if done != nil && done.Status == metav1.ConditionTrue && done.Reason != backupv1.DoneSucceeded {
			return false, "", fmt.Errorf("backup %s: %s %s", backup.Name, done.Reason, done.Message)
		}
		is := apimeta.IsStatusConditionTrue(backup.Status.Conditions, condition)
		return is, fmt.Sprintf("%+v", backup.Status.Conditions), nil
	})
}
