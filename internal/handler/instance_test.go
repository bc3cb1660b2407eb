//go:build controlplane || root

package handler_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/test/controlplane"
)

func TestStart_mirrorsTheGuestsStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.run()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		return want(s.ChangedBlockTracking != nil && s.ChangedBlockTracking.State == kubevirtv1.ChangedBlockTrackingInitializing, "tracking %+v", s.ChangedBlockTracking)
	})
	w.guestRuns()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		return want(s.Phase == kubevirtv1.PhaseRunning && w.conditionOf(s, kubevirtv1.ConditionReady).Status == corev1.ConditionTrue &&
			s.ChangedBlockTracking.State == kubevirtv1.ChangedBlockTrackingEnabled, "%+v", s)
	})
	s := w.vmi.Status
	if c := w.conditionOf(&s, kubevirtv1.ConditionAgentConnected); c.Status != corev1.ConditionTrue {
		t.Errorf("AgentConnected: %+v", c)
	}
	if len(s.Interfaces) != 1 || s.Interfaces[0].IP != "" || !slices.Equal(s.Interfaces[0].IPs, []string{"10.0.2.2"}) || s.GuestOSInfo.ID != "debian" {
		t.Errorf("interfaces %+v, guest %+v", s.Interfaces, s.GuestOSInfo)
	}
	if len(s.VolumeStatus) != 1 || s.VolumeStatus[0].Target != "vda" || s.VolumeStatus[0].Size != 1<<30 || s.VolumeStatus[0].Phase != kubevirtv1.VolumeReady {
		t.Errorf("volumes %+v", s.VolumeStatus)
	}
	w.launcher.view(func() {
		r := w.launcher.started
		if len(r.GetDisks()) != 1 || r.GetDisks()[0].GetContentGeneration() != "7" || r.GetDisks()[0].GetClaimUid() != string(w.rootUID) || !r.GetUseEmulation() || !r.GetChangedBlockTracking() {
			t.Errorf("started with %+v", r)
		}
	})
	w.launcher.set(func(s *pb.State) {
		s.Phase, s.Frozen, s.AgentConnected, s.Message = pb.State_PAUSED, true, false, "no space"
	})
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		return want(w.conditionOf(s, kubevirtv1.ConditionPaused).Status == corev1.ConditionTrue && s.FSFreezeStatus == "frozen" &&
			w.conditionOf(s, kubevirtv1.ConditionAgentConnected).Type == "" && w.conditionOf(s, kubevirtv1.ConditionReady).Status == corev1.ConditionFalse, "%+v", s.Conditions)
	})
}

// TestStart_tellsWhichRunItIs: the launcher keeps an overlay only if it is told which run was the last. The handler
// tells it only while the claim names this instance's run.
func TestStart_tellsWhichRunItIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		write         func(self types.UID, e runepoch.Epoch) runepoch.Epoch
		run, previous string
		hadDisk       bool
	}{
		"this run": {func(self types.UID, e runepoch.Epoch) runepoch.Epoch {
			return e.Begin("earlier").Begin(string(self))
		}, "self", "earlier", false},
		"this run, and a disk": {func(self types.UID, e runepoch.Epoch) runepoch.Epoch {
			return e.Begin("earlier").WithGeneration("7").WithDisk().Begin(string(self)).WithGeneration("7")
		}, "self", "earlier", true},
		"a disk that was replaced": {func(self types.UID, e runepoch.Epoch) runepoch.Epoch {
			return e.Begin("earlier").WithGeneration("6").WithDisk().Begin(string(self))
		}, "self", "earlier", false},
		"another run since": {func(self types.UID, e runepoch.Epoch) runepoch.Epoch {
			return e.Begin("earlier").Begin(string(self)).WithGeneration("7").WithDisk().Begin("later")
		}, "", "", true},
		"no run": {func(_ types.UID, e runepoch.Epoch) runepoch.Epoch { return e }, "", "", false},
		"a copied record": {func(self types.UID, e runepoch.Epoch) runepoch.Epoch {
			e.Claim = "another"
			return e.Begin("earlier").Begin(string(self)).WithGeneration("7").WithDisk()
		}, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "root"}}
			controlplane.Update(t, w.client, claim, false, func(claim *corev1.PersistentVolumeClaim) {
				if err := c.write(w.vmi.UID, runepoch.Epoch{Claim: claim.UID}).Write(claim); err != nil {
					t.Fatal(err)
				}
			})
			w.run()
			w.until(func() error { return want(w.launcher.count("Start") > 0, "the guest was not started") })
			run := c.run
			if run == "self" {
				run = string(w.vmi.UID)
			}
			w.launcher.view(func() {
				if d := w.launcher.started.GetDisks()[0]; d.GetRun() != run || d.GetPreviousRun() != c.previous || d.GetHadDisk() != c.hadDisk {
					t.Errorf("run %q after %q, want %q after %q; a disk: %t", d.GetRun(), d.GetPreviousRun(), run, c.previous, d.GetHadDisk())
				}
			})
		})
	}
}

func TestInstance_ofAnotherNodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.node = "elsewhere-" + w.node
	w.run()
	controlplane.Consistently(t, time.Second, func() error { return want(w.launcher.count("Start") == 0, "it was started") })
}

func TestLauncher_silenceIsReportedAndRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.launcher.kill()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionSynchronized)
		return want(c.Status == corev1.ConditionFalse && c.Reason == "LauncherNotResponding", "%+v", c)
	})
	w.launcher.serve(t, layout.NodeSocket(w.podsDir, w.pod))
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionSynchronized)
		return want(c.Status == corev1.ConditionTrue, "%+v", c)
	})
}

func TestLauncher_thatNeverAnswersIsNoHang(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.launcher.kill()
	socket := layout.NodeSocket(w.podsDir, w.pod)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	w.run()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionSynchronized)
		return want(c.Reason == "LauncherNotResponding", "%+v", c)
	})
}

func TestLauncher_refusesASymlinkInPlaceOfTheSocket(t *testing.T) {
	t.Parallel()
	w, victim := newWorld(t, ""), newWorld(t, "")
	w.launcher.kill()
	socket := layout.NodeSocket(w.podsDir, w.pod)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.Symlink(layout.NodeSocket(victim.podsDir, victim.pod), socket); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionSynchronized)
		return want(c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "not safe"), "%+v", c)
	})
	if n := victim.launcher.count("Start"); n != 0 {
		t.Errorf("the launcher that the link names was called %d times", n)
	}
	if entries, err := filepath.Glob(filepath.Dir(socket) + "/*"); err != nil || len(entries) != 1 {
		t.Errorf("%v %v", entries, err)
	}
}

func TestStop_shutsDownAndReleasesTheLauncher(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.delete(w.vmi)
	w.until(func() error { return want(w.launcher.count("Shutdown") > 0, "no shutdown") })
	w.launcher.view(func() {
		if diff := cmp.Diff([]int64{42}, w.launcher.stops); diff != "" {
			t.Error(diff)
		}
	})
	if n := w.launcher.count("Exit"); n != 0 {
		t.Error("the launcher was released before its guest ended")
	}
	w.launcher.set(func(s *pb.State) { s.Phase, s.End = pb.State_ENDED, pb.State_REQUESTED_SHUTDOWN })
	w.until(func() error { return want(w.launcher.count("Exit") > 0, "no exit") })
}

func TestStop_waitsForABackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	b := w.backup("b1", w.tracker("tr"))
	w.until(func() error { return want(w.launcher.count("BeginBackup") == 1, "not begun") })
	w.launcher.job(func(b *pb.Backup) { b.Phase = pb.Backup_COPYING })
	w.untilPhase(b, "Copying")
	w.delete(w.vmi)
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionStopDelayed)
		return want(c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "b1"), "%+v", c)
	})
	w.restart()
	controlplane.Consistently(t, time.Second, func() error { return want(w.launcher.count("Shutdown") == 0, "shut down while the backup runs") })
	w.launcher.job(func(b *pb.Backup) { b.Phase = pb.Backup_DONE })
	w.untilPhase(b, "Copied")
	w.until(func() error { return want(w.launcher.count("Shutdown") > 0, "no shutdown after the backup") })
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionStopDelayed)
		return want(c.Status == corev1.ConditionFalse, "%+v", c)
	})
}

func TestStop_doesNotWaitForever(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.waits = 3 * time.Second
	w.started()
	b := w.backup("b1", nil)
	w.until(func() error { return want(w.launcher.count("BeginBackup") == 1, "not begun") })
	w.delete(w.vmi)
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != "VirtualMachineDeleted" {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
}

func TestStop_forcedAbortsTheBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	b := w.backup("b1", nil)
	w.until(func() error { return want(w.launcher.count("BeginBackup") == 1, "not begun") })
	w.delete(w.vmi)
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		return want(w.conditionOf(s, kubevirtv1.ConditionStopDelayed).Status == corev1.ConditionTrue, "%+v", s.Conditions)
	})
	controlplane.Update(t, w.client, w.vmi, false, func(v *kubevirtv1.VirtualMachineInstance) { v.Annotations[layout.AnnotationForceStop] = "true" })
	w.untilPhase(b, "CopyFailed")
	if b.Status.Reason != "StopForced" {
		t.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
	}
	if w.launcher.count("AbortBackup") == 0 {
		t.Error("the backup was not aborted before the shutdown")
	}
	w.until(func() error { return want(w.launcher.count("Shutdown") > 0, "no shutdown") })
}
