package backuprepository

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
)

// A run has ended, that was recorded, and its Job is gone. The cache has not heard of the record, and maintenance looks due.
func TestMaintain_makesNoJobOnTheWordOfAnOldCache(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, velerov1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, recorded := range []bool{true, false} {
		in := newInput()
		live := in.Repo.DeepCopy()
		live.Status.Message = "this may change"
		if recorded {
			live.Status.RecentMaintenance = []velerov1.BackupRepositoryMaintenanceStatus{{Result: velerov1.MaintenanceFailed}}
		}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(live).Build()
		r := &reconciler{cached: c, live: c}
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
