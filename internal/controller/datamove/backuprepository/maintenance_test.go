package backuprepository

import (
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

// A run has ended, that was recorded, and its Job is gone. The cache has not heard of the record, and maintenance
// looks due.
func TestMaintain_makesNoJobOnTheWordOfAnOldCache(t *testing.T) {
	t.Parallel()
	scheme := newScheme(t)
	for _, recorded := range []bool{true, false} {
		in := newInput()
		live := in.Repo.DeepCopy()
		live.Status.Message = "this may change"
		if recorded {
			live.Status.RecentMaintenance = []velerov1.BackupRepositoryMaintenanceStatus{{Result: velerov1.MaintenanceFailed}}
		}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(live).Build()
		r := &reconciler{cached: c, live: c, places: NewJobPlaces(datamove.LabelMaintenance)}
		err := r.maintain(t.Context(), in, maintenance{Create: true})
		jobs := &batchv1.JobList{}
		if listErr := c.List(t.Context(), jobs); listErr != nil {
			t.Fatal(listErr)
		}
		if apierrors.IsConflict(err) != recorded || (len(jobs.Items) == 0) != recorded {
			t.Errorf("recorded %v: %v, %d jobs", recorded, err, len(jobs.Items))
		}
	}
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, velerov1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// dueRepositories returns inputs of repositories that are due one after the other: the last one for the longest time.
func dueRepositories(n int) (all []*input, objects []client.Object) {
	for i := range n {
		in := newInput()
		in.Repo.Name, in.Repo.UID = fmt.Sprintf("repo-%04d", i), types.UID(fmt.Sprintf("uid-%d", i))
		last := metav1.NewTime(testNow.Add(-24*time.Hour - time.Duration(i)*time.Second))
		in.Repo.Status.LastMaintenanceTime = &last
		all, objects = append(all, in), append(objects, in.Repo)
	}
	return all, objects
}

// A cluster is given a location with 1,000 namespaces. Each repository is maintained in turn, and never more than a
// few at a time: each Job may take 1 GiB, and all of them work in one bucket.
func TestMaintain_aThousandRepositoriesTakeTurns(t *testing.T) {
	t.Parallel()
	all, objects := dueRepositories(1000)
	builder := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(objects...)
	c := builder.WithStatusSubresource(&batchv1.Job{}).Build()
	r := &reconciler{cached: c, live: c, places: NewJobPlaces(datamove.LabelMaintenance)}
	byName := map[string]*input{}
	for _, in := range all {
		byName[in.Repo.Name] = in
		if err := r.maintain(t.Context(), in, decideMaintenance(in, true)); err != nil {
			t.Fatal(err)
		}
	}
	running := func() []batchv1.Job {
		t.Helper()
		jobs := &batchv1.JobList{}
		if err := c.List(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
		return jobs.Items
	}
	if n := len(running()); n != MaxJobs {
		t.Fatalf("%d Jobs run at a time, want %d", n, MaxJobs)
	}
	// Each Job that ends makes room for the repository that is overdue for the longest time.
	for i := range 20 {
		ended := byName[running()[0].Labels[datamove.LabelRepository]]
		ended.Job = &running()[0]
		ended.Job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		if err := c.Status().Update(t.Context(), ended.Job); err != nil {
			t.Fatal(err)
		}
		if err := r.maintain(t.Context(), ended, maintenance{Delete: true}); err != nil {
			t.Fatal(err)
		}
		woken := byName[(<-r.places.woken).Object.GetName()]
		if want := all[len(all)-1-i]; woken != want {
			t.Fatalf("%s is woken, want %s", woken.Repo.Name, want.Repo.Name)
		}
		for _, in := range []*input{all[100], woken} { // the one that asks first is not first in line
			if err := r.maintain(t.Context(), in, decideMaintenance(in, true)); err != nil {
				t.Fatal(err)
			}
		}
		jobs := running()
		has := slices.ContainsFunc(jobs, func(j batchv1.Job) bool {
			return j.Labels[datamove.LabelRepository] == woken.Repo.Name
		})
		if len(jobs) != MaxJobs || !has {
			t.Fatalf("after %d Jobs: %d run, that of %s %v", i+1, len(jobs), woken.Repo.Name, has)
		}
	}
}

// Who does not ask any more does not keep its place in line, nor does a Job that never came.
func TestJobPlaces_forgetWhoDoesNotAskAgain(t *testing.T) {
	t.Parallel()
	c := fake.NewClientBuilder().WithScheme(newScheme(t)).Build()
	p := NewJobPlaces(datamove.LabelMaintenance)
	take := func(name string, now time.Time) bool {
		t.Helper()
		turn, err := p.Take(t.Context(), c, client.ObjectKey{Namespace: "varve", Name: name}, testNow, now)
		if err != nil {
			t.Fatal(err)
		}
		return turn
	}
	for i := range MaxJobs {
		if !take(fmt.Sprintf("a%d", i), testNow) {
			t.Fatal("a place is free")
		}
	}
	if take("b", testNow) || take("c", testNow) || !take("a0", testNow) {
		t.Error("all places are taken, by those who took them")
	}
	if !take("c", testNow.Add(forgetWaiting+showUp)) {
		t.Error("no Job has come, and b does not ask any more")
	}
}

// First runs are spread over an interval, although the catalogue makes all repositories at one moment.
func TestDueAt_spreadsFirstRuns(t *testing.T) {
	t.Parallel()
	const parts = 10
	var count [parts]int
	for i := range 1000 {
		in := newInput()
		in.Repo.UID = types.UID(fmt.Sprintf("uid-%d", i))
		age := dueAt(in.Repo).Sub(in.Repo.CreationTimestamp.Time) - defaultFrequency/2
		if age < 0 || age >= defaultFrequency {
			t.Fatalf("the first run comes after %s", age)
		}
		count[int(age/(defaultFrequency/parts))]++
	}
	for _, n := range count {
		if n < 50 || n > 150 {
			t.Errorf("first runs in each tenth of an interval: %v", count)
		}
	}
}
