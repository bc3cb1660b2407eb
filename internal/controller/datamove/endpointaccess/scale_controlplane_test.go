//go:build controlplane

package endpointaccess

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/test/controlplane"
)

// A mover pod writes its progress every second. docs/scale.md says what that costs.
func TestScale_progressCostsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.varve = w.ns // so that nobody else's DataUploads count
	w.create(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.varve, Name: settings.ConfigMap}, Data: map[string]string{settings.Key: "namespaces: [" + w.varve + "]"},
	})
	var traffic controlplane.Traffic
	config := cluster.ConfigFor(controlplane.Controller)
	traffic.Wrap(config)
	mgr := cluster.ManagerFor(t, config, func(o *ctrl.Options) {
		o.Cache.ByObject = pointdeletion.CachedObjects()
		o.Cache.DefaultNamespaces = map[string]cache.Config{w.ns: {}}
	})
	if err := Setup(mgr, Options{Namespace: w.varve, ControllerSuffix: w.ns}); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	o := w.upload("root", nil)
	pod := w.pod(o, nil)
	w.secretBecomes(o, pod, "first", "authority 1")
	traffic.Reset()
	for i := range 40 {
		controlplane.Update(t, w.admin, o, false, func(o *velerov2.DataUpload) { o.Status.Progress.BytesDone = int64(i) })
	}
	w.editBackup(func(b *backupv1.VirtualMachineBackup) { b.Status.Cert = "authority 2" })
	w.secretBecomes(o, pod, "first", "authority 2")
	cost := traffic.Cost()
	t.Logf("40 writes of progress, and another certificate: %s", cost)
	if len(cost.Requests) > requestsOfAChange {
		t.Errorf("more than %d requests", requestsOfAChange)
	}
}

// requestsOfAChange is what a change of a backup costs, with what was under way before.
const requestsOfAChange = 25
