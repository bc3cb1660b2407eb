package agent

import (
	"fmt"
	"time"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/handover"
)

// action is what the agent does next for a copy.
type action string

const (
	actionNone         action = ""
	actionCreateSource action = "create the head for the source"
	actionSeal         action = "seal what the source wrote"
	actionCloneImage   action = "make a clone of another image"
	actionSealClone    action = "seal a clone of another image"
	actionExport       action = "seal what a volume has"
	actionSync         action = "read the copy of another disk"
	// actionDeleteHeads removes what a copy that is ready was made from.
	actionDeleteHeads action = "delete the heads of a copy that is ready"
	// actionDeleteSource removes what a source wrote that is not the image.
	actionDeleteSource action = "delete the head of a source that failed"
	// actionGiveUp ends a copy in the making, which has failed. Its heads are deleted when nobody uses them any more.
	actionGiveUp action = "end a copy that the disk has no space for"
)

// view is all that a decision about the copy of an image on a disk depends on.
type view struct {
	image    *longhornv1.BackingImage
	diskUUID string
	// free is how many bytes may be added to the disk.
	free int64
	// copy is the object with the name and the UUID of the image. source and making are the heads of the first and of a
	// further copy.
	copy, source, making *disk.Object
	sourceUsers          int
	record               handover.Record
	recordErr            error // of origin, too
	origin               origin
	realSize             int64
	// mayRepair: the copy is damaged, and may soon be repaired.
	mayRepair bool
	state     *copyState
	now       time.Time
}

// decision is what to report of a copy, and what to do for it.
type decision struct {
	action
	state    longhornv1.BackingImageState
	progress int
	message  string
}

func pending(message string) decision {
	return decision{state: longhornv1.StatePending, message: message}
}

func failed(message string) decision {
	return decision{state: longhornv1.StateFailed, message: message}
}

func inProgress(do action, progress int, message string) decision {
	return decision{action: do, state: longhornv1.StateInProgress, progress: progress, message: message}
}

// decide says what to do for a copy that the image's spec.diskFileSpecMap has.
func decide(v view) decision {
	switch c := v.copy; {
	case c == nil:
		return decideMaking(v)
	case c.State == disk.StateDamaged && v.mayRepair:
		return inProgress(actionNone, 99, "the copy is damaged, and is repaired from another one")
	case c.State != disk.StateReady:
		return failed("the copy is " + string(c.State) + ": remove the disk from spec.diskFileSpecMap, so that the copy is " +
			"deleted, and add it again")
	}
	d := decision{state: longhornv1.StateReady, progress: 100}
	if v.source != nil || v.making != nil {
		d.action = actionDeleteHeads
	}
	return d
}

// decideMaking is decide for a copy that is not there yet.
func decideMaking(v view) decision {
	readyElsewhere := len(readyDisks(v.image, v.diskUUID)) > 0
	status := v.image.Status
	isFirst := isFirstCopy(v.image, v.diskUUID)
	v.state.forgetFailure(v.now, isFirst, status.FirstCopyAttempts)
	switch {
	case v.state.failure != "":
		return decideFailed(v)
	case v.free < 0 && isFilling(v):
		d := failed("less is free on the disk than spec.disks[].storageReserved of its Node, so what was written of the copy " +
			"is deleted: free or add space")
		d.action = actionGiveUp
		return d
	case v.state.job != nil:
		return inProgress(actionNone, v.state.job.percent(), v.state.job.describe(v.state.lastError))
	case v.now.Before(v.state.retryAt):
		return inProgress(actionNone, v.state.progress, v.state.describeRetry())
	case v.source == nil && v.making == nil && v.free <= status.RealSize:
		return pending(fmt.Sprintf("the copy takes %d bytes or more, which the disk does not have beside its "+
			"storageReserved: free or add space", status.RealSize))
	case readyElsewhere && status.Checksum == "":
		return pending("status.checksum of the image is not known yet")
	case readyElsewhere:
		return inProgress(actionSync, v.state.progress, v.state.lastError)
	case isFirst:
		return decideFirst(v)
	}
	return pending("no other disk has a copy that is ready")
}

// isFilling reports whether a copy that is being made takes more and more of the disk. A source that is complete, or is
// a clone of what the disk has, does not.
func isFilling(v view) bool {
	syncing := v.state.job != nil && v.state.job.what == actionSync
	writing := v.source != nil && !v.record.Complete && !v.image.Spec.SourceType.IsLocal()
	return syncing || v.making != nil || writing
}

// decideFailed is decide for a copy that has failed.
func decideFailed(v view) decision {
	d := failed(v.state.failure)
	switch {
	case v.state.gaveUp && (v.source != nil || v.making != nil):
		d.action = actionDeleteHeads
	case v.source != nil:
		d.action = actionDeleteSource
	}
	return d
}

// decideFirst is decide for the first copy.
func decideFirst(v view) decision {
	switch isLocal := v.image.Spec.SourceType.IsLocal(); {
	case isLocal && v.recordErr != nil:
		return inProgress(actionNone, v.state.progress, v.recordErr.Error())
	case v.image.Spec.SourceType == longhornv1.SourceClone:
		return decideClone(v)
	case isLocal:
		return decideExport(v)
	}
	return decideWritten(v)
}

// decideWritten is decideFirst while a source pod writes the image.
func decideWritten(v view) decision {
	attached := v.sourceUsers > 0
	switch {
	case v.source == nil:
		return inProgress(actionCreateSource, 0, v.state.lastError)
	case v.source.State != disk.StateWritable:
		d := failed("what the source wrote is damaged")
		d.action = actionDeleteSource
		return d
	case v.recordErr != nil && attached: // it may be in the middle of being written
		return inProgress(actionNone, v.state.progress, v.recordErr.Error())
	case v.recordErr != nil:
		return failed(v.recordErr.Error())
	case !v.record.Complete && v.record.Waits && attached:
		return inProgress(actionNone, v.record.Percent(), "it waits for `varve image upload "+v.image.Name+" FILE`")
	case !v.record.Complete:
		return inProgress(actionNone, v.record.Percent(), "")
	case attached:
		return inProgress(actionNone, 99, "it is complete, and is sealed when its source has detached it")
	}
	return inProgress(actionSeal, 99, v.state.lastError)
}

// isFirstCopy reports whether the copy on a disk is the image's first one, which is being made.
func isFirstCopy(image *longhornv1.BackingImage, diskUUID string) bool {
	s := image.Status
	return s.V2FirstCopyDisk == diskUUID && s.V2FirstCopyStatus == longhornv1.StateInProgress
}

// readyDisks returns the disks beside one that have a copy that is ready, as the image's status says.
func readyDisks(image *longhornv1.BackingImage, except string) []string {
	var ready []string
	for uuid, copied := range image.Status.DiskFileStatusMap {
		if uuid != except && copied != nil && copied.State == longhornv1.StateReady {
			ready = append(ready, uuid)
		}
	}
	return ready
}

// isUnwanted reports whether a copy of an image with a UUID on a disk is to be deleted. A copy of an image that is not
// there, or that has another UUID, never is.
func isUnwanted(image *longhornv1.BackingImage, uuid, diskUUID string) bool {
	if image == nil || uuid == "" || image.Status.UUID != uuid {
		return false
	}
	_, wanted := image.Spec.DiskFileSpecMap[diskUUID]
	return !wanted || image.DeletionTimestamp != nil
}
