//go:build controlplane

package pointdeletion

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/backuprepository"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs every test that needs the API server.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*world){
		"deleted in one Job, after a failure":    deletedInOneJob,
		"the location is gone":                   locationGone,
		"the namespace is deleted":               namespaceEnds,
		"a restart while a Job runs":             restarted,
		"what a request of Velero's deletes":     requested,
		"what no request of Velero's touches":    untouched,
		"made again in another bucket":           replaced,
		"a repository that nobody knows is made": repositoryMade,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cluster.Namespace(t), controlplane.Controller)
			test(w)
		})
	}
	t.Run("the controller's own rights", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, controlplane.SystemNamespace, controlplane.Controller.Restrict())
		requested(w)
		repositoryMade(newWorldIn(w))
	})
}

// world is Varve's namespace and Velero's, with a location and the repository of the namespace shop. The tests play
// the driver, the Job controller and kubelets.
type world struct {
	*testing.T
	ns, velero string
	mover      string // of the DataUploads that are made
	user       controlplane.User
	admin      client.Client
	repo       *velerov1.BackupRepository
	clock      *heldClock
	stop       func()
}

// heldClock is the machine's clock until it is held: then it stands, so that no pause ends while a slow machine looks at what is said of it.
type heldClock struct {
	clock.RealClock
	at atomic.Pointer[time.Time]
}

func (c *heldClock) Now() time.Time {
	if at := c.at.Load(); at != nil {
		return *at
	}
	return c.RealClock.Now()
}

func (c *heldClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *heldClock) hold() {
	now := c.RealClock.Now()
	c.at.Store(&now)
}

func (c *heldClock) release() { c.at.Store(nil) }

func newWorld(t *testing.T, ns string, user controlplane.User) *world {
	t.Helper()
	w := &world{T: t, ns: ns, velero: cluster.Namespace(t), mover: datamove.Mover, user: user, admin: cluster.Client(t, controlplane.Admin), clock: &heldClock{}}
	w.populate()
	w.start()
	return w
}

// newWorldIn is another location with the same controller.
func newWorldIn(of *world) *world {
	w := *of
	w.velero = cluster.Namespace(w.T)
	w.stop()
	w.populate()
	w.start()
	return &w
}

func (w *world) populate() {
	w.Helper()
	w.create(&velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "default"},
		Spec:       velerov1.BackupStorageLocationSpec{Provider: "aws", StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "b"}}},
	})
	at := datamove.Location{Namespace: w.velero, Name: "default"}
	w.repo = &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: datamove.RepositoryName("shop", at), Annotations: map[string]string{datamove.AnnotationUniqueID: "r1"}},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: "shop", BackupStorageLocation: "default", RepositoryType: "kopia", RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: w.velero},
		},
		Status: velerov1.BackupRepositoryStatus{Phase: velerov1.RepositoryReady},
	}
	w.create(w.repo)
}

func (w *world) start() {
	w.Helper()
	mgr := cluster.Manager(w.T, w.user, func(o *ctrl.Options) {
		o.Cache.ByObject = backuprepository.CachedObjects(w.ns)
		for kind, by := range CachedObjects() {
			// The worlds share an API server. In a cluster there is one controller, which deletes for every DataUpload.
			by.Namespaces = map[string]cache.Config{w.velero: {}}
			o.Cache.ByObject[kind] = by
		}
	})
	err := Setup(mgr, Options{
		Namespace: w.ns, Image: datamove.PodImage{Name: "varve:test"}, Namespaces: func(context.Context) ([]string, error) { return []string{w.velero}, nil },
		Clock: w.clock,
	})
	if err != nil {
		w.Fatal(err)
	}
	w.stop = controlplane.StartManager(w.T, mgr)
}

func (w *world) create(o client.Object) {
	w.Helper()
	if err := w.admin.Create(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

// upload makes a completed DataUpload of a backup, as the driver leaves it. Nobody plays the driver.
func (w *world) upload(name, backup string, edit ...func(*velerov2.DataUpload)) *velerov2.DataUpload {
	w.Helper()
	o := &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.velero, Name: name, Finalizers: []string{datamove.Finalizer},
			Labels: map[string]string{datamove.LabelBackupName: backup, datamove.LabelBackupUID: "uid-of-" + backup},
		},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotCSI, SourcePVC: "data", DataMover: w.mover, BackupStorageLocation: "default", SourceNamespace: "shop",
			CSISnapshot: &velerov2.CSISnapshotSpec{VolumeSnapshot: "s", StorageClass: "c"}, OperationTimeout: velerov1.Duration{Duration: time.Minute},
		},
	}
	w.create(o)
	point, err := datamove.PointID(o.UID)
	if err != nil {
		w.Fatal(err)
	}
	now := metav1.Now()
	controlplane.Update(w.T, w.admin, o, false, func(o *velerov2.DataUpload) {
		o.Status.Phase, o.Status.CompletionTimestamp = velerov2.PhaseCompleted, &now
		o.Status.SnapshotID = datamove.SnapshotID{Form: datamove.Files, Point: point, Namespace: "shop"}.String()
		o.Status.DataMoverResult = map[string]string{datamove.ResultRepository: "r1"}
		for _, e := range edit {
			e(o)
		}
	})
	return o
}

// copyOf is an edit that makes a DataUpload one that Velero has made again from its backup: of the same restore point, without finalizer.
func copyOf(of *velerov2.DataUpload) func(*velerov2.DataUpload) {
	return func(o *velerov2.DataUpload) { o.Status.SnapshotID, o.Finalizers = of.Status.SnapshotID, nil }
}

func pointIn(o *velerov2.DataUpload) string {
	u := viewOf(o)
	return pointOf(&u)
}

func (w *world) delete(o client.Object) {
	w.Helper()
	if err := w.admin.Delete(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

// says waits for what the controller says of a restore point.
func (w *world) says(o *velerov2.DataUpload, state datamove.DeletionState, text string) datamove.PointDeletion {
	w.Helper()
	var d datamove.PointDeletion
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if d = datamove.PointDeletionOf(o); d.State != state || !strings.Contains(d.Message, text) {
			return fmt.Errorf("%s: %+v, want %s %q", o.Name, d, state, text)
		}
		return nil
	})
	return d
}

// release plays the driver of DataUploads that are deleted: their finalizer goes when nothing is waited for.
func (w *world) release(uploads ...*velerov2.DataUpload) {
	w.Helper()
	for _, o := range uploads {
		w.says(o, datamove.DeletionDone, "")
		if o.DeletionTimestamp == nil {
			w.Errorf("%s: its restore point is gone, and it is not deleted", o.Name)
		}
		controlplane.Update(w.T, w.admin, o, false, func(o *velerov2.DataUpload) { controllerutil.RemoveFinalizer(o, datamove.Finalizer) })
	}
}

func (w *world) gone(o client.Object) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%T %s stays: %v", o, o.GetName(), err)
		}
		return nil
	})
}

// job waits for the Job.
func (w *world) job() (*batchv1.Job, datamove.DeletionJob) {
	w.Helper()
	job := &batchv1.Job{}
	controlplane.Eventually(w.T, func() error {
		return w.admin.Get(w.Context(), types.NamespacedName{Namespace: w.ns, Name: datamove.DeletionJobName(w.repo.Name)}, job)
	})
	asked, err := datamove.DecodeDeletionJob(job.Spec.Template.Spec.Containers[0].Env[1].Value)
	if err != nil || job.Spec.Template.Spec.Containers[0].Command[2] != "delete-points" || asked.Repository != "r1" {
		w.Fatalf("%+v %v", job.Spec.Template.Spec.Containers, err)
	}
	return job, asked
}

// end ends a Job, and waits until the controller has taken note of it.
func (w *world) end(job *batchv1.Job, condition batchv1.JobConditionType, says string) {
	w.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.ns, GenerateName: job.Name + "-", Labels: map[string]string{batchv1.JobNameLabel: job.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
	}, Spec: job.Spec.Template.Spec}
	w.create(pod)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: jobContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: says}}}}
	if err := w.admin.Status().Update(w.Context(), pod); err != nil {
		w.Fatal(err)
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	job.Status.StartTime = &now
	before := batchv1.JobFailureTarget
	if condition == batchv1.JobComplete {
		before, job.Status.CompletionTime, job.Status.Succeeded = batchv1.JobSuccessCriteriaMet, &now, 1
	}
	for _, c := range []batchv1.JobConditionType{before, condition} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	if err := w.admin.Status().Update(w.Context(), job); err != nil {
		w.Fatal(err)
	}
	uid := job.UID
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(job), job); err == nil && job.UID == uid {
			return fmt.Errorf("the job stays")
		}
		return nil
	})
}

// hurry has the controller try again at once.
func (w *world) hurry(o *velerov2.DataUpload) {
	w.Helper()
	controlplane.Update(w.T, w.admin, o, false, func(o *velerov2.DataUpload) {
		d := datamove.PointDeletionOf(o)
		d.RetryAt = nil
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, datamove.AnnotationPointDeletion, d.Encode())
	})
}

var nothingKept = datamove.DeletionReport{}.Encode()

func deletedInOneJob(w *world) {
	a, b, stays := w.upload("a", "b1"), w.upload("b", "b1"), w.upload("c", "b2")
	w.stop() // so that a slow machine does not delete them further apart than a Job waits for more
	w.delete(a)
	w.delete(b)
	w.start()
	job, asked := w.job()
	if len(asked.Points) != 2 {
		w.Errorf("%+v", asked)
	}
	w.says(a, datamove.DeletionWaits, "a Job deletes it")
	w.clock.hold()
	w.end(job, batchv1.JobFailed, "the server does not answer")
	if d := w.says(b, datamove.DeletionWaits, "the server does not answer"); d.Tries != 1 || d.RetryAt == nil {
		w.Errorf("%+v", d)
	}
	w.says(a, datamove.DeletionWaits, "the server does not answer")
	w.clock.release()
	w.stop() // so that they are due at once
	w.hurry(a)
	w.hurry(b)
	w.start()
	job, _ = w.job()
	kept := datamove.DeletionReport{Kept: map[string]datamove.Kept{pointIn(a): {Why: datamove.KeptPinned}}}
	w.end(job, batchv1.JobComplete, kept.Encode())
	w.says(a, datamove.DeletionWaits, "is pinned")
	w.release(b)
	w.gone(b)
	w.hurry(a)
	job, asked = w.job()
	if len(asked.Points) != 1 || asked.Points[0].ID != pointIn(a) {
		w.Errorf("%+v", asked)
	}
	w.end(job, batchv1.JobComplete, nothingKept)
	w.release(a)
	w.gone(a)
	if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(stays), stays); err != nil || stays.Annotations[datamove.AnnotationPointDeletion] != "" {
		w.Errorf("%v %v", stays.Annotations, err)
	}
}

func locationGone(w *world) {
	a := w.upload("a", "b1")
	w.delete(&velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "default"}})
	w.delete(a)
	d := w.says(a, datamove.DeletionWaits, "is gone")
	if d.Why != datamove.KeptLocationGone || d.Since == nil {
		w.Fatalf("%+v", d)
	}
	long := time.Now().Add(-leaveAfter).UTC()
	d.Since = &long
	controlplane.Update(w.T, w.admin, a, false, func(o *velerov2.DataUpload) {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, datamove.AnnotationPointDeletion, d.Encode())
	})
	w.says(a, datamove.DeletionLeft, "is gone")
}

func namespaceEnds(w *world) {
	a := w.upload("a", "b1")
	w.delete(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.velero}}) // nobody plays the controller of namespaces
	w.delete(&velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "default"}})
	w.delete(a)
	w.says(a, datamove.DeletionLeft, "is gone")
}

// A Job that has ended while no controller ran is taken note of.
func restarted(w *world) {
	a := w.upload("a", "b1")
	w.delete(a)
	job, _ := w.job()
	w.stop()
	started := make(chan struct{})
	go func() { // end waits for the controller
		defer close(started)
		time.Sleep(time.Second)
		w.start()
	}()
	w.end(job, batchv1.JobComplete, nothingKept)
	<-started
	w.release(a)
	w.gone(a)
}

// The location was made again with the same name, in another bucket.
func replaced(w *world) {
	a := w.upload("a", "b1")
	controlplane.Update(w.T, w.admin, w.repo, false, func(r *velerov1.BackupRepository) { r.Annotations[datamove.AnnotationUniqueID] = "r2" })
	w.delete(a)
	w.says(a, datamove.DeletionWaits, "another repository than r1")
}

func repositoryMade(w *world) {
	a := w.upload("a", "b1")
	w.delete(w.repo)
	w.delete(a)
	w.says(a, datamove.DeletionWaits, "")
	controlplane.Eventually(w.T, func() error {
		made := &velerov1.BackupRepository{}
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(w.repo), made); err != nil {
			return err
		}
		if made.UID == w.repo.UID || made.Spec.VolumeNamespace != "shop" || made.Spec.RepositoryConfig[datamove.ConfigLocationNamespace] != w.velero {
			return fmt.Errorf("%+v", made.Spec)
		}
		return nil
	})
}

// request makes a DeleteBackupRequest as the data mover's design has it: deleted, with the finalizer.
func (w *world) request(backup string) *velerov1.DeleteBackupRequest {
	w.Helper()
	q := &velerov1.DeleteBackupRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.velero, GenerateName: backup + "-", Finalizers: []string{datamove.FinalizerDeleteBackup}, Labels: map[string]string{datamove.LabelBackupUID: "uid-of-" + backup},
		},
		Spec: velerov1.DeleteBackupRequestSpec{BackupName: backup},
	}
	w.create(q)
	return q
}

func requested(w *world) {
	made, other := w.upload("made", "b1"), w.upload("other", "b2")
	elsewhere := w.upload("elsewhere", "b2") // it plays one of a cluster that is gone
	again := w.upload("again", "b1", copyOf(elsewhere))
	controlplane.Update(w.T, w.admin, elsewhere, false, func(o *velerov2.DataUpload) { o.Finalizers = nil })
	w.delete(elsewhere)
	namesake := w.upload("namesake", "b1")
	controlplane.Update(w.T, w.admin, namesake, false, func(o *velerov2.DataUpload) { o.Labels[datamove.LabelBackupUID] = "another" })
	failed := w.upload("failed", "b1", func(o *velerov2.DataUpload) {
		o.Status.Phase, o.Status.SnapshotID, o.Finalizers = velerov2.PhaseFailed, "", nil
	})
	q := w.request("b1")
	controlplane.Consistently(w.T, time.Second, func() error { // Velero still works on it
		return w.admin.Get(w.Context(), client.ObjectKeyFromObject(failed), failed)
	})
	w.delete(q)
	w.gone(failed)
	want := map[string]datamove.PointToDelete{
		pointIn(made): {ID: pointIn(made)}, pointIn(again): {ID: pointIn(again), Backup: "b1", BackupUID: "uid-of-b1"},
	}
	for len(want) > 0 { // they may be in one Job, or in two
		job, asked := w.job()
		for _, p := range asked.Points {
			if want[p.ID] != p {
				w.Fatalf("%+v", p)
			}
			delete(want, p.ID)
		}
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(q), q); err != nil {
			w.Errorf("the request is gone before the restore points: %v", err)
		}
		w.end(job, batchv1.JobComplete, nothingKept)
	}
	w.release(made)
	w.gone(made)
	w.gone(again)
	w.gone(q)
	for _, o := range []*velerov2.DataUpload{other, namesake} {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil || o.DeletionTimestamp != nil {
			w.Errorf("%s is deleted: %v", o.Name, err)
		}
	}
}

// A request without the finalizer is Velero's alone, and a DataUpload of another mover is that mover's.
func untouched(w *world) {
	a := w.upload("a", "b1")
	w.mover = "other"
	foreign := w.upload("foreign", "b2", func(o *velerov2.DataUpload) {
		o.Finalizers, o.Status.SnapshotID = []string{"example.com/mover"}, "5f1d7c6a"
	})
	q := w.request("b1")
	controlplane.Update(w.T, w.admin, q, false, func(q *velerov1.DeleteBackupRequest) { q.Finalizers = []string{"example.com/mover"} })
	q2 := w.request("b2")
	w.delete(q)
	w.delete(q2)
	controlplane.Consistently(w.T, 2*time.Second, func() error {
		for _, o := range []client.Object{a, foreign, q, q2} {
			if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
		}
		if a.DeletionTimestamp != nil || foreign.DeletionTimestamp != nil {
			return fmt.Errorf("deleted: %v %v", a.DeletionTimestamp, foreign.DeletionTimestamp)
		}
		return nil
	})
}
