package virtualmachinesnapshot

import (
	"cmp"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// The pauses between two looks at what nobody tells of: VolumeSnapshots while the guest is frozen for them and what is being
// removed, and the rest.
const (
	lookSoon  = 200 * time.Millisecond
	lookEvery = time.Second
)

// decision is what has to be done, in this order.
type decision struct {
	// finalizer: the snapshot gets its finalizer.
	finalizer bool
	// content is to be made. The status that names it comes after it.
	content *vmsnapshotv1.VirtualMachineSnapshotContent
	// status is the new status; nil: it stays.
	status *vmsnapshotv1.VirtualMachineSnapshotStatus
	// contentStatus is the content's new status; nil: it stays.
	contentStatus *vmsnapshotv1.VirtualMachineSnapshotContentStatus
	// cut: the VolumeSnapshots that are missing are to be made.
	cut bool
	// remove: what was made is to be deleted.
	remove bool
	// release: the snapshot loses its finalizer once nothing is left to remove.
	release bool
	// again is when to look again; 0: when the snapshot changes.
	again time.Duration
}

// decide says what a snapshot needs now.
func decide(in *input) decision {
	switch {
	case in.snapshot.DeletionTimestamp != nil:
		return in.decideDeletion()
	case isOver(in.snapshot):
		return decision{}
	case in.snapshot.HasFailed():
		return in.cleanUp()
	}
	if o := in.findFailure(); o != nil {
		return in.failSnapshot(o.message)
	}
	var o *obstacle
	var d decision
	switch {
	case !in.isPlanned():
		d, o = in.decidePlan()
	case in.status().CreationTime == nil:
		d, o = in.decideCut()
	default:
		d, o = in.decideEnd()
	}
	switch {
	case o == nil:
		return d
	case o.fails:
		return in.failSnapshot(o.message)
	case !in.now.Before(in.deadline()):
		return in.failSnapshot("snapshot deadline exceeded: waited " + failureDeadline(in.snapshot).String() + " for " + o.message)
	}
	if d.status == nil {
		d.status = in.status().DeepCopy()
	}
	setProgress(d.status, in.now, o.message)
	d.again = cmp.Or(d.again, reconcile.PollInterval(in.now.Sub(in.snapshot.CreationTimestamp.Time)))
	d.again = min(d.again, max(in.deadline().Sub(in.now), lookEvery))
	return d
}

// isOver says that a snapshot has ended, and that nothing is left to do for it until it is deleted.
func isOver(s *vmsnapshotv1.VirtualMachineSnapshot) bool {
	ended := s.IsReady() || s.HasFailed() && s.Status.VirtualMachineSnapshotContentName == nil
	return ended && s.Status.NodeName == ""
}

func failureDeadline(s *vmsnapshotv1.VirtualMachineSnapshot) time.Duration {
	if s.Spec.FailureDeadline != nil {
		return s.Spec.FailureDeadline.Duration
	}
	return vmsnapshotv1.DefaultFailureDeadline
}

func (in *input) deadline() time.Time {
	return in.snapshot.CreationTimestamp.Add(failureDeadline(in.snapshot))
}

// findFailure says what has become of a planned snapshot that cannot succeed any more, or returns nil.
func (in *input) findFailure() *obstacle {
	if !in.isPlanned() {
		return nil
	}
	content := in.ownContent()
	if content == nil || content.DeletionTimestamp != nil {
		return failWith("VirtualMachineSnapshotContent %s was deleted: create another snapshot",
			contentName(in.snapshot))
	}
	if in.notInstalled {
		return failWith("the kinds of snapshots (snapshot.storage.k8s.io) were removed from this cluster: create " +
			"another snapshot when they are back")
	}
	for _, v := range content.Spec.VolumeBackups {
		made := in.made[*v.VolumeSnapshotName]
		deleted := made == nil && in.status().CreationTime != nil || made != nil && made.DeletionTimestamp != nil
		if deleted {
			return failWith("VolumeSnapshot %s of volume %s was deleted: create another snapshot",
				*v.VolumeSnapshotName, v.VolumeName)
		}
	}
	if in.status().CreationTime != nil {
		return nil // the machine may do what it wants
	}
	return in.findChange()
}

// findChange says how the machine has changed since the plan, or returns nil.
func (in *input) findChange() *obstacle {
	name := in.snapshot.Namespace + "/" + in.snapshot.Spec.Source.Name
	planned := in.status().InstanceUID
	switch {
	case in.machine == nil || in.machine.GetUID() != ptr.Deref(in.status().SourceUID, ""):
		return failWith("virtual machine %s was deleted before the storage had all snapshots of it", name)
	case planned == "" && in.isRunning():
		return failWith("virtual machine %s was started before the storage had all snapshots of it: create "+
			"another snapshot", name)
	case planned != "" && (!in.isRunning() || in.instance.UID != planned):
		return failWith("virtual machine %s was stopped or restarted before the storage had all snapshots of it: "+
			"create another snapshot", name)
	case planned != "":
		return nil
	}
	for _, v := range in.content.Spec.VolumeBackups {
		before := v.PersistentVolumeClaim
		if now, there := in.claims[before.Name]; !there || !isUnused(before, now) {
			return failWith("virtual machine %s has run, or PersistentVolumeClaim %s was made again, before the "+
				"storage had all snapshots: create another snapshot", name, before.Name)
		}
	}
	return nil
}

// isUnused says that no guest of Varve's has begun to write to a claim since it was noted in the content.
func isUnused(before vmsnapshotv1.PersistentVolumeClaim, now claim) bool {
	return before.UID == now.UID &&
		before.Annotations[layout.AnnotationRunEpoch] == now.Annotations[layout.AnnotationRunEpoch]
}

// decidePlan begins the snapshot.
func (in *input) decidePlan() (decision, *obstacle) {
	if in.content != nil {
		if in.ownContent() == nil {
			return decision{}, failWith("VirtualMachineSnapshotContent %s is in the way, and was made by somebody "+
				"else: delete it, and create another snapshot", in.content.Name)
		}
		// Its controller ended before it could write the status. Nothing was made from it.
		return decision{finalizer: true, remove: true, again: lookSoon}, nil
	}
	freeze, o := freezeWanted(in.snapshot)
	if o != nil {
		return decision{}, o
	}
	if o := in.checkMachine(); o != nil {
		return decision{}, o
	}
	volumes, o := in.planVolumes()
	if o != nil {
		return decision{}, o
	}
	content, err := newContent(in, volumes)
	if err != nil {
		return decision{}, failWith("%v", err)
	}
	s := in.status().DeepCopy()
	s.Phase, s.ReadyToUse = vmsnapshotv1.InProgress, ptr.To(false)
	s.SourceUID, s.VirtualMachineSnapshotContentName = ptr.To(in.machine.GetUID()), ptr.To(content.Name)
	s.SnapshotVolumes = &vmsnapshotv1.SnapshotVolumesLists{ExcludedVolumes: volumes.excluded}
	for _, v := range volumes.included {
		s.SnapshotVolumes.IncludedVolumes = append(s.SnapshotVolumes.IncludedVolumes, v.VolumeName)
	}
	if in.isRunning() {
		s.InstanceUID = in.instance.UID
		in.planFreeze(s, freeze)
	}
	setProgress(s, in.now, "the freeze of the guest, and the storage")
	return decision{finalizer: true, content: content, status: s, again: lookSoon}, nil
}

// decideCut has the VolumeSnapshots made when the guest is frozen, and notes when all of them were taken.
func (in *input) decideCut() (decision, *obstacle) {
	if q := in.status().Quiesce; q != nil && q.Request == vmsnapshotv1.FreezeRequest && q.State == "" {
		limit := q.RequestTime.Add(in.freezePatience)
		if wait := limit.Sub(in.now); wait > 0 {
			return decision{again: min(wait, lookEvery)}, nil
		}
		// The thaw withdraws the request. A handler that freezes the guest after all undoes it.
		s := in.status().DeepCopy()
		requestThaw(s, in.now)
		return decision{status: s, again: lookSoon}, nil
	}
	pause := lookEvery
	if q := in.status().Quiesce; q != nil && in.now.Before(q.RequestTime.Add(2*in.freezePatience)) {
		pause = lookSoon // the guest may be frozen
	}
	taken, o := in.findTaken()
	switch {
	case len(in.made) < len(in.content.Spec.VolumeBackups):
		if in.now.Before(in.deadline()) {
			return decision{cut: true, again: lookSoon}, nil
		}
		return decision{}, waitFor("the API server to accept a VolumeSnapshot of each volume")
	case o != nil:
		return decision{again: pause, contentStatus: in.contentStatus()}, o
	}
	s := in.status().DeepCopy()
	s.CreationTime = taken
	requestThaw(s, in.now)
	return decision{status: s, contentStatus: in.contentStatus(), again: lookSoon}, nil
}

// findTaken returns when the storage had taken the last of the snapshots, or what is waited for.
func (in *input) findTaken() (*metav1.Time, *obstacle) {
	var last *metav1.Time
	for _, v := range in.content.Spec.VolumeBackups {
		made := in.made[*v.VolumeSnapshotName]
		at := takenAt(made)
		if at == nil {
			return nil, waitFor("the storage to take VolumeSnapshot %s of volume %s%s", *v.VolumeSnapshotName,
				v.VolumeName, errorOf(made))
		}
		if last == nil || last.Before(at) {
			last = at
		}
	}
	return last, nil
}

// takenAt returns when a snapshot was taken, or nil. A snapshot that can be used was taken, whatever its driver says of the
// time.
func takenAt(s *snapshotv1.VolumeSnapshot) *metav1.Time {
	switch {
	case s == nil || s.Status == nil:
		return nil
	case s.Status.CreationTime != nil:
		return s.Status.CreationTime
	case ptr.Deref(s.Status.ReadyToUse, false):
		return &s.CreationTimestamp
	}
	return nil
}

func isReady(s *snapshotv1.VolumeSnapshot) bool {
	return s != nil && s.Status != nil && ptr.Deref(s.Status.ReadyToUse, false)
}

// errorOf returns what the storage says is wrong with a snapshot, as the end of a sentence.
func errorOf(s *snapshotv1.VolumeSnapshot) string {
	if s == nil || s.Status == nil || s.Status.Error == nil {
		return ""
	}
	return " (" + ptr.Deref(s.Status.Error.Message, "its driver does not say why it failed") + ")"
}

// decideEnd notes what became of the freeze, and waits until every VolumeSnapshot can be used.
func (in *input) decideEnd() (decision, *obstacle) {
	s := in.status().DeepCopy()
	if !in.closeFreeze(s) {
		return decision{status: s, again: lookSoon},
			waitFor("the handler of node %s to say that the guest is thawed", s.NodeName)
	}
	for _, v := range in.content.Spec.VolumeBackups {
		if made := in.made[*v.VolumeSnapshotName]; !isReady(made) {
			return decision{status: s, contentStatus: in.contentStatus()},
				waitFor("VolumeSnapshot %s of volume %s to be ready to use%s", *v.VolumeSnapshotName, v.VolumeName,
					errorOf(made))
		}
	}
	setSucceeded(s, in.now)
	return decision{status: s, contentStatus: in.contentStatus()}, nil
}

// failSnapshot ends the snapshot. What was made goes with the next look.
func (in *input) failSnapshot(why string) decision {
	s := in.status().DeepCopy()
	setFailed(s, in.now, why)
	requestThaw(s, in.now)
	return decision{status: s, again: lookSoon}
}

// cleanUp removes what a snapshot that has failed has made.
func (in *input) cleanUp() decision {
	s := in.status().DeepCopy()
	closed := in.closeFreeze(s)
	if len(in.made) == 0 && in.ownContent() == nil {
		s.VirtualMachineSnapshotContentName = nil
	}
	d := decision{status: s, remove: true, again: lookSoon}
	switch {
	case closed && s.VirtualMachineSnapshotContentName == nil:
		d.again = 0
	case s.Error != nil && s.Error.Time != nil:
		d.again = removalPause(in.now.Sub(s.Error.Time.Time))
	}
	return d
}

// decideDeletion ends a snapshot that is deleted: the guest is thawed, and what was made goes, unless it is to stay.
func (in *input) decideDeletion() decision {
	if !controllerutil.ContainsFinalizer(in.snapshot, Finalizer) {
		return decision{}
	}
	s := in.status().DeepCopy()
	ready := in.snapshot.IsReady()
	s.Phase = vmsnapshotv1.Deleting
	requestThaw(s, in.now)
	closed := in.closeFreeze(s)
	stays := ready && ptr.Deref(in.snapshot.Spec.DeletionPolicy,
		vmsnapshotv1.DeleteContent) == vmsnapshotv1.RetainContent
	left := !stays && (len(in.made) > 0 || in.ownContent() != nil)
	if closed && !left {
		return decision{release: true}
	}
	waiting := "the storage to delete its snapshots"
	if !closed {
		waiting = "the handler of node " + s.NodeName + " to say that the guest is thawed"
	}
	setProgress(s, in.now, waiting)
	return decision{status: s, remove: !stays, again: removalPause(in.now.Sub(in.snapshot.DeletionTimestamp.Time))}
}

// removalPause returns the pause before another look at what is being removed.
func removalPause(since time.Duration) time.Duration { return min(max(since/8, lookSoon), time.Minute) }
