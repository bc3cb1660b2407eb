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
		t.Errorf("the guest reads %q", got)
	}
	s.target("backups", gib)
	s.tracker("daily")
	p := s.point(s.Backup("b", "daily", "backups"), full)
	s.verify("backups", []*lab.PointInTime{p})
}

func TestUsersMayNotTouchUtilityVolumes(t *testing.T) {
	s := newScene(t, "utility")
	s.boot(lab.Disk{Name: "data", Bytes: 64 * mib})
	s.target("backups", 64*mib)
	vmi := &kubevirtv1.VirtualMachineInstance{}
	s.must(s.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: s.vm}, vmi))
	u := kubevirtv1.UtilityVolume{Name: "mine"}
	u.ClaimName = "backups"
	vmi.Spec.UtilityVolumes = append(vmi.Spec.UtilityVolumes, u)
	err := s.Update(t.Context(), vmi)
	if err == nil || !strings.Contains(err.Error(), "utilityVolumes") {
		t.Errorf("a user's utility volume was not refused by name: %v", err)
	}
	vm := s.vmObject()
	vm.Spec.Template.Spec.UtilityVolumes = vmi.Spec.UtilityVolumes
	if err := s.Update(t.Context(), vm); !apierrors.IsInvalid(err) {
		t.Errorf("a machine's utility volume was not refused: %v", err)
	}
}

func TestRunStrategies(t *testing.T) {
	s := newScene(t, "strategies")
	ctx := t.Context()
	s.boot(lab.Disk{Name: "data", Bytes: 64 * mib})
	vmi := &kubevirtv1.VirtualMachineInstance{}
	key := client.ObjectKey{Namespace: s.Namespace, Name: s.vm}
	strategy := func(to kubevirtv1.RunStrategy) {
		vm := s.vmObject()
		before := vm.DeepCopy()
		vm.Spec.RunStrategy = &to
		s.must(s.Patch(ctx, vm, client.MergeFrom(before)))
	}
	// Always: a guest that shuts itself down is replaced.
	s.must(s.Get(ctx, key, vmi))
	g, err := s.Guest(ctx, s.vm)
	s.must(err)
	_, _ = g.Run(ctx, `(sleep 0.2; poweroff -f) >/dev/null 2>&1 &`)
	s.waitReplaced(vmi)

	// RerunOnFailure: a launcher that is killed is a failure and replaced, …
	strategy(kubevirtv1.RunStrategyRerunOnFailure)
	s.must(s.Get(ctx, key, vmi))
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = s.Namespace, layout.LauncherPod(s.vm, vmi.UID)
	zero := int64(0)
	s.must(s.Delete(ctx, pod, &client.DeleteOptions{GracePeriodSeconds: &zero}))
	s.waitReplaced(vmi)

	// … and a guest that shuts itself down stays down.
	s.must(s.Get(ctx, key, vmi))
	g, err = s.Guest(ctx, s.vm)
	s.must(err)
	_, _ = g.Run(ctx, `(sleep 0.2; poweroff -f) >/dev/null 2>&1 &`)
	s.must(lab.Wait(ctx, 2*time.Minute, "the machine to be stopped", func(context.Context) (bool, string, error) {
		vm := s.vmObject()
		return vm.Status.PrintableStatus == kubevirtv1.VirtualMachineStopped, string(vm.Status.PrintableStatus), nil
	}))
}
