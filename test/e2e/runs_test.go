//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// TestBlockClaim_everyRunCounts: whatever writes to a Block claim between two tracked runs, the guest reads it and
// the next backup has it.
func TestBlockClaim_everyRunCounts(t *testing.T) {
	s := newScene(t, "runs")
	ctx := t.Context()
	s.boot(lab.Disk{Name: "raw", Bytes: 64 * mib, Block: true})
	s.target("backups", gib)
	s.tracker("daily")
	const device = `b=/dev/$(grep -lx %s /sys/block/*/serial | cut -d/ -f4); `
	write := func(serial string, places ...int) string {
		script := fmt.Sprintf(device, serial)
		for _, at := range places {
			script += fmt.Sprintf("head -c 262144 /dev/urandom | dd of=$b bs=64k seek=%d conv=notrunc; ", at*16)
		}
		return script + "sync"
	}
	s.guest(write("raw", 4, 9, 33) + fmt.Sprintf("; blkdiscard -o %d -l %d $b", 4*mib, mib))
	chain := []*lab.PointInTime{s.point(s.Backup("b1", "daily", "backups"), backupv1alpha1.Full)}

	next := func(name string, want backupv1alpha1.BackupType, why backupv1alpha1.FullReason) {
		t.Helper()
		p := s.point(s.Backup(name, "daily", "backups"), want)
		if got := p.Backup.Status.IncludedVolumes[0].FullReason; got != why {
			t.Errorf("backup %s is full because of %q, want %q", name, got, why)
		}
		if want == backupv1alpha1.Full {
			chain = nil
		}
		chain = append(chain, p)
		s.verify("backups", chain)
		if sum := strings.Fields(s.guest(fmt.Sprintf(device, "raw") + "sha256sum $b"))[0]; sum != p.Sums["raw"] {
			verdict.Errorf(t, "before backup %s the disk held %s, and the guest reads %s", name, p.Sums["raw"], sum)
		}
	}

	// The machine's own restart keeps the base. Meanwhile another machine on the claim has to wait.
	rescue, err := s.Machine("rescue", lab.TestSystem, nil, lab.Disk{Name: "raw", Block: true})
	s.must(err)
	*rescue.Spec.RunStrategy = kubevirtv1.RunStrategyAlways
	rescue.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = lab.ClaimName(s.vm, "raw")
	s.must(s.Restart(ctx, s.vm))
	_, err = s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	s.must(s.Create(ctx, rescue))
	s.must(wait.For(ctx, time.Minute, "the second machine to be held", func(ctx context.Context) (bool, string, error) {
		vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "rescue"}}
		err := client.IgnoreNotFound(s.Get(ctx, client.ObjectKeyFromObject(vmi), vmi))
		for _, c := range vmi.Status.Conditions {
			if c.Type == kubevirtv1.ConditionSynchronized && c.Status == corev1.ConditionFalse && c.Reason == virtualmachineinstance.ReasonClaimInUse {
				return strings.Contains(c.Message, s.vm), c.Message, err
			}
		}
		return false, fmt.Sprintf("%+v", vmi.Status.Conditions), err
	}))
	s.guest(write("raw", 12))
	next("b2", backupv1alpha1.Incremental, "")

	// The other machine gets the claim when this one is down, and writes where the guest had trimmed.
	s.strategy(kubevirtv1.RunStrategyHalted)
	_, err = s.WaitAgent(ctx, "rescue", bootTimeout)
	s.must(err)
	g, err := s.Guest(ctx, "rescue")
	s.must(err)
	_, err = g.Run(ctx, write("raw", 4, 20))
	s.must(err)
	s.delete(rescue)
	s.must(s.WaitGone(ctx, rescue, 2*time.Minute))
	s.strategy(kubevirtv1.RunStrategyAlways)
	_, err = s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	next("b3", backupv1alpha1.Full, backupv1alpha1.FullDiskReplaced)

	// There is no second machine at all, but the volume has another name for one run.
	rename := func(to string) {
		t.Helper()
		vm := s.vmObject()
		before := vm.DeepCopy()
		spec := &vm.Spec.Template.Spec
		spec.Volumes[0].Name, spec.Domain.Devices.Disks[0].Name = to, to
		s.must(s.Patch(ctx, vm, client.MergeFrom(before)))
		s.must(s.Restart(ctx, s.vm))
		_, err := s.WaitAgent(ctx, s.vm, bootTimeout)
		s.must(err)
	}
	rename("renamed")
	s.guest(write("raw", 4, 40)) // the serial stays
	rename("raw")
	next("b4", backupv1alpha1.Full, backupv1alpha1.FullBitmapLost) // the overlay of a volume that is gone is removed
}
