//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
)

// interrupted boots a machine with a base backup and enough changed data that the next backup takes seconds, and
// starts that backup.
func (s *scene) interrupted(strategy kubevirtv1.RunStrategy) *backupv1alpha1.VirtualMachineBackup {
	s.t.Helper()
	s.boot(lab.Disk{Name: "data", Bytes: 2 * gib})
	vm := s.vmObject()
	before := vm.DeepCopy()
	vm.Spec.RunStrategy = ptr.To(strategy)
	s.must(s.Patch(s.t.Context(), vm, client.MergeFrom(before)))
	s.target("backups", 4*gib)
	s.tracker("daily")
	s.must(s.Create(s.t.Context(), s.Backup("base", "daily", "backups")))
	base, err := s.WaitDone(s.t.Context(), "base", backupTimeout, nil)
	s.must(err)
	s.guest(lab.Fill("/disks/data/x", 640) + `sync`)
	s.must(s.Create(s.t.Context(), s.Backup("cut", "daily", "backups")))
	s.waitFor("cut", "copying", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return st.Phase == backupv1alpha1.BackupCopying || st.Phase.Final()
	})
	return base
}

func TestStopWaitsForTheBackup(t *testing.T) {
	s := newScene(t, "stopwaits")
	base := s.interrupted(kubevirtv1.RunStrategyAlways)
	vm := s.vmObject()
	before := vm.DeepCopy()
	vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
	s.must(s.Patch(t.Context(), vm, client.MergeFrom(before)))
	delayed := false
	vmi := &kubevirtv1.VirtualMachineInstance{}
	cut, err := s.WaitDone(t.Context(), "cut", backupTimeout, func(*backupv1alpha1.VirtualMachineBackupStatus) {
		if s.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: s.vm}, vmi) != nil {
			return
		}
		for _, c := range vmi.Status.Conditions {
			delayed = delayed || c.Type == kubevirtv1.ConditionStopDelayed && c.Status == corev1.ConditionTrue
		}
	})
	s.must(err)
	if !delayed {
		t.Error("the instance never said that its stop waits for the backup")
	}
	s.must(s.WaitGone(t.Context(), vmi, 2*time.Minute))
	// The disk is at rest now: the chain must rebuild all that was written before the backup.
	vm = s.vmObject()
	before = vm.DeepCopy()
	vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyAlways)
	s.must(s.Patch(t.Context(), vm, client.MergeFrom(before)))
	_, err = s.WaitAgent(t.Context(), s.vm, bootTimeout)
	s.must(err)
	p := s.point(s.Backup("after", "daily", "backups"), incremental)
	s.verify("backups", []*lab.PointInTime{{Backup: base}, {Backup: cut}, p})
}

func TestForcedStopAbortsTheBackup(t *testing.T) {
	s := newScene(t, "forcestop")
	base := s.interrupted(kubevirtv1.RunStrategyAlways)
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(s.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: s.vm}, vmi))
	old := vmi.DeepCopy()
	before := vmi.DeepCopy()
	vmi.Annotations[layout.AnnotationForceStop] = "true"
	s.must(s.Patch(t.Context(), vmi, client.MergeFrom(before)))
	s.must(s.Delete(t.Context(), vmi))
	s.failed("cut", backupv1alpha1.ReasonStopForced)
	s.nextIsIncremental(base, old)
}

func TestGuestShutdownFailsTheBackup(t *testing.T) {
	s := newScene(t, "guestoff")
	base := s.interrupted(kubevirtv1.RunStrategyAlways)
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(s.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: s.vm}, vmi))
	g, err := s.Guest(t.Context(), s.vm)
	s.must(err)
	// The agent may be gone before it answers.
	_, _ = g.Run(t.Context(), `(sleep 0.2; poweroff -f) >/dev/null 2>&1 &`)
	s.failed("cut", backupv1alpha1.ReasonGuestShutdown)
	s.nextIsIncremental(base, vmi)
}

// nextIsIncremental checks that after a clean end of the guest the tracker did not move and its base still is good.
func (s *scene) nextIsIncremental(base *backupv1alpha1.VirtualMachineBackup, old *kubevirtv1.VirtualMachineInstance) {
	s.t.Helper()
	if got := s.checkpoint("daily"); got == nil || got.Name != base.Status.CheckpointName {
		s.t.Errorf("a failed backup moved the tracker to %+v", got)
	}
	s.waitReplaced(old)
	p := s.point(s.Backup("next", "daily", "backups"), incremental)
	s.verify("backups", []*lab.PointInTime{{Backup: base}, p})
	s.clean("backups", p.Backup.Status.CheckpointName)
}

func (s *scene) waitReplaced(old *kubevirtv1.VirtualMachineInstance) {
	s.t.Helper()
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(lab.Wait(s.t.Context(), 3*time.Minute, "another instance", func(ctx context.Context) (bool, string, error) {
		err := client.IgnoreNotFound(s.Get(ctx, client.ObjectKeyFromObject(old), vmi))
		return vmi.UID != "" && vmi.UID != old.UID, string(vmi.UID), err
	}))
	_, err := s.WaitAgent(s.t.Context(), s.vm, bootTimeout)
	s.must(err)
}

func TestCrashMakesTheNextBackupFull(t *testing.T) {
	s := newScene(t, "crash")
	s.interrupted(kubevirtv1.RunStrategyAlways)
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(s.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: s.vm}, vmi))
	g, err := s.Guest(t.Context(), s.vm)
	s.must(err)
	_, err = g.Launcher(t.Context(), "sh", "-c", `for p in /proc/[0-9]*; do case "$(readlink $p/exe)" in */qemu-system-*) kill -9 "${p#/proc/}";; esac; done`)
	s.must(err)
	s.failed("cut", backupv1alpha1.ReasonGuestCrashed)
	s.waitReplaced(vmi)
	p := s.point(s.Backup("next", "daily", "backups"), full)
	if got := p.Backup.Status.IncludedVolumes[0].FullReason; got == "" || got == backupv1alpha1.FullForced {
		t.Errorf("the fallback to full has the reason %q", got)
	}
	s.verify("backups", []*lab.PointInTime{p})
	s.clean("backups", p.Backup.Status.CheckpointName)
}

func TestWriteBehindTheOverlayMakesTheNextBackupFull(t *testing.T) {
	s := newScene(t, "foreign")
	s.boot(lab.Disk{Name: "data", Bytes: 256 * mib}, lab.Disk{Name: "other", Bytes: 256 * mib})
	s.target("backups", gib)
	s.tracker("daily")
	s.guest(`head -c 20000000 /dev/urandom >/disks/data/x; head -c 20000000 /dev/urandom >/disks/other/x; sync`)
	first := s.point(s.Backup("first", "daily", "backups"), full)

	vm := s.vmObject()
	before := vm.DeepCopy()
	vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
	s.must(s.Patch(t.Context(), vm, client.MergeFrom(before)))
	vmi := &kubevirtv1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name = s.Namespace, s.vm
	s.must(s.WaitGone(t.Context(), vmi, 2*time.Minute))
	claim := lab.ClaimName(s.vm, "data")
	tool, err := s.Toolbox(t.Context(), "foreign", claim)
	s.must(err)
	_, err = tool.Run(t.Context(), "head -c 65536 /dev/urandom | dd of=/mnt/"+claim+"/disk.img bs=64k seek=3000 conv=notrunc; sync")
	s.must(err)
	s.must(tool.Close(t.Context()))
	vm = s.vmObject()
	before = vm.DeepCopy()
	vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyAlways)
	s.must(s.Patch(t.Context(), vm, client.MergeFrom(before)))
	_, err = s.WaitAgent(t.Context(), s.vm, bootTimeout)
	s.must(err)

	// The disk that was written goes full alone; the other stays incremental.
	p := s.point(s.Backup("second", "daily", "backups"), incremental)
	for _, v := range p.Backup.Status.IncludedVolumes {
		want, reason := incremental, backupv1alpha1.FullReason("")
		if v.Name == "data" {
			want, reason = full, backupv1alpha1.FullDiskReplaced
		}
		if v.Type != want || v.FullReason != reason {
			t.Errorf("volume %s is %s (%s), want %s (%s)", v.Name, v.Type, v.FullReason, want, reason)
		}
	}
	s.verify("backups", []*lab.PointInTime{first, p})
}
