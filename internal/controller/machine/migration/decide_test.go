package migration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/layout"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// migrationIn returns a migration that entered a phase some time ago.
func migrationIn(
	p kubevirtv1.MigrationPhase, since time.Duration, edit ...func(*kubevirtv1.VirtualMachineInstanceMigration),
) *kubevirtv1.VirtualMachineInstanceMigration {
	m := &kubevirtv1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "m", UID: "m", Finalizers: []string{Finalizer}, CreationTimestamp: ago(since),
	}}
	m.Spec.VMIName = "vm"
	m.Status.Phase = p
	m.Status.PhaseTransitionTimestamps = []kubevirtv1.MigrationPhaseTransitionTimestamp{{
		Phase:                    p,
		PhaseTransitionTimestamp: ago(since),
	}}
	if p.Underway() {
		m.Status.MigrationState = stateOf("m")
	}
	for _, e := range edit {
		e(m)
	}
	return m
}

func stateOf(uid types.UID, edit ...func(*kubevirtv1.MigrationState)) *kubevirtv1.MigrationState {
	s := &kubevirtv1.MigrationState{
		MigrationUID: uid, SourceNode: "n1", SourcePod: layout.LauncherPod("vm", "i"),
		TargetPod: layout.MigrationPod("vm", "i", uid), TargetNode: "n2", Mode: kubevirtv1.MigrationPreCopy,
	}
	for _, e := range edit {
		e(s)
	}
	return s
}

func started(since time.Duration) func(*kubevirtv1.MigrationState) {
	return func(s *kubevirtv1.MigrationState) { s.StartTimestamp = ptr.To(ago(since)) }
}

func listens(s *kubevirtv1.MigrationState)   { s.TargetNodeAddress = "10.0.0.2:49152" }
func completed(s *kubevirtv1.MigrationState) { s.Completed = true }
func failed(s *kubevirtv1.MigrationState)    { s.Failed, s.FailureReason = true, "why" }
func aborting(s *kubevirtv1.MigrationState)  { s.AbortRequested = true }

func isDeleted(m *kubevirtv1.VirtualMachineInstanceMigration) {
	m.DeletionTimestamp = ptr.To(ago(time.Second))
}

func says(
	t kubevirtv1.MigrationConditionType, reason string, since time.Duration,
) func(*kubevirtv1.VirtualMachineInstanceMigration) {
	return func(m *kubevirtv1.VirtualMachineInstanceMigration) {
		m.Status.Conditions = append(m.Status.Conditions, kubevirtv1.MigrationCondition{
			Type: t, Status: corev1.ConditionTrue,
			Reason: reason, Message: reason, LastTransitionTime: ago(since),
		})
	}
}

func guest(edit ...func(*kubevirtv1.VirtualMachineInstance)) *kubevirtv1.VirtualMachineInstance {
	i := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "i"}}
	i.Status.Phase, i.Status.NodeName = kubevirtv1.PhaseRunning, "n1"
	for _, e := range edit {
		e(i)
	}
	return i
}

func with(s *kubevirtv1.MigrationState) func(*kubevirtv1.VirtualMachineInstance) {
	return func(i *kubevirtv1.VirtualMachineInstance) { i.Status.MigrationState = s }
}

func hasVolume(i *kubevirtv1.VirtualMachineInstance) {
	i.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{{Name: "u"}}
}

func detaching(i *kubevirtv1.VirtualMachineInstance) {
	i.Status.VolumeStatus = []kubevirtv1.VolumeStatus{{Name: "u", HotplugVolume: &kubevirtv1.HotplugVolumeStatus{}}}
}

func backedUp(i *kubevirtv1.VirtualMachineInstance) {
	i.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{
		BackupStatus: &kubevirtv1.InstanceBackupStatus{BackupName: "b"},
	}
}

func stopping(i *kubevirtv1.VirtualMachineInstance) { i.DeletionTimestamp = ptr.To(ago(time.Second)) }

func pod(node string, runs bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{
		NodeName:   node,
		Containers: []corev1.Container{{Name: "c"}},
	}}
	if runs {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  "c",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	}
	return p
}

func endedPod() *corev1.Pod {
	p := pod("n2", false)
	p.Status.Phase = corev1.PodFailed
	return p
}

func others(
	n int, p kubevirtv1.MigrationPhase, edit ...func(*kubevirtv1.VirtualMachineInstanceMigration),
) []kubevirtv1.VirtualMachineInstanceMigration {
	var all []kubevirtv1.VirtualMachineInstanceMigration
	for i := range n {
		m := migrationIn(p, time.Hour, edit...)
		m.UID, m.Name, m.Spec.VMIName = types.UID(fmt.Sprint(i)), fmt.Sprint(i), "other"
		all = append(all, *m)
	}
	return all
}

func leaves(node string) func(*kubevirtv1.VirtualMachineInstanceMigration) {
	return func(m *kubevirtv1.VirtualMachineInstanceMigration) { m.Status.MigrationState.SourceNode = node }
}

// verdict is the part of a decision that a table checks.
type verdict struct {
	Phase   kubevirtv1.MigrationPhase
	Reasons string
	Provide bool
	Node    string
	// State is what is written on the instance: begin, abort or fail.
	State                  string
	Hold, Release, Requeue bool
}

func verdictOf(d decision) verdict {
	v := verdict{
		Phase: d.Status.Phase, Provide: d.Provide, Node: d.TargetNode, Hold: d.Hold, Release: d.Release,
		Requeue: d.RequeueAfter > 0,
	}
	var reasons []string
	for _, c := range d.Status.Conditions {
		reasons = append(reasons, c.Reason)
	}
	v.Reasons = strings.Join(reasons, " ")
	switch s := d.InstanceState; {
	case s == nil:
	case s.Failed:
		v.State = "fail"
	case s.AbortRequested:
		v.State = "abort"
	default:
		v.State = "begin"
	}
	return v
}

const (
	pending    = kubevirtv1.MigrationPending
	scheduling = kubevirtv1.MigrationScheduling
	scheduled  = kubevirtv1.MigrationScheduled
	preparing  = kubevirtv1.MigrationPreparingTarget
	ready      = kubevirtv1.MigrationTargetReady
	running    = kubevirtv1.MigrationRunning
	succeeded  = kubevirtv1.MigrationSucceeded
	ended      = kubevirtv1.MigrationFailed
)

func TestDecide(t *testing.T) {
	t.Parallel()
	unheld := func(m *kubevirtv1.VirtualMachineInstanceMigration) { m.Finalizers = nil }
	volumesSince := func(d time.Duration) func(*kubevirtv1.VirtualMachineInstanceMigration) {
		return says(kubevirtv1.MigrationBlockedByUtilityVolumes, ReasonUtilityVolumes, d)
	}
	queued := func(d time.Duration) func(*kubevirtv1.VirtualMachineInstanceMigration) {
		return says(kubevirtv1.MigrationWaiting, ReasonQueued, d)
	}
	asked := func(d time.Duration) func(*kubevirtv1.VirtualMachineInstanceMigration) {
		return says(kubevirtv1.MigrationAbortRequested, ReasonDeleted, d)
	}
	rival := *migrationIn(scheduled, time.Minute)
	rival.UID, rival.Name = "r", "rival"
	younger := *migrationIn(pending, 0)
	younger.UID, younger.Name = "y", "younger"
	target, token := pod("n2", true), pod("n1", true)
	for name, c := range map[string]struct {
		in   input
		want verdict
	}{
		"new": {input{Migration: migrationIn("", 0, unheld), Instance: guest()}, verdict{Hold: true}},
		"deleted at once": {
			input{Migration: migrationIn("", 0, unheld, isDeleted), Instance: guest()},
			verdict{Phase: ended, Reasons: ReasonDeleted},
		},
		"held":        {input{Migration: migrationIn("", 0), Instance: guest()}, verdict{Phase: scheduling, Requeue: true}},
		"no instance": {input{Migration: migrationIn("", 0)}, verdict{Phase: ended, Reasons: ReasonInstanceNotFound}},
		"instance is being stopped": {
			input{Migration: migrationIn("", 0), Instance: guest(stopping)},
			verdict{Phase: ended, Reasons: ReasonInstanceNotRunning},
		},
		"instance starts": {
			input{
				Migration: migrationIn("", 0),
				Instance:  guest(func(i *kubevirtv1.VirtualMachineInstance) { i.Status.Phase = kubevirtv1.PhaseScheduled }),
			},
			verdict{Phase: ended, Reasons: ReasonInstanceNotRunning},
		},
		"cannot be moved": {
			input{Migration: migrationIn("", 0), Instance: guest(), NotMigratable: &problem{"R", "m"}},
			verdict{Phase: ended, Reasons: "R"},
		},
		"another one has its turn": {
			input{Migration: migrationIn("", 0), Instance: guest(), Others: []kubevirtv1.VirtualMachineInstanceMigration{rival}},
			verdict{Phase: ended, Reasons: ReasonAnotherMigration},
		},
		"a younger one waits": {
			input{
				Migration: migrationIn("", time.Second), Instance: guest(),
				Others: []kubevirtv1.VirtualMachineInstanceMigration{younger},
			},
			verdict{Phase: scheduling, Requeue: true},
		},
		"an older one waits": {
			input{
				Migration: &younger, Instance: guest(),
				Others: []kubevirtv1.VirtualMachineInstanceMigration{*migrationIn(pending, time.Second)},
			},
			verdict{Phase: ended, Reasons: ReasonAnotherMigration},
		},
		"one without an object": {
			input{Migration: migrationIn("", 0), Instance: guest(with(stateOf("gone")))},
			verdict{Phase: ended, Reasons: ReasonAnotherMigration},
		},
		"one before has ended": {
			input{Migration: migrationIn("", 0), Instance: guest(with(stateOf("gone", failed)))},
			verdict{Phase: scheduling, Requeue: true},
		},

		"utility volumes": {
			input{Migration: migrationIn(pending, 0), Instance: guest(hasVolume)},
			verdict{Phase: pending, Reasons: ReasonUtilityVolumes, Requeue: true},
		},
		"utility volume detaches": {
			input{Migration: migrationIn(pending, 0), Instance: guest(detaching)},
			verdict{Phase: pending, Reasons: ReasonUtilityVolumes, Requeue: true},
		},
		"utility volumes for long": {
			input{Migration: migrationIn(pending, 149*time.Second, volumesSince(149*time.Second)), Instance: guest(hasVolume)},
			verdict{Phase: pending, Reasons: ReasonUtilityVolumes, Requeue: true},
		},
		"utility volumes too long": {
			input{Migration: migrationIn(pending, 150*time.Second, volumesSince(150*time.Second)), Instance: guest(hasVolume)},
			verdict{Phase: ended, Reasons: ReasonUtilityVolumes + " " + ReasonTimeout},
		},
		"utility volumes gone": {
			input{Migration: migrationIn(pending, time.Minute, volumesSince(time.Minute)), Instance: guest()},
			verdict{Phase: scheduling, Requeue: true},
		},
		"a backup": {
			input{Migration: migrationIn(pending, 0), Instance: guest(backedUp)},
			verdict{Phase: pending, Reasons: ReasonBackup, Requeue: true},
		},
		"a freeze": {
			input{
				Migration: migrationIn(pending, 0),
				Instance:  guest(func(i *kubevirtv1.VirtualMachineInstance) { i.Status.FSFreezeStatus = "frozen" }),
			},
			verdict{Phase: pending, Reasons: ReasonFrozen, Requeue: true},
		},
		"queued, then a volume comes": {
			input{Migration: migrationIn(pending, 10*time.Minute, queued(10*time.Minute)), Instance: guest(hasVolume)},
			verdict{Phase: pending, Reasons: ReasonQueued + " " + ReasonUtilityVolumes, Requeue: true},
		},
		"too many": {
			input{Migration: migrationIn(pending, 0), Instance: guest(), Others: others(5, running, leaves("x"))},
			verdict{Phase: pending, Reasons: ReasonQueued, Requeue: true},
		},
		"too many for too long": {
			input{
				Migration: migrationIn(pending, time.Hour, queued(time.Hour)), Instance: guest(),
				Others: others(5, running, leaves("x")),
			},
			verdict{Phase: ended, Reasons: ReasonTimeout},
		},
		"pending ones do not count": {
			input{Migration: migrationIn(pending, 0), Instance: guest(), Others: others(9, pending)},
			verdict{Phase: scheduling, Requeue: true},
		},
		"two leave the node": {
			input{Migration: migrationIn(pending, 0), Instance: guest(), Others: others(2, running)},
			verdict{Phase: pending, Reasons: ReasonQueued, Requeue: true},
		},
		"two leave another node": {
			input{Migration: migrationIn(pending, 0), Instance: guest(), Others: others(2, running, leaves("x"))},
			verdict{Phase: scheduling, Requeue: true},
		},
		"older ones go first": {
			input{
				Migration: migrationIn(pending, 0), Instance: guest(),
				Others: append(others(4, running, leaves("x")), others(1, pending, queued(0))...),
			},
			verdict{Phase: pending, Reasons: ReasonQueued, Requeue: true},
		},

		"no pods": {
			input{Migration: migrationIn(scheduling, 0), Instance: guest()},
			verdict{Phase: scheduling, Provide: true, Requeue: true},
		},
		"pod waits for a node": {
			input{Migration: migrationIn(scheduling, 0), Instance: guest(), Target: pod("", false), Token: token},
			verdict{Phase: scheduling, Reasons: ReasonTargetPod, Requeue: true},
		},
		"pod has a node": {
			input{Migration: migrationIn(scheduling, 0), Instance: guest(), Target: pod("n2", false), Token: token},
			verdict{Phase: scheduling, Reasons: ReasonTargetPod, Node: "n2", Requeue: true},
		},
		"token is not there": {
			input{Migration: migrationIn(scheduling, 0), Instance: guest(), Target: target, Token: pod("n1", false)},
			verdict{Phase: scheduling, Reasons: ReasonTargetPod, Node: "n2", Requeue: true},
		},
		"pods run": {
			input{Migration: migrationIn(scheduling, 0), Instance: guest(), Target: target, Token: token},
			verdict{Phase: scheduled, Node: "n2"},
		},
		"pods do not run": {
			input{Migration: migrationIn(scheduling, 5*time.Minute), Instance: guest(), Target: pod("", false), Token: token},
			verdict{Phase: ended, Reasons: ReasonTimeout},
		},
		"pods are refused": {
			input{Migration: migrationIn(scheduling, 5*time.Minute), Instance: guest()},
			verdict{Phase: ended, Reasons: ReasonTimeout},
		},
		"target pod ends": {
			input{Migration: migrationIn(scheduling, 0), Instance: guest(), Target: endedPod(), Token: token},
			verdict{Phase: ended, Reasons: ReasonTargetPodEnded},
		},
		"deleted while scheduling": {
			input{Migration: migrationIn(scheduling, 0, isDeleted), Instance: guest(), Target: target, Token: token},
			verdict{Phase: ended, Reasons: ReasonDeleted},
		},
		"restarted while scheduling": {
			input{
				Migration: migrationIn(scheduling, 0), Instance: guest(func(i *kubevirtv1.VirtualMachineInstance) { i.UID = "j" }),
			},
			verdict{Phase: ended, Reasons: ReasonInstanceReplaced},
		},
		"stopped while scheduling": {
			input{Migration: migrationIn(scheduling, 0), Instance: guest(stopping), Target: target, Token: token},
			verdict{Phase: ended, Reasons: ReasonInstanceNotRunning},
		},

		"begins": {
			input{Migration: migrationIn(scheduled, 0), Instance: guest(), Target: target, Token: token},
			verdict{Phase: preparing, State: "begin", Requeue: true},
		},
		"begins after another": {
			input{
				Migration: migrationIn(scheduled, 0), Instance: guest(with(stateOf("x", failed))), Target: target, Token: token,
			},
			verdict{Phase: preparing, State: "begin", Requeue: true},
		},
		"has begun": {
			input{
				Migration: migrationIn(scheduled, 0), Instance: guest(with(stateOf("m", started(0)))), Target: target, Token: token,
			},
			verdict{Phase: preparing, Requeue: true},
		},
		"a backup came first": {
			input{Migration: migrationIn(scheduled, 0), Instance: guest(backedUp), Target: target, Token: token},
			verdict{Phase: scheduled, Reasons: ReasonBackup, Requeue: true},
		},
		"target pod is gone": {
			input{Migration: migrationIn(scheduled, 0), Instance: guest(), Token: token},
			verdict{Phase: ended, Reasons: ReasonTargetPodEnded},
		},
		"another one got in between": {
			input{Migration: migrationIn(scheduled, 0), Instance: guest(with(stateOf("x"))), Target: target, Token: token},
			verdict{Phase: ended, Reasons: ReasonAnotherMigration},
		},
		"target is prepared": {
			input{Migration: migrationIn(preparing, 0), Instance: guest(with(stateOf("m", started(0))))},
			verdict{Phase: preparing, Reasons: ReasonTargetHandler, Requeue: true},
		},
		"target is not prepared": {
			input{Migration: migrationIn(preparing, 0), Instance: guest(with(stateOf("m", started(prepareLimit))))},
			verdict{Phase: preparing, Reasons: ReasonTimeout, State: "fail"},
		},
		"target listens": {
			input{Migration: migrationIn(preparing, 0), Instance: guest(with(stateOf("m", started(0), listens)))},
			verdict{Phase: ready, Requeue: true},
		},
		"source begins": {
			input{Migration: migrationIn(ready, 0), Instance: guest(with(stateOf("m", started(0), listens)))},
			verdict{Phase: running, Requeue: true},
		},
		"runs": {
			input{Migration: migrationIn(running, 0), Instance: guest(with(stateOf("m", started(time.Minute), listens)))},
			verdict{Phase: running, Requeue: true},
		},
		"runs too long": {
			input{Migration: migrationIn(running, 0), Instance: guest(with(stateOf("m", started(time.Hour), listens)))},
			verdict{Phase: running, Reasons: ReasonTimeout, State: "abort", Requeue: true},
		},
		"deleted before it listens": {
			input{Migration: migrationIn(preparing, 0, isDeleted), Instance: guest(with(stateOf("m", started(0))))},
			verdict{Phase: preparing, Reasons: ReasonDeleted, State: "fail"},
		},
		"deleted while it runs": {
			input{Migration: migrationIn(running, 0, isDeleted), Instance: guest(with(stateOf("m", started(0), listens)))},
			verdict{Phase: running, Reasons: ReasonDeleted, State: "abort", Requeue: true},
		},
		"instance stopped": {
			input{Migration: migrationIn(running, 0), Instance: guest(stopping, with(stateOf("m", started(0), listens)))},
			verdict{Phase: running, Reasons: ReasonInstanceNotRunning, State: "abort", Requeue: true},
		},
		"abort was asked for": {
			input{
				Migration: migrationIn(running, 0, asked(time.Second)),
				Instance:  guest(with(stateOf("m", started(0), listens, aborting))),
			},
			verdict{Phase: running, Reasons: ReasonDeleted, Requeue: true},
		},
		"abort is not answered": {
			input{
				Migration: migrationIn(running, 0, asked(time.Minute)),
				Instance:  guest(with(stateOf("m", started(0), listens, aborting))),
			},
			verdict{Phase: running, Reasons: ReasonDeleted + " " + ReasonSourceHandler},
		},
		"abort that came too late": {
			input{
				Migration: migrationIn(running, 0, asked(time.Minute)),
				Instance: guest(with(stateOf("m", aborting, completed)),
					func(i *kubevirtv1.VirtualMachineInstance) { i.Status.NodeName = "n2" }),
			},
			verdict{Phase: succeeded, Reasons: ReasonDeleted},
		},
		"completed, pod not adopted": {
			input{Migration: migrationIn(running, 0), Instance: guest(with(stateOf("m", completed)))},
			verdict{Phase: running},
		},
		"completed": {
			input{
				Migration: migrationIn(running, 0),
				Instance: guest(with(stateOf("m", completed)),
					func(i *kubevirtv1.VirtualMachineInstance) { i.Status.NodeName = "n2" }),
			},
			verdict{Phase: succeeded},
		},
		"failed": {
			input{Migration: migrationIn(running, 0), Instance: guest(with(stateOf("m", failed)))},
			verdict{Phase: ended, Reasons: ReasonFailed},
		},
		"instance is gone": {
			input{Migration: migrationIn(running, 0)},
			verdict{Phase: ended, Reasons: ReasonInstanceReplaced},
		},
		"instance is of another": {
			input{Migration: migrationIn(running, 0), Instance: guest(with(stateOf("x")))},
			verdict{Phase: ended, Reasons: ReasonInstanceReplaced},
		},
		"instance has ended": {
			input{
				Migration: migrationIn(running, 0),
				Instance: guest(with(stateOf("m")),
					func(i *kubevirtv1.VirtualMachineInstance) { i.Status.Phase = kubevirtv1.PhaseFailed }),
			},
			verdict{Phase: ended, Reasons: ReasonInstanceNotRunning},
		},
		"has succeeded":               {input{Migration: migrationIn(succeeded, 0)}, verdict{Phase: succeeded, Release: true}},
		"has succeeded and is let go": {input{Migration: migrationIn(succeeded, 0, unheld)}, verdict{Phase: succeeded}},
		"has failed and is deleted now": {
			input{Migration: migrationIn(ended, 0, isDeleted)},
			verdict{Phase: ended, Release: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.in.Now = now
			before := [2]any{c.in.Migration.DeepCopy(), c.in.Instance.DeepCopy()}
			d := decide(c.in)
			if diff := cmp.Diff(c.want, verdictOf(d)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, [2]any{c.in.Migration, c.in.Instance}); diff != "" {
				t.Errorf("the input was modified: %s", diff)
			}
			if s := d.Status.MigrationState; d.Status.Phase == ended && (s == nil || !s.Failed || s.FailureReason == "") &&
				len(c.in.Migration.Status.PhaseTransitionTimestamps) > 0 && c.in.Migration.Status.Phase != ended {
				t.Errorf("nothing says why it failed: %+v", s)
			}
		})
	}
}

// A decision that is made again on what it wrote must not write again, or the controller would never rest.
func TestDecide_rests(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]input{
		"queued":          {Instance: guest(), Others: others(5, running, leaves("x"))},
		"utility volumes": {Instance: guest(hasVolume)},
		"frozen":          {Instance: guest(func(i *kubevirtv1.VirtualMachineInstance) { i.Status.FSFreezeStatus = "frozen" })},
	} {
		in.Now, in.Migration = now, migrationIn(pending, 0)
		first := decide(in)
		in.Now, in.Migration.Status = now.Add(10*time.Second), first.Status
		if diff := cmp.Diff(first.Status, decide(in).Status); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTokenPod_hasNoPrivileges(t *testing.T) {
	t.Parallel()
	p := tokenPod(migrationIn(scheduling, 0), guest(), virtualmachineinstance.Images{Varve: "varve:1"})
	c := p.Spec.Containers[0].SecurityContext
	if ptr.Deref(p.Spec.AutomountServiceAccountToken, true) || !ptr.Deref(p.Spec.SecurityContext.RunAsNonRoot, false) ||
		ptr.Deref(c.Privileged, true) || len(c.Capabilities.Add) > 0 {
		t.Errorf("%+v, %+v", p.Spec, c)
	}
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if f := terms[0].MatchFields[0]; f.Operator != corev1.NodeSelectorOpIn || f.Values[0] != "n1" {
		t.Errorf("%+v", terms)
	}
	if p.Spec.Volumes[0].Name != layout.MigrationVolume ||
		p.Spec.Volumes[0].Secret.SecretName != layout.MigrationSecret("m") || !metav1.IsControlledBy(p, guest()) {
		t.Errorf("%+v", p)
	}
}

func memoryOf(bytes int64) *kubevirtv1.Memory {
	return &kubevirtv1.Memory{Guest: resource.NewQuantity(bytes, resource.BinarySI)}
}

// The defaults are KubeVirt's. A part of a GiB counts as one.
func TestSettings_haveDefaults(t *testing.T) {
	t.Parallel()
	set := &kubevirtv1.MigrationConfiguration{
		ParallelMigrationsPerCluster: ptr.To[uint32](7), ParallelOutboundMigrationsPerNode: ptr.To[uint32](3),
		BandwidthPerMigration: ptr.To(resource.MustParse("64Mi")),
		ProgressTimeout:       ptr.To[int64](1), CompletionTimeoutPerGiB: ptr.To[int64](10),
		UtilityVolumesTimeout: ptr.To[int64](2),
	}
	all := func(c *kubevirtv1.MigrationConfiguration) []int64 {
		return []int64{
			int64(c.PerCluster()), int64(c.OutboundPerNode()), c.Bandwidth(), c.ProgressSeconds(), c.UtilityVolumesSeconds(),
			c.CompletionSeconds(nil), c.CompletionSeconds(memoryOf(1 << 30)), c.CompletionSeconds(memoryOf(1<<30 + 1)),
		}
	}
	defaults := []int64{5, 2, 0, 150, 150, 150, 150, 300}
	if diff := cmp.Diff(defaults, all((&kubevirtv1.KubeVirt{}).Migrations())); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(defaults, all(&kubevirtv1.MigrationConfiguration{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int64{7, 3, 64 << 20, 1, 2, 10, 10, 20}, all(set)); diff != "" {
		t.Error(diff)
	}
}
