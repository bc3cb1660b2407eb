//go:build controlplane

package datamover

import (
	"sync/atomic"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

// runningManager counts what is added to it while it runs.
type runningManager struct {
	ctrl.Manager
	runs  atomic.Bool
	added atomic.Int64
}

func (m *runningManager) Add(r manager.Runnable) error {
	if m.runs.Load() {
		m.added.Add(1)
	}
	return m.Manager.Add(r)
}

// A manager that is stopped while something is added to it stands still for half a minute, as a handler that is stopped right after its start
// would. The kinds are there only when it runs, so that is when the controllers are made.
func TestSetup_addsNothingToAManagerThatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	node := w.node()
	mgr := &runningManager{Manager: cluster.Manager(t, controlplane.HandlerOn(node))}
	if err := Setup(mgr, w.mover(mgr, node)); err != nil {
		t.Fatal(err)
	}
	mgr.runs.Store(true)
	stop := controlplane.StartManager(t, mgr)
	w.untilPhase(w.upload("b1"), velerov2.PhaseCompleted)
	stop()
	if n := mgr.added.Load(); n > 0 {
		t.Errorf("%d runnables were added while it ran", n)
	}
}
