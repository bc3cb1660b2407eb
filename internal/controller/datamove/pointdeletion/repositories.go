package pointdeletion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/backuprepository"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// jobContainer is the container of a deletion pod.
	jobContainer = "delete-points"
	// jobLimit is how long a Job may take.
	jobLimit = time.Hour
)

// repositories has the restore points of one repository after the other deleted.
type repositories struct {
	Options
	cached client.Client
	live   client.Reader
	events events.EventRecorder
	places *backuprepository.JobPlaces
}

// Reconcile takes the deletions in one repository a step further.
func (r *repositories) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Namespace != r.Namespace {
		return ctrl.Result{}, nil // Velero's own
	}
	in, objects, job, err := r.gather(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	taken, err := r.takePlace(ctx, in)
	if err != nil {
		return ctrl.Result{}, err
	}
	d, err := r.decideNoted(ctx, in, objects)
	if taken && len(d.Points) == 0 {
		err = errors.Join(err, r.places.Leave(ctx, r.cached, client.ObjectKeyFromObject(in.Repository), in.Now))
	}
	if err != nil {
		return reconcile.RetryConflict(ctrl.Result{}, err)
	}
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: d.After}, r.apply(ctx, in, objects, job, d))
}

// takePlace takes a place for a Job if one is due, and says whether it has. Otherwise it sets in.NoPlace.
func (r *repositories) takePlace(ctx context.Context, in *input) (taken bool, err error) {
	first := decide(in)
	if len(first.Points) == 0 {
		return false, nil
	}
	taken, err = r.places.Take(ctx, r.cached, client.ObjectKeyFromObject(in.Repository), first.Due, in.Now)
	in.NoPlace = !taken
	return taken, err
}

// decideNoted decides, and writes the notes. DataUploads that the API server refuses to change are left out, and the rest is decided again:
// what a Job does for one could not be noted, and it would be tried for ever, or hold the others up.
func (r *repositories) decideNoted(ctx context.Context, in *input, objects map[types.UID]*velerov2.DataUpload) (decision, error) {
	for refusals := 0; ; {
		d := decide(in)
		d.look(lookEvery, refusals > 0)
		refused, err := r.note(ctx, in, objects, d)
		if err != nil || len(refused) == 0 {
			return d, err
		}
		refusals += len(refused)
		in.Uploads = slices.DeleteFunc(in.Uploads, func(u upload) bool { return refused[u.UID] })
	}
}

// note writes the notes of a decision, and returns the DataUploads whose notes are refused. What a Job is chosen for is written in any case:
// the answer is a conflict if the cache is behind, which may say what was true before a Job that has ended in the meantime.
func (r *repositories) note(ctx context.Context, in *input, objects map[types.UID]*velerov2.DataUpload, d decision) (refused map[types.UID]bool, err error) {
	refused = map[types.UID]bool{}
	for i := range in.Uploads {
		u := &in.Uploads[i]
		n, news := d.Notes[u.UID]
		chosen := slices.Contains(d.Chosen, u.UID)
		switch {
		case !news && !chosen:
			continue
		case !news:
			n = u.Deletion
		}
		err := r.write(ctx, objects[u.UID], n)
		switch {
		case apierrors.IsNotFound(err) && chosen:
			return nil, apierrors.NewConflict(velerov2.GroupVersion.WithResource("datauploads").GroupResource(), u.Name, err)
		case reconcile.IsRefusal(err):
			refused[u.UID] = true
			r.events.Eventf(objects[u.UID], nil, corev1.EventTypeWarning, "RestorePointNotDeleted", "Delete", "The restore point is not deleted as long as the DataUpload cannot be changed: %s.", err)
		case client.IgnoreNotFound(err) != nil:
			return nil, err
		default:
			u.Deletion = n
		}
	}
	return refused, nil
}

// apply does what d says. What a Job did is noted before the Job goes.
func (r *repositories) apply(ctx context.Context, in *input, objects map[types.UID]*velerov2.DataUpload, job *batchv1.Job, d decision) error {
	switch {
	case d.MakeRepository:
		return r.makeRepository(ctx, in)
	case d.DeleteJob:
		err := r.cached.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete job %s/%s: %w", job.Namespace, job.Name, err)
		}
		repository := client.ObjectKey{Namespace: job.Namespace, Name: job.Labels[datamove.LabelRepository]}
		return r.places.Leave(ctx, r.cached, repository, in.Now)
	case len(d.Points) > 0:
		if err := r.makeJob(ctx, in.Repository, d); err != nil {
			leave := r.places.Leave(ctx, r.cached, client.ObjectKeyFromObject(in.Repository), in.Now)
			return errors.Join(r.noteRefusal(ctx, in, objects, d.Chosen, err), leave)
		}
	}
	return nil
}

// noteRefusal notes why there is no Job, such as a quota, which nobody but its administrator can end. It is tried again as after a failure.
func (r *repositories) noteRefusal(ctx context.Context, in *input, objects map[types.UID]*velerov2.DataUpload, chosen []types.UID, refusal error) error {
	for i := range in.Uploads {
		u := &in.Uploads[i]
		if !slices.Contains(chosen, u.UID) {
			continue
		}
		n := again(in, u, datamove.PointDeletion{Message: refusal.Error(), UID: u.UID, ForBackup: u.Deletion.ForBackup})
		if u.Deletion.Why == datamove.KeptBackupThere { // no Job has said otherwise
			n.Why, n.Since = u.Deletion.Why, u.Deletion.Since
		}
		if err := r.write(ctx, objects[u.UID], n); client.IgnoreNotFound(err) != nil {
			return errors.Join(refusal, err)
		}
	}
	return nil
}

// write notes on a DataUpload how far the deletion is. o is then what was written.
func (r *repositories) write(ctx context.Context, o *velerov2.DataUpload, n datamove.PointDeletion) error {
	changed := o.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, datamove.AnnotationPointDeletion, n.Encode())
	if err := r.cached.Patch(ctx, changed, reconcile.MergeFrom(o)); err != nil {
		return fmt.Errorf("write DataUpload %s/%s: %w", o.Namespace, o.Name, err)
	}
	changed.DeepCopyInto(o)
	if n.State == datamove.DeletionLeft {
		r.events.Eventf(o, nil, corev1.EventTypeWarning, "RestorePointLeft", "Delete", "The restore point is not deleted: %s.", n.Message)
	}
	return nil
}

func (r *repositories) makeJob(ctx context.Context, repository *velerov1.BackupRepository, d decision) error {
	asked := datamove.DeletionJob{Repository: d.Repository, Points: d.Points}
	job, err := backuprepository.NewJob(repository, r.Image, backuprepository.Work{
		Name: datamove.DeletionJobName(repository.Name), Label: datamove.LabelDeletion, Container: jobContainer, Command: "delete-points",
		Env: []corev1.EnvVar{{Name: datamove.DeletionVariable, Value: asked.Encode()}}, Limit: jobLimit,
	})
	if err != nil {
		return err
	}
	if err := r.cached.Create(ctx, job); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return nil
}

// makeRepository makes the BackupRepository again, as the driver does. Its controller finds the repository that is
// there.
func (r *repositories) makeRepository(ctx context.Context, in *input) error {
	id, err := datamove.ParseSnapshotID(in.Uploads[0].SnapshotID)
	for i := 1; err != nil && i < len(in.Uploads); i++ {
		id, err = datamove.ParseSnapshotID(in.Uploads[i].SnapshotID)
	}
	if err != nil {
		return err
	}
	repository := &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: datamove.RepositoryName(id.Namespace, in.Location)},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: id.Namespace, BackupStorageLocation: in.Location.Name, RepositoryType: velerov1.RepositoryKopia,
			RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: in.Location.Namespace},
		},
	}
	if err := r.cached.Create(ctx, repository); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create BackupRepository %s: %w", repository.Name, err)
	}
	return nil
}
