package pointdeletion

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

var testNow = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// newUpload returns a DataUpload that has made a restore point, and that was deleted a minute ago.
func newUpload(n int) upload {
	uid := types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", n))
	point, err := datamove.PointID(uid)
	if err != nil {
		panic(err)
	}
	return upload{
		NamespacedName: types.NamespacedName{Namespace: "velero", Name: fmt.Sprintf("b1-%d", n)}, UID: uid, Deleted: testNow.Add(-time.Minute), Completed: testNow.Add(-time.Hour),
		SnapshotID: datamove.SnapshotID{Form: datamove.Disk, Point: point, Namespace: "shop"}.String(), Repository: "r1", Backup: "b1", BackupUID: "b1-uid",
	}
}

func newInput() *input {
	return &input{
		Now: testNow, Location: datamove.Location{Namespace: "velero", Name: "default"}, Referring: map[string][]types.NamespacedName{},
		Repository: &velerov1.BackupRepository{
			ObjectMeta: metav1.ObjectMeta{Name: "repo-x", UID: "x", CreationTimestamp: metav1.NewTime(testNow.Add(-24 * time.Hour)), Annotations: map[string]string{datamove.AnnotationUniqueID: "r1"}},
			Status:     velerov1.BackupRepositoryStatus{Phase: velerov1.RepositoryReady},
		},
		Uploads: []upload{newUpload(1)},
	}
}

// after decides again with what was noted, some time later.
func (in *input) after(d decision, later time.Duration) decision {
	for i := range in.Uploads {
		if n, ok := d.Notes[in.Uploads[i].UID]; ok {
			in.Uploads[i].Deletion = n
		}
	}
	in.Now = in.Now.Add(later)
	return decide(in)
}

// ended is a Job that has ended for all uploads.
func (in *input) ended(kept map[string]datamove.Kept, failure string) {
	in.Job = &jobState{Points: map[string]bool{}, Ended: true, Report: datamove.DeletionReport{Kept: kept}, Failure: failure}
	for i := range in.Uploads {
		in.Job.Points[pointOf(&in.Uploads[i])] = true
	}
}

func TestDecide_whoMayDelete(t *testing.T) {
	t.Parallel()
	other := newUpload(2)
	for name, c := range map[string]struct {
		edit  func(*input, *upload)
		job   bool
		state datamove.DeletionState
		says  string
	}{
		"who made it":               {nil, true, datamove.DeletionWaits, "a Job deletes it"},
		"who was copied":            {func(_ *input, u *upload) { u.SnapshotID = other.SnapshotID }, false, datamove.DeletionLeft, "made by another DataUpload"},
		"a copy, for its backup":    {func(_ *input, u *upload) { u.SnapshotID, u.Deletion.ForBackup = other.SnapshotID, true }, true, datamove.DeletionWaits, ""},
		"who names nothing":         {func(_ *input, u *upload) { u.SnapshotID = "" }, false, datamove.DeletionLeft, "no restore point"},
		"who names another mover's": {func(_ *input, u *upload) { u.SnapshotID = "5f1d7c6a" }, false, datamove.DeletionLeft, "not written by"},
		"while another refers to it": {func(in *input, u *upload) {
			in.Referring[u.SnapshotID] = []types.NamespacedName{{Namespace: "velero", Name: "copy"}}
		}, false, datamove.DeletionWaits, "DataUpload velero/copy refers to"},
		"in another repository": {func(_ *input, u *upload) { u.Repository = "r0" }, false, datamove.DeletionWaits, "another repository"},
		"in who knows which repository": {func(in *input, u *upload) {
			u.Repository, u.Completed = "", in.Repository.CreationTimestamp.Add(-time.Second)
		}, false, datamove.DeletionLeft, "nobody knows"},
		"in the only repository there was": {func(_ *input, u *upload) { u.Repository = "" }, true, datamove.DeletionWaits, ""},
		"where nothing is ready": {func(in *input, _ *upload) {
			in.Repository.Status.Phase, in.Repository.Status.Message = velerov1.RepositoryNotReady, "the password does not open it"
		}, false, datamove.DeletionWaits, "the password does not open it"},
		"where nothing may be deleted":    {func(in *input, _ *upload) { in.ReadOnly = true }, false, datamove.DeletionWaits, "read-only"},
		"where the location is gone":      {func(in *input, _ *upload) { in.LocationGone, in.Repository = true, nil }, false, datamove.DeletionWaits, "is gone"},
		"where nobody has the repository": {func(in *input, _ *upload) { in.Repository = nil }, false, datamove.DeletionWaits, "is being opened"},
		"too early": {func(_ *input, u *upload) {
			u.Deletion.State, u.Deletion.RetryAt = datamove.DeletionWaits, ptrTo(testNow.Add(time.Minute))
		}, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInput()
			if c.edit != nil {
				c.edit(in, &in.Uploads[0])
			}
			d := decide(in)
			note := d.Notes[in.Uploads[0].UID]
			if (len(d.Points) > 0) != c.job || note.State != c.state || !strings.Contains(note.Message, c.says) {
				t.Errorf("%+v", d)
			}
			if !note.Over() && d.After <= 0 {
				t.Error("nobody looks again")
			}
			if d.MakeRepository != (name == "where nobody has the repository") {
				t.Error("makes a repository, or none")
			}
		})
	}
}

func ptrTo(at time.Time) *time.Time { return &at }

// What cannot be reached does not keep a namespace for ever, and what comes back is deleted.
func TestDecide_leavesWhatIsGoneForLong(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]func(*input){
		"the location":   func(in *input) { in.LocationGone = true },
		"the repository": func(in *input) { in.Repository.Annotations[datamove.AnnotationUniqueID] = "r2" },
	} {
		in := newInput()
		uid := in.Uploads[0].UID
		gone(in)
		d := in.after(decide(in), leaveAfter-time.Second)
		if n := d.Notes[uid]; n.Over() || len(d.Points) > 0 {
			t.Errorf("%s: left early: %+v", name, d)
		}
		// It is back for a moment: the time begins anew.
		good := newInput()
		good.Uploads, good.Now = in.Uploads, in.Now
		d = good.after(d, 0)
		if len(d.Points) != 1 || d.Notes[uid].Message == "" {
			t.Errorf("%s: %+v", name, d)
		}
		in.Uploads[0].Deletion = d.Notes[uid]
		if d = in.after(decide(in), leaveAfter-time.Second); d.Notes[uid].Over() {
			t.Errorf("%s: left early the second time: %+v", name, d)
		}
		d = in.after(d, time.Second)
		if n := d.Notes[uid]; n.State != datamove.DeletionLeft || len(d.Points) > 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// In a namespace that is being deleted nothing comes back. What can be deleted still is.
func TestDecide_holdsUpNoNamespaceThatEnds(t *testing.T) {
	t.Parallel()
	in := newInput()
	in.Ending = true
	if d := decide(in); len(d.Points) != 1 {
		t.Errorf("%+v", d)
	}
	in.ended(map[string]datamove.Kept{pointOf(&in.Uploads[0]): {Why: datamove.KeptBackupThere}}, "")
	if n := decide(in).Notes[in.Uploads[0].UID]; n.State != datamove.DeletionLeft {
		t.Errorf("%+v", n)
	}
	in.Job = nil
	in.Uploads[0].Deletion.Why = datamove.KeptBackupThere // seen before the namespace was deleted
	if n := decide(in).Notes[in.Uploads[0].UID]; n.State != datamove.DeletionLeft {
		t.Errorf("%+v", n)
	}
	in.Uploads[0].Deletion, in.LocationGone = datamove.PointDeletion{}, true
	if n := decide(in).Notes[in.Uploads[0].UID]; n.State != datamove.DeletionLeft {
		t.Errorf("%+v", n)
	}
}

// A reason counts from when it began to hold, and not another one.
func TestDecide_countsEachReasonAnew(t *testing.T) {
	t.Parallel()
	in := newInput()
	in.Repository.Annotations[datamove.AnnotationUniqueID] = "r2"
	d := in.after(decide(in), leaveAfter-time.Second)
	in.LocationGone = true
	d = in.after(d, time.Minute)
	if n := d.Notes[in.Uploads[0].UID]; n.Over() {
		t.Errorf("%+v", n)
	}
}

// A controller whose clock was days ahead, or the clock of the API server, has put times into the future.
func TestDecide_waitsForNoTimeThatAWrongClockWrote(t *testing.T) {
	t.Parallel()
	future := testNow.Add(72 * time.Hour)
	in := newInput()
	in.Uploads[0].Deletion.RetryAt = &future
	if d := decide(in); len(d.Points) != 1 {
		t.Errorf("not tried: %+v", d)
	}
	in = newInput()
	in.Uploads[0].Deleted = future
	if d := decide(in); len(d.Points) != 1 {
		t.Errorf("not tried: %+v", d)
	}
	in = newInput()
	in.LocationGone = true
	in.Uploads[0].Deletion = datamove.PointDeletion{State: datamove.DeletionWaits, Why: datamove.KeptLocationGone, Since: &future}
	d := in.after(decide(in), leaveAfter)
	if n := d.Notes[in.Uploads[0].UID]; n.State != datamove.DeletionLeft {
		t.Errorf("not left: %+v", d)
	}
}

func TestDecide_whatAJobHasDone(t *testing.T) {
	t.Parallel()
	point := pointOf(ptr1())
	later := testNow.Add(72 * time.Hour)
	soon := testNow.Add(time.Hour)
	for name, c := range map[string]struct {
		kept    *datamove.Kept
		failure string
		edit    func(*upload)
		state   datamove.DeletionState
		says    string
		retry   time.Duration
	}{
		"deleted":     {state: datamove.DeletionDone},
		"pinned":      {kept: &datamove.Kept{Why: datamove.KeptPinned}, state: datamove.DeletionWaits, says: "is pinned: unpin it", retry: firstRetry},
		"locked":      {kept: &datamove.Kept{Why: datamove.KeptLocked, Until: &soon}, state: datamove.DeletionWaits, says: "until 2026-11-24T13:00:00Z", retry: time.Hour},
		"locked long": {kept: &datamove.Kept{Why: datamove.KeptLocked, Until: &later}, state: datamove.DeletionWaits, says: "until 2026-11-27", retry: lockedRetry},
		"of another": {kept: &datamove.Kept{Why: datamove.KeptForeign}, edit: func(u *upload) {
			u.UID, u.Deletion.ForBackup = "00000000-0000-0000-0000-000000000009", true
		}, state: datamove.DeletionLeft, says: "another backup"},
		// The Job was for a DataUpload of another backup that names the restore point as well.
		"of another, for who made it": {kept: &datamove.Kept{Why: datamove.KeptForeign}, state: datamove.DeletionWaits, says: "again", retry: firstRetry},
		"backup there":                {kept: &datamove.Kept{Why: datamove.KeptBackupThere}, state: datamove.DeletionWaits, says: "backup b1", retry: firstRetry},
		"backup there for long": {kept: &datamove.Kept{Why: datamove.KeptBackupThere}, edit: func(u *upload) {
			u.Deletion.Why, u.Deletion.Since = datamove.KeptBackupThere, ptrTo(testNow.Add(-leaveAfter))
		}, state: datamove.DeletionLeft, says: "is in location velero/default"},
		"backup there for long, but asked for": {kept: &datamove.Kept{Why: datamove.KeptBackupThere}, edit: func(u *upload) {
			u.Deletion.Why, u.Deletion.Since, u.Deletion.ForBackup = datamove.KeptBackupThere, ptrTo(testNow.Add(-leaveAfter)), true
		}, state: datamove.DeletionWaits, says: "backup b1", retry: firstRetry},
		"a reason of later": {kept: &datamove.Kept{Why: "Moonlight"}, state: datamove.DeletionWaits, says: "Moonlight", retry: firstRetry},
		"failed":            {failure: "the server does not answer", state: datamove.DeletionWaits, says: "the server does not answer", retry: firstRetry},
		"failed again":      {failure: "x", edit: func(u *upload) { u.Deletion.Tries = 2 }, state: datamove.DeletionWaits, retry: 4 * firstRetry},
		"failed always":     {failure: "x", edit: func(u *upload) { u.Deletion.Tries = 1000 }, state: datamove.DeletionWaits, retry: lastRetry},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInput()
			if c.edit != nil {
				c.edit(&in.Uploads[0])
			}
			kept := map[string]datamove.Kept{}
			if c.kept != nil {
				kept[point] = *c.kept
			}
			in.ended(kept, c.failure)
			d := decide(in)
			n := d.Notes[in.Uploads[0].UID]
			if n.State != c.state || !strings.Contains(n.Message, c.says) || !d.DeleteJob || len(d.Points) > 0 {
				t.Errorf("%+v", d)
			}
			if c.retry == 0 != (n.RetryAt == nil) || n.RetryAt != nil && n.RetryAt.Sub(testNow) != c.retry {
				t.Errorf("again at %v, want in %s", n.RetryAt, c.retry)
			}
		})
	}
}

// A pass may end between the notes and the deletion of the Job. The next one does not count the Job again.
func TestDecide_countsAJobOnce(t *testing.T) {
	t.Parallel()
	in := newInput()
	u := &in.Uploads[0]
	u.Deletion = datamove.PointDeletion{Version: datamove.DeletionVersion, UID: u.UID, State: datamove.DeletionWaits, Tries: 2, RetryAt: ptrTo(testNow)}
	d := decide(in)
	if len(d.Points) != 1 {
		t.Fatalf("%+v", d)
	}
	d = in.after(d, time.Second)
	for _, kept := range []map[string]datamove.Kept{nil, {pointOf(u): {Why: datamove.KeptPinned}}} {
		failure := "x"
		if kept != nil {
			failure = ""
		}
		in.ended(kept, failure)
		d = in.after(d, time.Second)
		want := u.Deletion.Tries + 1
		for range 2 {
			d = in.after(d, time.Hour)
			if u.Deletion.Tries != want || u.Deletion.RetryAt == nil || !d.DeleteJob {
				t.Errorf("%+v, %+v: want %d tries", u.Deletion, d, want)
			}
		}
		in.Job = nil
		d = in.after(d, time.Hour)
	}
}

func ptr1() *upload { u := newUpload(1); return &u }

// The backup stays, and one Job after the other says so. The DataUpload goes after leaveAfter, counted from the first of them.
func TestDecide_countsABackupThatStaysOverAllJobs(t *testing.T) {
	t.Parallel()
	in := newInput()
	uid, kept := in.Uploads[0].UID, map[string]datamove.Kept{pointOf(&in.Uploads[0]): {Why: datamove.KeptBackupThere}}
	begun := in.Now
	d := decide(in)
	for jobs := 0; !d.Notes[uid].Over(); {
		if in.Now.Sub(begun) > 2*leaveAfter {
			t.Fatalf("it waits after %d Jobs: %+v", jobs, d)
		}
		if len(d.Points) == 0 {
			in.Job = nil
			d = in.after(d, firstRetry)
			continue
		}
		jobs++
		d = in.after(d, time.Second)
		in.ended(kept, "")
		d = in.after(d, time.Second)
	}
	if n := d.Notes[uid]; n.State != datamove.DeletionLeft || in.Now.Sub(begun) < leaveAfter {
		t.Errorf("after %s: %+v", in.Now.Sub(begun), n)
	}
}

// A Job that runs, or that is of before, has deleted nothing.
func TestDecide_waitsForTheJob(t *testing.T) {
	t.Parallel()
	in := newInput()
	in.Uploads = append(in.Uploads, newUpload(2))
	in.Job = &jobState{Points: map[string]bool{pointOf(&in.Uploads[0]): true}}
	d := decide(in)
	if d.DeleteJob || len(d.Points) > 0 || d.Notes[in.Uploads[0].UID].Message != "a Job deletes it" || d.Notes[in.Uploads[1].UID].Message != "a Job deletes other restore points" {
		t.Errorf("%+v", d)
	}
	in.Job.Ended = true
	d = decide(in)
	if !d.DeleteJob || d.Notes[in.Uploads[0].UID].State != datamove.DeletionDone || d.Notes[in.Uploads[1].UID].Over() {
		t.Errorf("%+v", d)
	}
	in.Job.Foreign = true
	d = decide(in)
	if d.Notes[in.Uploads[0].UID].Over() {
		t.Errorf("the Job of another BackupRepository counts: %+v", d)
	}
}

func TestDecide_deletesManyAtOnce(t *testing.T) {
	t.Parallel()
	in := newInput()
	in.Uploads = nil
	for i := range datamove.DeletionLimit + 3 {
		u := newUpload(i + 1)
		u.Deleted = testNow
		in.Uploads = append(in.Uploads, u)
	}
	if d := decide(in); len(d.Points) != datamove.DeletionLimit || len(d.Notes) != datamove.DeletionLimit {
		t.Errorf("%d restore points, %d notes", len(d.Points), len(d.Notes))
	}
	in.Uploads = in.Uploads[:2]
	d := decide(in)
	if len(d.Points) > 0 || d.After > settle {
		t.Errorf("it does not wait for others: %+v", d)
	}
	if d = in.after(d, settle); len(d.Points) != 2 || d.Points[0].Backup != "" || d.Repository != "r1" {
		t.Errorf("%+v", d)
	}
}

// Velero made one of the two again from the backup. The restore point is deleted once, for who made it.
func TestDecide_asksOnceForARestorePoint(t *testing.T) {
	t.Parallel()
	in := newInput()
	again := newUpload(2)
	again.SnapshotID, again.Deletion.ForBackup, again.Deleted = in.Uploads[0].SnapshotID, true, time.Time{}
	in.Uploads = []upload{again, in.Uploads[0]}
	d := decide(in)
	if len(d.Points) != 1 || d.Points[0].Backup != "" {
		t.Errorf("%+v", d.Points)
	}
	in.Uploads = in.Uploads[:1]
	if d := decide(in); len(d.Points) != 1 || d.Points[0] != (datamove.PointToDelete{ID: pointOf(&again), Backup: "b1", BackupUID: "b1-uid"}) {
		t.Errorf("%+v", d.Points)
	}
	in.ended(nil, "")
	if n := decide(in).Notes[again.UID]; n.State != datamove.DeletionDone || !n.ForBackup {
		t.Errorf("%+v", n)
	}
}
