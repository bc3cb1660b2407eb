//go:build controlplane || root

package handler_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

const migration = types.UID("migration-uid")

// podWithToken makes a pod of the instance on the node, with the migration's token as the kubelet brings it, and
// returns its UID.
func (w *world) podWithToken(name, node string, labels map[string]string) types.UID {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: labels}}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: w.vmi.Name, UID: w.vmi.UID, Controller: ptr.To(true),
	}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Name: "compute", Image: "none"}}
	w.create(pod)
	controlplane.Update(w.t, w.client, pod, true,
		func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.7"; p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}} })
	dir := filepath.Join(w.podsDir, string(pod.UID), "volumes/kubernetes.io~secret", layout.MigrationVolume)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, layout.MigrationToken), []byte(strings.Repeat("t", 32)), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return pod.UID
}

// migrate plays the controller, which has made both pods.
func (w *world) migrate(source, target string, edit func(*kubevirtv1.MigrationState)) {
	w.t.Helper()
	controlplane.Update(w.t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.MigrationState = &kubevirtv1.MigrationState{
			MigrationUID: migration, StartTimestamp: ptr.To(metav1.Now().Rfc3339Copy()),
			SourceNode: source, SourcePod: layout.LauncherPod(v.Name, v.UID),
			TargetNode: target, TargetPod: layout.MigrationPod(v.Name, v.UID, migration),
		}
		edit(v.Status.MigrationState)
	})
}

// migrateFrom plays a controller and a target that is ready.
func (w *world) migrateFrom() {
	w.t.Helper()
	w.podWithToken(layout.MigrationSourcePod("vm", w.vmi.UID, migration), w.node, nil)
	w.migrate(w.node, "other", func(m *kubevirtv1.MigrationState) {
		m.TargetNodeAddress, m.TargetNodeDomainReadyTimestamp = "10.0.0.7:49152", ptr.To(metav1.Now().Rfc3339Copy())
	})
}

func (w *world) untilMigration(what string, holds func(*kubevirtv1.MigrationState) bool) *kubevirtv1.MigrationState {
	w.t.Helper()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		return want(s.MigrationState != nil && holds(s.MigrationState), "%s: %+v", what, s.MigrationState)
	})
	return w.vmi.Status.MigrationState
}

func TestMigration_source(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.migrateFrom()
	w.until(func() error { return want(w.launcher.count("Migrate") > 0, "not begun") })
	w.launcher.view(func() {
		r := w.launcher.migrated
		if r.GetUid() != string(migration) || r.GetAddress() != "10.0.0.7:49152" || len(r.GetToken()) != 32 ||
			r.GetProgressTimeoutSeconds() != 150 {
			t.Errorf("%v", r)
		}
	})
	w.restart() // the launcher goes on
	w.launcher.set(func(s *pb.State) {
		s.Phase, s.End = pb.State_ENDED, pb.State_MIGRATED
		s.Migration.Phase = pb.Migration_ENDED
	})
	m := w.untilMigration("completed", func(m *kubevirtv1.MigrationState) bool {
		return m.Completed &&
			m.EndTimestamp != nil
	})
	if m.Failed || m.Mode != kubevirtv1.MigrationPreCopy || m.TargetNode != "other" {
		t.Errorf("%+v", m)
	}
	w.until(func() error { return want(w.launcher.count("Exit") > 0, "the launcher is not released") })
	if c := w.conditionOf(&w.vmi.Status, kubevirtv1.ConditionReady); c.Status != corev1.ConditionTrue {
		t.Errorf("the guest goes on, and Ready is %+v", c)
	}
	if n := w.launcher.count("Migrate"); n != 1 {
		t.Errorf("begun %d times", n)
	}
}

func TestMigration_sourceReportsAFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.started()
	w.migrateFrom()
	w.until(func() error { return want(w.launcher.count("Migrate") > 0, "not begun") })
	w.launcher.set(func(s *pb.State) {
		s.Migration.Phase, s.Migration.Message = pb.Migration_FAILED,
			"the target is gone"
	})
	m := w.untilMigration("failed", func(m *kubevirtv1.MigrationState) bool { return m.Failed && m.EndTimestamp != nil })
	if m.Completed || m.FailureReason != "the target is gone" {
		t.Errorf("%+v", m)
	}
	if n := w.launcher.count("Exit") + w.launcher.count("Shutdown"); n != 0 {
		t.Error("the guest was stopped")
	}
}

func TestMigration_olderLauncher(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.launcher.refuseMigrate = status.Error(codes.Unimplemented, "unknown method")
	w.started()
	w.migrateFrom()
	m := w.untilMigration("failed", func(m *kubevirtv1.MigrationState) bool { return m.Failed })
	if !strings.Contains(m.FailureReason, "restart the machine") {
		t.Errorf("%+v", m)
	}
}

// A refusal that passes is waited for, and shown.
func TestMigration_waitsForItsLauncher(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.launcher.refuseMigrate = status.Error(codes.FailedPrecondition, "migrate: the guest is frozen")
	w.started()
	w.migrateFrom()
	w.untilInstance(func(s *kubevirtv1.VirtualMachineInstanceStatus) error {
		c := w.conditionOf(s, kubevirtv1.ConditionSynchronized)
		return want(c.Reason == "MigrationWaits" && strings.Contains(c.Message, "is frozen"), "%+v", c)
	})
	w.launcher.view(func() { w.launcher.refuseMigrate = nil })
	w.until(func() error {
		var begun bool
		w.launcher.view(func() { begun = w.launcher.migrated != nil })
		return want(begun, "not begun")
	})
}

// Nothing is stopped in the middle of a move: the migration is cancelled first.
func TestMigration_isCancelled(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]func(w *world){
		"aborted": func(w *world) {
			w.migrate(w.node, "other", func(m *kubevirtv1.MigrationState) {
				m.AbortRequested, m.TargetNodeAddress = true,
					"10.0.0.7:49152"
			})
		},
		"deleted": func(w *world) { w.delete(w.vmi) },
		"given up by the controller": func(w *world) {
			w.migrate(w.node, "other", func(m *kubevirtv1.MigrationState) { m.Failed, m.FailureReason = true, "took too long" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			w.started()
			w.migrateFrom()
			w.until(func() error { return want(w.launcher.count("Migrate") > 0, "not begun") })
			cancel(w)
			w.until(func() error { return want(w.launcher.count("CancelMigration") > 0, "not cancelled") })
			w.untilMigration("failed", func(m *kubevirtv1.MigrationState) bool { return m.Failed && m.FailureReason != "" })
			if name == "deleted" {
				w.until(func() error { return want(w.launcher.count("Shutdown") > 0, "not stopped") })
			}
			w.launcher.view(func() {
				stopped, cancelled := slices.Index(w.launcher.calls, "Shutdown"), slices.Index(w.launcher.calls, "CancelMigration")
				if stopped >= 0 && (name != "deleted" || stopped < cancelled) {
					t.Errorf("the guest was stopped: %v", w.launcher.calls)
				}
			})
		})
	}
}

// arriving is a node to which an instance of another node moves.
func arriving(t *testing.T) (*world, *fakeLauncher, *kubevirtv1.VirtualMachineInstanceMigration) {
	t.Helper()
	w := newWorld(t, "")
	target := w.node
	w.node = "source-" + w.node
	w.vmi = w.instanceOf("moving", "pod-elsewhere")
	w.node = target
	m := &kubevirtv1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "m"}}
	m.Spec.VMIName = "moving"
	m.Labels = map[string]string{layout.LabelMigrationTarget: target}
	w.create(m)
	pod := w.podWithToken(layout.MigrationPod("moving", w.vmi.UID, m.UID), target,
		map[string]string{layout.LabelMigrationJob: string(m.UID)})
	launcher := newFakeLauncher(t, w.podsDir, pod)
	w.run()
	w.migrate("source-"+target, target, func(s *kubevirtv1.MigrationState) {
		s.MigrationUID, s.TargetPod = m.UID, layout.MigrationPod("moving", w.vmi.UID, m.UID)
	})
	w.untilMigration("the target is ready", func(s *kubevirtv1.MigrationState) bool {
		return s.TargetNodeAddress == "10.0.0.7:49152" && s.TargetNodeDomainReadyTimestamp != nil
	})
	launcher.view(func() {
		r := launcher.prepared
		if r.GetUid() != string(m.UID) || len(r.GetToken()) != 32 || len(r.GetStart().GetDisks()) != 1 ||
			!r.GetStart().GetChangedBlockTracking() {
			t.Errorf("%v", r)
		}
	})
	return w, launcher, m
}

func TestMigration_target(t *testing.T) {
	t.Parallel()
	w, launcher, _ := arriving(t)
	launcher.set(func(s *pb.State) { s.Phase, s.Migration.Phase = pb.State_RUNNING, pb.Migration_ENDED })
	w.untilMigration("the guest is here", func(s *kubevirtv1.MigrationState) bool { return s.TargetNodeDomainDetected })
	if n := launcher.count("Start") + launcher.count("FinishMigration") + launcher.count("CancelMigration"); n != 0 {
		t.Errorf("%v", launcher.calls)
	}
}

// The source has left, and could not tell the target.
func TestMigration_targetThatHasNotHeard(t *testing.T) {
	t.Parallel()
	w, launcher, _ := arriving(t)
	controlplane.Update(t, w.client, w.vmi, true,
		func(v *kubevirtv1.VirtualMachineInstance) { v.Status.MigrationState.Completed = true })
	w.until(func() error { return want(launcher.count("FinishMigration") > 0, "the guest stands still") })
}

func TestMigration_targetThatGetsNoGuest(t *testing.T) {
	t.Parallel()
	w, launcher, _ := arriving(t)
	controlplane.Update(t, w.client, w.vmi, true, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.MigrationState.Failed, v.Status.MigrationState.FailureReason = true, "aborted"
	})
	w.until(func() error { return want(launcher.count("CancelMigration") > 0, "the target waits") })
}
