//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/wait"
)

const (
	full        = backupv1alpha1.Full
	incremental = backupv1alpha1.Incremental
)

// checkpoints checks which checkpoints libvirt has.
func (s *scene) checkpoints(want ...string) {
	s.t.Helper()
	g, err := s.Guest(s.t.Context(), s.vm)
	s.must(err)
	out, err := g.Launcher(s.t.Context(), "sh", "-c", `virsh -q checkpoint-list --name "$(virsh -q list --name | head -n 1)"`)
	s.must(err)
	// libvirt has no colons in its names.
	got := strings.Fields(strings.ReplaceAll(out, "_", ":"))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("libvirt has the checkpoints %q, want %q", got, want)
	}
}

func TestChainIsBitForBit(t *testing.T) {
	s := newScene(t, "chain")
	s.boot(
		lab.Disk{Name: "vfs", Bytes: 512 * mib}, lab.Disk{Name: "vblock", Bytes: 128 * mib, Block: true},
		lab.Disk{Name: "sfs", Bytes: 256 * mib, Bus: "scsi"}, lab.Disk{Name: "afs", Bytes: 256 * mib, Bus: "sata"},
	)
	s.target("backups", 3*gib)
	s.tracker("daily")
	write := `for d in vfs sfs afs; do mkdir -p /disks/$d/x; for i in 1 2 3 4; do head -c 3000000 /dev/urandom >/disks/$d/x/$i; done; done
		b=/dev/$(grep -lx vblock /sys/block/*/serial | cut -d/ -f4); head -c 20000000 /dev/urandom | dd of=$b bs=1M conv=notrunc; sync`
	s.guest(write)
	var chain []*lab.PointInTime
	chain = append(chain, s.point(s.Backup("b1", "daily", "backups"), full))
	s.verify("backups", chain)
	for _, v := range chain[0].Backup.Status.IncludedVolumes {
		// A device has no holes that could be skipped, but its zeros must not stay on the target.
		if v.Name == "vblock" && (v.MovedBytes < 20_000_000 || v.MovedBytes > 22*mib) {
			t.Errorf("20 MB of data on a block device cost %d bytes", v.MovedBytes)
		}
	}
	first := s.checkpoint("daily")
	if first == nil || first.Name != chain[0].Backup.Status.CheckpointName || len(first.Disks) != 4 {
		t.Errorf("the tracker has %+v after backup %s", first, chain[0].Backup.Status.CheckpointName)
	}
	s.clean("backups", first.Name)

	// Overwritten, deleted, zeroed and discarded blocks must all show up.
	s.guest(`for d in vfs sfs afs; do dd if=/dev/zero of=/disks/$d/x/1 bs=1M count=2 conv=notrunc; rm /disks/$d/x/2; head -c 700000 /dev/urandom >/disks/$d/x/5; done
		b=/dev/$(grep -lx vblock /sys/block/*/serial | cut -d/ -f4); dd if=/dev/zero of=$b bs=1M seek=3 count=4 conv=notrunc; sync; fstrim /disks/vfs || true`)
	chain = append(chain, s.point(s.Backup("b2", "daily", "backups"), incremental))
	s.verify("backups", chain)
	s.clean("backups", chain[1].Backup.Status.CheckpointName)

	s.must(s.Restart(t.Context(), s.vm))
	_, err := s.WaitAgent(t.Context(), s.vm, bootTimeout)
	s.must(err)
	s.guest(`for d in vfs sfs afs; do head -c 1000000 /dev/urandom >/disks/$d/x/6; done; sync`)
	chain = append(chain, s.point(s.Backup("b3", "daily", "backups"), incremental))
	s.verify("backups", chain)

	// A forced full backup starts its own chain, and the tracker follows it.
	forced := s.Backup("b4", "daily", "backups")
	forced.Spec.ForceFullBackup = true
	p := s.point(forced, full)
	s.verify("backups", []*lab.PointInTime{p})
	for _, v := range p.Backup.Status.IncludedVolumes {
		if v.FullReason != backupv1alpha1.FullForced {
			t.Errorf("volume %s is full for %q, want %q", v.Name, v.FullReason, backupv1alpha1.FullForced)
		}
	}
	s.clean("backups", p.Backup.Status.CheckpointName)

	// A backup of the machine itself is full and leaves no checkpoint.
	alone := s.Backup("b5", "", "backups")
	alone.Spec.Source = s.Tracker("", s.vm).Spec.Source.DeepCopy()
	alone.Spec.SkipQuiesce = true
	q := s.point(alone, full)
	s.verify("backups", []*lab.PointInTime{q})
	s.clean("backups", p.Backup.Status.CheckpointName)
}

func TestSparseFullMovesWhatIsUsed(t *testing.T) {
	s := newScene(t, "sparse")
	s.boot(lab.Disk{Name: "big", Bytes: 12 * gib})
	s.target("backups", 4*gib)
	s.tracker("daily")
	s.guest(lab.Fill("/disks/big/data", 304) + `sync`)
	g, err := s.Guest(t.Context(), s.vm)
	s.must(err)
	used := number(t, must(g.Launcher(t.Context(), "sh", "-c", `stat -c '%b*%B' /run/varve/disks/big/disk.img | tr -d '\n' | sed 's/$/\n/' | { IFS='*' read a b; echo $((a*b)); }`)))
	// The guest keeps writing while the backup runs, and none of it may show.
	s.guest(`(while :; do dd if=/dev/urandom of=/disks/big/busy bs=64k count=16 conv=notrunc,fsync; done) >/dev/null 2>&1 & echo $! >/tmp/busy`)
	s.must(s.Create(t.Context(), s.Backup("full", "daily", "backups")))
	b, err := s.WaitDone(t.Context(), "full", backupTimeout, nil)
	s.must(err)
	s.guest(`kill $(cat /tmp/busy)`)
	moved := b.Status.MovedBytes
	t.Logf("virtual %d, used %d, moved %d bytes, frozen %v ms", b.Status.IncludedVolumes[0].VirtualBytes, used, moved, *b.Status.FrozenMillis)
	if b.Status.IncludedVolumes[0].VirtualBytes < 10*gib {
		t.Errorf("the disk has %d bytes, want at least 10 GiB", b.Status.IncludedVolumes[0].VirtualBytes)
	}
	if float64(moved) > 1.2*float64(used) {
		t.Errorf("moved %d bytes of %d used", moved, used)
	}

	// 32 MiB of scattered changes: the incremental moves the dirty clusters and little else.
	s.guest(`f=/disks/big/data; for i in $(seq 0 511); do dd if=/dev/urandom of=$f bs=64k count=1 seek=$((i*8)) conv=notrunc status=none; done; sync`)
	p := s.point(s.Backup("incr", "daily", "backups"), incremental)
	dirty := int64(512*2) * 64 << 10 // a 64 KiB write in a file may straddle two clusters
	t.Logf("incremental moved %d bytes", p.Backup.Status.MovedBytes)
	if p.Backup.Status.MovedBytes > dirty*12/10 {
		t.Errorf("the incremental moved %d bytes for at most %d dirty", p.Backup.Status.MovedBytes, dirty)
	}
	s.verify("backups", []*lab.PointInTime{{Backup: b}, p})
	fast, slow := took(p.Backup), took(b)
	t.Logf("full %s, incremental %s", slow, fast)
}

func took(b *backupv1alpha1.VirtualMachineBackup) time.Duration {
	return b.Status.CompletionTimestamp.Sub(b.CreationTimestamp.Time)
}

// TestRequests asks one machine for backups that wait, are refused, or warn.
func TestRequests(t *testing.T) {
	s := newScene(t, "requests")
	s.boot(lab.Disk{Name: "data", Bytes: 2 * gib})
	s.guest(lab.Fill("/disks/data/x", 256) + `sync`)
	s.step("a target that cannot take it", (*scene).targetCannotTakeIt)
	s.step("one backup at a time", (*scene).oneBackupAtATime)
	s.step("without an agent, a warning", (*scene).withoutAgentIsAWarning)
}

func (s *scene) targetCannotTakeIt() {
	t := s.t
	s.tracker("daily")

	// Missing: the backup waits, says so, and proceeds when the claim appears.
	s.must(s.Create(t.Context(), s.Backup("missing", "daily", "later")))
	s.waitFor("missing", "waiting for its claim", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return st.Reason == backupv1alpha1.ReasonPVCNotFound && strings.Contains(st.Message, "later")
	})
	if cbt := s.instance().Status.ChangedBlockTracking; cbt.BackupStatus != nil {
		t.Error("a backup that waits for its claim holds the machine's lock")
	}
	s.target("later", gib)
	b, err := s.WaitDone(t.Context(), "missing", backupTimeout, nil)
	s.must(err)

	// Block: refused.
	s.must(s.Claim(t.Context(), "block", 64*mib, corev1.PersistentVolumeBlock))
	s.must(s.Create(t.Context(), s.Backup("block", "daily", "block")))
	s.failed("block", backupv1alpha1.ReasonPVCIsBlock)

	// Too small: refused before the guest is touched, with both numbers.
	s.target("small", 32*mib)
	forced := s.Backup("small", "daily", "small")
	forced.Spec.ForceFullBackup = true
	s.must(s.Create(t.Context(), forced))
	f := s.failed("small", backupv1alpha1.ReasonInsufficientSpace)
	if f.Status.StartTimestamp != nil {
		t.Error("the point in time was fixed although the target is too small")
	}
	t.Log(f.Status.Message)
	if got := s.checkpoint("daily"); got == nil || got.Name != b.Status.CheckpointName {
		t.Errorf("failed backups moved the tracker to %+v", got)
	}
	s.clean("later", b.Status.CheckpointName)
}

func (s *scene) oneBackupAtATime() {
	t := s.t
	s.target("backups", 4*gib)
	s.tracker("a")
	s.tracker("b")
	s.must(s.Create(t.Context(), s.Backup("first", "a", "backups")))
	s.waitFor("first", "under way", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return st.Phase != backupv1alpha1.BackupPending && st.Phase != ""
	})
	s.must(s.Create(t.Context(), s.Backup("second", "b", "backups")))
	waited := false
	_, err := s.WaitDone(t.Context(), "second", backupTimeout, func(st *backupv1alpha1.VirtualMachineBackupStatus) {
		waited = waited || st.Reason == backupv1alpha1.ReasonOtherBackup && strings.Contains(st.Message, "first")
	})
	s.must(err)
	if !waited {
		t.Error("the second backup never said that it waits for the first")
	}
	first, err := s.WaitDone(t.Context(), "first", time.Second, nil)
	s.must(err)
	if a, b := s.checkpoint("a"), s.checkpoint("b"); a == nil || b == nil || a.Name == b.Name || a.Name != first.Status.CheckpointName {
		t.Errorf("the trackers have %+v and %+v", a, b)
	}
	s.clean("backups", s.checkpoint("a").Name, s.checkpoint("b").Name, s.checkpoint("daily").Name)
}

func (s *scene) withoutAgentIsAWarning() {
	t := s.t
	s.guest(`printf '#!/bin/sh\nexec sleep 99999\n' >/usr/bin/run-agent; (sleep 1; killall -9 qemu-ga) >/dev/null 2>&1 &`)
	s.must(wait.For(t.Context(), time.Minute, "the agent to be gone", func(ctx contextT) (bool, string, error) {
		vmi := &kubevirtv1.VirtualMachineInstance{}
		err := s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.vm}, vmi)
		for _, c := range vmi.Status.Conditions {
			if c.Type == kubevirtv1.ConditionAgentConnected && c.Status == corev1.ConditionTrue {
				return false, "connected", err
			}
		}
		return true, "", err
	}))
	b := s.Backup("crashconsistent", "", "backups")
	b.Spec.Source = s.Tracker("", s.vm).Spec.Source.DeepCopy()
	s.must(s.Create(t.Context(), b))
	done, err := s.WaitDone(t.Context(), b.Name, backupTimeout, nil)
	s.must(err)
	for _, c := range done.Status.Conditions {
		if c.Type == backupv1alpha1.ConditionQuiesced {
			if c.Status != metav1.ConditionFalse || c.Reason != backupv1alpha1.ReasonAgentAbsent {
				t.Errorf("Quiesced is %s %s, want False %s", c.Status, c.Reason, backupv1alpha1.ReasonAgentAbsent)
			}
			return
		}
	}
	t.Error("there is no condition Quiesced")
}
