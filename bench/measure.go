package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/lab"
)

const (
	namespace = "varve-bench"
	vmName    = "bench"
	target    = "backups"
	mib       = int64(1) << 20
	gib       = int64(1) << 30
)

// bench is the measured machine. Each part measures it with another disk.
type bench struct {
	*lab.Lab
	watcher client.WithWatch
	rounds  int
	dataMiB int64
	count   int
	// hypervisor is the versions of libvirt and QEMU.
	hypervisor []string
}

// measureAll returns the figures and the versions of libvirt and QEMU that they belong to.
func measureAll(ctx context.Context, kubeconfig, build string, rounds int, dataMiB int64) (_ []report.Row, hypervisor []string, err error) {
	b := &bench{rounds: rounds, dataMiB: dataMiB}
	if err := b.openBench(ctx, kubeconfig, build); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, b.DeleteNamespace(context.WithoutCancel(ctx), 5*time.Minute)) }()
	var rows []report.Row
	for _, part := range []func(context.Context) ([]report.Row, error){b.measureThroughput, b.measureSparse, b.measureIncremental} {
		more, err := part(ctx)
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, more...)
	}
	return rows, b.hypervisor, nil
}

func (b *bench) openBench(ctx context.Context, kubeconfig, build string) (err error) {
	if b.Lab, err = lab.OpenFresh(ctx, kubeconfig, build, namespace, 5*time.Minute); err != nil {
		return err
	}
	scheme, err := lab.Scheme()
	if err != nil {
		return err
	}
	if b.watcher, err = client.NewWithWatch(b.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	return nil
}

// bootMachine starts the machine with one disk, which has a file "filler" of random data, and creates a tracker and the target claim.
func (b *bench) bootMachine(ctx context.Context, disk lab.Disk, fileBytes, fillMiB int64) error {
	if err := b.CreateClaims(ctx, vmName, disk); err != nil {
		return err
	}
	if err := b.PopulateExt4(ctx, vmName, disk.Name, fileBytes, disk.Name, fillMiB); err != nil {
		return err
	}
	if err := b.StartTracked(ctx, vmName, lab.TestSystem, 5*time.Minute, disk); err != nil {
		return err
	}
	if err := b.Create(ctx, b.Tracker("t", vmName)); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := b.readVersions(ctx); err != nil {
		return err
	}
	return b.Claim(ctx, target, 12*gib, corev1.PersistentVolumeFilesystem)
}

func (b *bench) readVersions(ctx context.Context) error {
	g, err := b.Guest(ctx, vmName)
	if err != nil {
		return err
	}
	out, err := g.Virsh(ctx, "version")
	b.hypervisor = strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
	return err
}

func (b *bench) runInGuest(ctx context.Context, script string) error {
	g, err := b.Guest(ctx, vmName)
	if err != nil {
		return err
	}
	_, err = g.Run(ctx, script)
	return err
}

// timing is when a backup was created and when it ended, by this program's clock.
type timing struct {
	backup       *backupv1alpha1.VirtualMachineBackup
	created, end time.Time
}

func (t *timing) totalSeconds() float64 { return t.end.Sub(t.created).Seconds() }

// takeBackup takes a backup and times it with a watch.
func (b *bench) takeBackup(ctx context.Context, forceFull bool) (*timing, error) {
	b.count++
	obj := b.Backup(fmt.Sprintf("b%03d", b.count), "t", target)
	obj.Spec.ForceFullBackup = forceFull
	w, err := b.watcher.Watch(ctx, &backupv1alpha1.VirtualMachineBackupList{}, client.InNamespace(namespace),
		client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", obj.Name)})
	if err != nil {
		return nil, fmt.Errorf("watch backups: %w", err)
	}
	defer w.Stop()
	t := &timing{created: time.Now()}
	if err := b.Create(ctx, obj); err != nil {
		return nil, err
	}
	deadline := time.After(10 * time.Minute)
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error {
				return nil, fmt.Errorf("watch of backup %s ended: %v", obj.Name, e.Object)
			}
			if t.recordStatus(e.Object.(*backupv1alpha1.VirtualMachineBackup)) {
				return t, t.failure()
			}
		case <-deadline:
			return nil, fmt.Errorf("backup %s did not end in 10 minutes", obj.Name)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (t *timing) recordStatus(b *backupv1alpha1.VirtualMachineBackup) (over bool) {
	t.end, t.backup = time.Now(), b
	return b.Status.Phase.Final()
}

func (t *timing) failure() error {
	if t.backup.Status.Phase == backupv1alpha1.BackupDone {
		return nil
	}
	return fmt.Errorf("backup %s: %s: %s", t.backup.Name, t.backup.Status.Reason, t.backup.Status.Message)
}

// allocatedBytes returns how many bytes a file occupies on its storage.
func allocatedBytes(ctx context.Context, tool *lab.Toolbox, file string) (int64, error) {
	out, err := tool.Run(ctx, fmt.Sprintf("echo $(( $(stat -c '%%b' %[1]s) * $(stat -c '%%B' %[1]s) ))", file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(out), 10, 64)
}
