package drive

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// Object is what decisions need of a DataUpload or a DataDownload.
type Object struct {
	Kind datamove.Kind
	types.NamespacedName
	UID     types.UID
	Created time.Time
	// Deleted: it has a deletionTimestamp. Finalizer: it has Varve's.
	Deleted, Finalizer bool

	Mover, SnapshotType string
	// Location is the BackupStorageLocation's name, in the object's namespace.
	Location string
	// Tenant is the namespace of the volume that is read or made: objects of each take turns.
	Tenant string
	// BadSpec says which field of the spec nothing can be done with, such as the name of a claim that there can never be; or "".
	BadSpec string
	// SnapshotID is a download's.
	SnapshotID       string
	Cancel           bool
	OperationTimeout time.Duration

	Phase             velerov2.Phase
	Message           string
	Node, Driver      string
	Accepted, Started time.Time
	// Done is how many bytes the mover has moved since it started, by its own word.
	Done   int64
	Memory memory
	// Report is that of some pod, or nil.
	Report *datamove.Report
	// Waiting is what the pod that counts says that it waits for, or "".
	Waiting string
}

// stepBegan is since when the object is in the step that it waits in, by its memory and its phase.
func (o *Object) stepBegan() time.Time {
	switch m := &o.Memory; {
	case m.Ending != nil:
		return m.Ending.Since.Time
	case m.Finishing != nil:
		return m.Finishing.Time
	case m.Stalled != nil:
		return m.Stalled.Time
	default:
		return o.prepareBegan()
	}
}

// prepareBegan is since when the time counts that it may take until the pod runs.
func (o *Object) prepareBegan() time.Time {
	if since := o.Memory.PrepareSince; since != nil {
		return since.Time
	}
	return o.Accepted
}

// isReady says that an object that has given its place back needs nothing else any more.
func (o *Object) isReady() bool {
	m := &o.Memory
	return o.Phase == velerov2.PhaseAccepted && m.Yielded != nil && m.Ready && m.Ending == nil
}

// isOver says that nothing is left to do with the object, as long as nobody deletes it.
func (o *Object) isOver() bool {
	return o.Phase.Ended() && (!o.Finalizer || !o.Deleted && o.Memory.Disposed)
}

// viewOf returns what decisions need of o.
func viewOf(o client.Object) (Object, error) {
	v := Object{
		NamespacedName: client.ObjectKeyFromObject(o), UID: o.GetUID(), Created: o.GetCreationTimestamp().Time,
		Deleted: o.GetDeletionTimestamp() != nil, Finalizer: controllerutil.ContainsFinalizer(o, datamove.Finalizer),
	}
	switch o := o.(type) {
	case *velerov2.DataUpload:
		s := &o.Status
		v.Kind, v.Mover, v.SnapshotType, v.Location = datamove.Upload, o.Spec.DataMover, o.Spec.SnapshotType, o.Spec.BackupStorageLocation
		v.Tenant, v.Cancel, v.OperationTimeout = o.Spec.SourceNamespace, o.Spec.Cancel, o.Spec.OperationTimeout.Duration
		v.BadSpec = cmp.Or(
			checkSpec(o.Spec.OperationTimeout, "spec.sourceNamespace", o.Spec.SourceNamespace, "spec.sourcePVC", o.Spec.SourcePVC),
			checkPatience(o.Spec.DataMoverConfig))
		v.Done = s.Progress.BytesDone
		v.Phase, v.Message, v.Node, v.Driver, v.Accepted, v.Started = s.Phase, s.Message, s.Node, s.AcceptedByNode, timeOf(s.AcceptedTimestamp), timeOf(s.StartTimestamp)
	case *velerov2.DataDownload:
		s := &o.Status
		v.Kind, v.Mover, v.Location, v.SnapshotID = datamove.Download, o.Spec.DataMover, o.Spec.BackupStorageLocation, o.Spec.SnapshotID
		v.Tenant, v.Cancel, v.OperationTimeout = o.Spec.TargetVolume.Namespace, o.Spec.Cancel, o.Spec.OperationTimeout.Duration
		v.BadSpec = cmp.Or(
			checkSpec(o.Spec.OperationTimeout, "spec.targetVolume.namespace", o.Spec.TargetVolume.Namespace, "spec.targetVolume.pvc", o.Spec.TargetVolume.PVC),
			checkPatience(o.Spec.DataMoverConfig))
		v.Done = s.Progress.BytesDone
		v.Phase, v.Message, v.Node, v.Driver, v.Accepted, v.Started = s.Phase, s.Message, s.Node, s.AcceptedByNode, timeOf(s.AcceptedTimestamp), timeOf(s.StartTimestamp)
	default:
		return Object{}, fmt.Errorf("%T moves no data", o)
	}
	if v.Phase == "" {
		v.Phase = velerov2.PhaseNew
	}
	if v.OperationTimeout <= 0 {
		v.OperationTimeout = datamove.DefaultOperationTimeout
	}
	if r, err := datamove.DecodeReport(o.GetAnnotations()[datamove.AnnotationReport]); err == nil {
		v.Report = &r // what no pod of ours wrote is no report
	}
	text := o.GetAnnotations()[datamove.AnnotationDriver]
	if v.Phase == velerov2.PhaseNew && v.Driver == "" {
		text = "" // of another object, from which this one was copied
	}
	var err error
	v.Memory, err = decodeMemory(text)
	if bad := new(badMemoryError); errors.As(err, &bad) {
		// Nobody can say how far its driver was.
		v.Memory, err = memory{}, nil
		if !v.Phase.Ended() {
			v.Memory.Ending = &ending{Phase: velerov2.PhaseFailed, Message: bad.Error(), Reason: ReasonUnexpectedPhase}
		}
	}
	if note, err := datamove.DecodeNote(o.GetAnnotations()[datamove.AnnotationNote]); err == nil && note.Pod != "" &&
		note.Pod == v.Memory.Pod {
		v.Waiting = note.Waiting
	}
	return v, err
}

// checkSpec says what is wrong with a timeout and with the names of a namespace and of a claim in it, or "".
func checkSpec(timeout velerov1.Duration, namespaceField, namespace, claimField, claim string) string {
	if wrong := validation.ValidateNamespaceName(namespace, false); len(wrong) > 0 {
		return fmt.Sprintf("%s %.80q is no name of a namespace: %s", namespaceField, namespace, wrong[0])
	}
	if wrong := validation.NameIsDNSSubdomain(claim, false); len(wrong) > 0 {
		return fmt.Sprintf("%s %.80q is no name of a PersistentVolumeClaim: %s", claimField, claim, wrong[0])
	}
	if timeout.Invalid != "" {
		return fmt.Sprintf("spec.operationTimeout %.80q is no duration, such as 10m", timeout.Invalid)
	}
	return ""
}

// checkPatience says what is wrong with how long a mover pod is to wait for its storage, or "".
func checkPatience(config map[string]string) string {
	if _, err := datamove.ReadStoragePatience(config); err != nil {
		return err.Error()
	}
	return ""
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// Change is what a decision writes. It starts as what the object has.
type Change struct {
	Phase                        velerov2.Phase
	Message                      string
	Node, Driver                 string
	Accepted, Started, Completed time.Time
	Finalizer                    bool
	Memory                       memory
	// Begins: nobody has taken the object before, so what an exposer seems to remember on it was copied from another one.
	Begins bool
	// Result is a report whose results become the status'.
	Result *datamove.Report
}

func (o *Object) unchanged() Change {
	return Change{
		Phase: o.Phase, Message: o.Message, Node: o.Node, Driver: o.Driver, Accepted: o.Accepted, Started: o.Started, Finalizer: o.Finalizer, Memory: o.Memory,
	}
}

// applyTo writes the change into o, which is of the kind that it was decided for. Times that are zero stay as they are, and so
// does everything that is the mover's or Velero's.
func (c *Change) applyTo(o client.Object) {
	if c.Finalizer {
		controllerutil.AddFinalizer(o, datamove.Finalizer)
	} else {
		o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == datamove.Finalizer }))
	}
	annotations := o.GetAnnotations()
	if text := c.Memory.encode(); text != "" {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[datamove.AnnotationDriver] = text
	} else {
		delete(annotations, datamove.AnnotationDriver)
	}
	if c.Begins {
		delete(annotations, datamove.AnnotationExposed)
	}
	o.SetAnnotations(annotations)
	switch o := o.(type) {
	case *velerov2.DataUpload:
		s := &o.Status
		setPhase(&s.Phase, c.Phase)
		s.Message, s.Node, s.AcceptedByNode = c.Message, c.Node, c.Driver
		setTime(&s.AcceptedTimestamp, c.Accepted)
		setTime(&s.StartTimestamp, c.Started)
		setTime(&s.CompletionTimestamp, c.Completed)
		if c.Node != "" {
			s.NodeOS = velerov2.NodeLinux
		}
		if r := c.Result; r != nil {
			s.SnapshotID, s.IncrementalBytes, s.DataMoverResult = r.SnapshotID, r.IncrementalBytes, resultOf(r)
		}
	case *velerov2.DataDownload:
		s := &o.Status
		setPhase(&s.Phase, c.Phase)
		s.Message, s.Node, s.AcceptedByNode = c.Message, c.Node, c.Driver
		setTime(&s.AcceptedTimestamp, c.Accepted)
		setTime(&s.StartTimestamp, c.Started)
		setTime(&s.CompletionTimestamp, c.Completed)
	}
}

// resultOf is status.dataMoverResult: for people and for the deletion of the restore point. A restore does not get it.
func resultOf(r *datamove.Report) map[string]string {
	result := map[string]string{"storedBytes": strconv.FormatInt(r.StoredBytes, 10)}
	if r.Repository != "" {
		result[datamove.ResultRepository] = r.Repository
	}
	if r.FullReason != "" {
		result[datamove.ResultFullReason] = r.FullReason
	}
	if r.FullDetail != "" {
		result[datamove.ResultFullDetail] = r.FullDetail
	}
	return result
}

// setPhase leaves an absent phase absent if it stays New.
func setPhase(phase *velerov2.Phase, to velerov2.Phase) {
	if *phase != "" || to != velerov2.PhaseNew {
		*phase = to
	}
}

func setTime(t **metav1.Time, to time.Time) {
	if !to.IsZero() && (*t == nil || !(*t).Time.Equal(to)) {
		at := metav1.NewTime(to).Rfc3339Copy()
		*t = &at
	}
}
