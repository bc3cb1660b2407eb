package pointdeletion

import (
	"context"
	"errors"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// A quota, or a webhook that is down, keeps the Job from being made. The DataUpload says so, and not that a Job deletes it.
func TestRepositories_sayWhyThereIsNoJob(t *testing.T) {
	t.Parallel()
	u, repository := newUpload(1), newInput().Repository
	o := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{
		Namespace: "velero", Name: "a", UID: u.UID, DeletionTimestamp: &metav1.Time{Time: u.Deleted}, Finalizers: []string{datamove.Finalizer},
	}}
	o.Spec.BackupStorageLocation = "default"
	o.Status.Phase, o.Status.SnapshotID, o.Status.DataMoverResult = velerov2.PhaseCompleted, u.SnapshotID, map[string]string{datamove.ResultRepository: "r1"}
	repository.Namespace, repository.Name = "varve", repositoryOf(o)
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "default"}}
	refused := true
	c := interceptor.NewClient(newClient(t, o, repository, l), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if refused {
				return apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, o.GetName(), errors.New("exceeded quota"))
			}
			return c.Create(ctx, o, options...)
		},
	})
	clock := testclock.NewFakePassiveClock(testNow)
	r := &repositories{Options: Options{Namespace: "varve", Clock: clock}, cached: c, live: c}
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

// A Job has failed, that was noted, and the Job is gone. The cache has not heard of the note, and would have the next Job made at once.
func TestRepositories_makeNoJobForWhatTheCacheSaysTooLate(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := velerov2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	before := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "a", UID: "u", ResourceVersion: "7"}}
	after, another := before.DeepCopy(), before.DeepCopy()
	after.ResourceVersion, another.UID = "8", "v"
	for name, c := range map[string]struct {
		live     *velerov2.DataUpload
		written  bool
		conflict bool
	}{
		"as it is":          {before, false, false},
		"noted since":       {after, false, true},
		"just written":      {after, true, false},
		"made again":        {another, false, true},
		"deleted meanwhile": {nil, false, true},
	} {
		builder := fake.NewClientBuilder().WithScheme(scheme)
		if c.live != nil {
			builder = builder.WithObjects(c.live)
		}
		d := decision{Chosen: []types.UID{"u"}, Notes: map[types.UID]datamove.PointDeletion{}}
		if c.written {
			d.Notes["u"] = datamove.PointDeletion{}
		}
		err := (&repositories{live: builder.Build()}).areCurrent(t.Context(), map[types.UID]*velerov2.DataUpload{"u": before}, d)
		if apierrors.IsConflict(err) != c.conflict || (err == nil) == c.conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
}
