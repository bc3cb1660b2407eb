package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/lab"
)

const (
	namespace = "varve-demo"
	vmName    = "demo"
	tracker   = "nightly"
	target    = "backups"
	gib       = int64(1) << 30

	bootTimeout   = 5 * time.Minute
	backupTimeout = 10 * time.Minute
)

var disks = []lab.Disk{{Name: "root", Bytes: 3 * gib}, {Name: "data", Bytes: 2 * gib}}

// story is a running demo.
type story struct {
	*teller
	lab *lab.Lab
	// build, kubeconfig and boxDir are paths.
	build, kubeconfig, boxDir string
	chain                     []*backupv1alpha1.VirtualMachineBackup
	stored                    *lab.MachineBackup
	result                    *result
}

// runStory runs the main job. After an error it still returns what it found so far.
func runStory(ctx context.Context, t *teller, kubeconfig, build, boxDir string) (*result, error) {
	t.tellStep("clean up what an earlier demo left")
	l, err := lab.OpenFresh(ctx, kubeconfig, build, namespace, 5*time.Minute)
	if err != nil {
		return nil, err
	}
	if err := l.DeleteUploads(ctx, 3*time.Minute); err != nil {
		return nil, err
	}
	s := &story{teller: t, lab: l, build: build, kubeconfig: kubeconfig, boxDir: boxDir, result: &result{}}
	for _, chapter := range []func(context.Context) error{
		s.prepareMachine, s.enableTracking, s.takeFull, s.takeIncrementals, s.restartMachine, s.incrementalAfterRestart,
		s.storeMoments, s.loseMachine, s.bringBack,
	} {
		if err := chapter(ctx); err != nil {
			return s.result, err
		}
	}
	s.result.judgeAll()
	return s.result, nil
}

func (s *story) prepareMachine(ctx context.Context) error {
	s.tellStep("claims for a root disk, a data disk and the backups")
	if err := s.lab.CreateClaims(ctx, vmName, disks...); err != nil {
		return err
	}
	if err := s.lab.Claim(ctx, target, 8*gib, corev1.PersistentVolumeFilesystem); err != nil {
		return err
	}
	s.tellStep("write Debian to the root disk and an ext4 file system to the data disk")
	if err := s.lab.PopulateRoot(ctx, vmName, "root", lab.Debian); err != nil {
		return err
	}
	if err := s.lab.PopulateExt4(ctx, vmName, "data", gib, "data", 0); err != nil {
		return err
	}
	s.tellStep("create and start the virtual machine %s", vmName)
	if err := s.lab.StartMachine(ctx, vmName, lab.Debian, nil, bootTimeout, disks...); err != nil {
		return err
	}
	s.tellStep("  the guest runs and its agent answers")
	return nil
}

func (s *story) enableTracking(ctx context.Context) error {
	s.tellStep("label the machine: its disks are to be tracked")
	vm := &kubevirtv1.VirtualMachine{}
	if err := s.lab.Get(ctx, client.ObjectKey{Namespace: namespace, Name: vmName}, vm); err != nil {
		return err
	}
	before := vm.DeepCopy()
	vm.Labels = map[string]string{lab.TrackingLabel: "true"}
	if err := s.lab.Patch(ctx, vm, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("label virtual machine: %w", err)
	}
	if err := s.lab.WaitTracking(ctx, vmName, kubevirtv1.ChangedBlockTrackingPendingRestart, time.Minute); err != nil {
		return err
	}
	s.tellStep("  changed block tracking: PendingRestart; restart")
	if err := s.lab.Restart(ctx, vmName); err != nil {
		return err
	}
	seen := ""
	err := s.lab.WatchTracking(ctx, vmName, bootTimeout, func(state kubevirtv1.ChangedBlockTrackingState) bool {
		if string(state) != seen {
			seen = string(state)
			s.tellStep("  changed block tracking: %s", state)
		}
		return state == kubevirtv1.ChangedBlockTrackingEnabled
	})
	if err != nil {
		return err
	}
	_, err = s.lab.WaitAgent(ctx, vmName, bootTimeout)
	return err
}

func (s *story) takeFull(ctx context.Context) error {
	s.tellStep("the guest writes files")
	if err := s.runInGuest(ctx, `mkdir -p /data/a; for i in $(seq 20); do head -c 3000000 /dev/urandom >/data/a/$i; done
		cp -r /etc /data/etc; echo first >/etc/note; sync`); err != nil {
		return err
	}
	if err := s.lab.Create(ctx, s.lab.Tracker(tracker, vmName)); err != nil {
		return fmt.Errorf("create tracker: %w", err)
	}
	return s.takeBackup(ctx, "monday", backupv1alpha1.Full)
}

func (s *story) takeIncrementals(ctx context.Context) error {
	s.tellStep("the guest changes some")
	if err := s.runInGuest(ctx, `head -c 5000000 /dev/urandom >/data/a/3; rm /data/a/7; echo second >/etc/note; sync; fstrim /data || true`); err != nil {
		return err
	}
	return s.takeBackup(ctx, "tuesday", backupv1alpha1.Incremental)
}

func (s *story) restartMachine(ctx context.Context) error {
	s.tellStep("stop and start the machine: libvirt forgets its checkpoints, the overlays remember")
	if err := s.lab.Restart(ctx, vmName); err != nil {
		return err
	}
	_, err := s.lab.WaitAgent(ctx, vmName, bootTimeout)
	return err
}

func (s *story) incrementalAfterRestart(ctx context.Context) error {
	s.tellStep("the guest changes some more")
	if err := s.runInGuest(ctx, `head -c 2000000 /dev/urandom >/data/a/new; dd if=/dev/zero of=/data/a/5 bs=1M count=2 conv=notrunc status=none; echo third >/etc/note; sync`); err != nil {
		return err
	}
	return s.takeBackup(ctx, "wednesday", backupv1alpha1.Incremental)
}

func (s *story) runInGuest(ctx context.Context, script string) error {
	g, err := s.lab.Guest(ctx, vmName)
	if err != nil {
		return err
	}
	_, err = g.Run(ctx, script)
	return err
}

// takeBackup takes a backup at a moment at which the content of the disks is known exactly: it freezes the guest around
// the backup and hashes each disk. Then it rebuilds the disks from the files of the chain and compares them.
func (s *story) takeBackup(ctx context.Context, name string, want backupv1alpha1.BackupType) error {
	s.tellStep("backup %s: freeze the guest and hash its disks, so that the point in time is known", name)
	show, done := s.teller.tellBackup(name)
	p, err := s.lab.PointInTime(ctx, vmName, s.lab.Backup(name, tracker, target), backupTimeout, show)
	done()
	if err != nil {
		return err
	}
	b := p.Backup
	s.chain = append(s.chain, b)
	r := backupResult{
		Name: name, Type: string(b.Status.BackupType),
		Seconds: b.Status.CompletionTimestamp.Sub(b.CreationTimestamp.Time).Seconds(),
	}
	if b.Status.FrozenMillis != nil {
		r.FrozenMillis = *b.Status.FrozenMillis
	}
	s.tellStep("  rebuild the disks of %s with qemu-img, compare, and check the file systems", name)
	tool, err := s.lab.Toolbox(ctx, "restore-"+name, target)
	if err != nil {
		return err
	}
	r.Volumes = make([]volumeResult, len(b.Status.IncludedVolumes))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, v := range b.Status.IncludedVolumes {
		group.Go(func() error {
			restored, err := tool.Restore(groupCtx, target, s.chain, v.Name, true)
			if err != nil {
				return err
			}
			r.Volumes[i] = volumeResult{
				Name: v.Name, Type: string(v.Type), VirtualBytes: v.VirtualBytes, MovedBytes: v.MovedBytes,
				SHA256Expected: p.Sums[v.Name], SHA256Restored: restored.SHA256, Identical: p.Sums[v.Name] == restored.SHA256,
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return errors.Join(err, tool.Close(context.WithoutCancel(ctx)))
	}
	s.result.Backups = append(s.result.Backups, r)
	if err := tool.Close(ctx); err != nil {
		return err
	}
	if b.Status.BackupType != want {
		return fmt.Errorf("backup %s is %s, not %s: %s", name, b.Status.BackupType, want, b.Status.Message)
	}
	return nil
}
