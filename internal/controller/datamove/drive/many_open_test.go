package drive

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
)

// A year of nightly backups leaves thousands of DataUploads that have ended. No pass is handed them.
func TestListOpen_leavesOutWhatIsOver(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := velerov2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	upload := func(name string, phase velerov2.Phase, m memory, deleted bool) *velerov2.DataUpload {
		o := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: name,
			Finalizers: []string{datamove.Finalizer},
		}}
		o.Spec.DataMover, o.Status.Phase = datamove.Mover, phase
		o.Annotations = map[string]string{datamove.AnnotationDriver: m.encode()}
		if deleted {
			at := metav1.NewTime(now)
			o.DeletionTimestamp = &at
		}
		return o
	}
	over := memory{Ending: ended(velerov2.PhaseCompleted, 0), Disposed: true}
	objects := []client.Object{
		upload("new", "", memory{}, false), upload("running", velerov2.PhaseInProgress, memory{Pod: "p1"}, false),
		upload("deleted", velerov2.PhaseCompleted, over, true),
		upload("left-over", velerov2.PhaseFailed, memory{Ending: ended(velerov2.PhaseFailed, 0)}, false),
	}
	const many = 500
	for i := range many {
		objects = append(objects, upload(fmt.Sprintf("over-%d", i), velerov2.PhaseCompleted, over, false))
	}
	handed := 0
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&velerov2.DataUpload{}, openIndex, indexOpen).WithIndex(&velerov2.DataDownload{}, openIndex,
		indexOpen).Build()
	m := &Mover{Cached: interceptor.NewClient(c, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := c.List(ctx, list, options...)
			if uploads, ok := list.(*velerov2.DataUploadList); ok {
				handed += len(uploads.Items)
			}
			return err
		},
	})}
	current := settings.Default()
	open, err := m.listOpen(t.Context(), &current)
	if err != nil || len(open) != 4 || handed != 4 {
		t.Errorf("%d objects are open, and %d of %d were handed over: %v", len(open), handed, len(objects), err)
	}
}
