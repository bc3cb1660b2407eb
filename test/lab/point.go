package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// PointInTime is a backup and what the disks held at its point in time.
type PointInTime struct {
	Backup *backupv1alpha1.VirtualMachineBackup
	// Sums maps each volume to the SHA-256 of its raw disk.
	Sums map[string]string
}

// PointInTime takes a backup at a moment at which the content of the disks is known exactly. It freezes the guest's
// file systems, hashes every raw disk, creates the backup, thaws the guest once the point in time is fixed, and waits
// for the backup's end.
func (l *Lab) PointInTime(ctx context.Context, vm string, b *backupv1alpha1.VirtualMachineBackup, timeout time.Duration,
	seen func(*backupv1alpha1.VirtualMachineBackupStatus),
) (_ *PointInTime, err error) {
	g, err := l.Guest(ctx, vm)
	if err != nil {
		return nil, err
	}
	vmi := &kubevirtv1.VirtualMachineInstance{}
	if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: vm}, vmi); err != nil {
		return nil, err
	}
	if err := g.Freeze(ctx); err != nil {
		return nil, err
	}
	frozen := true
	thaw := func() error {
		if !frozen {
			return nil
		}
		frozen = false
		return g.Thaw(context.WithoutCancel(ctx))
	}
	defer func() { err = errors.Join(err, thaw()) }()
	p := &PointInTime{}
	if p.Sums, err = g.DiskSums(ctx, vmi); err != nil {
		return nil, err
	}
	if err := l.Create(ctx, b); err != nil {
		return nil, fmt.Errorf("create backup %s: %w", b.Name, err)
	}
	fixed := func(s *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return s.StartTimestamp != nil || s.Phase.Final()
	}
	if _, err = l.WaitBackup(ctx, b.Name, timeout, "past its point in time", fixed, seen); err != nil {
		return nil, err
	}
	if err := thaw(); err != nil {
		return nil, err
	}
	p.Backup, err = l.WaitDone(ctx, b.Name, timeout, seen)
	return p, err
}
