//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/wait"
)

// TestInterruptedBackups interrupts backups of one machine in every way that users and guests can, one after the
// other. Whatever happens to the backup, the next one is right.
func TestInterruptedBackups(t *testing.T) {
	s := newScene(t, "interrupted")
	s.boot(lab.Disk{Name: "data", Bytes: 2 * gib})
	s.target("backups", 10*gib)
	s.tracker("daily")
	s.step("a deletion aborts", (*scene).deletionAborts)
	s.step("a stop waits for the backup", (*scene).stopWaits)
	s.step("a forced stop aborts", (*scene).forcedStopAborts)
	s.step("the guest shuts itself down", (*scene).guestShutsDown)
	s.step("QEMU dies", (*scene).qemuDies)
}

// cutSpeed is the speed of a backup that is to be interrupted, in bytes a second. At this one, changedMiB take minutes. At full speed
// they take as long as it may take to find the job.
const (
	cutSpeed   = 256 << 10
	changedMiB = 320
)

// interrupted makes a base backup and changed data, and starts the next backup, which copies at cutSpeed.
func (s *scene) interrupted(name string) (base, cut *backupv1alpha1.VirtualMachineBackup) {
	s.t.Helper()
	for attempt := range 3 {
		base, cut = s.startSlowBackup(fmt.Sprintf("%s-%d", name, attempt))
		if !cut.Status.Phase.Final() {
			return base, cut
		}
		s.t.Logf("backup %s ended before it was slowed: %s (%s)", cut.Name, cut.Status.Reason, cut.Status.Message)
	}
	s.t.Fatal("no backup was slow enough to be interrupted")
	return nil, nil
}

// startSlowBackup returns a backup that copies, or one that ended before it was slowed.
func (s *scene) startSlowBackup(name string) (base, cut *backupv1alpha1.VirtualMachineBackup) {
	s.t.Helper()
	s.guest(`rm -f /disks/data/x; sync; fstrim /disks/data || true`)
	base = s.Backup(name+"-base", "daily", "backups")
	base.Spec.ForceFullBackup = true
	s.must(s.Create(s.t.Context(), base))
	base, err := s.WaitDone(s.t.Context(), base.Name, backupTimeout, nil)
	s.must(err)
	s.guest(lab.Fill("/disks/data/x", changedMiB) + `sync`)
	s.slowNextJob()
	cut = s.Backup(name+"-cut", "daily", "backups")
	s.must(s.Create(s.t.Context(), cut))
	s.waitFor(cut.Name, "copying", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return st.Phase == backupv1alpha1.BackupCopying || st.Phase.Final()
	})
	s.waitSlowed()
	s.must(s.Get(s.t.Context(), client.ObjectKeyFromObject(cut), cut))
	return base, cut
}

// jobShell is a script in the launcher pod with a function that sets the speed of QEMU's jobs, 0 for no limit, and fails if there are none.
const jobShell = `
domain=$(virsh --quiet list --name | head -n 1)
qmp() { virsh --quiet qemu-monitor-command "$domain" "$1"; }
set_speed() {
	local found=1 job
	for job in $(qmp '{"execute":"query-block-jobs"}' | grep -o '"device":"[^"]*"'); do
		qmp "{\"execute\":\"block-job-set-speed\",\"arguments\":{$job,\"speed\":$1}}" && found=0
	done
	return $found
}
`

// slowNextJob has the next job copy at cutSpeed: it looks for one as fast as it can.
func (s *scene) slowNextJob() {
	s.t.Helper()
	s.launcher(fmt.Sprintf(`(until set_speed %d || [ $SECONDS -gt 60 ]; do :; done) >/dev/null 2>&1 &`, cutSpeed))
}

// waitSlowed waits until the job that slowNextJob found is slow, or gone.
func (s *scene) waitSlowed() {
	s.t.Helper()
	s.launcher(fmt.Sprintf(`while qmp '{"execute":"query-block-jobs"}' | grep -v '"speed":%d,' | grep -q '"device"'; do :; done`, cutSpeed))
}

// launcher runs a script in the launcher pod that uses jobShell.
func (s *scene) launcher(script string) {
	s.t.Helper()
	g, err := s.Guest(s.t.Context(), s.vm)
	s.must(err)
	_, err = g.Launcher(s.t.Context(), "bash", "-c", jobShell+script)
	s.must(err)
}

// fullSpeed has a job that was slowed continue without a limit.
func (s *scene) fullSpeed() {
	s.t.Helper()
	s.launcher(`set_speed 0`)
}

func (s *scene) deletionAborts() {
	base, cut := s.interrupted("delete")
	s.delete(cut)
	s.must(s.WaitGone(s.t.Context(), cut, time.Minute))
	s.clean("backups", base.Status.CheckpointName)
	s.nextIsIncremental("delete", base)
}

func (s *scene) stopWaits() {
	ctx := s.t.Context()
	base, cut := s.interrupted("stop")
	s.strategy(kubevirtv1.RunStrategyHalted)
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(wait.For(ctx, time.Minute, "the instance says that its stop waits for the backup", func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.vm}, vmi)
		for _, c := range vmi.Status.Conditions {
			if c.Type == kubevirtv1.ConditionStopDelayed && c.Status == corev1.ConditionTrue {
				return true, "", nil
			}
		}
		return false, fmt.Sprintf("%+v", vmi.Status.Conditions), err
	}))
	s.fullSpeed()
	cut, err := s.WaitDone(ctx, cut.Name, backupTimeout, nil)
	s.must(err)
	s.must(s.WaitGone(ctx, vmi, 2*time.Minute))
	// The disk is at rest now: the chain must rebuild everything that was written before the backup.
	s.strategy(kubevirtv1.RunStrategyAlways)
	_, err = s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	p := s.point(s.Backup("stop-next", "daily", "backups"), incremental)
	s.verify("backups", []*lab.PointInTime{{Backup: base}, {Backup: cut}, p})
}

func (s *scene) forcedStopAborts() {
	base, cut := s.interrupted("force")
	vmi := s.instance()
	before := vmi.DeepCopy()
	vmi.Annotations[layout.AnnotationForceStop] = "true"
	s.must(s.Patch(s.t.Context(), vmi, client.MergeFrom(before)))
	s.must(s.Delete(s.t.Context(), vmi))
	s.failed(cut.Name, backupv1alpha1.ReasonStopForced)
	s.waitReplaced(vmi)
	s.nextIsIncremental("force", base)
}

func (s *scene) guestShutsDown() {
	base, cut := s.interrupted("off")
	vmi := s.instance()
	s.powerOff()
	s.failed(cut.Name, backupv1alpha1.ReasonGuestShutdown)
	s.waitReplaced(vmi)
	s.nextIsIncremental("off", base)
}

// powerOff makes the guest power off. The agent may be gone before it answers.
func (s *scene) powerOff() {
	s.t.Helper()
	g, err := s.Guest(s.t.Context(), s.vm)
	s.must(err)
	_, _ = g.Run(s.t.Context(), `(sleep 0.2; poweroff -f) >/dev/null 2>&1 &`)
}

// nextIsIncremental checks that an interrupted backup did not move the tracker, and that its base is still good.
func (s *scene) nextIsIncremental(name string, base *backupv1alpha1.VirtualMachineBackup) {
	s.t.Helper()
	if got := s.checkpoint("daily"); got == nil || got.Name != base.Status.CheckpointName {
		s.t.Errorf("a failed backup moved the tracker to %+v", got)
	}
	p := s.point(s.Backup(name+"-next", "daily", "backups"), incremental)
	s.verify("backups", []*lab.PointInTime{{Backup: base}, p})
	s.clean("backups", p.Backup.Status.CheckpointName)
}

func (s *scene) waitReplaced(old *kubevirtv1.VirtualMachineInstance) {
	s.t.Helper()
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(wait.For(s.t.Context(), 3*time.Minute, "another instance", func(ctx context.Context) (bool, string, error) {
		err := client.IgnoreNotFound(s.Get(ctx, client.ObjectKeyFromObject(old), vmi))
		return vmi.UID != "" && vmi.UID != old.UID, string(vmi.UID), err
	}))
	_, err := s.WaitAgent(s.t.Context(), s.vm, bootTimeout)
	s.must(err)
}

func (s *scene) qemuDies() {
	ctx := s.t.Context()
	_, cut := s.interrupted("crash")
	vmi := s.instance()
	g, err := s.Guest(ctx, s.vm)
	s.must(err)
	_, err = g.Launcher(ctx, "sh", "-c", `for p in /proc/[0-9]*; do case "$(readlink $p/exe)" in */qemu-system-*) kill -9 "${p#/proc/}";; esac; done`)
	s.must(err)
	s.failed(cut.Name, backupv1alpha1.ReasonGuestCrashed)
	s.waitReplaced(vmi)
	p := s.point(s.Backup("crash-next", "daily", "backups"), full)
	if got := p.Backup.Status.IncludedVolumes[0].FullReason; got == "" || got == backupv1alpha1.FullForced {
		s.t.Errorf("the fallback to full has the reason %q", got)
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

	s.strategy(kubevirtv1.RunStrategyHalted)
	vmi := &kubevirtv1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name = s.Namespace, s.vm
	s.must(s.WaitGone(t.Context(), vmi, 2*time.Minute))
	claim := lab.ClaimName(s.vm, "data")
	tool, err := s.Toolbox(t.Context(), "foreign", claim)
	s.must(err)
	_, err = tool.Run(t.Context(), "head -c 65536 /dev/urandom | dd of=/mnt/"+claim+"/disk.img bs=64k seek=3000 conv=notrunc; sync")
	s.must(err)
	s.must(tool.Close(t.Context()))
	s.strategy(kubevirtv1.RunStrategyAlways)
	_, err = s.WaitAgent(t.Context(), s.vm, bootTimeout)
	s.must(err)

	// Only the disk that was written gets a full backup; the other stays incremental.
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
