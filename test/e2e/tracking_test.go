//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

func TestTrackingOnAndOffKeepsTheData(t *testing.T) {
	s := newScene(t, "onoff")
	ctx := t.Context()
	s.boot(lab.Disk{Name: "data", Bytes: 256 * mib}, lab.Disk{Name: "raw", Bytes: 64 * mib, Block: true})
	s.guest(`echo tracked >/disks/data/1; sync`)

	label := func(on bool) {
		vm := s.vmObject()
		before := vm.DeepCopy()
		if vm.Labels = nil; on {
			vm.Labels = map[string]string{lab.TrackingLabel: "true"}
		}
		s.must(s.Patch(ctx, vm, client.MergeFrom(before)))
		s.must(s.WaitTracking(ctx, s.vm, kubevirtv1.ChangedBlockTrackingPendingRestart, time.Minute))
		s.must(s.Restart(ctx, s.vm))
		_, err := s.WaitAgent(ctx, s.vm, bootTimeout)
		s.must(err)
	}
	label(false)
	s.must(s.WaitTracking(ctx, s.vm, kubevirtv1.ChangedBlockTrackingDisabled, time.Minute))
	state := &corev1.PersistentVolumeClaim{}
	state.Namespace, state.Name = s.Namespace, layout.StatePVC(s.vm)
	s.must(s.WaitGone(ctx, state, time.Minute))
	s.guest(`echo untracked >/disks/data/2; sync`)

	label(true)
	s.must(s.WaitTracking(ctx, s.vm, kubevirtv1.ChangedBlockTrackingEnabled, time.Minute))
	if got := s.guest(`cat /disks/data/1 /disks/data/2`); got != "tracked\nuntracked\n" {
		verdict.Errorf(t, "the guest reads %q", got)
	}
	s.target("backups", gib)
	s.tracker("daily")
	p := s.point(s.Backup("b", "daily", "backups"), full)
	s.verify("backups", []*lab.PointInTime{p})
}

// TestMachine tests a machine that nobody backs up.
func TestMachine(t *testing.T) {
	s := newScene(t, "machine")
	s.boot(lab.Disk{Name: "data", Bytes: 64 * mib})
	s.step("users may not touch utility volumes", (*scene).utilityVolumesAreRefused)
	s.step("a guest that shuts itself down is replaced", (*scene).alwaysReplaces)
	s.step("a launcher that is killed is a failure, which is replaced", (*scene).failureIsReplaced)
	s.step("a guest that shuts itself down stays down", (*scene).staysDown)
	s.step("the disk of a stopped machine is exported", (*scene).diskIsExported)
}

func (s *scene) utilityVolumesAreRefused() {
	// Patches, because the handler and the controller write to both objects now.
	vmi := s.instance()
	before := vmi.DeepCopy()
	u := kubevirtv1.UtilityVolume{Name: "mine"}
	u.ClaimName = lab.ClaimName(s.vm, "data")
	vmi.Spec.UtilityVolumes = append(vmi.Spec.UtilityVolumes, u)
	err := s.Patch(s.t.Context(), vmi, client.MergeFrom(before))
	if err == nil || !strings.Contains(err.Error(), "utilityVolumes") {
		s.t.Errorf("a user's utility volume was not refused by name: %v", err)
	}
	vm := s.vmObject()
	machineBefore := vm.DeepCopy()
	vm.Spec.Template.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{u}
	if err := s.Patch(s.t.Context(), vm, client.MergeFrom(machineBefore)); !apierrors.IsInvalid(err) {
		s.t.Errorf("a machine's utility volume was not refused: %v", err)
	}
}

func (s *scene) alwaysReplaces() {
	vmi := s.instance()
	s.powerOff()
	s.waitReplaced(vmi)
}

func (s *scene) failureIsReplaced() {
	s.strategy(kubevirtv1.RunStrategyRerunOnFailure)
	vmi := s.instance()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = s.Namespace, layout.LauncherPod(s.vm, vmi.UID)
	s.must(s.Delete(s.t.Context(), pod, client.GracePeriodSeconds(0)))
	s.waitReplaced(vmi)
}

func (s *scene) staysDown() {
	s.powerOff()
	s.must(wait.For(s.t.Context(), 2*time.Minute, "the machine to be stopped", func(context.Context) (bool, string, error) {
		vm := s.vmObject()
		return vm.Status.PrintableStatus == kubevirtv1.VirtualMachineStopped, string(vm.Status.PrintableStatus), nil
	}))
}
