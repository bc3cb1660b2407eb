//go:build controlplane || root

package handler_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Launchers that accept a call and never answer it hold up themselves alone, however many there are.
func TestMuteLaunchers_holdUpNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	var mute []*fakeLauncher
	for i := range 3 * reconcile.HandlerPlaces {
		pod := types.UID(fmt.Sprintf("%s-mute-%d", w.pod, i))
		launcher := newFakeLauncher(t, w.podsDir, pod)
		launcher.mute = true
		mute = append(mute, launcher)
		w.instanceOf(fmt.Sprintf("mute-%d", i), pod)
	}
	w.run()
	w.until(func() error {
		stuck := 0
		for _, launcher := range mute {
			stuck += launcher.count("Start")
		}
		return want(stuck == len(mute), "%d of %d launchers were told to start their guest", stuck, len(mute))
	})
	pod := w.pod + "-good"
	good := newFakeLauncher(t, w.podsDir, pod)
	w.vmi = w.instanceOf("good", pod)
	w.launcher = good
	w.until(func() error {
		return want(good.count("Start") > 0, "the good launcher was not told to start its guest")
	})
	w.guestRuns()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		return want(s.Phase == kubevirtv1.PhaseRunning, "phase %s", s.Phase)
	})
	for _, launcher := range mute {
		if n := launcher.count("Start"); n != 1 {
			t.Errorf("a mute launcher was called %d times, want 1", n)
		}
	}
}
