package pointdeletion

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

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
