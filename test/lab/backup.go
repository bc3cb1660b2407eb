package lab

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/wait"
)

// Tracker returns a tracker of a machine. It does not create it.
func (l *Lab) Tracker(name, vm string) *backupv1alpha1.VirtualMachineBackupTracker {
	return gen.Tracker(gen.Meta(l.Namespace, name), vm)
}

// Backup returns a push backup through a tracker to a claim. It does not create it.
func (l *Lab) Backup(name, tracker, claim string) *backupv1alpha1.VirtualMachineBackup {
	b := gen.Backup(gen.Meta(l.Namespace, name), gen.SetBackupMode(backupv1alpha1.PushMode), gen.SetTarget(claim))
	b.Spec.Source, b.Spec.BackupTracker = nil, tracker // Without a tracker, the caller sets the source.
	return b
}

// WaitBackup waits until done returns true for a backup's status. It calls seen, if not nil, with each status.
func (l *Lab) WaitBackup(ctx context.Context, name string, timeout time.Duration, what string,
	done func(*backupv1alpha1.VirtualMachineBackupStatus) bool, seen func(*backupv1alpha1.VirtualMachineBackupStatus),
) (*backupv1alpha1.VirtualMachineBackup, error) {
	b := &backupv1alpha1.VirtualMachineBackup{}
	err := wait.For(ctx, timeout, fmt.Sprintf("backup %s to be %s", name, what), func(ctx context.Context) (bool, string, error) {
		if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: name}, b); err != nil {
			return false, "", err
		}
		if seen != nil {
			seen(&b.Status)
		}
		return done(&b.Status), fmt.Sprintf("phase %s, reason %s: %s", b.Status.Phase, b.Status.Reason, b.Status.Message), nil
	})
	return b, err
}

// WaitDone waits until a backup has ended. A failed backup is an error.
func (l *Lab) WaitDone(ctx context.Context, name string, timeout time.Duration, seen func(*backupv1alpha1.VirtualMachineBackupStatus)) (*backupv1alpha1.VirtualMachineBackup, error) {
	b, err := l.WaitBackup(ctx, name, timeout, "over", func(s *backupv1alpha1.VirtualMachineBackupStatus) bool { return s.Phase.Final() }, seen)
	if err == nil && b.Status.Phase != backupv1alpha1.BackupDone {
		err = fmt.Errorf("backup %s failed: %s: %s", name, b.Status.Reason, b.Status.Message)
	}
	return b, err
}

// Restored is a volume that was rebuilt from the files of a chain of backups.
type Restored struct {
	SHA256 string
	// Fsck is the output of `e2fsck -fn`. It is empty if fsck was not requested.
	Fsck string
}

// Restore rebuilds a volume in a toolbox that has the target claim. It works on copies of the volume's files with
// qemu-img alone: it rebases each incremental onto its predecessor, in order, and converts the last one to raw (VEP
// 25, Restore). chain is the full backup and the incrementals up to the wanted point, oldest first. With fsck the
// file system on the restored disk must be clean.
func (t *Toolbox) Restore(ctx context.Context, claim string, chain []*backupv1alpha1.VirtualMachineBackup, volume string, fsck bool) (*Restored, error) {
	var script strings.Builder
	script.WriteString("d=$(mktemp -d); trap 'rm -rf $d' EXIT; cd $d\n")
	for i, b := range chain {
		file := ""
		for _, v := range b.Status.IncludedVolumes {
			if v.Name == volume {
				file = path.Join("/mnt", claim, v.File)
				if v.Type == backupv1alpha1.Full {
					script.WriteString("rm -f *.qcow2\n")
				}
			}
		}
		if file == "" {
			return nil, fmt.Errorf("backup %s has no file of volume %s", b.Name, volume)
		}
		fmt.Fprintf(&script, "cp --sparse=always %s %d.qcow2\n", file, i)
		fmt.Fprintf(&script, "[ ! -e %[1]d.qcow2 ] || qemu-img rebase -u -f qcow2 -F qcow2 -b %[1]d.qcow2 %[2]d.qcow2\n", i-1, i)
		fmt.Fprintf(&script, "[ -e %[1]d.qcow2 ] || qemu-img rebase -u -f qcow2 -b '' %[2]d.qcow2\n", i-1, i)
	}
	fmt.Fprintf(&script, "qemu-img convert -f qcow2 -O raw %d.qcow2 disk.raw\n", len(chain)-1)
	script.WriteString("sha256sum disk.raw | cut -d' ' -f1\n")
	if fsck {
		script.WriteString("e2fsck -fn disk.raw 2>&1\n")
	}
	out, err := t.Run(ctx, script.String())
	if err != nil {
		return nil, fmt.Errorf("restore volume %s of backup %s: %w", volume, chain[len(chain)-1].Name, err)
	}
	sum, rest, _ := strings.Cut(out, "\n")
	return &Restored{SHA256: sum, Fsck: rest}, nil
}
