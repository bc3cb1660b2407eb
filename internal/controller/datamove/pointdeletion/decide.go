package pointdeletion

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

const (
	// leaveAfter is how long a reason must hold for which a restore point is left. Velero deletes DataUploads before it has deleted the
	// backup from the location, and a location can be made again.
	leaveAfter = 10 * time.Minute
	// firstRetry is the pause after a deletion in vain. It doubles up to lastRetry.
	firstRetry, lastRetry = 15 * time.Second, 30 * time.Minute
	// lookEvery is the pause between two looks at what no watch tells of.
	lookEvery = 30 * time.Second
	// quietStart is how long a Job may take to run until its restore points say what it waits for.
	quietStart = 10 * time.Second
	// settle is how long a Job waits for more restore points: Velero deletes the DataUploads of a backup one after the other.
	settle = 3 * time.Second
)

// upload is a DataUpload whose restore point is to be deleted.
type upload struct {
	types.NamespacedName
	UID types.UID
	// Deleted and Completed are its timestamps; zero: none.
	Deleted, Completed time.Time
	SnapshotID         string
	// Repository is the unique ID of the repository that it was stored in; "" if a mover of before has not said so.
	Repository string
	// Backup and BackupUID are the values of Velero's labels.
	Backup, BackupUID string
	Deletion          datamove.PointDeletion
}

// input is all that decide looks at: the restore points of one repository that are to be deleted.
type input struct {
	Now time.Time
	// LocationGone: the API server says that there is no such location. ReadOnly: nothing may be deleted in it.
	LocationGone, ReadOnly bool
	Location               datamove.Location
	// Ending: the namespace of location and DataUploads is being deleted, so that nothing in it comes back.
	Ending bool
	// Repository is nil if there is no BackupRepository.
	Repository *velerov1.BackupRepository
	Uploads    []upload
	// Referring has, by snapshotID, the names of DataUploads that refer to it and that nobody deletes.
	Referring map[string][]types.NamespacedName
	// Job is nil if there is none.
	Job *jobState
	// NoPlace: as many Jobs as may be delete restore points of other repositories.
	NoPlace bool
}

// jobState is what is known of the Job.
type jobState struct {
	// Foreign: it is of an earlier BackupRepository, and about to be collected.
	Foreign bool
	Points  map[string]bool
	// Waiting is why it does not run, if that lasts.
	Waiting string
	// Ended: Report has how, or Failure why it is not known to have succeeded.
	Ended   bool
	Report  datamove.DeletionReport
	Failure string
}

// decision is what is to be done. Notes are written first.
type decision struct {
	// Notes are what to write on DataUploads. Those that stay the same are not among them.
	Notes map[types.UID]datamove.PointDeletion
	// MakeRepository makes the BackupRepository. DeleteJob deletes the Job. Points are what a new Job deletes, in Repository, for the
	// DataUploads in Chosen.
	MakeRepository, DeleteJob bool
	Points                    []datamove.PointToDelete
	Repository                string
	Chosen                    []types.UID
	// Due is since when a Job is due, if there are Points.
	Due time.Time
	// After is when to look again; 0: when something changes.
	After time.Duration
}

// decide says what is to be done.
func decide(in *input) decision {
	d := decision{Notes: map[types.UID]datamove.PointDeletion{}}
	d.look(lookEvery, len(in.Uploads) > 0)
	var ready []*upload
	for i := range in.Uploads {
		u := &in.Uploads[i]
		note, ok := judge(in, u)
		if ok {
			ready = append(ready, u)
			continue
		}
		d.note(u, note)
	}
	switch {
	case in.Job != nil:
		d.followJob(in, ready)
	case len(ready) > 0 && in.Repository == nil:
		d.MakeRepository = true
		d.noteAll(ready, "the repository is being opened")
	case len(ready) > 0:
		d.chooseDue(in, ready)
	}
	return d
}

// look looks again after a time at the latest.
func (d *decision) look(after time.Duration, whether bool) {
	if whether && (d.After == 0 || after < d.After) {
		d.After = max(after, time.Second)
	}
}

// note says something of an upload if it is news.
func (d *decision) note(u *upload, n datamove.PointDeletion) {
	n.Version, n.UID, n.ForBackup = datamove.DeletionVersion, u.UID, u.Deletion.ForBackup
	if n.Encode() != u.Deletion.Encode() {
		d.Notes[u.UID] = n
	}
}

// noteAll says what is waited for.
func (d *decision) noteAll(uploads []*upload, message string) {
	for _, u := range uploads {
		d.note(u, waitsFor(u, message))
	}
}

// noteJob says that a Job deletes the restore point of an upload, or what the Job waits for. RetryAt comes back with what the Job did in vain.
func (d *decision) noteJob(u *upload, waiting string) {
	message := "a Job deletes it"
	if waiting != "" {
		message = "a Job that is to delete it does not run: " + waiting
	}
	n := waitsFor(u, message)
	n.RetryAt = nil
	d.note(u, n)
}

// noteOutcome says what a Job did. A try in vain that has a RetryAt was counted by a pass that could not delete the Job.
func (d *decision) noteOutcome(u *upload, n datamove.PointDeletion) {
	if n.State == datamove.DeletionWaits && u.Deletion.RetryAt != nil {
		return
	}
	d.note(u, n)
}

// waitsFor says what is waited for. What was learned from tries stays.
func waitsFor(u *upload, message string) datamove.PointDeletion {
	n := u.Deletion
	n.State, n.Message = datamove.DeletionWaits, message
	if n.Why != datamove.KeptBackupThere { // which the next Job sees
		n.Why, n.Since = "", nil
	}
	return n
}

// judge says whether a Job may delete the restore point of an upload, or what is to be said instead.
func judge(in *input, u *upload) (note datamove.PointDeletion, ok bool) {
	id, err := datamove.ParseSnapshotID(u.SnapshotID)
	switch {
	case u.SnapshotID == "":
		return left("the DataUpload names no restore point"), false
	case err != nil:
		return left(err.Error()), false
	case !owns(u, id.Point) && !u.Deletion.ForBackup:
		return left("restore point " + id.Point + " was made by another DataUpload: it is deleted with that one, or with its backup"), false
	case in.LocationGone:
		return leaveLater(in, u, datamove.KeptLocationGone, fmt.Sprintf("location %s is gone; restore point %s stays in it", in.Location, id.Point)), false
	}
	if in.Ending && u.Deletion.Why == datamove.KeptBackupThere {
		return leaveLater(in, u, datamove.KeptBackupThere, u.Deletion.Message), false
	}
	if others := in.Referring[u.SnapshotID]; len(others) > 0 {
		return waits(u, fmt.Sprintf("DataUpload %s refers to restore point %s as well: delete that one", others[0], id.Point)), false
	}
	switch r := in.Repository; {
	case in.ReadOnly:
		return waits(u, fmt.Sprintf("location %s is read-only", in.Location)), false
	case r == nil:
		return datamove.PointDeletion{}, true
	case r.Status.Phase != velerov1.RepositoryReady:
		return waits(u, "the repository is not ready: "+r.Status.Message), false
	case u.Repository != "" && u.Repository != uniqueID(r):
		return leaveLater(in, u, datamove.KeptReplaced, fmt.Sprintf("location %s has another repository than %s, in which restore point %s is", in.Location, u.Repository, id.Point)), false
	case u.Repository == "" && !r.CreationTimestamp.Time.Before(u.Completed):
		return left("nobody knows whether restore point " + id.Point + " is in the repository that location " + in.Location.String() + " has now"), false
	}
	return datamove.PointDeletion{}, true
}

// owns says that the upload made the restore point.
func owns(u *upload, point string) bool {
	own, err := datamove.PointID(u.UID)
	return err == nil && own == point
}

func uniqueID(r *velerov1.BackupRepository) string { return r.Annotations[datamove.AnnotationUniqueID] }

func left(message string) datamove.PointDeletion {
	return datamove.PointDeletion{State: datamove.DeletionLeft, Message: message}
}

func waits(u *upload, message string) datamove.PointDeletion {
	return datamove.PointDeletion{State: datamove.DeletionWaits, Message: message, Tries: u.Deletion.Tries, RetryAt: u.Deletion.RetryAt}
}

// leaveLater waits while a reason is new, and leaves the restore point when it has held for long.
func leaveLater(in *input, u *upload, why datamove.KeptReason, message string) datamove.PointDeletion {
	n := waits(u, message)
	n.Why, n.Since = why, u.Deletion.Since
	if u.Deletion.Why != why || n.Since == nil || n.Since.After(in.Now) { // a clock that was ahead has written it
		now := in.Now.UTC().Truncate(time.Second)
		n.Since = &now
	}
	if in.Ending || in.Now.Sub(*n.Since) >= leaveAfter {
		n.State, n.RetryAt = datamove.DeletionLeft, nil
	}
	return n
}

// chooseDue chooses what a Job deletes.
func (d *decision) chooseDue(in *input, ready []*upload) {
	var due []*upload
	settled := false
	for _, u := range ready {
		// No pause is longer than lockedRetry: a clock that was ahead has written what is.
		if at := u.Deletion.RetryAt; at != nil && at.After(in.Now) && at.Sub(in.Now) <= lockedRetry {
			d.look(at.Sub(in.Now), true)
			continue
		}
		due = append(due, u)
		age := in.Now.Sub(u.Deleted) // by the clock of the API server
		settled = settled || age >= settle || age < -settle
	}
	points := pointsOf(due)
	if len(points) == 0 {
		return
	}
	if !settled && len(points) < datamove.DeletionLimit {
		d.look(time.Second, true)
		return
	}
	if in.NoPlace {
		d.noteAll(due, "it waits for Jobs that delete restore points of other repositories")
		return
	}
	d.Points, d.Repository, d.Due = points, uniqueID(in.Repository), dueSince(due)
	chosen := map[string]bool{}
	for _, p := range points {
		chosen[p.ID] = true
	}
	for _, u := range due {
		if chosen[pointOf(u)] {
			d.Chosen = append(d.Chosen, u.UID)
			d.noteJob(u, "")
		}
	}
}

// dueSince returns since when the first of the uploads waits for a Job. A try in vain puts it behind others.
func dueSince(due []*upload) (first time.Time) {
	for _, u := range due {
		at := u.Deleted
		if retry := u.Deletion.RetryAt; retry != nil && retry.After(at) {
			at = *retry
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

func pointOf(u *upload) string {
	id, _ := datamove.ParseSnapshotID(u.SnapshotID) // judge has read it
	return id.Point
}

// pointsOf returns the restore points of uploads, each once. Whoever made it may have it deleted whatever its backup.
func pointsOf(uploads []*upload) (points []datamove.PointToDelete) {
	at := map[string]int{}
	for _, u := range uploads {
		p := datamove.PointToDelete{ID: pointOf(u)}
		if !owns(u, p.ID) {
			p.Backup, p.BackupUID = u.Backup, u.BackupUID
		}
		if i, ok := at[p.ID]; ok {
			if p.Backup == "" {
				points[i] = p
			}
		} else if len(points) < datamove.DeletionLimit {
			at[p.ID] = len(points)
			points = append(points, p)
		}
	}
	return points
}

// followJob says what a Job does, or what it did.
func (d *decision) followJob(in *input, ready []*upload) {
	job := in.Job
	if job.Ended {
		d.DeleteJob, d.After = true, time.Second
	}
	for _, u := range ready {
		switch {
		case job.Foreign || !job.Points[pointOf(u)]:
			if u.Deletion.State == "" {
				d.noteAll([]*upload{u}, "a Job deletes other restore points")
			}
		case !job.Ended:
			d.noteJob(u, job.Waiting)
		case job.Failure != "":
			d.noteOutcome(u, again(in, u, datamove.PointDeletion{Message: job.Failure}))
		default:
			d.noteOutcome(u, outcome(in, u))
		}
	}
}

// outcome returns what a Job that succeeded did with a restore point.
func outcome(in *input, u *upload) datamove.PointDeletion {
	point := pointOf(u)
	kept, ok := in.Job.Report.Kept[point]
	if !ok {
		return datamove.PointDeletion{State: datamove.DeletionDone}
	}
	switch kept.Why {
	case datamove.KeptPinned:
		return again(in, u, datamove.PointDeletion{Message: "restore point " + point + " is pinned: unpin it with `varve disk unpin`"})
	case datamove.KeptLocked:
		n := again(in, u, datamove.PointDeletion{Message: "the storage locks restore point " + point})
		if kept.Until != nil {
			n.Message += " until " + kept.Until.Format(time.RFC3339)
			if lastLook := in.Now.Add(lockedRetry); kept.Until.After(in.Now) && kept.Until.Before(lastLook) {
				n.RetryAt = kept.Until
			} else {
				n.RetryAt = &lastLook
			}
		}
		return n
	case datamove.KeptBackupThere:
		n := leaveLater(in, u, kept.Why, fmt.Sprintf("backup %s, which restore point %s belongs to, is in location %s", u.Backup, point, in.Location))
		if n.State == datamove.DeletionLeft && !u.Deletion.ForBackup {
			return n // it is collected when the backup is gone
		}
		return again(in, u, n)
	case datamove.KeptForeign:
		if owns(u, point) {
			return again(in, u, datamove.PointDeletion{Message: "the Job was asked for restore point " + point + " by a DataUpload of another backup: it is asked for again"})
		}
		return left("restore point " + point + " belongs to another backup")
	case datamove.KeptLocationGone, datamove.KeptReplaced: // no Job says so
	}
	return again(in, u, datamove.PointDeletion{Message: fmt.Sprintf("restore point %s is kept: %s", point, kept.Why)})
}

// lockedRetry is the longest pause until a locked restore point is tried again: a lock can be taken away.
const lockedRetry = 6 * time.Hour

// again has a Job try again later.
func again(in *input, u *upload, n datamove.PointDeletion) datamove.PointDeletion {
	n.State, n.Tries = datamove.DeletionWaits, u.Deletion.Tries+1
	pause := firstRetry
	for range min(u.Deletion.Tries, 20) {
		pause = min(2*pause, lastRetry)
	}
	at := in.Now.Add(pause).UTC().Truncate(time.Second)
	n.RetryAt = &at
	return n
}
