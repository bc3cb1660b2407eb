package backuprepository

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/storagepod"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// passwordBytes is how much randomness a password has.
const passwordBytes = 32

// Reconcile takes one BackupRepository a step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Namespace != r.Namespace {
		return ctrl.Result{}, nil // Velero's own
	}
	repo, err := reconcile.Find(ctx, r.cached, req.NamespacedName, &velerov1.BackupRepository{})
	if err != nil {
		return ctrl.Result{}, err
	}
	if repo == nil || repo.DeletionTimestamp != nil {
		r.memory.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if a, ok := r.errands.Take(req.NamespacedName); ok {
		r.memory.remember(req.NamespacedName, a)
	}
	in, err := r.gather(ctx, repo)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(in)
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: d.After}, r.apply(ctx, in, d))
}

// apply does what d says. What was learned about the repository is noted before its Secret is written, and a run is recorded before its Job
// goes.
func (r *reconciler) apply(ctx context.Context, in *input, d decision) error {
	if d.Discard {
		return r.discard(ctx, in)
	}
	if err := r.writeRepository(ctx, in, d); err != nil {
		return err
	}
	if d.CreatePassword != "" {
		if err := r.createPassword(ctx, d.CreatePassword); err != nil {
			return err
		}
	}
	if d.WriteAccess {
		if err := r.writeAccess(ctx, in, d.Access); err != nil {
			return err
		}
	}
	if d.Task != "" {
		r.send(in, d)
	}
	return r.maintain(ctx, in, d.Maintenance)
}

// writeRepository writes status and notes, which are one update: the kind has no status subresource.
func (r *reconciler) writeRepository(ctx context.Context, in *input, d decision) error {
	repo := in.Repo
	changed := repo.DeepCopy()
	changed.Status.Phase, changed.Status.Message = d.Phase, d.Message
	record(&changed.Status, d.Maintenance.Record)
	notes := map[string]string{
		datamove.AnnotationUniqueID: d.UniqueID, datamove.AnnotationPasswordSecret: d.PasswordSecret,
	}
	if contents := d.Maintenance.Contents; contents > 0 {
		notes[datamove.AnnotationContents] = strconv.FormatInt(contents, 10)
	}
	for name, value := range notes {
		if value != "" {
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, name, value)
		}
	}
	if d.Phase == velerov1.RepositoryReady {
		delete(changed.Annotations, datamove.AnnotationStorage)
		if in.Place.NeedsPod() {
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, datamove.AnnotationStorage, in.Storage.Encode())
		}
	}
	if equality.Semantic.DeepEqual(repo, changed) {
		return nil
	}
	if err := r.cached.Patch(ctx, changed, reconcile.MergeFrom(repo)); err != nil {
		return fmt.Errorf("write status of backup repository %s: %w", repo.Name, err)
	}
	if repo.Status.Phase == d.Phase {
		return nil
	}
	switch d.Phase {
	case velerov1.RepositoryReady:
		r.events.Eventf(repo, nil, corev1.EventTypeNormal, "RepositoryReady", "Check", "The repository can be used.")
	case velerov1.RepositoryNotReady:
		r.events.Eventf(repo, nil, corev1.EventTypeWarning, "RepositoryNotReady", "Check", "%s", d.Message)
	case velerov1.RepositoryNew:
	}
	return nil
}

// createPassword makes a Secret with a new password. One that is there already stays as it is.
func (r *reconciler) createPassword(ctx context.Context, name string) error {
	random := make([]byte, passwordBytes)
	_, _ = rand.Read(random) // it ends the program rather than fail
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name},
		Data:       map[string][]byte{datamove.PasswordKey: []byte(base64.StdEncoding.EncodeToString(random))},
	}
	if err := r.cached.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create secret %s/%s: %w", r.Namespace, name, err)
	}
	return nil
}

// writeAccess writes the Secret that mover pods mount.
func (r *reconciler) writeAccess(ctx context.Context, in *input, a datamove.Access) error {
	wanted := &corev1.Secret{ObjectMeta: childMeta(in.Repo, in.Repo.Name), Data: map[string][]byte{datamove.AccessKey: a.Encode()}}
	have := in.Access
	if have == nil {
		if err := r.cached.Create(ctx, wanted); err != nil {
			return fmt.Errorf("create secret %s/%s: %w", r.Namespace, wanted.Name, err)
		}
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(have); owner != nil && owner.UID != in.Repo.UID || owner == nil && have.Labels[datamove.LabelRepository] != in.Repo.Name {
		// It is of an earlier BackupRepository of this name, and about to be collected, or somebody else's.
		return fmt.Errorf("secret %s/%s is not of this BackupRepository: delete it", r.Namespace, have.Name)
	}
	changed := have.DeepCopy()
	changed.Labels, changed.OwnerReferences, changed.Data = wanted.Labels, wanted.OwnerReferences, wanted.Data
	if err := r.cached.Update(ctx, changed); err != nil {
		return fmt.Errorf("update secret %s/%s: %w", r.Namespace, have.Name, err)
	}
	return nil
}

// send starts an errand.
func (r *reconciler) send(in *input, d decision) {
	look := newLook(in, d)
	start := attempt{UID: in.Repo.UID, Fingerprint: fingerprint(in, d.Access), Task: d.Task}
	deadline, run := limits.Deadline, func(ctx context.Context) repositoryaccess.Seen { return look.Run(ctx, r.Stores) }
	if in.Place.NeedsPod() {
		request := &storagepod.Request{Owner: in.Repo, Kind: repositoryKind, Storage: in.Storage, Look: look}
		if d.Access.Password != "" {
			request.PasswordSecret = passwordSecretInUse(in)
		}
		deadline, run = storagepod.Deadline, func(ctx context.Context) repositoryaccess.Seen { return r.Looker.Look(ctx, request) }
	}
	r.errands.RunFor(deadline, client.ObjectKeyFromObject(in.Repo), locationOf(in.Repo).String(), func(ctx context.Context) attempt {
		done := start
		done.Seen = run(ctx)
		done.At = r.Clock.Now()
		return done
	})
}

var repositoryKind = metav1.TypeMeta{APIVersion: velerov1.GroupVersion.String(), Kind: "BackupRepository"}

func newLook(in *input, d decision) *repositoryaccess.Look {
	secret := passwordSecretInUse(in)
	return &repositoryaccess.Look{
		Task: d.Task, Root: in.Place.Root(), Access: d.Access, Lock: in.Place.Lock, Known: in.OthersPasswords,
		SharedPassword: secret == datamove.LocationPasswordSecret(locationOf(in.Repo)),
		Words: repositoryaccess.Words{
			Place: in.Place.String(), Keys: "the Secret of location " + locationOf(in.Repo).String(),
			Password: "key " + datamove.PasswordKey + " of Secret " + in.Namespace + "/" + secret,
		},
	}
}

// passwordSecretInUse returns the name of the Secret whose password is used.
func passwordSecretInUse(in *input) string {
	names := passwordSecrets(in)
	for _, name := range names {
		if in.Passwords[name] != "" {
			return name
		}
	}
	return names[0]
}

// maintain records a run, and makes or deletes the Job.
func (r *reconciler) maintain(ctx context.Context, in *input, m maintenance) error {
	switch {
	case m.Delete:
		if err := r.deleteJob(ctx, in.Job); err != nil {
			return err
		}
		return r.places.Leave(ctx, r.cached, client.ObjectKeyFromObject(in.Repo), in.Now)
	case m.Create:
		return r.createJob(ctx, in)
	}
	return nil
}

// createJob makes the maintenance Job, if it is the repository's turn. If not, a place that becomes free or the next
// look brings it.
func (r *reconciler) createJob(ctx context.Context, in *input) (err error) {
	key := client.ObjectKeyFromObject(in.Repo)
	turn, err := r.places.Take(ctx, r.cached, key, dueAt(in.Repo), in.Now)
	if err != nil || !turn {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.places.Leave(ctx, r.cached, key, in.Now))
		}
	}()
	// A cache that is behind has no Job any more, and not yet what it did.
	found, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(in.Repo), &velerov1.BackupRepository{})
	if err != nil {
		return err
	}
	if found == nil || recordedLater(found, in.Repo) {
		resource := velerov1.GroupVersion.WithResource("backuprepositories").GroupResource()
		return apierrors.NewConflict(resource, in.Repo.Name, errors.New("it has changed"))
	}
	job, err := maintenanceJob(in.Repo, r.Image)
	if err != nil {
		return err
	}
	if err := r.cached.Create(ctx, job); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return nil
}

// recordedLater says whether a repository has another record of maintenance than it had.
func recordedLater(now, before *velerov1.BackupRepository) bool {
	return now.UID != before.UID || !equality.Semantic.DeepEqual(now.Status.RecentMaintenance, before.Status.RecentMaintenance)
}

func (r *reconciler) deleteJob(ctx context.Context, job *batchv1.Job) error {
	err := r.cached.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return nil
}

// discard deletes a BackupRepository whose location is gone, and its Secret. Its Job goes with it. Data and password stay.
func (r *reconciler) discard(ctx context.Context, in *input) error {
	access, err := r.secret(ctx, r.Namespace, in.Repo.Name)
	if err != nil {
		return err
	}
	if access != nil && ownedBy(access, in.Repo) {
		if err := r.cached.Delete(ctx, access, client.Preconditions{UID: &access.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete secret %s/%s: %w", access.Namespace, access.Name, err)
		}
	}
	options := &client.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &in.Repo.UID, ResourceVersion: &in.Repo.ResourceVersion},
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	}
	if err := r.cached.Delete(ctx, in.Repo, options); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete backup repository %s: %w", in.Repo.Name, err)
	}
	return nil
}
