//go:build controlplane

package controller

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/controller/machine/migration"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// sharedMachine boots a machine whose disk is on a claim that two nodes can have at a time.
func (w *world) sharedMachine() (*kubevirtv1.VirtualMachineInstance, *corev1.Pod) {
	w.Helper()
	claim := gen.Claim(w.meta("root"), gen.SetSize("1Gi"))
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	w.create(w.user, claim)
	w.bind(claim)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	_, pod := w.boot()
	return w.vmi(migratable(corev1.ConditionTrue, "")), pod
}

func migratable(want corev1.ConditionStatus, message string) func(*kubevirtv1.VirtualMachineInstance) error {
	return func(i *kubevirtv1.VirtualMachineInstance) error {
		c := condition.Find(i.Status.Conditions, kubevirtv1.ConditionLiveMigratable)
		if c == nil || c.Status != want || !strings.Contains(c.Message, message) {
			return fmt.Errorf("LiveMigratable: %+v", c)
		}
		return nil
	}
}

// migrate creates a migration as a user does.
func (w *world) migrate(name string) *kubevirtv1.VirtualMachineInstanceMigration {
	w.Helper()
	m := &kubevirtv1.VirtualMachineInstanceMigration{
		ObjectMeta: w.meta(name),
		Spec:       kubevirtv1.VirtualMachineInstanceMigrationSpec{VMIName: "vm"},
	}
	w.create(w.user, m)
	return m
}

func migrationIn(
	phase kubevirtv1.MigrationPhase, reason string,
) func(*kubevirtv1.VirtualMachineInstanceMigration) error {
	return func(m *kubevirtv1.VirtualMachineInstanceMigration) error {
		if m.Status.Phase != phase {
			return fmt.Errorf("phase %s, want %s: %+v", m.Status.Phase, phase, m.Status.Conditions)
		}
		for _, c := range m.Status.Conditions {
			if c.Reason == reason {
				return nil
			}
		}
		if reason != "" {
			return fmt.Errorf("phase %s, no condition with reason %s: %+v", phase, reason, m.Status.Conditions)
		}
		return nil
	}
}

// runOn plays the scheduler and the kubelet on a node.
func (w *world) runOn(node string, pod *corev1.Pod) {
	w.Helper()
	binding := &corev1.Binding{ObjectMeta: w.meta(pod.Name), Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	if err := w.kubelet.SubResource("binding").Create(w.Context(), pod, binding); err != nil {
		w.Fatalf("bind pod %s: %v", pod.Name, err)
	}
	wait(w, pod, func(p *corev1.Pod) error {
		if p.Spec.NodeName == "" {
			return fmt.Errorf("pod %s has no node", p.Name)
		}
		return nil
	})
	w.run(pod)
}

// underway takes a migration to where the handlers take over, and returns its target pod.
func (w *world) underway(
	vmi *kubevirtv1.VirtualMachineInstance, m *kubevirtv1.VirtualMachineInstanceMigration,
) *corev1.Pod {
	w.Helper()
	target := wait(w, &corev1.Pod{ObjectMeta: w.meta(layout.MigrationPod(vmi.Name, vmi.UID, m.UID))}, exists)
	token := wait(w, &corev1.Pod{ObjectMeta: w.meta(layout.MigrationSourcePod(vmi.Name, vmi.UID, m.UID))}, exists)
	w.runOn("node-2", target)
	w.runOn("node-1", token)
	wait(w, m, migrationIn(kubevirtv1.MigrationPreparingTarget, ""))
	return target
}

// reports plays a node's handler: it writes the migration's state.
func (w *world) reports(node string, edit func(*kubevirtv1.MigrationState)) {
	w.Helper()
	c := cluster.Client(w.T, controlplane.HandlerOn(node))
	controlplane.Eventually(w.T, func() error {
		vmi := w.vmi(exists)
		base := vmi.DeepCopy()
		edit(vmi.Status.MigrationState)
		return c.Status().Patch(w.Context(), vmi, reconcile.MergeFrom(base))
	})
}

func (w *world) listens() {
	w.Helper()
	w.reports("node-2", func(s *kubevirtv1.MigrationState) {
		now := metav1.Now()
		s.TargetNodeAddress, s.TargetNodeDomainReadyTimestamp = "10.0.0.2:49152", &now
	})
}

func onNode(node string, pod *corev1.Pod) func(*kubevirtv1.VirtualMachineInstance) error {
	return func(i *kubevirtv1.VirtualMachineInstance) error {
		if i.Status.NodeName != node || i.Labels[layout.LabelNodeName] != node || len(i.Status.ActivePods) != 1 ||
			i.Status.ActivePods[pod.UID] != node {
			return fmt.Errorf("node %s, label %s, pods %v, state %+v", i.Status.NodeName, i.Labels[layout.LabelNodeName],
				i.Status.ActivePods, i.Status.MigrationState)
		}
		return nil
	}
}

// migrated: a guest moves to another node and back, and its machine stops there.
func migrated(w *world) {
	vmi, source := w.sharedMachine()
	m := w.migrate("there")
	wait(w, m, migrationIn(kubevirtv1.MigrationScheduling, migration.ReasonTargetPod))
	secret := wait(w, &corev1.Secret{ObjectMeta: w.meta(layout.MigrationSecret(m.UID))}, exists)
	if len(secret.Data[layout.MigrationToken]) != 32 {
		w.Errorf("a token of %d bytes", len(secret.Data[layout.MigrationToken]))
	}
	wait(w, w.migrate("beside"), migrationIn(kubevirtv1.MigrationFailed, migration.ReasonAnotherMigration))
	target := w.underway(vmi, m)
	if m.Labels[layout.LabelMigrationTarget] != "node-2" || !instancepod.IsLauncher(target, vmi.Name, vmi.UID) {
		w.Errorf("labels %v, target pod %+v", m.Labels, target.ObjectMeta)
	}
	w.restart()
	w.listens()
	wait(w, m, migrationIn(kubevirtv1.MigrationRunning, ""))
	w.reports("node-2", func(s *kubevirtv1.MigrationState) { s.TargetNodeDomainDetected = true })
	w.reports("node-1", func(s *kubevirtv1.MigrationState) {
		now := metav1.Now()
		s.Completed, s.EndTimestamp = true, &now
	})
	vmi = w.vmi(onNode("node-2", target))
	wait(w, m, migrationIn(kubevirtv1.MigrationSucceeded, ""))
	wait(w, source, ends)
	w.end(source, corev1.PodSucceeded, `{"end":"MIGRATED"}`)
	w.gone(source)
	w.gone(secret)
	w.sweep(&corev1.Pod{ObjectMeta: w.meta(layout.MigrationSourcePod(vmi.Name, vmi.UID, m.UID))})
	if err := inPhase(kubevirtv1.PhaseRunning)(w.vmi(exists)); err != nil {
		w.Error(err)
	}

	// The guest's end counts where it is.
	w.end(target, corev1.PodSucceeded, `{"end":"GUEST_SHUTDOWN"}`)
	w.vmi(other(vmi.UID))
}

// trackedMigrated: the overlays of shared disks are shared, too. A backup waits for the migration, and begins where
// the trackers' checkpoints were validated after it.
func trackedMigrated(w *world) {
	claim := gen.Claim(w.meta("root"), gen.SetSize("1Gi"))
	claim.Spec.AccessModes, claim.Spec.StorageClassName = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, ptr.To("fast")
	w.create(w.user, claim)
	w.bind(claim)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, selected)
	state := wait(w, w.stateClaim(), exists)
	if modes := state.Spec.AccessModes; len(modes) != 1 || modes[0] != corev1.ReadWriteMany ||
		*state.Spec.StorageClassName != "fast" {
		w.Errorf("the claim of the overlays is %+v", state.Spec)
	}
	vmi, _ := w.boot()
	w.overlaysUp(vmi)
	vmi = w.vmi(migratable(corev1.ConditionTrue, ""))
	m := w.migrate("m")
	target := w.underway(vmi, m)
	b := wait(w, w.backup(), func(b *backupv1.VirtualMachineBackup) error {
		if b.Status.Reason != backupv1.ReasonMigration || !strings.Contains(b.Status.Message,
			"VirtualMachineInstanceMigration m") {
			return fmt.Errorf("%s: %s", b.Status.Reason, b.Status.Message)
		}
		return backupIn(backupv1.BackupPending)(b)
	})
	w.listens()
	w.reports("node-2", func(s *kubevirtv1.MigrationState) { s.TargetNodeDomainDetected = true })
	w.reports("node-1", func(s *kubevirtv1.MigrationState) {
		now := metav1.Now()
		s.Completed, s.EndTimestamp = true, &now
	})
	vmi = w.vmi(onNode("node-2", target))
	if s := vmi.Status.ChangedBlockTracking.State; s != kubevirtv1.ChangedBlockTrackingInitializing {
		w.Errorf("changed block tracking is %s before the checkpoints were validated", s)
	}
	wait(w, m, migrationIn(kubevirtv1.MigrationSucceeded, ""))
	controlplane.Update(w.T, cluster.Client(w.T, controlplane.HandlerOn("node-2")), w.vmi(exists), true,
		func(i *kubevirtv1.VirtualMachineInstance) {
			i.Status.ChangedBlockTracking.State = kubevirtv1.ChangedBlockTrackingEnabled
		})
	wait(w, b, backupIn(backupv1.BackupAttaching))
}

// migrationAborted: a deleted migration leaves the guest where it is, before and after the target listens.
func migrationAborted(w *world) {
	vmi, source := w.sharedMachine()
	for _, listening := range []bool{false, true} {
		m := w.migrate(fmt.Sprintf("m-%t", listening))
		target := w.underway(vmi, m)
		if listening {
			w.listens()
			wait(w, m, migrationIn(kubevirtv1.MigrationRunning, ""))
		}
		if err := w.user.Delete(w.Context(), m); err != nil {
			w.Fatal(err)
		}
		if listening {
			w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
				if s := i.Status.MigrationState; !s.AbortRequested || s.Ended() {
					return fmt.Errorf("%+v", s)
				}
				return nil
			})
			if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(target), target); err != nil ||
				target.DeletionTimestamp != nil {
				w.Errorf("the target pod is deleted before the source has ended the migration: %v", err)
			}
			w.reports("node-1", func(s *kubevirtv1.MigrationState) {
				now := metav1.Now()
				s.Failed, s.FailureReason, s.EndTimestamp = true, "cancelled", &now
			})
		}
		w.gone(m)
		wait(w, target, ends)
		w.end(target, corev1.PodSucceeded, "")
		w.gone(target)
		vmi = w.vmi(onNode("node-1", source))
		if s := vmi.Status.MigrationState; !s.Failed || s.Completed || instancepod.ActiveLauncher(vmi) != source.Name {
			w.Errorf("%+v", s)
		}
	}
}

// migrationLosesPods: the end of either pod has one outcome.
func migrationLosesPods(w *world) {
	vmi, source := w.sharedMachine()
	m := w.migrate("target-dies")
	target := w.underway(vmi, m)
	w.listens()
	w.end(target, corev1.PodFailed, "")
	wait(w, m, migrationIn(kubevirtv1.MigrationFailed, migration.ReasonFailed))
	vmi = w.vmi(onNode("node-1", source))
	w.gone(target)

	// The source's handler dies after the switch, and the source pod ends.
	m = w.migrate("source-handler-dies")
	target = w.underway(vmi, m)
	w.listens()
	w.end(source, corev1.PodSucceeded, `{"end":"MIGRATED"}`)
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		c := condition.Find(i.Status.Conditions, kubevirtv1.ConditionMigrationOutcomeUnknown)
		if c == nil || c.Reason != virtualmachineinstance.ReasonSourcePodEnded || i.Status.Phase != kubevirtv1.PhaseRunning {
			return fmt.Errorf("%s, %+v", i.Status.Phase, c)
		}
		return nil
	})
	w.reports("node-2", func(s *kubevirtv1.MigrationState) { s.TargetNodeDomainDetected = true })
	vmi = w.vmi(onNode("node-2", target))
	wait(w, m, migrationIn(kubevirtv1.MigrationSucceeded, ""))
	if c := condition.Find(vmi.Status.Conditions, kubevirtv1.ConditionMigrationOutcomeUnknown); c != nil ||
		vmi.Status.Phase != kubevirtv1.PhaseRunning {
		w.Errorf("%s, %+v", vmi.Status.Phase, c)
	}
}

// migrationWaits: utility volumes keep a migration Pending and a claim that one node can have refuses it.
func migrationWaits(w *world) {
	vmi, source := w.sharedMachine()
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.want(vmi, "target")
	m := w.migrate("waits")
	wait(w, m, migrationIn(kubevirtv1.MigrationPending, migration.ReasonUtilityVolumes))
	attachment := w.attachment(vmi, "target")
	w.want(w.vmi(exists))
	w.sweep(attachment)
	w.noVolume("target")
	target := w.underway(vmi, m)

	// The machine is stopped while its guest moves: the migration is aborted first.
	w.listens()
	if err := w.user.Delete(w.Context(), w.vmi(exists)); err != nil {
		w.Fatal(err)
	}
	vmi = w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		if !i.Status.MigrationState.AbortRequested {
			return fmt.Errorf("%+v", i.Status.MigrationState)
		}
		return nil
	})
	w.reports("node-1", func(s *kubevirtv1.MigrationState) {
		now := metav1.Now()
		s.Failed, s.FailureReason, s.EndTimestamp = true, "cancelled", &now
	})
	wait(w, m, migrationIn(kubevirtv1.MigrationFailed, migration.ReasonFailed))
	w.end(source, corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN"}`)
	w.vmi(inPhase(kubevirtv1.PhaseSucceeded))
	wait(w, target, ends)
	w.end(target, corev1.PodSucceeded, "")
	w.vmi(other(vmi.UID))
}

// migrationRefused: what cannot be moved is refused, with what to do.
func migrationRefused(w *world) {
	wait(w, w.migrate("without-machine"), migrationIn(kubevirtv1.MigrationFailed, migration.ReasonInstanceNotFound))
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	w.boot()
	w.vmi(migratable(corev1.ConditionFalse, "PersistentVolumeClaim root of volume root is not ReadWriteMany"))
	m := wait(w, w.migrate("one-node"), migrationIn(kubevirtv1.MigrationFailed,
		virtualmachineinstance.ReasonDisksNotMigratable))
	if !strings.Contains(m.Status.MigrationState.FailureReason, "PersistentVolumeClaim root") {
		w.Errorf("%+v", m.Status.MigrationState)
	}
	// The last five stay.
	for i := range 6 {
		wait(w, w.migrate(fmt.Sprintf("again-%d", i)), migrationIn(kubevirtv1.MigrationFailed,
			virtualmachineinstance.ReasonDisksNotMigratable))
	}
	controlplane.Eventually(w.T, func() error {
		list := &kubevirtv1.VirtualMachineInstanceMigrationList{}
		if err := w.kubelet.List(w.Context(), list, client.InNamespace(w.ns)); err != nil || len(list.Items) != 5 {
			return fmt.Errorf("%d migrations are left: %w", len(list.Items), err)
		}
		return nil
	})
}

// migrationUnderQuota: a quota that does not admit the target pod is shown, and the migration goes on when it does.
func migrationUnderQuota(w *world) {
	vmi, _ := w.sharedMachine()
	quota := &corev1.ResourceQuota{ObjectMeta: w.meta("pods")}
	quota.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9")}
	w.create(w.kubelet, quota)
	fill := func(used string) { // plays the controller of quotas
		controlplane.Update(w.T, w.kubelet, quota, true, func(q *corev1.ResourceQuota) {
			q.Status.Hard, q.Status.Used = q.Spec.Hard, corev1.ResourceList{corev1.ResourcePods: resource.MustParse(used)}
		})
	}
	fill("9")
	m := wait(w, w.migrate("m"), migrationIn(kubevirtv1.MigrationScheduling, "ExceededQuota"))
	fill("1")
	w.underway(vmi, m)
	if err := migrationIn(kubevirtv1.MigrationPreparingTarget, "ExceededQuota")(m); err == nil {
		w.Errorf("the quota is still shown: %+v", m.Status.Conditions)
	}
}
