//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/changedblocktracking"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/tracking"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/wait"
)

// TestGrowth_anotherDiskLeavesTheOthersIncremental adds a disk to a machine whose state claim is as an older Varve made it:
// without room, and of a class that allows no expansion. The overlays move, and only the new disk is full.
func TestGrowth_anotherDiskLeavesTheOthersIncremental(t *testing.T) {
	s := newScene(t, "growth")
	ctx := t.Context()
	disks := []lab.Disk{{Name: "data", Bytes: 256 * mib}, {Name: "raw", Bytes: 64 * mib, Block: true}}
	vm, err := s.Machine(s.vm, lab.TestSystem, map[string]string{lab.TrackingLabel: "true"}, disks...)
	s.must(err)
	s.must(s.Create(ctx, vm))
	s.must(s.Create(ctx, changedblocktracking.StateClaim(vm, tracking.StateClaimSize([]int64{256 * mib, 64 * mib}), nil)))
	s.disks = disks
	s.createDisks(disks...)
	s.strategy(kubevirtv1.RunStrategyAlways)
	_, err = s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	s.must(s.WaitTracking(ctx, s.vm, kubevirtv1.ChangedBlockTrackingEnabled, time.Minute))

	s.target("backups", gib)
	s.tracker("daily")
	s.guest(`head -c 3000000 /dev/urandom >/disks/data/1; sync`)
	chain := []*lab.PointInTime{s.point(s.Backup("b1", "daily", "backups"), full)}
	s.guest(`head -c 1000000 /dev/urandom >/disks/data/2; b=/dev/$(grep -lx raw /sys/block/*/serial | cut -d/ -f4); head -c 500000 /dev/urandom | dd of=$b bs=1M conv=notrunc; sync`)

	more := lab.Disk{Name: "more", Bytes: 64 * mib}
	s.createDisks(more)
	s.disks = append(s.disks, more)
	grown, err := s.Machine(s.vm, lab.TestSystem, nil, s.disks...)
	s.must(err)
	now := s.vmObject()
	before := now.DeepCopy()
	now.Spec.Template.Spec = grown.Spec.Template.Spec
	s.must(s.Patch(ctx, now, client.MergeFrom(before)))
	first := s.stateClaim(layout.StatePVC(s.vm))
	s.rebootTracked()

	second := s.stateClaim(layout.SecondStatePVC(s.vm))
	if second.Annotations[layout.AnnotationMovesFrom] != string(first.UID) || second.Status.Phase != corev1.ClaimBound {
		t.Errorf("the second claim: %+v", second)
	}
	chain = append(chain, s.point(s.Backup("b2", "daily", "backups"), incremental))
	s.types(chain[1], map[string]backupv1alpha1.BackupType{"data": incremental, "raw": incremental, "more": full})
	s.verify("backups", chain)

	// The old claim goes, and the next start needs only the new one.
	s.guest(`head -c 1000000 /dev/urandom >/disks/data/3; head -c 1000000 /dev/urandom >/disks/more/1; sync`)
	s.rebootTracked()
	s.must(s.WaitGone(ctx, first, time.Minute))
	if again := s.stateClaim(layout.SecondStatePVC(s.vm)); again.UID != second.UID {
		t.Error("the second claim was replaced")
	}
	chain = append(chain, s.point(s.Backup("b3", "daily", "backups"), incremental))
	s.types(chain[2], map[string]backupv1alpha1.BackupType{"data": incremental, "raw": incremental, "more": incremental})
	s.verify("backups", chain)
}

// types compares how the volumes of a backup were backed up.
func (s *scene) types(p *lab.PointInTime, want map[string]backupv1alpha1.BackupType) {
	s.t.Helper()
	got := map[string]backupv1alpha1.BackupType{}
	for _, v := range p.Backup.Status.IncludedVolumes {
		got[v.Name] = v.Type
		if v.Type != want[v.Name] {
			s.t.Errorf("backup %s: volume %s is %s (%s), want %s", p.Backup.Name, v.Name, v.Type, v.FullReason, want[v.Name])
		}
	}
	if len(got) != len(want) {
		s.t.Errorf("backup %s: volumes %v, want %v", p.Backup.Name, got, want)
	}
}

// rebootTracked restarts the machine and waits until its disks are tracked.
func (s *scene) rebootTracked() {
	s.t.Helper()
	ctx := s.t.Context()
	s.must(s.Restart(ctx, s.vm))
	_, err := s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	s.must(wait.For(ctx, time.Minute, "the instance to be tracked", func(context.Context) (bool, string, error) {
		cbt := s.instance().Status.ChangedBlockTracking
		return cbt != nil && cbt.State == kubevirtv1.ChangedBlockTrackingEnabled, fmt.Sprintf("%+v", cbt), nil
	}))
}

func (s *scene) stateClaim(name string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: name}, claim))
	return claim
}

// withVolume returns the backups from the first one on that has the volume, which was added after the others.
func withVolume(chain []*backupv1alpha1.VirtualMachineBackup, volume string) []*backupv1alpha1.VirtualMachineBackup {
	first := slices.IndexFunc(chain, func(b *backupv1alpha1.VirtualMachineBackup) bool {
		return slices.ContainsFunc(b.Status.IncludedVolumes, func(v backupv1alpha1.IncludedVolume) bool { return v.Name == volume })
	})
	return chain[max(first, 0):]
}
