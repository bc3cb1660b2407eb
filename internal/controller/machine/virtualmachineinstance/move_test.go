package virtualmachineinstance

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/layout"
)

const sourceName, targetName = "source", "target"

// moving returns a running instance on n1 that a migration moves to n2.
func moving(edit ...func(*kubevirtv1.MigrationState)) *kubevirtv1.VirtualMachineInstance {
	i := instanceIn(running)
	i.Status.NodeName, i.Status.ActivePods = "n1", map[types.UID]string{"s": "n1"}
	i.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled}
	i.Status.MigrationState = &kubevirtv1.MigrationState{
		MigrationUID: "m", SourcePod: sourceName, TargetPod: targetName,
		SourceNode: "n1", TargetNode: "n2",
	}
	for _, e := range edit {
		e(i.Status.MigrationState)
	}
	return i
}

func listening(s *kubevirtv1.MigrationState) { s.TargetNodeAddress = "10.0.0.2:49152" }
func detected(s *kubevirtv1.MigrationState)  { s.TargetNodeDomainDetected = true }
func moved(s *kubevirtv1.MigrationState)     { s.Completed = true }
func unmoved(s *kubevirtv1.MigrationState)   { s.Failed = true }

func named(pod *corev1.Pod, name, node, job string) *corev1.Pod {
	pod.Name, pod.UID, pod.Spec.NodeName = name, types.UID(name[:1]), node
	pod.Labels = map[string]string{layout.LabelApp: AppLauncher}
	if job != "" {
		pod.Labels[layout.LabelMigrationJob] = job
	}
	return pod
}

func TestDecide_followsMigrations(t *testing.T) {
	t.Parallel()
	source := func(p corev1.PodPhase) *corev1.Pod { return named(podIn(p), sourceName, "n1", "") }
	target := func(p corev1.PodPhase) *corev1.Pod { return named(podIn(p), targetName, "n2", "m") }
	left := named(terminated(corev1.PodSucceeded, `{"end":"MIGRATED"}`, 0), sourceName, "n1", "")
	token := func() *corev1.Pod {
		p := named(podIn(corev1.PodRunning), "token", "n1", "m")
		p.Labels[layout.LabelApp] = "varve-attachment"
		return p
	}
	exists, final := map[types.UID]bool{"m": true}, map[types.UID]bool{"m": false}
	unknownFor := func(d time.Duration) *kubevirtv1.VirtualMachineInstance {
		return with(moving(listening), kubevirtv1.Condition{
			Type: kubevirtv1.ConditionMigrationOutcomeUnknown, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now.Add(-d)),
		})
	}
	type verdict struct {
		Phase           kubevirtv1.Phase
		Reason, Node    string
		State           string
		Tracking        kubevirtv1.ChangedBlockTrackingState
		Delete, Release string
		Requeue         time.Duration
	}
	enabled, initializing := kubevirtv1.ChangedBlockTrackingEnabled, kubevirtv1.ChangedBlockTrackingInitializing
	for name, c := range map[string]struct {
		in   input
		want verdict
	}{
		"runs": {
			input{
				Instance: moving(listening), Pod: source(corev1.PodRunning), Target: target(corev1.PodRunning), Migrations: exists,
			},
			verdict{Phase: running, Node: "n1", Tracking: enabled},
		},
		"migration object is gone": {
			input{Instance: moving(), Pod: source(corev1.PodRunning), Target: target(corev1.PodRunning)},
			verdict{Phase: running, Node: "n1", Tracking: enabled, State: "failed", Delete: "target token"},
		},
		"object is gone, target listens": {
			input{Instance: moving(listening), Pod: source(corev1.PodRunning), Target: target(corev1.PodRunning)},
			verdict{Phase: running, Node: "n1", Tracking: enabled, State: "abort"},
		},
		"target pod ends": {
			input{
				Instance: moving(listening), Pod: source(corev1.PodRunning), Target: target(corev1.PodFailed), Migrations: exists,
			},
			verdict{Phase: running, Node: "n1", Tracking: enabled, State: "failed", Release: targetName},
		},
		"target pod is gone": {
			input{Instance: moving(listening), Pod: source(corev1.PodRunning), Migrations: exists},
			verdict{Phase: running, Node: "n1", Tracking: enabled, State: "failed"},
		},
		"failed, object is final": {
			input{
				Instance: moving(unmoved), Pod: source(corev1.PodRunning), Target: target(corev1.PodRunning), Migrations: final,
			},
			verdict{Phase: running, Node: "n1", Tracking: enabled, State: "failed", Delete: "target token"},
		},
		"target pod before the state": {
			input{
				Instance: instanceIn(running), Pod: source(corev1.PodRunning), Target: target(corev1.PodRunning),
				Migrations: exists,
			},
			verdict{Phase: running},
		},
		"target pod of a gone one": {
			input{Instance: instanceIn(running), Pod: source(corev1.PodRunning), Target: target(corev1.PodRunning)},
			verdict{Phase: running, Delete: "target token"},
		},
		"source ends": {
			input{Instance: moving(listening), Pod: left, Target: target(corev1.PodRunning), Migrations: exists},
			verdict{Phase: running, Node: "n1", Tracking: enabled, Requeue: time.Minute},
		},
		"source is gone": {
			input{Instance: moving(listening), Target: target(corev1.PodRunning), Migrations: exists},
			verdict{Phase: running, Node: "n1", Tracking: enabled, Requeue: time.Minute},
		},
		"source ended a while ago": {
			input{Instance: unknownFor(20 * time.Second), Pod: left, Target: target(corev1.PodRunning), Migrations: exists},
			verdict{Phase: running, Node: "n1", Tracking: enabled, Requeue: 40 * time.Second},
		},
		"source ended, target has it": {
			input{Instance: moving(listening, detected), Pod: left, Target: target(corev1.PodRunning), Migrations: exists},
			verdict{Phase: running, Node: "n1", Tracking: enabled, State: "completed"},
		},
		"source ended, nobody knows": {
			input{Instance: unknownFor(time.Minute), Pod: left, Target: target(corev1.PodRunning), Migrations: exists},
			verdict{
				Phase: failed, Reason: ReasonGuestLost, Node: "n1", Tracking: enabled, State: "failed", Delete: "target token",
			},
		},
		"both end": {
			input{Instance: moving(listening), Pod: left, Target: target(corev1.PodFailed), Migrations: exists},
			verdict{
				Phase: failed, Reason: ReasonGuestLost, Node: "n1", Tracking: enabled, State: "failed", Delete: "target token",
				Release: targetName,
			},
		},
		"completed": {
			input{
				Instance: moving(moved), Pod: target(corev1.PodRunning), Others: []*corev1.Pod{source(corev1.PodRunning)},
				Migrations: exists,
			},
			verdict{Phase: running, Node: "n2", Tracking: initializing, State: "completed", Delete: sourceName},
		},
		"completed, source has ended": {
			input{Instance: moving(moved), Pod: target(corev1.PodRunning), Others: []*corev1.Pod{left}, Migrations: exists},
			verdict{
				Phase: running, Node: "n2", Tracking: initializing, State: "completed", Delete: sourceName, Release: sourceName,
			},
		},
		"completed, the guest shuts down": {
			input{
				Instance:   moving(moved),
				Pod:        named(terminated(corev1.PodSucceeded, `{"end":"GUEST_SHUTDOWN"}`, 0), targetName, "n2", "m"),
				Migrations: exists,
			},
			verdict{Phase: succeeded, Reason: ReasonGuestShutdown, Node: "n1", Tracking: enabled, State: "completed"},
		},
		"completed, target pod is lost": {
			input{Instance: moving(moved), Migrations: exists},
			verdict{Phase: failed, Reason: ReasonPodLost, Node: "n1", Tracking: enabled, State: "completed"},
		},
		"failed, the guest shuts down": {
			input{
				Instance: moving(unmoved),
				Pod:      named(terminated(corev1.PodSucceeded, `{"end":"GUEST_SHUTDOWN"}`, 0), sourceName, "n1", ""),
			},
			verdict{Phase: succeeded, Reason: ReasonGuestShutdown, Node: "n1", Tracking: enabled, State: "failed"},
		},
		"source of the migration before it": {
			input{
				Instance: moving(moved), Pod: target(corev1.PodRunning),
				Others: []*corev1.Pod{named(podIn(corev1.PodRunning), sourceName, "n1", "before")}, Migrations: exists,
			},
			verdict{Phase: running, Node: "n2", Tracking: initializing, State: "completed", Delete: sourceName},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := c.in
			in.Now = now
			if in.Target != nil {
				in.Others = append(in.Others, in.Target, token())
			}
			before := in.Instance.DeepCopy()
			d := decide(in)
			got := verdict{
				Phase: d.Status.Phase, Reason: d.Status.Reason, Node: d.Status.NodeName, Requeue: d.RequeueAfter,
				Delete: namesOf(d.DeleteOthers), Release: namesOf(d.ReleaseOthers),
			}
			if s := d.Status.ChangedBlockTracking; s != nil {
				got.Tracking = s.State
			}
			switch s := d.Status.MigrationState; {
			case s == nil:
			case s.Completed:
				got.State = "completed"
			case s.Failed:
				got.State = "failed"
			case s.AbortRequested:
				got.State = "abort"
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if got.Node == "n2" && (len(d.Status.ActivePods) != 1 || d.Status.ActivePods["t"] != "n2" || d.NodeLabel != "n2") {
				t.Errorf("pods %v, label %s", d.Status.ActivePods, d.NodeLabel)
			}
			if diff := cmp.Diff(before, in.Instance); diff != "" {
				t.Errorf("the input was modified: %s", diff)
			}
		})
	}
}

func namesOf(pods []*corev1.Pod) string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// During an upgrade, a handler of the version before and the controller must not write the condition in turn.
func TestDecide_leavesLiveMigratableToAnOldHandler(t *testing.T) {
	t.Parallel()
	old := with(instanceIn(running), kubevirtv1.Condition{
		Type:   kubevirtv1.ConditionLiveMigratable,
		Status: corev1.ConditionFalse, Reason: "LiveMigrationNotSupported",
	})
	if d := decide(input{Now: now, Instance: old, Pod: podIn(corev1.PodRunning)}); condition.True(d.Status.Conditions,
		kubevirtv1.ConditionLiveMigratable) {
		t.Errorf("%+v", d.Status.Conditions)
	}
}

// An instance is not let go while a launcher pod of a migration exists: the guest may run in it.
func TestDecide_instanceOutlivesItsLauncherPods(t *testing.T) {
	t.Parallel()
	target := named(podIn(corev1.PodRunning), targetName, "n2", "m")
	for _, others := range [][]*corev1.Pod{{target}, nil} {
		d := decide(input{Now: now, Instance: deletedAgo(instanceIn(failed), time.Minute), Others: others})
		if d.Released != (others == nil) || len(d.DeleteOthers) != len(others) || len(d.ReleaseOthers) > 0 {
			t.Errorf("%d others: %+v", len(others), d)
		}
	}
}

func TestWhyNotMigratable(t *testing.T) {
	t.Parallel()
	claim := func(name string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		c.Spec.AccessModes = modes
		return c
	}
	const many, once = corev1.ReadWriteMany, corev1.ReadWriteOnce
	state := layout.StatePVC("vm")
	successor := claim(layout.SecondStatePVC("vm"), many)
	successor.Annotations = map[string]string{layout.AnnotationMovesFrom: state}
	for name, c := range map[string]struct {
		claims   []*corev1.PersistentVolumeClaim
		tracked  bool
		readOnly bool
		reason   string
		names    string
	}{
		"shared":                  {claims: []*corev1.PersistentVolumeClaim{claim("root", many)}},
		"shared, other modes too": {claims: []*corev1.PersistentVolumeClaim{claim("root", once, many)}},
		"one node": {
			claims: []*corev1.PersistentVolumeClaim{claim("root", once)},
			reason: ReasonDisksNotMigratable,
			names:  "root",
		},
		"no claim":     {reason: ReasonDisksNotMigratable, names: "root"},
		"read by many": {claims: []*corev1.PersistentVolumeClaim{claim("root", corev1.ReadOnlyMany)}, readOnly: true},
		"read by many, but written": {
			claims: []*corev1.PersistentVolumeClaim{claim("root", corev1.ReadOnlyMany)},
			reason: ReasonDisksNotMigratable,
			names:  "root",
		},
		"tracked": {claims: []*corev1.PersistentVolumeClaim{claim("root", many), claim(state, many)}, tracked: true},
		"tracked, overlays one node": {
			claims:  []*corev1.PersistentVolumeClaim{claim("root", many), claim(state, once)},
			tracked: true,
			reason:  ReasonDisksNotMigratable,
			names:   state,
		},
		"tracked, no overlays": {
			claims:  []*corev1.PersistentVolumeClaim{claim("root", many)},
			tracked: true,
			reason:  ReasonDisksNotMigratable,
		},
		"tracked, overlays move": {
			claims:  []*corev1.PersistentVolumeClaim{claim("root", many), claim(state, many), successor},
			tracked: true,
			reason:  ReasonStateClaimMoves,
			names:   successor.Name,
		},
	} {
		i := instanceIn(running)
		i.Spec.Volumes = []kubevirtv1.Volume{{
			Name: "root",
			PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "root", ReadOnly: c.readOnly},
			},
		}}
		if c.tracked {
			i.Annotations = map[string]string{layout.AnnotationTracking: "true"}
		}
		claims := map[string]*corev1.PersistentVolumeClaim{}
		for _, claim := range c.claims {
			claims[claim.Name] = claim
		}
		reason, message := WhyNotMigratable(i, claims)
		if reason != c.reason || !strings.Contains(message, c.names) {
			t.Errorf("%s: %s %q", name, reason, message)
		}
		var not *obstacle
		if reason != "" {
			not = &obstacle{reason, message}
		}
		d := decide(input{Now: now, Instance: i, Pod: podIn(corev1.PodRunning), NotMigratable: not})
		if got := condition.True(d.Status.Conditions, kubevirtv1.ConditionLiveMigratable); got != (c.reason == "") {
			t.Errorf("%s: LiveMigratable %v", name, got)
		}
	}
}

func TestTargetPod_isALauncherPodElsewhere(t *testing.T) {
	t.Parallel()
	in := smallInput()
	in.Instance.Labels = map[string]string{layout.LabelMigrationJob: "forged"}
	in.Instance.Spec.NodeSelector = map[string]string{"disk": "fast"}
	in.Instance.Status.NodeName = "n1"
	in.Configuration = &kubevirtv1.KubeVirt{}
	source := launcherPod(in)
	if source.Labels[layout.LabelMigrationJob] != "" {
		t.Errorf("a launcher pod has a label of its instance by which it is taken for a target pod: %v", source.Labels)
	}
	target := TargetPod(Target{
		Migration: "m", Instance: in.Instance, Claims: in.Claims, Images: in.Images, Configuration: in.Configuration,
		NodeSelector: map[string]string{"disk": "slow", "zone": "b"},
	})
	if diff := cmp.Diff(map[string]string{"disk": "fast", "zone": "b"}, target.Spec.NodeSelector); diff != "" {
		t.Error(diff)
	}
	terms := target.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if f := terms[0].MatchFields[0]; f.Key != "metadata.name" || f.Operator != corev1.NodeSelectorOpNotIn ||
		f.Values[0] != "n1" {
		t.Errorf("%+v", terms)
	}
	if !ptr.Equal(target.Spec.TerminationGracePeriodSeconds, source.Spec.TerminationGracePeriodSeconds) ||
		target.Spec.Volumes[len(target.Spec.Volumes)-1].Secret.SecretName != layout.MigrationSecret("m") ||
		target.Labels[layout.LabelMigrationJob] != "m" {
		t.Errorf("%+v", target)
	}
	// The rest is as on the source.
	volumes, mounts := len(source.Spec.Volumes), len(source.Spec.Containers[0].VolumeMounts)
	target.Spec.Volumes = target.Spec.Volumes[:volumes]
	target.Spec.Containers[0].VolumeMounts = target.Spec.Containers[0].VolumeMounts[:mounts]
	target.Spec.Affinity, target.Spec.NodeSelector = nil, source.Spec.NodeSelector
	if diff := cmp.Diff(source.Spec, target.Spec); diff != "" {
		t.Error(diff)
	}
}
