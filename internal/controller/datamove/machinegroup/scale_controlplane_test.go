//go:build controlplane

package machinegroup

import (
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/test/controlplane"
)

// A mover pod writes its progress every second. docs/scale.md says what that costs.
func TestScale_progressCostsNothing(t *testing.T) {
	t.Parallel()
	w := &world{T: t, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin)}
	var traffic controlplane.Traffic
	config := cluster.ConfigFor(controlplane.Controller)
	traffic.Wrap(config)
	mgr := cluster.ManagerFor(t, config, func(o *ctrl.Options) {
		o.Cache.ByObject = pointdeletion.CachedObjects()
		o.Cache.DefaultNamespaces = map[string]cache.Config{w.ns: {}}
	})
	w.must(Setup(mgr, Options{Namespace: controlplane.SystemNamespace, AuthoritySecret: "varve-export-ca", ControllerSuffix: w.ns}))
	controlplane.StartManager(t, mgr)
	root, b := w.readsInItsNamespace("10.1.0.10")
	traffic.Reset()
	for i := range 40 {
		controlplane.Update(t, w.admin, root, false, func(o *velerov2.DataUpload) { o.Status.Progress.BytesDone = int64(i) })
	}
	w.takes(root, velerov2.PhaseCompleted, b)
	if !w.ends(b) {
		t.Error("the backup does not say that its disks are stored")
	}
	cost := traffic.Cost()
	t.Logf("40 writes of progress, and the end: %s", cost)
	if len(cost.Requests) > requestsOfAnEnd {
		t.Errorf("more than %d requests", requestsOfAnEnd)
	}
}

// requestsOfAnEnd is what one DataUpload costs from its end to that of its backup, in four passes or so, with what was under way before.
const requestsOfAnEnd = 60
