package drive

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// uid is that of base's object, and ownPoint the snapshotID that its mover reports.
const (
	uid      = "0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a"
	ownPoint = "varve1.disk.0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a.app"
)

func at(d time.Duration) *metav1.Time {
	t := metav1.NewTime(now.Add(d))
	return &t
}

// base is an upload that has a place on node-a, in a phase, with everything that it needs.
func base(phase velerov2.Phase) Input {
	in := Input{
		Now: now, Served: true, PrepareTimeout: 30 * time.Minute, DriverNode: NodeState{Name: "node-a"},
		Object: Object{
			Kind: datamove.Upload, NamespacedName: types.NamespacedName{Namespace: "velero", Name: "b1-x"}, UID: uid, Created: now.Add(-time.Hour), Finalizer: true,
			Mover: "varve", SnapshotType: "CSI", Location: "default", Tenant: "app", OperationTimeout: 10 * time.Minute,
			Phase: phase, Driver: "node-a", Accepted: now.Add(-time.Minute),
		},
		MayYield: ptr.To(false),
		Location: LocationState{Found: true}, Repository: RepositoryState{Name: "repo", Found: true, Ready: true},
	}
	if phase == velerov2.PhaseNew {
		in.Object.Driver, in.Object.Accepted, in.DriverNode = "", time.Time{}, NodeState{}
	}
	if phase == velerov2.PhasePrepared || phase == velerov2.PhaseInProgress {
		in.Object.Node, in.Object.Memory.Pod = "node-a", "p1"
		in.Pod, in.PodNode = &PodState{Name: "du-u1", Node: "node-a", UID: "p1", Running: true}, NodeState{Name: "node-a"}
	}
	if phase == velerov2.PhaseInProgress {
		in.Object.Started = now.Add(-30 * time.Second)
	}
	if phase.Ended() {
		in.Object.Memory = memory{Ending: &ending{Phase: phase, Message: "why", Since: *at(-time.Minute)}, Disposed: true}
	}
	return in
}

func ready() *ExposeAnswer { return &ExposeAnswer{Exposure: Exposure{Volume: &Volume{Claim: "du-u1"}}} }

func reportBy(pod types.UID, outcome datamove.Outcome) *datamove.Report {
	return &datamove.Report{Pod: pod, Outcome: outcome, Message: "it broke", SnapshotID: ownPoint}
}

func ended(phase velerov2.Phase, since time.Duration) *ending {
	return &ending{Phase: phase, Message: "why", Since: *at(since)}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	refusal := errclass.Errorf(errclass.Invalid, "the snapshot is gone")
	passing := errors.New("connection refused")
	done, undone := &ProgressAnswer{Progress: Progress{Done: true}}, &ProgressAnswer{Progress: Progress{Waiting: "the claim to be bound"}}
	const (
		phaseNew, accepted, preparedPhase, inProgress = velerov2.PhaseNew, velerov2.PhaseAccepted, velerov2.PhasePrepared, velerov2.PhaseInProgress
		canceling, canceled, completed, failed        = velerov2.PhaseCanceling, velerov2.PhaseCanceled, velerov2.PhaseCompleted, velerov2.PhaseFailed
	)
	for _, row := range []struct {
		name  string
		phase velerov2.Phase
		edit  func(*Input)
		do    Action
		// Of what is written:
		to     velerov2.Phase // "": unchanged
		ending velerov2.Phase
		says   string // in the message, or in that of the ending
		check  func(*Change) bool
	}{
		// Others' objects.
		{"another mover's", phaseNew, func(in *Input) { in.Served, in.Object.Finalizer = false, false }, Wait, "", "", "", nil},
		{"another mover's, cancelled", phaseNew, func(in *Input) { in.Served, in.Object.Finalizer, in.Object.Cancel = false, false, true }, Wait, "", "", "", nil},
		{"taken, then no longer served", accepted, func(in *Input) { in.Served = false }, Expose, "", "", "", nil},
		// New.
		{"new", phaseNew, func(in *Input) { in.Object.Created = now.Add(-9 * time.Second) }, Wait, "", "", "", nil},
		{"new, for long", phaseNew, func(in *Input) { in.Takers = 1 }, Write, "", "", "waiting for a place", nil},
		{"new, another reason", phaseNew, func(in *Input) { in.Object.Message, in.Takers = "waiting for rain", 1 }, Write, "", "", "waiting for a place", nil},
		{"new, for long, and no node takes any", phaseNew, nil, Write, "", "", "none is ready and schedulable that may take any (concurrency in the ConfigMap varve)", nil},
		{"new, for long, and no longer served", phaseNew, func(in *Input) { in.Served, in.Takers = false, 1 }, Write, "", "", "served again, as it was (namespaces and builtIn in", nil},
		{"new, no finalizer", phaseNew, func(in *Input) { in.Object.Finalizer = false }, Write, "", "", "", func(c *Change) bool { return c.Finalizer }},
		{
			"new, cancelled", phaseNew, func(in *Input) { in.Object.Cancel = true }, Write, canceling, canceled,
			"spec.cancel", func(c *Change) bool { return c.Driver == "" && c.Finalizer },
		},
		{"new, cancelled, no finalizer", phaseNew, func(in *Input) { in.Object.Cancel, in.Object.Finalizer = true, false }, Write, canceling, canceled, "", func(c *Change) bool { return c.Finalizer }},
		{"new, deleted", phaseNew, func(in *Input) { in.Object.Deleted = true }, Write, canceling, canceled, "deleted", nil},
		{"new, deleted, no finalizer", phaseNew, func(in *Input) { in.Object.Deleted, in.Object.Finalizer = true, false }, Write, canceling, canceled, "", func(c *Change) bool { return !c.Finalizer }},
		{"new, unknown type", phaseNew, func(in *Input) { in.Unserved = "type X: it serves CSI" }, Write, failed, "", "serves CSI", func(c *Change) bool { return !c.Completed.IsZero() && !c.Finalizer }},
		// The node whose place it has is lost.
		{
			"its node is not ready for 59 s", accepted,
			func(in *Input) { in.DriverNode.NotReadySince = now.Add(-59 * time.Second) }, Expose, "", "", "", nil,
		},
		{
			"its node is not ready for 61 s", accepted,
			func(in *Input) { in.DriverNode.NotReadySince = now.Add(-61 * time.Second) }, Place, "", "", "", nil,
		},
		{"its node is gone", accepted, func(in *Input) { in.DriverNode.Gone = true }, Place, "", "", "", nil},
		{"the same, another one has a place", accepted, func(in *Input) {
			in.DriverNode.Gone, in.Placed = true, ptr.To("node-b")
		}, Write, "", "", "", func(c *Change) bool { return c.Driver == "node-b" && c.Phase == accepted }},
		{
			"the same, no other one has a place", accepted,
			func(in *Input) { in.DriverNode.Gone, in.Placed = true, ptr.To("") }, Expose, "", "", "", nil,
		},
		{"its node is closed, and its pod is not there yet", accepted, func(in *Input) {
			in.DriverNode.Closed, in.Pod = true, &PodState{Name: "du-u1", UID: "p1", Pinned: "node-a"}
		}, Place, "", "", "", nil},
		{"the same, its pod waits for the node of its volume", accepted, func(in *Input) {
			in.DriverNode.Closed, in.Pod, in.Exposed = true, &PodState{Name: "du-u1", UID: "p1"}, ready()
		}, Write, "", "", "du-u1 to run", nil},
		{
			"the same, its pod is there", inProgress, func(in *Input) { in.DriverNode.Closed = true }, Write, "", "",
			"",
			func(c *Change) bool { return c.Driver == "node-a" },
		},
		{"its pod runs elsewhere, and its node is gone", inProgress, func(in *Input) {
			in.DriverNode.Gone, in.Pod.Node, in.PodNode = true, "node-c", NodeState{Name: "node-c"}
		}, Write, "", "", "", func(c *Change) bool { return c.Driver == "node-a" && c.Memory.Ending == nil }},
		{"its pod is gone with its node, before it moved anything again", inProgress, func(in *Input) {
			in.DriverNode.Gone, in.Pod, in.PodNode, in.Object.Memory = true, nil, NodeState{}, memory{
				Lost:   "p1",
				Deaths: 1, Stalled: at(0),
			}
		}, Place, "", "", "", nil},
		{
			"its node is gone and so is the need for it", canceling, func(in *Input) { in.DriverNode.Gone = true },
			Write, "", canceled, "", nil,
		},
		{
			"the same, completed, and deleted", completed,
			func(in *Input) { in.DriverNode.Gone, in.Object.Deleted = true, true }, Write, "", "", "",
			func(c *Change) bool { return !c.Finalizer },
		},
		{
			"the same, failed, with something left", failed,
			func(in *Input) { in.DriverNode.Gone, in.Object.Memory.Disposed = true, false }, Dispose, "", "", "", nil,
		},
		// Accepted.
		{"accepted", accepted, nil, Expose, "", "", "", nil},
		{"no location", accepted, func(in *Input) { in.Location.Found = false }, Write, "", "", "waiting for BackupStorageLocation velero/default to be created, until 12:09:00", nil},
		{"no location for too long", accepted, func(in *Input) { in.Location.Found, in.Object.Accepted = false, now.Add(-10*time.Minute) }, Write, "", failed, "BackupStorageLocation velero/default", nil},
		{"a read-only location", accepted, func(in *Input) { in.Location.ReadOnly = true }, Write, "", failed, "read-only", nil},
		{"a read-only location, download", accepted, func(in *Input) { in.Location.ReadOnly, in.Object.Kind = true, datamove.Download }, Expose, "", "", "", nil},
		{"a snapshot that is not ready", accepted, func(in *Input) {
			in.Exposed = &ExposeAnswer{Exposure: Exposure{Waiting: "VolumeSnapshot s to be ready"}}
		}, Write, "", "", "waiting for VolumeSnapshot s to be ready, until 12:29:00", nil},
		{"a snapshot that is never ready", accepted, func(in *Input) {
			in.Exposed, in.Object.Accepted = &ExposeAnswer{Exposure: Exposure{Waiting: "VolumeSnapshot s to be ready"}}, now.Add(-30*time.Minute)
		}, Write, "", failed, "in vain for VolumeSnapshot s", nil},
		{"a refusal", accepted, func(in *Input) { in.Exposed = &ExposeAnswer{Err: refusal} }, Write, "", failed, "the snapshot is gone", nil},
		{"an error that may pass", accepted, func(in *Input) { in.Exposed = &ExposeAnswer{Err: passing} }, Write, "", "", "connection refused, until 12:29:00", nil},
		{"no repository", accepted, func(in *Input) { in.Exposed, in.Repository.Found = ready(), false }, MakeRepository, "", "", "", nil},
		{"a repository that is not ready", accepted, func(in *Input) {
			in.Exposed, in.Repository.Ready, in.Repository.Message = ready(), false, "wrong password"
		}, Write, "", "", "repo to be Ready: wrong password, until", nil},
		{"everything there", accepted, func(in *Input) { in.Exposed = ready() }, MakePod, "", "", "", nil},
		{"the pod is refused", accepted, func(in *Input) { in.Exposed, in.PodErr = ready(), errors.New("exceeded quota") }, Write, "", "", "exceeded quota, until", nil},
		{"the pod is pending", accepted, func(in *Input) {
			in.Exposed, in.Pod = ready(), &PodState{Name: "du-u1", UID: "p1", Trouble: "Unschedulable: no node"}
		}, Write, "", "", "waiting for pod du-u1 to run: Unschedulable: no node, until", nil},
		{"the claim says why", accepted, func(in *Input) {
			in.Exposed, in.Pod = ready(), &PodState{Name: "du-u1", UID: "p1"}
			in.Exposed.Diagnosis = "ProvisioningFailed: full"
		}, Write, "", "", "to run: ProvisioningFailed: full, until", nil},
		{"the pod is pending for too long", accepted, func(in *Input) {
			in.Exposed, in.Pod, in.Object.Accepted = ready(), &PodState{Name: "du-u1", UID: "p1", Trouble: "ImagePullBackOff: no such image"}, now.Add(-time.Hour)
		}, Write, "", failed, "ImagePullBackOff", nil},
		{"the pod is pending, made for the node of the driver before", accepted, func(in *Input) {
			in.Exposed, in.Pod = ready(), &PodState{Name: "du-u1", UID: "p1", Pinned: "node-b"}
		}, DeletePod, "", "", "", nil},
		{"the same, made for this node", accepted, func(in *Input) {
			in.Exposed, in.Pod = ready(), &PodState{Name: "du-u1", UID: "p1", Pinned: "node-a"}
		}, Write, "", "", "waiting for pod du-u1 to run", nil},
		{"the same, on its node", accepted, func(in *Input) {
			in.Exposed, in.Pod = ready(), &PodState{Name: "du-u1", UID: "p1", Pinned: "node-b", Node: "node-b"}
		}, Write, "", "", "waiting for pod du-u1 to run", nil},
		{"the pod runs", accepted, func(in *Input) { in.Pod = &PodState{Name: "du-u1", UID: "p1", Node: "node-c", Running: true} }, Write, preparedPhase, "", "", func(c *Change) bool {
			return c.Node == "node-c" && c.Memory.Pod == "p1" && c.Message == ""
		}},
		{"the pod runs, long after the timeout", accepted, func(in *Input) {
			in.Pod, in.Object.Accepted = &PodState{UID: "p1", Node: "node-a", Running: true}, now.Add(-time.Hour)
		}, Write, preparedPhase, "", "", nil},
		{"the pod ended", accepted, func(in *Input) {
			in.Exposed, in.Pod = ready(), &PodState{UID: "p1", Ended: true, LastWords: "Evicted: disk"}
		}, Write, "", "", "Evicted: disk", func(c *Change) bool {
			return c.Memory.Lost == "p1" && c.Memory.Deaths == 1 && c.Memory.RetryAt.Time.Equal(now.Add(firstRetry))
		}},
		{"the pod ended, known", accepted, func(in *Input) {
			in.Exposed, in.Pod, in.Object.Memory.Lost = ready(), &PodState{UID: "p1", Ended: true}, "p1"
		}, DeletePod, "", "", "", nil},
		{"the next start is not due", accepted, func(in *Input) {
			in.Exposed, in.Object.Memory = ready(), memory{Lost: "p1", Deaths: 1, RetryAt: at(5 * time.Second), LastWords: "bus error"}
		}, Write, "", "", "start of the mover: bus error, until 12:00:05", nil},
		{"the next start is due", accepted, func(in *Input) { in.Exposed, in.Object.Memory = ready(), memory{Lost: "p1", Deaths: 1, RetryAt: at(0)} }, MakePod, "", "", "", nil},
		{"the mover reports a failure early", accepted, func(in *Input) {
			in.Pod, in.Object.Report = &PodState{UID: "p1"}, reportBy("p1", datamove.Failed)
		}, Write, "", failed, "it broke", nil},
		{"the mover dies again and again", accepted, func(in *Input) {
			in.Pod = &PodState{UID: "p1", Deaths: 5, LastWords: "OOMKilled"}
		}, Write, "", failed, "died 5 times without a result: OOMKilled", nil},
		{"accepted, the repository cannot be made", accepted, func(in *Input) {
			in.Exposed, in.Repository = &ExposeAnswer{}, RepositoryState{Name: "r1", Err: errors.New("a quota")}
		}, Write, "", "", "its repository: a quota, until ", nil},
		{"accepted, the repository could not be made", accepted, func(in *Input) {
			in.Exposed, in.Repository = &ExposeAnswer{}, RepositoryState{Name: "r1", Err: errors.New("a quota")}
			in.Object.Accepted = now.Add(-2 * in.PrepareTimeout)
		}, Write, "", failed, "its repository: a quota", nil},
		{"accepted, cancelled", accepted, func(in *Input) { in.Object.Cancel = true }, Write, canceling, canceled, "spec.cancel", nil},
		{"accepted, deleted", accepted, func(in *Input) { in.Object.Deleted = true }, Write, canceling, canceled, "deleted", nil},
		// Prepared.
		{"prepared", preparedPhase, nil, Write, inProgress, "", "", func(c *Change) bool { return c.Started.Equal(now) }},
		{"prepared, cancelled", preparedPhase, func(in *Input) { in.Object.Cancel = true }, Write, canceling, canceled, "", nil},
		// Upstream's defect 4: a prepared object whose node had died waited for hours.
		{"prepared, the pod's node is gone", preparedPhase, func(in *Input) {
			in.PodNode = NodeState{Name: "node-b", Gone: true}
		}, Write, "", failed, "node node-b, on which the mover pod ran, is gone", nil},
		{"prepared, the pod's node is lost", preparedPhase, func(in *Input) {
			in.PodNode = NodeState{Name: "node-b", NotReadySince: now.Add(-2 * time.Minute)}
		}, Write, "", "", "waiting for node node-b", nil},
		{"prepared, the pod's node is lost for long", preparedPhase, func(in *Input) {
			in.PodNode = NodeState{Name: "node-b", NotReadySince: now.Add(-lostAfter - in.Object.OperationTimeout)}
		}, Write, "", failed, "has not been ready since", nil},
		{"prepared, pod gone", preparedPhase, func(in *Input) { in.Pod = nil }, Write, "", "", "pod is lost", func(c *Change) bool { return c.Memory.Lost == "p1" }},
		{"prepared, the next pod is due", preparedPhase, func(in *Input) { in.Pod, in.Object.Memory = nil, memory{Lost: "p1", RetryAt: at(0)} }, Expose, "", "", "", nil},
		// In progress.
		{"in progress", inProgress, func(in *Input) { in.Object.Message = "old" }, Write, "", "", "", func(c *Change) bool { return c.Message == "" }},
		{"in progress, started again", inProgress, func(in *Input) { in.Pod.Deaths, in.Pod.LastWords = 2, "bus error" }, Write, "", "", "started again, 2 of 4 times: bus error", nil},
		{"in progress, cancelled", inProgress, func(in *Input) { in.Object.Cancel = true }, Write, canceling, canceled, "", nil},
		{"in progress, cancelled, stored before", inProgress, func(in *Input) { in.Object.Cancel, in.Object.Report = true, reportBy("p1", datamove.Succeeded) }, Write, "", "", "the data was moved", nil},
		{"in progress, deleted, stored before", inProgress, func(in *Input) { in.Object.Deleted, in.Object.Report = true, reportBy("p1", datamove.Succeeded) }, Write, "", "", "the data was moved", nil},
		{"in progress, cancelled, failed before", inProgress, func(in *Input) { in.Object.Cancel, in.Object.Report = true, reportBy("p1", datamove.Failed) }, Write, canceling, canceled, "", nil},
		{"in progress, cancelled, restored before", inProgress, func(in *Input) {
			in.Object.Kind, in.Object.Cancel, in.Object.Report = datamove.Download, true, reportBy("p1", datamove.Succeeded)
		}, Write, canceling, canceled, "", nil},
		{"the pod is not running", inProgress, func(in *Input) { in.Pod.Running = false }, Write, "", "", "", func(c *Change) bool { return c.Memory.Stalled.Time.Equal(now) }},
		{"the kubelet will start it again", inProgress, func(in *Input) {
			in.Pod.Running, in.Pod.Trouble, in.Object.Memory.Stalled = false, "CrashLoopBackOff: bus error", at(-time.Second)
			in.Object.Started = now.Add(-24 * time.Hour)
		}, Write, "", "", "to run: CrashLoopBackOff: bus error, until 12:29:59", nil},
		{"it is never started again", inProgress, func(in *Input) { in.Pod.Running, in.Object.Memory.Stalled = false, at(-30*time.Minute) }, Write, "", failed, "du-u1 to run", nil},
		{"the pod is gone", inProgress, func(in *Input) { in.Pod, in.Exposed, in.Object.Memory.Stalled = nil, ready(), at(0) }, Write, "", "", "pod is lost", func(c *Change) bool {
			return c.Memory.Lost == "p1" && c.Memory.Pod == "" && c.Memory.Deaths == 1
		}},
		{"another pod runs", inProgress, func(in *Input) { in.Pod.UID, in.Object.Memory = "p2", memory{Lost: "p1", Deaths: 1, Stalled: at(0)} }, Write, "", "", "", func(c *Change) bool { return c.Memory.Pod == "p2" }},
		{"another pod is pending, made for the node that it had a place on before", inProgress, func(in *Input) {
			in.Pod, in.PodNode, in.Object.Memory = &PodState{Name: "du-u1", UID: "p2", Pinned: "node-b"}, NodeState{}, memory{Lost: "p1", Deaths: 1, Stalled: at(0)}
		}, DeletePod, "", "", "", nil},
		{"a copy of one that has ended, canceled", velerov2.PhaseNew, func(in *Input) {
			in.Object.Driver, in.Object.Cancel, in.Object.Memory = "", true, memory{Ending: ended(completed, time.Hour), Disposed: true}
		}, Write, velerov2.PhaseCanceling, "", "", func(c *Change) bool {
			return c.Begins && c.Memory.Ending.Phase == velerov2.PhaseCanceled && !c.Memory.Disposed
		}},
		{"the fifth death, in pods that are gone", inProgress, func(in *Input) {
			in.Pod.Running, in.Pod.Ended, in.Pod.LastWords, in.Object.Memory = false, true, "bus error", memory{Pod: "p1", Deaths: 4, Stalled: at(0)}
		}, Write, "", failed, "died 5 times without a result: bus error", nil},
		{"success", inProgress, func(in *Input) { in.Object.Report = reportBy("p1", datamove.Succeeded) }, Write, "", "", "", func(c *Change) bool { return c.Memory.Finishing != nil && c.Memory.Ending == nil }},
		{"success, the pod is there", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory.Finishing = reportBy("p1", datamove.Succeeded), at(0)
		}, DeletePod, "", "", "", nil},
		{"success, the pod ends", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory.Finishing, in.Pod.Deleting = reportBy("p1", datamove.Succeeded), at(0), true
		}, Write, "", "", "du-u1 to be gone", nil},
		{"success, the pod is gone", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory.Finishing, in.Pod = reportBy("p1", datamove.Succeeded), at(0), nil
		}, Finish, "", "", "", nil},
		{"finishing", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory.Finishing, in.Pod, in.Finished = reportBy("p1", datamove.Succeeded), at(0), nil, undone
		}, Write, "", "", "waiting for the claim to be bound, until 12:10:00", nil},
		{"finishing for too long", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory.Finishing, in.Pod, in.Finished = reportBy("p1", datamove.Succeeded), at(-10*time.Minute), nil, undone
		}, Write, "", failed, "the claim to be bound", nil},
		{"finishing is refused", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory.Finishing, in.Pod, in.Finished = reportBy("p1", datamove.Succeeded), at(0), nil, &ProgressAnswer{Err: refusal}
		}, Write, "", failed, "the snapshot is gone", nil},
		{"finished", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory.Finishing, in.Pod, in.Finished = reportBy("p1", datamove.Succeeded), at(0), nil, done
		}, Write, "", completed, "", func(c *Change) bool { return c.Result.SnapshotID == ownPoint && c.Completed.IsZero() }},
		{"success with nothing stored", inProgress, func(in *Input) {
			in.Object.Report = reportBy("p1", datamove.Succeeded)
			in.Object.Report.SnapshotID = ""
		}, Write, "", failed, `snapshotID "", which is not that of this DataUpload`, nil},
		{"success with another's restore point", inProgress, func(in *Input) {
			in.Object.Report = reportBy("p1", datamove.Succeeded)
			in.Object.Report.SnapshotID = "varve1.disk.0b0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a.app"
		}, Write, "", failed, "is not that of this DataUpload", nil},
		{"success with another namespace's repository", inProgress, func(in *Input) {
			in.Object.Report = reportBy("p1", datamove.Succeeded)
			in.Object.Report.SnapshotID = "varve1.disk.0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a.victim"
		}, Write, "", failed, "is not that of this DataUpload", nil},
		{"success of a download, which has no snapshotID", inProgress, func(in *Input) {
			in.Object.Kind, in.Object.Report = datamove.Download, reportBy("p1", datamove.Succeeded)
			in.Object.Report.SnapshotID = ""
		}, Write, "", "", "", func(c *Change) bool { return c.Memory.Finishing != nil }},
		{"failure", inProgress, func(in *Input) { in.Object.Report = reportBy("p1", datamove.Failed) }, Write, "", failed, "it broke", nil},
		{"an unasked cancel", inProgress, func(in *Input) { in.Object.Report = reportBy("p1", datamove.Canceled) }, Write, "", failed, "as if it had been canceled", nil},
		{"the pod of an upload that is stored is never gone", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory.Finishing, in.Pod.Deleting = reportBy("p1",
				datamove.Succeeded), at(-10*time.Minute), true
		}, Finish, "", "", "", nil},
		{"the same, of a download", inProgress, func(in *Input) {
			in.Object.Kind, in.Object.Report = datamove.Download, reportBy("p1", datamove.Succeeded)
			in.Object.Memory.Finishing, in.Pod.Deleting = at(-10*time.Minute), true
		}, Write, "", failed, "du-u1 to be gone", nil},
		{
			"canceled when its restore point was published already", canceling, func(in *Input) {
				in.Object.Memory, in.Object.Report = memory{Pod: "p1", Ending: ended(canceled, 0)}, reportBy("p1",
					datamove.Succeeded)
			}, Write, "", completed, "stored before that could be stopped",
			func(c *Change) bool { return c.Result != nil && c.Result.SnapshotID == ownPoint },
		},
		{"the same, failed meanwhile", inProgress, func(in *Input) {
			in.Object.Memory, in.Object.Report = memory{Pod: "p1", Ending: ended(failed, 0)}, reportBy("p1",
				datamove.Succeeded)
		}, Write, "", completed, "", nil},
		{"the same, a download", canceling, func(in *Input) {
			in.Object.Kind, in.Object.Memory, in.Object.Report = datamove.Download, memory{
				Pod:    "p1",
				Ending: ended(canceled, 0),
			}, reportBy("p1", datamove.Succeeded)
		}, Dispose, "", "", "", nil},
		{"failed because what was moved is no good", inProgress, func(in *Input) {
			in.Object.Memory, in.Object.Report = memory{
				Pod: "p1", Finishing: at(0),
				Ending: ended(failed, 0),
			}, reportBy("p1", datamove.Succeeded)
		}, DeletePod, "", "", "", nil},
		{
			"the mover waits for its storage", inProgress, func(in *Input) {
				in.Object.Waiting, in.Pod.Deaths = "waiting for the storage since 12:03:04 UTC: connection refused", 1
			}, Write, "", "", "waiting for the storage since 12:03:04 UTC",
			func(c *Change) bool { return c.Memory.Ending == nil },
		},
		{"a pod is to replace another one, and nobody says what it mounts", inProgress, func(in *Input) {
			in.Pod, in.PodNode, in.Exposed, in.Object.Memory = nil, NodeState{}, ready(), memory{
				Lost:   "p1",
				Deaths: 1, Stalled: at(0),
			}
			in.Repository.NoStorage, in.Repository.Message = true, "bad annotation"
		}, Write, "", "", "BackupRepository repo to be there: bad annotation", nil},
		{"waiting for another mover, which may take it still", phaseNew, func(in *Input) {
			in.Object.Mover, in.Object.Finalizer, in.Takers = "velero", false, 1
		}, Write, "", "", "waiting for a place", func(c *Change) bool { return !c.Finalizer }},
		{"a report of a pod that was given up", inProgress, func(in *Input) { in.Object.Report = reportBy("p0", datamove.Succeeded) }, Write, "", "", "", func(c *Change) bool { return c.Memory.Finishing == nil }},
		{"a report of the pod that is lost", inProgress, func(in *Input) {
			in.Object.Report, in.Object.Memory, in.Pod = reportBy("p1", datamove.Succeeded), memory{Lost: "p1", Deaths: 1, Stalled: at(0), RetryAt: at(time.Second)}, nil
		}, Write, "", "", "next start of the mover", nil},
		// The pod's node.
		{"the pod's node is gone", inProgress, func(in *Input) { in.PodNode.Gone = true }, Write, "", failed, "node node-a, on which the mover pod ran, is gone", nil},
		{"the pod's node is gone, and the pod", inProgress, func(in *Input) { in.PodNode.Gone, in.Pod = true, nil }, Write, "", failed, "is gone", nil},
		{"the pod's node is not ready for 30 s", inProgress, func(in *Input) { in.PodNode.NotReadySince = now.Add(-30 * time.Second) }, Write, "", "", "", func(c *Change) bool { return c.Message == "" }},
		{"the pod's node is not ready for 2 min", inProgress, func(in *Input) { in.PodNode.NotReadySince = now.Add(-2 * time.Minute) }, Write, "", "", "node-a, on which the mover pod runs, to be ready again, until 12:09:00", nil},
		{"the pod's node does not come back", inProgress, func(in *Input) { in.PodNode.NotReadySince = now.Add(-11 * time.Minute) }, Write, "", failed, "has not been ready since", nil},
		{"the pod's node is not ready, the report is there", inProgress, func(in *Input) {
			in.PodNode.NotReadySince, in.Object.Report = now.Add(-time.Hour), reportBy("p1", datamove.Succeeded)
		}, Write, "", "", "", func(c *Change) bool { return c.Memory.Finishing != nil }},
		// The end.
		{"ending, the pod is there", canceling, func(in *Input) {
			in.Object.Memory.Ending, in.Pod = ended(canceled, 0), &PodState{UID: "p1", Node: "node-a"}
		}, DeletePod, "", "", "", nil},
		{"ending, the pod's node is gone", inProgress, func(in *Input) { in.Object.Memory.Ending, in.PodNode.Gone = ended(failed, 0), true }, KillPod, "", "", "", nil},
		{"ending, the pod's node is not ready", inProgress, func(in *Input) {
			in.Object.Memory.Ending, in.PodNode.NotReadySince = ended(failed, 0), now.Add(-time.Hour)
		}, DeletePod, "", "", "", nil},
		{"ending, the pod ends", canceling, func(in *Input) {
			in.Object.Memory.Ending, in.Pod = ended(canceled, 0), &PodState{Name: "du-u1", Deleting: true}
		}, Write, "", canceled, "canceling: why; waiting for pod du-u1 to be gone, until 12:10:00", nil},
		{"ending, no pod", canceling, func(in *Input) { in.Object.Memory.Ending = ended(canceled, 0) }, Dispose, "", "", "", nil},
		{"ending, not disposed", accepted, func(in *Input) { in.Object.Memory.Ending, in.Disposed = ended(failed, 0), undone }, Write, "", failed, "failed: why; waiting for the claim", nil},
		{"ending, disposal fails", accepted, func(in *Input) {
			in.Object.Memory.Ending, in.Disposed = ended(failed, 0), &ProgressAnswer{Err: refusal}
		}, Write, "", failed, "the snapshot is gone, until", nil},
		{"cancelled", canceling, func(in *Input) { in.Object.Memory.Ending, in.Disposed = ended(canceled, 0), done }, Write, canceled, "", "canceled: why", func(c *Change) bool {
			return c.Completed.Equal(now) && !c.Finalizer && c.Memory.Disposed
		}},
		{"failed", accepted, func(in *Input) { in.Object.Memory.Ending, in.Disposed = ended(failed, 0), done }, Write, failed, "", "why", func(c *Change) bool { return c.Completed.Equal(now) && !c.Finalizer }},
		{"upload completed", inProgress, func(in *Input) { in.Object.Memory.Ending, in.Pod, in.Disposed = ended(completed, 0), nil, done }, Write, completed, "", "", func(c *Change) bool {
			return c.Completed.Equal(now) && c.Finalizer
		}},
		{"download completed", inProgress, func(in *Input) {
			in.Object.Kind, in.Object.Memory.Ending, in.Pod, in.Disposed = datamove.Download, ended(completed, 0), nil, done
		}, Write, completed, "", "", func(c *Change) bool { return c.Completed.Equal(now) && !c.Finalizer }},
		{"completed is decided, then cancelled", inProgress, func(in *Input) { in.Object.Memory.Ending, in.Pod, in.Object.Cancel = ended(completed, 0), nil, true }, Dispose, "", "", "", nil},
		{"disposal takes too long", accepted, func(in *Input) { in.Object.Memory.Ending, in.Disposed = ended(failed, -10*time.Minute), undone }, Write, failed, "", "why; not disposed of, and tried again: the claim", func(c *Change) bool {
			return c.Completed.Equal(now) && c.Finalizer && !c.Memory.Disposed
		}},
		{"ended, something left", failed, func(in *Input) { in.Object.Memory.Disposed = false }, Dispose, "", "", "", nil},
		{"ended, still something left", failed, func(in *Input) { in.Object.Memory.Disposed, in.Disposed = false, undone }, Wait, "", "", "", nil},
		{"ended, nothing left any more", failed, func(in *Input) {
			in.Object.Memory.Disposed, in.Disposed, in.Object.Message = false, done, "why; not disposed of: x"
		}, Write, "", "", "why", func(c *Change) bool {
			return !c.Finalizer && c.Message == "why" && c.Completed.IsZero()
		}},
		{"ended by somebody's hand", completed, func(in *Input) { in.Object.Memory = memory{} }, Dispose, "", "", "", nil},
		{"completed upload", completed, nil, Wait, "", "", "", nil},
		{"completed upload, cancelled", completed, func(in *Input) { in.Object.Cancel = true }, Wait, "", "", "", nil},
		{"completed upload, deleted, nobody deletes points", completed, func(in *Input) { in.Object.Deleted = true }, Write, "", "", "", func(c *Change) bool { return !c.Finalizer }},
		{"completed upload, deleted", completed, func(in *Input) { in.Object.Deleted, in.KeepsPoint = true, true }, DeletePoint, "", "", "", nil},
		{"completed upload, deleted, point pinned", completed, func(in *Input) {
			in.Object.Deleted, in.KeepsPoint, in.Deleted = true, true, &ProgressAnswer{Progress: Progress{Waiting: "it is pinned"}}
		}, Write, "", "", "it is pinned", func(c *Change) bool { return c.Finalizer }},
		{"canceled upload that may have published its restore point", canceling, func(in *Input) {
			in.Object.Started, in.KeepsPoint, in.Disposed, in.Object.Memory = now, true, done, memory{
				Pod:    "p1",
				Ending: ended(canceled, 0),
			}
		}, Write, canceled, "", "", func(c *Change) bool { return c.Finalizer }},
		{"the same, its mover said that it was canceled", canceling, func(in *Input) {
			in.Object.Started, in.KeepsPoint, in.Disposed, in.Object.Memory = now, true, done, memory{
				Pod:    "p1",
				Ending: ended(canceled, 0),
			}
			in.Object.Report = reportBy("p1", datamove.Canceled)
		}, Write, canceled, "", "", func(c *Change) bool { return c.Finalizer }},
		{"the same, its mover said that it failed", inProgress, func(in *Input) {
			in.Pod, in.KeepsPoint, in.Disposed, in.Object.Memory = nil, true, done, memory{
				Pod:    "p1",
				Ending: ended(failed, 0),
			}
			in.Object.Report = reportBy("p1", datamove.Failed)
		}, Write, failed, "", "", func(c *Change) bool { return !c.Finalizer }},
		{"the same, its mover never began", canceling, func(in *Input) {
			in.KeepsPoint, in.Disposed, in.Object.Memory = true, done, memory{Ending: ended(canceled, 0)}
		}, Write, canceled, "", "", func(c *Change) bool { return !c.Finalizer }},
		{"failed upload that may have published, deleted", failed, func(in *Input) {
			in.Object.Started, in.Object.Deleted, in.KeepsPoint = now, true, true
		}, DeletePoint, "", "", "", nil},
		{"completed upload, deleted, point gone", completed, func(in *Input) { in.Object.Deleted, in.KeepsPoint, in.Deleted = true, true, done }, Write, "", "", "", func(c *Change) bool { return !c.Finalizer }},
		{"failed, finalizer still there", failed, nil, Write, "", "", "", func(c *Change) bool { return !c.Finalizer }},
		{"a phase that nobody knows", "Paused", nil, Write, "", failed, "Paused", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			in := base(row.phase)
			if row.edit != nil {
				row.edit(&in)
			}
			d := decide(in)
			if d.Do != row.do {
				t.Fatalf("does %q (%+v), want %q", d.Do, d.Change, row.do)
			}
			if d.Do != Write {
				return
			}
			c := &d.Change
			if to := orPhase(row.to, in.Object.Phase); c.Phase != to {
				t.Errorf("phase %s, want %s", c.Phase, to)
			}
			if row.ending != "" && (c.Memory.Ending == nil || c.Memory.Ending.Phase != row.ending) {
				t.Errorf("ending %+v, want %s", c.Memory.Ending, row.ending)
			}
			if row.ending == failed && in.Object.Memory.Ending == nil && !slices.Contains(failureReasons, c.Memory.Ending.Reason) {
				t.Errorf("fails without a reason: %+v", c.Memory.Ending)
			}
			if row.ending == "" && c.Memory.Ending != nil && in.Object.Memory.Ending == nil {
				t.Errorf("ends: %+v", c.Memory.Ending)
			}
			text := c.Message
			if c.Memory.Ending != nil {
				text += "\n" + c.Memory.Ending.Message
			}
			if !strings.Contains(text, row.says) {
				t.Errorf("says %q, want %q", text, row.says)
			}
			if row.check != nil && !row.check(c) {
				t.Errorf("%+v", c)
			}
			if c.Phase.Ended() != !c.Completed.IsZero() && !in.Object.Phase.Ended() {
				t.Errorf("phase %s with completion %s", c.Phase, c.Completed)
			}
			if in.Object.Phase.Ended() && c.Phase != in.Object.Phase {
				t.Errorf("%s became %s", in.Object.Phase, c.Phase)
			}
		})
	}
}

func orPhase(a, b velerov2.Phase) velerov2.Phase {
	if a != "" {
		return a
	}
	return b
}

// Every wait has an end: no message says until when without a later look.
func TestDecide_looksAgainAtEveryDeadline(t *testing.T) {
	t.Parallel()
	in := base(velerov2.PhaseAccepted)
	in.Exposed = &ExposeAnswer{Exposure: Exposure{Waiting: "x"}}
	for _, left := range []time.Duration{time.Hour, 3 * time.Second, time.Nanosecond} {
		in.Object.Accepted = now.Add(left - in.PrepareTimeout)
		d := decide(in)
		if d.Again <= 0 || d.Again > max(left, time.Millisecond) {
			t.Errorf("%s before the deadline, it looks again after %s", left, d.Again)
		}
	}
}

// No event tells when a node has not been ready for a minute.
func TestDecide_looksAgainWhenANodeIsLost(t *testing.T) {
	t.Parallel()
	in := base(velerov2.PhaseInProgress)
	in.PodNode.NotReadySince = now.Add(-20 * time.Second)
	if d := decide(in); d.Again != 40*time.Second {
		t.Errorf("it looks again after %s, want 40 s", d.Again)
	}
}

// What takes a second must not cost five: a wait that has just begun is looked at soon, and one that lasts now and then.
func TestDecide_looksAgainSoonAtFirst(t *testing.T) {
	t.Parallel()
	waiting := &ProgressAnswer{Progress: Progress{Waiting: "the claim to be bound"}}
	for name, step := range map[string]func(since time.Duration) Input{
		"accepted": func(since time.Duration) Input {
			in := base(velerov2.PhaseAccepted)
			in.Object.Accepted, in.Exposed = now.Add(-since), &ExposeAnswer{Exposure: Exposure{Waiting: "x"}}
			return in
		},
		"finishing": func(since time.Duration) Input {
			in := base(velerov2.PhaseInProgress)
			in.Object.Report, in.Object.Memory.Finishing, in.Pod, in.Finished = reportBy("p1", datamove.Succeeded), at(-since), nil, waiting
			return in
		},
		"ending": func(since time.Duration) Input {
			in := base(velerov2.PhaseCanceling)
			in.Object.Memory.Ending, in.Disposed = ended(velerov2.PhaseCanceled, -since), waiting
			return in
		},
	} {
		for since, want := range map[time.Duration]time.Duration{
			-time.Second: 250 * time.Millisecond, 0: 250 * time.Millisecond, 2 * time.Second: 500 * time.Millisecond, time.Minute: 5 * time.Second,
		} {
			if d := decide(step(since)); d.Again != want {
				t.Errorf("%s since %s: it looks again after %s, want %s", name, since, d.Again, want)
			}
		}
	}
}

func TestChoose_isFairBetweenNamespaces(t *testing.T) {
	t.Parallel()
	waits := func(uid types.UID, tenant string, created time.Time) candidate {
		return candidate{openObject: openObject{view: Object{UID: uid, Tenant: tenant, Created: created}}}
	}
	waiting := []candidate{
		waits("a1", "a", now),
		waits("a2", "a", now.Add(time.Second)),
		waits("a3", "a", now.Add(2*time.Second)),
		waits("b1", "b", now.Add(time.Hour)),
		waits("c1", "c", now.Add(2*time.Hour)),
	}
	running := map[string]int{"c": 1}
	var order []string
	for len(waiting) > 0 {
		i := choose(waiting, running)
		order = append(order, string(waiting[i].view.UID))
		running[waiting[i].view.Tenant]++
		waiting = append(waiting[:i:i], waiting[i+1:]...)
	}
	if got := strings.Join(order, " "); got != "a1 b1 a2 c1 a3" {
		t.Error(got)
	}
	if choose(nil, nil) != -1 {
		t.Error("it chose nobody")
	}
}
