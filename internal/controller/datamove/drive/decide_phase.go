package drive

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// decideAccepted is for an object whose pod is to run.
func decideAccepted(in Input) Decision {
	o := &in.Object
	deadline := o.prepareBegan().Add(in.PrepareTimeout)
	if in.Unserved != "" {
		return fail(in, ReasonUnserved, in.Unserved)
	}
	if !in.Location.Found {
		until := o.prepareBegan().Add(min(o.OperationTimeout, in.PrepareTimeout))
		return waitOrFail(in, fmt.Sprintf("BackupStorageLocation %s/%s to be created", o.Namespace, o.Location), until)
	}
	if in.Location.ReadOnly && o.Kind == datamove.Upload {
		return fail(in, ReasonReadOnlyLocation, fmt.Sprintf("BackupStorageLocation %s/%s is read-only: nothing can be uploaded to it", o.Namespace, o.Location))
	}
	if in.Pod != nil && in.Pod.Running && in.Pod.UID != o.Memory.Lost {
		return prepared(in)
	}
	if d, failed := failureOf(in); failed {
		return d
	}
	if in.Exposed == nil {
		return Decision{Do: Expose}
	}
	if in.Exposed.Err != nil && isRefusal(in.Exposed.Err) {
		return fail(in, ReasonRefused, in.Exposed.Err.Error())
	}
	return decideExposed(in, deadline)
}

// decideExposed is for an object whose volume the exposer makes accessible.
func decideExposed(in Input, deadline time.Time) Decision {
	if in.Exposed.Err != nil {
		return waitPrepared(in, "its volume to be accessible: "+in.Exposed.Err.Error(), deadline)
	}
	if in.Repository.Err != nil {
		return waitOrFail(in, "its repository: "+in.Repository.Err.Error(), deadline)
	}
	if !in.Repository.Found {
		return Decision{Do: MakeRepository}
	}
	switch {
	case in.Exposed.Volume == nil && in.Exposed.Until.After(in.Now):
		d := waitPrepared(in, in.Exposed.Waiting, earlier(deadline, in.Exposed.Until))
		if d.Do == Write && d.Change.Memory.Ending == nil {
			d.Change.Message += ", and then going on without that"
		}
		return d
	case in.Exposed.Volume == nil:
		return waitPrepared(in, in.Exposed.Waiting, deadline)
	case !in.Repository.Ready:
		return waitOrFail(in,
			because("BackupRepository "+in.Repository.Name+" to be Ready", in.Repository.Message), deadline)
	}
	return decidePod(in, in.Exposed.Diagnosis, deadline)
}

// waitPrepared waits for an object's volume. If that takes long, others get its place meanwhile. A disk of a running
// machine keeps it: what the guest overwrites is held from the moment on at which the machine's backup is taken.
func waitPrepared(in Input, what string, deadline time.Time) Decision {
	o := &in.Object
	d := waitOrFail(in, what, deadline)
	if d.Change.Memory.Ending != nil || in.Pod != nil || o.SnapshotType == velerov2.SnapshotMachineBackup {
		return d
	}
	d.Change.Memory.Ready = false
	// The node on which a restored volume is needed is not known before its consumer's.
	forConsumer := in.Exposed != nil && in.Exposed.Until.After(in.Now)
	switch {
	case o.Memory.Yielded != nil || !forConsumer && in.Now.Before(o.prepareBegan().Add(yieldAfter)):
	case in.MayYield == nil:
		return Decision{Do: MayYield}
	case *in.MayYield:
		at := metav1.NewTime(in.Now).Rfc3339Copy()
		d.Change.Memory.Yielded = &at
	}
	return d
}

// waitForPlace is for an object that has given its place back and is ready now. The Taker gives it another one; how
// long that takes is not the object's fault, so its time for preparing begins anew.
func waitForPlace(in Input) Decision {
	change := in.Object.unchanged()
	m := &change.Memory
	if !m.Ready || in.Now.Sub(in.Object.prepareBegan()) > in.PrepareTimeout/2 {
		at := metav1.NewTime(in.Now).Rfc3339Copy()
		m.PrepareSince = &at
	}
	m.Ready, change.Message = true, noPlace
	return Decision{Do: Write, Change: change, Again: min(takeInterval, in.PrepareTimeout/lookShare)}
}

// decidePod is for an object that needs a pod that runs, and has none.
func decidePod(in Input, diagnosis string, deadline time.Time) Decision {
	o := &in.Object
	switch {
	case in.Pod == nil && o.Memory.Pod != "":
		return recordLoss(in, o.Memory.Pod, 1, "")
	case in.Pod == nil && o.Memory.RetryAt != nil && in.Now.Before(o.Memory.RetryAt.Time):
		d := waitOrFail(in, because("the next start of the mover", o.Memory.LastWords), earlier(deadline, o.Memory.RetryAt.Time))
		return d
	case in.Pod == nil && o.Memory.Yielded != nil:
		return waitForPlace(in)
	case in.Pod == nil && in.PodErr != nil:
		return waitOrFail(in, "its pod to be created: "+in.PodErr.Error(), deadline)
	case in.Pod == nil:
		return Decision{Do: MakePod}
	case in.Pod.Deleting:
		return waitOrFail(in, fmt.Sprintf("pod %s to be gone, which somebody deleted", in.Pod.Name), deadline)
	case in.Pod.UID == o.Memory.Lost:
		return Decision{Do: DeletePod}
	case in.Pod.Ended:
		return recordLoss(in, in.Pod.UID, max(1, in.Pod.Deaths), in.Pod.LastWords)
	case in.Pod.Node == "" && in.Pod.Pinned != "" && in.Pod.Pinned != o.Driver:
		return Decision{Do: DeletePod} // made for the node before, which is lost
	default:
		return waitOrFail(in, because(because("pod "+in.Pod.Name+" to run", in.Pod.Trouble), diagnosis), deadline)
	}
}

// earlier returns the earlier one of a deadline and the time of a next step.
func earlier(deadline, next time.Time) time.Time {
	if next.Before(deadline) {
		return next
	}
	return deadline
}

// recordLoss notes that a pod is lost, before its successor is made.
func recordLoss(in Input, pod types.UID, deaths int, words string) Decision {
	o := &in.Object
	change := o.unchanged()
	m := &change.Memory
	m.Lost, m.Pod = pod, ""
	row := m.addDeaths(deaths, o.Done)
	if words != "" {
		m.LastWords = words
	}
	if row >= maxDeaths {
		return failDead(in, row, m.LastWords)
	}
	at := metav1.NewTime(in.Now.Add(firstRetry << (row - 1))).Rfc3339Copy()
	m.RetryAt = &at
	change.Message = because(fmt.Sprintf("the mover pod is lost; another one starts at %s", at.UTC().Format(time.TimeOnly)), m.LastWords)
	return Decision{Do: Write, Change: change}
}

// failureOf ends an object whose mover has reported that it failed, or has died too often.
func failureOf(in Input) (Decision, bool) {
	o := &in.Object
	if r := reportOf(in); r != nil && r.Outcome != datamove.Succeeded {
		message := r.Message
		if r.Outcome == datamove.Canceled {
			message = because("the mover ended as if it had been canceled", r.Message)
		}
		return fail(in, ReasonMoverFailed, message), true
	}
	if in.Pod != nil && in.Pod.UID != o.Memory.Lost {
		if row := o.Memory.deathsInARow(o.Memory.Deaths + in.Pod.Deaths); row >= maxDeaths {
			return failDead(in, row, in.Pod.LastWords), true
		}
	}
	return Decision{}, false
}

// failDead ends an object whose mover has died so often in a row.
func failDead(in Input, times int, lastWords string) Decision {
	what := fmt.Sprintf("the mover died %d times without a result", times)
	if in.Object.Memory.ForgottenDeaths > 0 {
		what = fmt.Sprintf("the mover died %d times without getting any further", times)
	}
	return fail(in, ReasonMoverDied, because(what, lastWords))
}

// prepared writes that the pod runs, and which one it is.
func prepared(in Input) Decision {
	change := in.Object.unchanged()
	change.Phase, change.Node, change.Message = velerov2.PhasePrepared, in.Pod.Node, ""
	change.Memory.Pod, change.Memory.RetryAt = in.Pod.UID, nil
	change.Memory.Yielded, change.Memory.Ready = nil, false
	return Decision{Do: Write, Change: change}
}

// decidePrepared is for an object whose pod waits for the word to start.
func decidePrepared(in Input) Decision {
	o := &in.Object
	if d, failed := failureOf(in); failed {
		return d
	}
	if in.Pod == nil || !in.Pod.Running || in.Pod.UID != o.Memory.Pod {
		return decideLostPod(in, o.prepareBegan().Add(in.PrepareTimeout))
	}
	change := o.unchanged()
	change.Phase, change.Started, change.Message = velerov2.PhaseInProgress, in.Now, ""
	return Decision{Do: Write, Change: change}
}

// decideInProgress is for an object whose data moves, or has been moved.
func decideInProgress(in Input) Decision {
	o := &in.Object
	if r := reportOf(in); r != nil && r.Outcome == datamove.Succeeded {
		return decideMoved(in, r)
	}
	if d, failed := failureOf(in); failed {
		return d
	}
	if in.Pod == nil || !in.Pod.Running || in.Pod.UID != o.Memory.Pod {
		// The time that data takes is not limited here. The time until a pod runs again is.
		if o.Memory.Stalled == nil {
			change := o.unchanged()
			at := metav1.NewTime(in.Now).Rfc3339Copy()
			change.Memory.Stalled = &at
			return Decision{Do: Write, Change: change}
		}
		return decideLostPod(in, o.Memory.Stalled.Add(in.PrepareTimeout))
	}
	change := o.unchanged()
	change.Message, change.Memory.Stalled = o.Waiting, nil
	if deaths := o.Memory.deathsInARow(o.Memory.Deaths + in.Pod.Deaths); deaths > 0 && o.Waiting == "" {
		change.Message = because(fmt.Sprintf("the mover was started again, %d of %d times", deaths, maxDeaths-1),
			cmp.Or(in.Pod.LastWords, o.Memory.LastWords))
	}
	return Decision{Do: Write, Change: change}
}

// decideLostPod is for an object that had a pod that ran. The kubelet starts a mover that died again, in its pod.
func decideLostPod(in Input, deadline time.Time) Decision {
	o := &in.Object
	switch {
	case in.Pod != nil && in.Pod.Running && !in.Pod.Deleting && in.Pod.UID != o.Memory.Lost:
		if o.Memory.Pod != "" { // somebody else's doing
			return recordLoss(in, o.Memory.Pod, 1, "")
		}
		change := o.unchanged()
		change.Memory.Pod, change.Memory.RetryAt, change.Node, change.Message = in.Pod.UID, nil, in.Pod.Node, ""
		return Decision{Do: Write, Change: change}
	case in.Pod == nil && o.Memory.Pod == "" && in.Exposed == nil && (o.Memory.RetryAt == nil || !in.Now.Before(o.Memory.RetryAt.Time)):
		return Decision{Do: Expose} // the pod needs the volume
	case in.Exposed != nil:
		return decideReplacement(in, deadline)
	}
	return decidePod(in, "", deadline)
}

// decideReplacement is for an object whose next pod needs the volume, of which the exposer has said what is known.
func decideReplacement(in Input, deadline time.Time) Decision {
	switch err := in.Exposed.Err; {
	case err != nil && isRefusal(err):
		return fail(in, ReasonRefused, err.Error())
	case err != nil:
		return waitOrFail(in, "its volume to be accessible: "+err.Error(), deadline)
	case in.Exposed.Volume == nil:
		return waitOrFail(in, in.Exposed.Waiting, deadline)
	case !in.Repository.Found || in.Repository.NoStorage:
		return waitOrFail(in, because("BackupRepository "+in.Repository.Name+" to be there", in.Repository.Message),
			deadline)
	}
	return decidePod(in, "", deadline)
}

// decideMoved is for an object whose data was moved: the pod goes, and the exposer finishes.
func decideMoved(in Input, r *datamove.Report) Decision {
	o := &in.Object
	if o.Kind == datamove.Upload && !isPointOf(o, r.SnapshotID) {
		return fail(in, ReasonMoverFailed, fmt.Sprintf("the mover reported the snapshotID %q, which is not that of this DataUpload", r.SnapshotID))
	}
	if o.Memory.Finishing == nil {
		change := o.unchanged()
		at := metav1.NewTime(in.Now).Rfc3339Copy()
		change.Memory.Finishing, change.Memory.Pod = &at, r.Pod
		change.Message = "the data was moved; finishing"
		return Decision{Do: Write, Change: change}
	}
	deadline := o.Memory.Finishing.Add(o.OperationTimeout)
	switch {
	case in.Pod != nil && in.PodNode.Gone:
		return Decision{Do: KillPod}
	case in.Pod != nil && !in.Pod.Deleting:
		return Decision{Do: DeletePod}
	case in.Pod != nil && (o.Kind == datamove.Download || in.Now.Before(deadline)):
		// What is stored is stored, whether the pod's node answers or not. The volume of a download is the pod's
		// until then.
		return waitOrFail(in, "pod "+in.Pod.Name+" to be gone", deadline)
	case in.Finished == nil:
		return Decision{Do: Finish}
	case in.Finished.Err != nil && isRefusal(in.Finished.Err):
		return fail(in, ReasonRefused, "the data was moved, but: "+in.Finished.Err.Error())
	case in.Finished.Err != nil:
		return waitOrFail(in, "the volume to be handed over: "+in.Finished.Err.Error(), deadline)
	case !in.Finished.Done:
		return waitOrFail(in, in.Finished.Waiting, deadline)
	}
	d := end(in, velerov2.PhaseCompleted, in.Finished.Left)
	d.Change.Result = r
	d.Change.Message = "the data was moved; disposing of what that took"
	return d
}

// isPointOf says that a snapshotID names the restore point of an upload. A mover reads what a tenant wrote: if it was made to report
// another tenant's restore point, that tenant's data would be restored to this one's claim.
func isPointOf(o *Object, snapshotID string) bool {
	id, err := datamove.ParseSnapshotID(snapshotID)
	if err != nil {
		return false
	}
	point, err := datamove.PointID(o.UID)
	return err == nil && id.Point == point && id.Namespace == o.Tenant
}

// waitOrFail waits until the deadline, and then fails the object with what it waited for.
func waitOrFail(in Input, what string, deadline time.Time) Decision {
	if !in.Now.Before(deadline) {
		return fail(in, ReasonTimedOut, fmt.Sprintf("waited in vain for %s", what))
	}
	return waitFor(in, what, deadline)
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}
