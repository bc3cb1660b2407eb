package virtualmachineinstance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func instanceIn(p kubevirtv1.Phase) *kubevirtv1.VirtualMachineInstance {
	i := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "i"}}
	i.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	i.Status.Phase = p
	return i
}

func deletedAgo(i *kubevirtv1.VirtualMachineInstance, ago time.Duration) *kubevirtv1.VirtualMachineInstance {
	i.DeletionTimestamp = &metav1.Time{Time: now.Add(-ago)}
	return i
}

func with(i *kubevirtv1.VirtualMachineInstance, c kubevirtv1.Condition) *kubevirtv1.VirtualMachineInstance {
	i.Status.Conditions = append(i.Status.Conditions, c)
	return i
}

// podIn returns a launcher pod on a node, in this phase. Its container runs if the phase is Running.
func podIn(p corev1.PodPhase) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "p"}, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: p}}
	if p == corev1.PodRunning {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: computeContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	}
	return pod
}

func terminated(p corev1.PodPhase, message string, code int32) *corev1.Pod {
	pod := podIn(p)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: computeContainer, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: message, ExitCode: code, Reason: "Error"},
	}}}
	return pod
}

func unscheduledPod(message string) *corev1.Pod {
	pod := podIn(corev1.PodPending)
	pod.Spec.NodeName = ""
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}}
	return pod
}

func going(pod *corev1.Pod, ago time.Duration, grace int64) *corev1.Pod {
	pod.DeletionTimestamp = &metav1.Time{Time: now.Add(-ago)}
	pod.DeletionGracePeriodSeconds = &grace
	return pod
}

// verdict is the part of a decision that a table checks.
type verdict struct {
	Phase                                  kubevirtv1.Phase
	Reason                                 string
	Create, Delete, Overdue, Release, Free bool
	Requeue                                time.Duration
}

const (
	pending    = kubevirtv1.PhasePending
	scheduling = kubevirtv1.PhaseScheduling
	scheduled  = kubevirtv1.PhaseScheduled
	running    = kubevirtv1.PhaseRunning
	succeeded  = kubevirtv1.PhaseSucceeded
	failed     = kubevirtv1.PhaseFailed
)

func TestDecide(t *testing.T) {
	t.Parallel()
	delayed := kubevirtv1.Condition{Type: kubevirtv1.ConditionStopDelayed, Status: corev1.ConditionTrue}
	resumed := kubevirtv1.Condition{Type: kubevirtv1.ConditionStopDelayed, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}
	unscheduledGone := unscheduledPod("")
	evicted := podIn(corev1.PodFailed)
	evicted.Status.Reason = "Evicted"
	badInit := podIn(corev1.PodFailed)
	badInit.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "kernel-boot", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}

	for name, c := range map[string]struct {
		in   input
		want verdict
	}{
		"new":                              {input{Instance: instanceIn("")}, verdict{Phase: pending, Create: true}},
		"something is missing":             {input{Instance: instanceIn(pending), Missing: &obstacle{"R", "m"}}, verdict{Phase: pending}},
		"all there":                        {input{Instance: instanceIn(pending)}, verdict{Phase: pending, Create: true}},
		"pod exists":                       {input{Instance: instanceIn(pending), Pod: podIn(corev1.PodPending)}, verdict{Phase: scheduling}},
		"pod runs":                         {input{Instance: instanceIn(scheduling), Pod: podIn(corev1.PodRunning)}, verdict{Phase: scheduled}},
		"pod runs, controller was away":    {input{Instance: instanceIn(pending), Pod: podIn(corev1.PodRunning)}, verdict{Phase: scheduled}},
		"the handler's part":               {input{Instance: instanceIn(scheduled), Pod: podIn(corev1.PodRunning)}, verdict{Phase: scheduled}},
		"guest runs":                       {input{Instance: instanceIn(running), Pod: podIn(corev1.PodRunning)}, verdict{Phase: running}},
		"pod lost while scheduling":        {input{Instance: instanceIn(scheduling)}, verdict{Phase: failed, Reason: ReasonPodLost}},
		"pod lost while the guest ran":     {input{Instance: instanceIn(running)}, verdict{Phase: failed, Reason: ReasonPodLost}},
		"guest shut down":                  {input{Instance: instanceIn(running), Pod: terminated(corev1.PodSucceeded, `{"end":"GUEST_SHUTDOWN","message":"m"}`, 0)}, verdict{Phase: succeeded, Reason: ReasonGuestShutdown, Release: true}},
		"guest was stopped":                {input{Instance: instanceIn(running), Pod: terminated(corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN"}`, 0)}, verdict{Phase: succeeded, Reason: ReasonGuestStopped, Release: true}},
		"guest was killed":                 {input{Instance: instanceIn(running), Pod: terminated(corev1.PodSucceeded, `{"end":"KILLED"}`, 0)}, verdict{Phase: succeeded, Reason: ReasonGuestKilled, Release: true}},
		"guest shut down, nothing said":    {input{Instance: instanceIn(running), Pod: podIn(corev1.PodSucceeded)}, verdict{Phase: succeeded, Reason: ReasonGuestShutdown, Release: true}},
		"guest crashed":                    {input{Instance: instanceIn(running), Pod: terminated(corev1.PodFailed, `{"end":"CRASHED","message":"QEMU died"}`, 1)}, verdict{Phase: failed, Reason: ReasonGuestCrashed, Release: true}},
		"guest did not start":              {input{Instance: instanceIn(scheduled), Pod: terminated(corev1.PodFailed, `{"end":"START_FAILED","message":"no disk"}`, 1)}, verdict{Phase: failed, Reason: ReasonStartFailed, Release: true}},
		"launcher died":                    {input{Instance: instanceIn(running), Pod: terminated(corev1.PodFailed, "panic: …", 2)}, verdict{Phase: failed, Reason: ReasonLauncherFailed, Release: true}},
		"launcher forges a reason":         {input{Instance: instanceIn(running), Pod: terminated(corev1.PodFailed, `{"end":"Whatever"}`, 2)}, verdict{Phase: failed, Reason: ReasonLauncherFailed, Release: true}},
		"evicted":                          {input{Instance: instanceIn(running), Pod: evicted}, verdict{Phase: failed, Reason: "Evicted", Release: true}},
		"init container failed":            {input{Instance: instanceIn(scheduling), Pod: badInit}, verdict{Phase: failed, Reason: ReasonInitFailed, Release: true}},
		"pod is being deleted":             {input{Instance: instanceIn(running), Pod: going(podIn(corev1.PodRunning), time.Hour, 60)}, verdict{Phase: running}},
		"pod force-deleted just now":       {input{Instance: instanceIn(running), Pod: going(podIn(corev1.PodRunning), 10*time.Second, 0)}, verdict{Phase: running, Requeue: 20 * time.Second}},
		"pod force-deleted, node silent":   {input{Instance: instanceIn(running), Pod: going(podIn(corev1.PodRunning), 31*time.Second, 0)}, verdict{Phase: failed, Reason: ReasonPodLost, Release: true}},
		"pod deleted before it had a node": {input{Instance: instanceIn(scheduling), Pod: going(unscheduledGone, 0, 0)}, verdict{Phase: failed, Reason: ReasonPodLost, Release: true}},
		"final":                            {input{Instance: instanceIn(succeeded), Pod: podIn(corev1.PodSucceeded)}, verdict{Phase: succeeded, Release: true}},
		"final, pod gone":                  {input{Instance: instanceIn(failed)}, verdict{Phase: failed}},

		"deleted before its pod":             {input{Instance: deletedAgo(instanceIn(pending), 0)}, verdict{Phase: succeeded, Reason: ReasonDeletedBeforeStart, Free: true}},
		"deleted while scheduling":           {input{Instance: deletedAgo(instanceIn(scheduling), 0), Pod: podIn(corev1.PodPending)}, verdict{Phase: scheduling, Delete: true}},
		"deleted when the pod just ran":      {input{Instance: deletedAgo(instanceIn(scheduling), 0), Pod: podIn(corev1.PodRunning)}, verdict{Phase: scheduling, Delete: true}},
		"deleted while scheduling, pod ends": {input{Instance: deletedAgo(instanceIn(scheduling), 0), Pod: going(podIn(corev1.PodPending), 0, 30)}, verdict{Phase: scheduling}},
		"deleted while scheduling, ended":    {input{Instance: deletedAgo(instanceIn(scheduling), 0), Pod: going(podIn(corev1.PodFailed), 0, 0)}, verdict{Phase: succeeded, Reason: ReasonDeletedBeforeStart, Release: true}},
		"deleted while scheduling, gone":     {input{Instance: deletedAgo(instanceIn(scheduling), 0)}, verdict{Phase: succeeded, Reason: ReasonDeletedBeforeStart, Free: true}},
		"deleted: the handler stops it":      {input{Instance: deletedAgo(instanceIn(running), 10*time.Second), Pod: podIn(corev1.PodRunning)}, verdict{Phase: running, Requeue: 80 * time.Second}},
		"deleted: the handler is gone":       {input{Instance: deletedAgo(instanceIn(running), 90*time.Second), Pod: podIn(corev1.PodRunning)}, verdict{Phase: running, Delete: true, Overdue: true}},
		"deleted: the pod goes already":      {input{Instance: deletedAgo(instanceIn(running), time.Hour), Pod: going(podIn(corev1.PodRunning), time.Minute, 60)}, verdict{Phase: running}},
		"deleted: a backup holds it":         {input{Instance: deletedAgo(with(instanceIn(running), delayed), 10*time.Minute), Pod: podIn(corev1.PodRunning), StopWaitsForBackup: 10 * time.Minute}, verdict{Phase: running, Requeue: 90 * time.Second}},
		"deleted: held beyond all bounds":    {input{Instance: deletedAgo(with(instanceIn(running), delayed), 12*time.Minute), Pod: podIn(corev1.PodRunning), StopWaitsForBackup: 10 * time.Minute}, verdict{Phase: running, Delete: true, Overdue: true}},
		"deleted: the backup just ended":     {input{Instance: deletedAgo(with(instanceIn(running), resumed), 5*time.Minute), Pod: podIn(corev1.PodRunning), StopWaitsForBackup: 10 * time.Minute}, verdict{Phase: running, Requeue: 30 * time.Second}},
		"deleted: guest shut down":           {input{Instance: deletedAgo(instanceIn(running), 0), Pod: podIn(corev1.PodSucceeded)}, verdict{Phase: succeeded, Reason: ReasonGuestShutdown, Delete: true, Release: true}},
		"deleted: pod lost":                  {input{Instance: deletedAgo(instanceIn(running), 0)}, verdict{Phase: failed, Reason: ReasonPodLost, Free: true}},
		"deleted: attachment pods are left":  {input{Instance: deletedAgo(instanceIn(succeeded), 0), Attachments: 1}, verdict{Phase: succeeded}},
		"deleted: nothing is left":           {input{Instance: deletedAgo(instanceIn(succeeded), 0)}, verdict{Phase: succeeded, Free: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.in.Now = now
			before := c.in.Instance.DeepCopy()
			d := decide(c.in)
			got := verdict{d.Status.Phase, d.Status.Reason, d.CreatePod, d.DeletePod, d.Overdue, d.ReleasePod, d.Released, d.RequeueAfter}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, c.in.Instance); diff != "" {
				t.Errorf("the input was modified: %s", diff)
			}
			transitions := d.Status.PhaseTransitionTimestamps
			if d.Status.Phase != before.Status.Phase && (len(transitions) == 0 || transitions[len(transitions)-1].Phase != d.Status.Phase) {
				t.Errorf("the transition to %s is not recorded: %v", d.Status.Phase, transitions)
			}
		})
	}
}

func TestHandOver(t *testing.T) {
	t.Parallel()
	i := with(instanceIn(scheduling), kubevirtv1.Condition{Type: kubevirtv1.ConditionPodScheduled, Status: corev1.ConditionFalse})
	d := decide(input{Now: now, Instance: i, Pod: podIn(corev1.PodRunning)})
	if d.Status.NodeName != "n1" || d.NodeLabel != "n1" || d.Status.ActivePods["p"] != "n1" {
		t.Errorf("%+v", d)
	}
	if condition.Find(d.Status.Conditions, kubevirtv1.ConditionPodScheduled) != nil {
		t.Errorf("conditions: %+v", d.Status.Conditions)
	}
}

func TestObstacles(t *testing.T) {
	t.Parallel()
	waits := func(reason string) *corev1.Pod {
		pod := podIn(corev1.PodPending)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: computeContainer, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
		return pod
	}
	fresh := podIn(corev1.PodPending)
	fresh.Spec.NodeName = ""
	for name, c := range map[string]struct {
		in        input
		condition kubevirtv1.ConditionType
		want      string
	}{
		"claim missing":                    {input{Instance: instanceIn(pending), Missing: &obstacle{Reason: ReasonClaimNotFound}}, kubevirtv1.ConditionSynchronized, ReasonClaimNotFound},
		"no node":                          {input{Pod: unscheduledPod("0/1 nodes")}, kubevirtv1.ConditionPodScheduled, ReasonUnschedulable},
		"no node, claim binds by itself":   {input{Pod: unscheduledPod("x"), Unbound: []unboundClaim{{"a", false}, {"b", true}}}, kubevirtv1.ConditionPodScheduled, ReasonWaitingForVolume},
		"no node, claim waits for one":     {input{Pod: unscheduledPod("x"), Unbound: []unboundClaim{{"a", false}}}, kubevirtv1.ConditionPodScheduled, ReasonUnschedulable},
		"claim waits for its consumer":     {input{Pod: fresh, Unbound: []unboundClaim{{"a", false}}}, kubevirtv1.ConditionPodScheduled, ReasonWaitingForVolume},
		"on its way":                       {input{Pod: fresh}, kubevirtv1.ConditionPodScheduled, ""},
		"image":                            {input{Pod: waits("ErrImageNeverPull")}, kubevirtv1.ConditionSynchronized, ReasonImagePull},
		"image, later":                     {input{Pod: waits("ImagePullBackOff")}, kubevirtv1.ConditionSynchronized, ReasonImagePull},
		"container cannot be configured":   {input{Pod: waits("CreateContainerConfigError")}, kubevirtv1.ConditionSynchronized, "CreateContainerConfigError"},
		"container is being created":       {input{Pod: waits("ContainerCreating")}, kubevirtv1.ConditionSynchronized, ""},
		"a cleared obstacle is not shown":  {input{Instance: with(instanceIn(scheduling), kubevirtv1.Condition{Type: kubevirtv1.ConditionSynchronized, Reason: "Old"}), Pod: fresh}, kubevirtv1.ConditionSynchronized, ""},
		"the guest does not run before it": {input{Pod: fresh}, kubevirtv1.ConditionReady, ReasonGuestNotRunning},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.in.Now = now
			if c.in.Instance == nil {
				c.in.Instance = instanceIn(scheduling)
			}
			got := ""
			if found := condition.Find(decide(c.in).Status.Conditions, c.condition); found != nil {
				got = found.Reason
			}
			if got != c.want {
				t.Errorf("%s: %q, want %q", c.condition, got, c.want)
			}
		})
	}
}

func TestEnd_clearsWhatTheHandlerReported(t *testing.T) {
	t.Parallel()
	i := instanceIn(running)
	for _, c := range []kubevirtv1.ConditionType{kubevirtv1.ConditionReady, kubevirtv1.ConditionAgentConnected, kubevirtv1.ConditionPaused, kubevirtv1.ConditionStopDelayed} {
		i = with(i, kubevirtv1.Condition{Type: c, Status: corev1.ConditionTrue})
	}
	i.Status.FSFreezeStatus = "frozen"
	lock := &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled, BackupStatus: &kubevirtv1.InstanceBackupStatus{BackupName: "b"}}
	i.Status.ChangedBlockTracking = lock
	d := decide(input{Now: now, Instance: i, Pod: terminated(corev1.PodFailed, `{"end":"CRASHED","message":"QEMU died"}`, 1)})
	if len(d.Status.Conditions) != 1 || d.Status.Conditions[0].Status != corev1.ConditionFalse || d.Status.Conditions[0].Message != "QEMU died" {
		t.Errorf("conditions: %+v", d.Status.Conditions)
	}
	if d.Status.FSFreezeStatus != "" {
		t.Error("the guest is still said to be frozen")
	}
	if diff := cmp.Diff(lock, d.Status.ChangedBlockTracking); diff != "" {
		t.Errorf("the lock of a backup is not ours to change: %s", diff)
	}
}

func TestDecide_reassertsTheNodeLabel(t *testing.T) {
	t.Parallel()
	for _, phase := range []kubevirtv1.Phase{kubevirtv1.PhaseScheduled, kubevirtv1.PhaseRunning, kubevirtv1.PhaseFailed} {
		i := &kubevirtv1.VirtualMachineInstance{}
		i.Status.Phase, i.Status.NodeName = phase, "n1"
		if d := decide(input{Now: now, Instance: i, Pod: podIn(corev1.PodRunning)}); d.NodeLabel != "n1" {
			t.Errorf("%s: the label becomes %q", phase, d.NodeLabel)
		}
	}
}

// A run is taken back only on the launcher's word.
func TestGiveBack_needsTheLaunchersWord(t *testing.T) {
	t.Parallel()
	const word = `{"end":"REQUESTED_SHUTDOWN","message":"m","neverStarted":true}`
	for name, c := range map[string]struct {
		in   input
		want bool
	}{
		"stopped before the start": {input{Instance: deletedAgo(instanceIn(scheduled), 0), Pod: terminated(corev1.PodSucceeded, word, 0)}, true},
		"drained before the start": {input{Instance: instanceIn(scheduled), Pod: terminated(corev1.PodSucceeded, word, 0)}, true},
		"libvirt died before it":   {input{Instance: instanceIn(scheduled), Pod: terminated(corev1.PodFailed, `{"end":"START_FAILED","neverStarted":true}`, 1)}, true},
		"the guest was started":    {input{Instance: instanceIn(scheduled), Pod: terminated(corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN"}`, 0)}, false},
		"the start failed":         {input{Instance: instanceIn(scheduled), Pod: terminated(corev1.PodFailed, `{"end":"START_FAILED"}`, 1)}, false},
		"nothing was said":         {input{Instance: instanceIn(scheduled), Pod: terminated(corev1.PodFailed, "", 137)}, false},
		"no launcher says that":    {input{Instance: instanceIn(scheduled), Pod: terminated(corev1.PodFailed, `{"neverStarted":true}`, 1)}, false},
		"the handler says it ran":  {input{Instance: instanceIn(running), Pod: terminated(corev1.PodSucceeded, word, 0)}, false},
		"the pod is gone":          {input{Instance: deletedAgo(instanceIn(scheduled), 0)}, false},
		"the pod has not ended":    {input{Instance: deletedAgo(instanceIn(scheduled), 0), Pod: podIn(corev1.PodRunning)}, false},
		"the end was seen before":  {input{Instance: instanceIn(succeeded), Pod: terminated(corev1.PodSucceeded, word, 0)}, false},
		// If a runtime has lost its containers, for example when the node restarts, it runs the container once
		// more. The word is only that of the last one.
		"the container ran before": {input{Instance: instanceIn(scheduled), Pod: edited(terminated(corev1.PodSucceeded, word, 0), func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].RestartCount = 1
		})}, false},
		"the container was lost before": {input{Instance: instanceIn(scheduled), Pod: edited(terminated(corev1.PodSucceeded, word, 0), func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}
		})}, false},
	} {
		c.in.Now = now
		if got := decide(c.in).GiveBack; got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
