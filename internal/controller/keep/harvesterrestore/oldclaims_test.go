package harvesterrestore

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/gen"
)

// The old claim of a machine that was replaced is not deleted while the storage has a snapshot of it: many have a
// volume's snapshots in the volume.
func TestFindClaimUsers_countsSnapshots(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, kubevirtv1.AddToScheme, snapshotv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	r := &reconciler{live: fake.NewClientBuilder().WithScheme(scheme).WithObjects(&snapshotv1.VolumeSnapshot{
		ObjectMeta: gen.Meta("app", "friday"),
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("web-root")},
		},
	}).Build()}
	users, err := r.findClaimUsers(t.Context(), "app")
	if err != nil || len(users) != 1 || users["web-root"] != "VolumeSnapshot friday" {
		t.Errorf("%v, %v", users, err)
	}
}
