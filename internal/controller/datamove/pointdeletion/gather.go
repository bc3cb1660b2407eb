package pointdeletion

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/backuprepository"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/diagnosis"
	"github.com/varvebackup/varve/internal/reconcile"
)

// isWanted says that the restore point of a DataUpload is to be deleted: it has ended and its driver waits, or a
// DeleteBackupRequest has asked.
func isWanted(o *velerov2.DataUpload) bool {
	d := datamove.PointDeletionOf(o)
	waiting := o.DeletionTimestamp != nil && controllerutil.ContainsFinalizer(o, datamove.Finalizer) && mayHavePoint(o)
	return (waiting || d.ForBackup) && !d.Over()
}

// mayHavePoint says that a DataUpload has ended with a restore point, or after its mover had begun: such a mover may
// have published one without being able to say so.
func mayHavePoint(o *velerov2.DataUpload) bool {
	return o.Status.Phase == velerov2.PhaseCompleted || o.Status.Phase.Ended() && o.Status.StartTimestamp != nil
}

// snapshotIDOf returns the ID of the restore point. One that did not say so has that of its UID, if it has any.
func snapshotIDOf(o *velerov2.DataUpload) string {
	point, err := datamove.PointID(o.UID)
	if o.Status.SnapshotID != "" || err != nil || o.Status.Phase == velerov2.PhaseCompleted || !mayHavePoint(o) {
		return o.Status.SnapshotID
	}
	return datamove.SnapshotID{Form: datamove.Disk, Point: point, Namespace: o.Spec.SourceNamespace}.String()
}

// repositoryOf returns the name of the repository that a DataUpload's restore point is in.
func repositoryOf(o *velerov2.DataUpload) string {
	namespace := o.Spec.SourceNamespace
	if id, err := datamove.ParseSnapshotID(o.Status.SnapshotID); err == nil {
		namespace = id.Namespace // a restore reads it there
	}
	return datamove.RepositoryName(namespace, locationOf(o))
}

func locationOf(o *velerov2.DataUpload) datamove.Location {
	return datamove.Location{Namespace: o.Namespace, Name: o.Spec.BackupStorageLocation}
}

func viewOf(o *velerov2.DataUpload) upload {
	u := upload{
		NamespacedName: client.ObjectKeyFromObject(o), UID: o.UID, SnapshotID: snapshotIDOf(o),
		Repository: o.Status.DataMoverResult[datamove.ResultRepository],
		Backup:     o.Labels[datamove.LabelBackupName], BackupUID: o.Labels[datamove.LabelBackupUID],
		Deletion: datamove.PointDeletionOf(o),
	}
	for to, from := range map[*time.Time]*metav1.Time{&u.Deleted: o.DeletionTimestamp, &u.Completed: o.Status.CompletionTimestamp} {
		if from != nil {
			*to = from.Time
		}
	}
	return u
}

// gather reads what is to be deleted in a repository. objects are the DataUploads by UID.
func (r *repositories) gather(ctx context.Context, name string) (in *input, objects map[types.UID]*velerov2.DataUpload, job *batchv1.Job, err error) {
	var list velerov2.DataUploadList
	if err := r.cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, nil, fmt.Errorf("list DataUploads: %w", err)
	}
	in = &input{Now: r.Clock.Now(), Referring: map[string][]types.NamespacedName{}}
	objects = map[types.UID]*velerov2.DataUpload{}
	for i := range list.Items {
		o := &list.Items[i]
		switch {
		case o.Status.SnapshotID != "" && repositoryOf(o) != name, o.Status.SnapshotID == "" && !isWanted(o):
		case isWanted(o) && repositoryOf(o) == name:
			in.Location, objects[o.UID] = locationOf(o), o.DeepCopy()
			in.Uploads = append(in.Uploads, viewOf(o))
		case o.DeletionTimestamp == nil && !datamove.PointDeletionOf(o).ForBackup:
			in.Referring[o.Status.SnapshotID] = append(in.Referring[o.Status.SnapshotID], client.ObjectKeyFromObject(o))
		}
	}
	slices.SortFunc(in.Uploads, func(a, b upload) int { return strings.Compare(a.String(), b.String()) })
	if in.Repository, err = reconcile.Find(ctx, r.cached, types.NamespacedName{Namespace: r.Namespace, Name: name}, &velerov1.BackupRepository{}); err != nil {
		return nil, nil, nil, err
	}
	if len(in.Uploads) > 0 {
		if err := r.readLocation(ctx, in); err != nil {
			return nil, nil, nil, err
		}
	}
	job, err = r.readJob(ctx, in, name)
	return in, objects, job, err
}

// readLocation reads the location and its namespace. That there is none is believed of the API server alone.
func (r *repositories) readLocation(ctx context.Context, in *input) error {
	found, err := reconcile.Find(ctx, r.cached, in.Location, &velerov1.BackupStorageLocation{})
	if err == nil && found == nil {
		found, err = reconcile.Find(ctx, r.live, in.Location, &velerov1.BackupStorageLocation{})
	}
	if err != nil {
		return err
	}
	in.LocationGone, in.ReadOnly = found == nil, found != nil && found.Spec.AccessMode == velerov1.AccessReadOnly
	namespace, err := reconcile.Find(ctx, r.cached, types.NamespacedName{Name: in.Location.Namespace}, &corev1.Namespace{})
	in.Ending = namespace != nil && namespace.DeletionTimestamp != nil
	return err
}

// readJob reads the Job of a repository, and what its pod said at its end, or why there is none.
func (r *repositories) readJob(ctx context.Context, in *input, repository string) (*batchv1.Job, error) {
	key := types.NamespacedName{Namespace: r.Namespace, Name: datamove.DeletionJobName(repository)}
	// The cache may not have yet what the last pass has made or deleted.
	job, err := reconcile.Find(ctx, r.live, key, &batchv1.Job{})
	if err != nil || job == nil {
		return nil, err
	}
	state := &jobState{Points: map[string]bool{}}
	in.Job = state
	owner := metav1.GetControllerOfNoCopy(job)
	state.Foreign = job.DeletionTimestamp != nil || owner == nil || in.Repository != nil && owner.UID != in.Repository.UID
	for _, v := range job.Spec.Template.Spec.Containers[0].Env {
		if v.Name != datamove.DeletionVariable {
			continue
		}
		if asked, err := datamove.DecodeDeletionJob(v.Value); err == nil {
			for _, p := range asked.Points {
				state.Points[p.ID] = true
			}
		}
	}
	if err := r.readEnd(ctx, state, job); err != nil {
		return nil, err
	}
	if !state.Ended && !state.Foreign && ptr.Deref(job.Status.Ready, 0) == 0 && in.Now.Sub(job.CreationTimestamp.Time) >= quietStart {
		state.Waiting = diagnosis.WhyJobWaits(ctx, r.live, job)
	}
	return job, nil
}

// readEnd reads what the pod of a Job said at its end, if it has ended.
func (r *repositories) readEnd(ctx context.Context, state *jobState, job *batchv1.Job) error {
	c := backuprepository.EndOf(job)
	if c == nil {
		return nil
	}
	state.Ended = true
	words, err := backuprepository.LastWords(ctx, r.live, job)
	if err != nil {
		return err
	}
	if c.Type == batchv1.JobFailed {
		if state.Failure = words; words == "" {
			state.Failure = c.Reason + ": " + c.Message
		}
		return nil
	}
	// Without its report there is no way to tell what was kept.
	if state.Report, err = datamove.DecodeDeletionReport(words); err != nil {
		state.Failure = err.Error()
	}
	return nil
}
