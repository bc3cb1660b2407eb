//go:build controlplane

package moversecret

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestWatchPods_tellsOfEachPodOnce makes mover pods and others. The DataUpload of each mover pod is told of once, and
// nothing that happens to the pod later is.
func TestWatchPods_tellsOfEachPodOnce(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict())
	pods, err := WatchPods(mgr, controlplane.SystemNamespace)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan types.NamespacedName, 10)
	err = ctrl.NewControllerManagedBy(mgr).Named("pods").WatchesRawSource(pods).
		Complete(reconcile.Func(func(_ context.Context, r ctrl.Request) (ctrl.Result, error) {
			told <- r.NamespacedName
			return ctrl.Result{}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)

	makePod := func(uid types.UID, owner string) *corev1.Pod {
		p := gen.MoverPod(controlplane.SystemNamespace, uid)
		p.Annotations = map[string]string{datamove.AnnotationOwner: owner}
		if err := cluster.Client(t, controlplane.Controller).Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	expect := func(name string) {
		t.Helper()
		select {
		case got := <-told:
			if want := (types.NamespacedName{Namespace: "velero", Name: name}); got != want {
				t.Fatalf("told of %s, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("not told of %s", name)
		}
	}
	makePod("download", "DataDownload/velero/download")
	first := makePod("first", "DataUpload/velero/first")
	expect("first")
	controlplane.Update(t, cluster.Client(t, controlplane.Admin), first, true, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
	})
	makePod("second", "DataUpload/velero/second")
	expect("second")
}
