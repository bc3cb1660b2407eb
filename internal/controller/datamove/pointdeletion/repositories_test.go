package pointdeletion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/backuprepository"
	"github.com/varvebackup/varve/internal/datamove"
)

// A quota, or a webhook that is down, keeps the Job from being made. The DataUpload says so, and not that a Job deletes it.
func TestRepositories_sayWhyThereIsNoJob(t *testing.T) {
	t.Parallel()
	o := newDeletedUpload(1)
	repository, location := newRepositoryOf(o)
	refused := true
	c := interceptor.NewClient(newClient(t, o, repository, location), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if refused {
				return apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, o.GetName(), errors.New("exceeded quota"))
			}
			return c.Create(ctx, o, options...)
		},
	})
	clock := testclock.NewFakePassiveClock(testNow)
	r := &repositories{Options: Options{Namespace: "varve", Clock: clock}, cached: c, live: c, places: newPlaces()}
	pass := func() datamove.PointDeletion {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(repository)}); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		return datamove.PointDeletionOf(o)
	}
	for range 2 { // the second pass is too early for another try
		if d := pass(); !strings.Contains(d.Message, "exceeded quota") || d.State != datamove.DeletionWaits || d.Tries != 1 || d.RetryAt == nil {
			t.Errorf("%+v", d)
		}
	}
	refused = false
	clock.SetTime(testNow.Add(firstRetry))
	if d := pass(); d.Message != "a Job deletes it" {
		t.Errorf("%+v", d)
	}
	key := client.ObjectKey{Namespace: "varve", Name: datamove.DeletionJobName(repository.Name)}
	if err := c.Get(t.Context(), key, &batchv1.Job{}); err != nil {
		t.Error(err)
	}
}

func newPlaces() *backuprepository.JobPlaces {
	return backuprepository.NewJobPlaces(datamove.LabelDeletion)
}

// newDeletedUpload returns a DataUpload whose restore point is to be deleted.
func newDeletedUpload(n int) *velerov2.DataUpload {
	u := newUpload(n)
	o := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{
		Namespace: u.Namespace, Name: u.Name, UID: u.UID, DeletionTimestamp: &metav1.Time{Time: u.Deleted}, Finalizers: []string{datamove.Finalizer},
	}}
	o.Spec.BackupStorageLocation = "default"
	o.Status.Phase, o.Status.SnapshotID, o.Status.DataMoverResult = velerov2.PhaseCompleted, u.SnapshotID, map[string]string{datamove.ResultRepository: "r1"}
	return o
}

// newRepositoryOf returns the repository and the location of a DataUpload.
func newRepositoryOf(o *velerov2.DataUpload) (*velerov1.BackupRepository, *velerov1.BackupStorageLocation) {
	repository := newInput().Repository
	repository.Namespace, repository.Name = "varve", repositoryOf(o)
	return repository, &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "default"}}
}

// A webhook refuses every write to some DataUploads, more than a Job takes. The others' restore points are deleted, and the refused say why
// theirs are not.
func TestRepositories_deleteBesideWhatIsRefused(t *testing.T) {
	t.Parallel()
	const refused = datamove.DeletionLimit + 1
	objects := []client.Object{}
	for n := range refused + 1 {
		objects = append(objects, newDeletedUpload(1000+n)) // whose names have one order
	}
	other := objects[refused].(*velerov2.DataUpload)
	repository, location := newRepositoryOf(other)
	refusing := true
	c := interceptor.NewClient(newClient(t, append(objects, repository, location)...), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if refusing && o.GetUID() != other.UID {
				return apierrors.NewForbidden(schema.GroupResource{Group: "velero.io", Resource: "datauploads"}, o.GetName(), errors.New("the webhook says no"))
			}
			return c.Patch(ctx, o, patch, options...)
		},
	})
	recorder := events.NewFakeRecorder(1000)
	r := &repositories{
		Options: Options{Namespace: "varve", Clock: testclock.NewFakePassiveClock(testNow)},
		cached:  c, live: c, events: recorder, places: newPlaces(),
	}
	key := client.ObjectKey{Namespace: "varve", Name: datamove.DeletionJobName(repository.Name)}
	pass := func() []datamove.PointToDelete {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(repository)})
		if err != nil || result.RequeueAfter == 0 {
			t.Fatalf("%+v, %v", result, err)
		}
		job := &batchv1.Job{}
		if err := c.Get(t.Context(), key, job); err != nil {
			t.Fatal(err)
		}
		variables := job.Spec.Template.Spec.Containers[0].Env
		i := slices.IndexFunc(variables, func(v corev1.EnvVar) bool { return v.Name == datamove.DeletionVariable })
		asked, err := datamove.DecodeDeletionJob(variables[i].Value)
		if err != nil {
			t.Fatal(err)
		}
		return asked.Points
	}
	if points := pass(); len(points) != 1 || !owns(&upload{UID: other.UID}, points[0].ID) {
		t.Errorf("%+v", points)
	}
	if got := <-recorder.Events; !strings.Contains(got, "the webhook says no") {
		t.Error(got)
	}
	if err := c.Delete(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}); err != nil {
		t.Fatal(err)
	}
	refusing = false
	if points := pass(); len(points) != datamove.DeletionLimit {
		t.Errorf("%+v", points)
	}
}

// A Job has failed, that was noted, and the Job is gone. The cache has not heard of the note, and would have the next Job made at once.
func TestRepositories_makeNoJobForWhatTheCacheSaysTooLate(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := velerov2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	before := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "a", UID: "u", ResourceVersion: "7"}}
	after, another := before.DeepCopy(), before.DeepCopy()
	after.ResourceVersion, another.UID, another.ResourceVersion = "8", "v", "9"
	for name, c := range map[string]struct {
		live     *velerov2.DataUpload
		conflict bool
	}{
		"as it is":          {before, false},
		"noted since":       {after, true},
		"made again":        {another, true},
		"deleted meanwhile": {nil, true},
	} {
		builder := fake.NewClientBuilder().WithScheme(scheme)
		if c.live != nil {
			builder = builder.WithObjects(c.live)
		}
		in := &input{Uploads: []upload{{UID: "u"}}}
		refused, err := (&repositories{cached: builder.Build()}).note(t.Context(), in, map[types.UID]*velerov2.DataUpload{"u": before.DeepCopy()}, decision{Chosen: []types.UID{"u"}})
		if apierrors.IsConflict(err) != c.conflict || (err == nil) == c.conflict || len(refused) > 0 {
			t.Errorf("%s: %v, %v", name, refused, err)
		}
	}
}

// The backups of a thousand namespaces are deleted at once. As many Jobs as may run at a time work; the others say
// that they wait, and go on when a Job has ended.
func TestRepositories_fewHaveAJobAtATime(t *testing.T) {
	t.Parallel()
	const n = backuprepository.MaxJobs + 2
	var all []client.Object
	var keys []ctrl.Request
	for i := range n {
		o := newDeletedUpload(i + 1)
		id, err := datamove.ParseSnapshotID(o.Status.SnapshotID)
		if err != nil {
			t.Fatal(err)
		}
		id.Namespace = fmt.Sprintf("shop%d", i)
		o.Status.SnapshotID = id.String()
		repository, location := newRepositoryOf(o)
		repository.UID = types.UID(repository.Name)
		all = append(all, o, repository)
		keys = append(keys, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(repository)})
		if i == 0 {
			all = append(all, location)
		}
	}
	c := newClient(t, all...)
	r := &repositories{
		Options: Options{Namespace: "varve", Clock: testclock.NewFakePassiveClock(testNow)}, cached: c, live: c,
		events: events.NewFakeRecorder(100), places: newPlaces(),
	}
	pass := func() (jobs []batchv1.Job, waiting int) {
		t.Helper()
		for _, key := range keys {
			if _, err := r.Reconcile(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		list, uploads := &batchv1.JobList{}, &velerov2.DataUploadList{}
		if err := errors.Join(c.List(t.Context(), list), c.List(t.Context(), uploads)); err != nil {
			t.Fatal(err)
		}
		for i := range uploads.Items {
			if strings.Contains(datamove.PointDeletionOf(&uploads.Items[i]).Message, "of other repositories") {
				waiting++
			}
		}
		return list.Items, waiting
	}
	for range 2 {
		if jobs, waiting := pass(); len(jobs) != backuprepository.MaxJobs || waiting != n-backuprepository.MaxJobs {
			t.Fatalf("%d jobs, %d wait", len(jobs), waiting)
		}
	}
	jobs, _ := pass()
	jobs[0].Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(t.Context(), &jobs[0]); err != nil {
		t.Fatal(err)
	}
	pass()
	if _, waiting := pass(); waiting >= n-backuprepository.MaxJobs {
		t.Errorf("a Job has ended, and %d wait", waiting)
	}
}
