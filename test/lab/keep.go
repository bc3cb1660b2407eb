package lab

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/wait"
)

// MachineBackup is a backup of a whole machine, with the SHA-256 of what its disks held, by their names.
type MachineBackup struct {
	*harvesterv1.VirtualMachineBackup

	Sums map[string]string
}

// BackUpMachine backs a machine up as it is frozen, and runs a script in the guest while its disks are read. It returns
// when the backup is ready.
func (l *Lab) BackUpMachine(ctx context.Context, name, vm, script string, timeout time.Duration, at *Location) (*MachineBackup, error) {
	b := NewMachineBackup(l.Namespace, name, vm)
	b.Annotations[harvesterv1.AnnotationLocation] = at.Name
	b.Annotations[harvesterv1.AnnotationFreeze] = "false" // it is frozen already
	sums, _, err := l.whileFrozen(ctx, vm, timeout, func() error {
		if err := l.Create(ctx, b); err != nil {
			return fmt.Errorf("create machine backup %s: %w", name, err)
		}
		return l.waitMachineBackup(ctx, b, timeout, "its point in time", func() (bool, error) {
			if b.Status.Group == "" {
				return false, nil
			}
			job := &backupv1alpha1.VirtualMachineBackup{}
			err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: b.Status.Group}, job)
			return job.Status.Phase == backupv1alpha1.BackupServing, client.IgnoreNotFound(err)
		})
	})
	if err != nil {
		return nil, err
	}
	if err := l.runInGuest(ctx, vm, script); err != nil {
		return nil, err
	}
	return &MachineBackup{b, sums}, l.waitMachineBackup(ctx, b, timeout, "its end",
		func() (bool, error) { return b.IsReady(), nil })
}

// BackUpAsItIs backs a machine up, and waits until the backup is ready. sums are those of its disks, if they are known.
func (l *Lab) BackUpAsItIs(ctx context.Context, name, vm string, sums map[string]string, timeout time.Duration, at *Location) (*MachineBackup, error) {
	b := NewMachineBackup(l.Namespace, name, vm)
	b.Annotations[harvesterv1.AnnotationLocation] = at.Name
	if err := l.Create(ctx, b); err != nil {
		return nil, fmt.Errorf("create machine backup %s: %w", name, err)
	}
	return &MachineBackup{b, sums}, l.waitMachineBackup(ctx, b, timeout, "its end",
		func() (bool, error) { return b.IsReady(), nil })
}

// SnapshotMachine has the storage make snapshots of a machine's disks, as it is frozen by the caller of this, or else by
// Varve, and waits until they are ready. Sums are known of a machine that is frozen by the caller.
func (l *Lab) SnapshotMachine(ctx context.Context, name, vm string, frozen bool, timeout time.Duration) (*MachineBackup, error) {
	b := NewMachineBackup(l.Namespace, name, vm)
	b.Spec.Type = harvesterv1.Snapshot
	act := func() error {
		if err := l.Create(ctx, b); err != nil {
			return fmt.Errorf("create machine backup %s: %w", name, err)
		}
		return l.waitMachineBackup(ctx, b, timeout, "its end", func() (bool, error) { return b.IsReady(), nil })
	}
	if !frozen {
		return &MachineBackup{b, nil}, act()
	}
	sums, _, err := l.whileFrozen(ctx, vm, timeout, act)
	return &MachineBackup{b, sums}, err
}

// NewMachineBackup returns a backup of a machine. It does not create it.
func NewMachineBackup(namespace, name, vm string) *harvesterv1.VirtualMachineBackup {
	return &harvesterv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}},
		Spec: harvesterv1.VirtualMachineBackupSpec{Source: corev1.TypedLocalObjectReference{
			APIGroup: ptr.To(kubevirtv1.GroupVersion.Group), Kind: harvesterv1.SourceKind, Name: vm,
		}},
	}
}

// waitMachineBackup waits until done. A backup that fails is an error.
func (l *Lab) waitMachineBackup(ctx context.Context, b *harvesterv1.VirtualMachineBackup, timeout time.Duration, what string, done func() (bool, error)) error {
	return wait.For(ctx, timeout, "machine backup "+b.Name+": "+what, func(ctx context.Context) (bool, string, error) {
		if err := l.Get(ctx, client.ObjectKeyFromObject(b), b); err != nil {
			return false, "", err
		}
		if b.HasFailed() {
			return false, "", fmt.Errorf("machine backup %s failed: %s", b.Name, *b.Status.Error.Message)
		}
		ok, err := done()
		return ok, fmt.Sprintf("%d %%, %+v", b.Status.Progress, b.Status.Conditions), err
	})
}

// RestoreMachine makes a machine, and leaves it stopped.
func (l *Lab) RestoreMachine(ctx context.Context, b *MachineBackup, vm string, timeout time.Duration) (*harvesterv1.VirtualMachineRestore, error) {
	r := l.newMachineRestore(b.VirtualMachineBackup, "restore-"+vm, vm)
	r.Spec.HaltAfterRestore = true
	return r, l.runMachineRestore(ctx, r, timeout)
}

// RestoreLostMachine makes the machine of a backup again, with its old name. It runs if it is to run by its strategy.
func (l *Lab) RestoreLostMachine(
	ctx context.Context, b *harvesterv1.VirtualMachineBackup, timeout time.Duration,
) error {
	return l.runMachineRestore(ctx, l.newMachineRestore(b, "back-"+b.Name, b.Spec.Source.Name), timeout)
}

// newMachineRestore returns a restore that makes a machine of a backup. It does not create it.
func (l *Lab) newMachineRestore(
	b *harvesterv1.VirtualMachineBackup, name, vm string,
) *harvesterv1.VirtualMachineRestore {
	return &harvesterv1.VirtualMachineRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: name},
		Spec: harvesterv1.VirtualMachineRestoreSpec{
			Target: corev1.TypedLocalObjectReference{
				APIGroup: ptr.To(kubevirtv1.GroupVersion.Group), Kind: harvesterv1.SourceKind, Name: vm,
			},
			VirtualMachineBackupName: b.Name, VirtualMachineBackupNamespace: b.Namespace, NewVM: true,
		},
	}
}

// runMachineRestore creates a restore, and waits until it is complete. One that fails is an error.
func (l *Lab) runMachineRestore(
	ctx context.Context, r *harvesterv1.VirtualMachineRestore, timeout time.Duration,
) error {
	if err := l.Create(ctx, r); err != nil {
		return fmt.Errorf("create restore %s: %w", r.Name, err)
	}
	what := "restore " + r.Name + " to be complete"
	return wait.For(ctx, timeout, what, func(ctx context.Context) (bool, string, error) {
		if err := l.Get(ctx, client.ObjectKeyFromObject(r), r); err != nil {
			return false, "", err
		}
		if r.HasFailed() {
			return false, "", fmt.Errorf("restore %s failed: %+v", r.Name, r.Status.Conditions)
		}
		return r.IsComplete(), fmt.Sprintf("%d %%, %+v", r.Status.Progress, r.Status.Conditions), nil
	})
}
