package changedblocktracking

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/tracking"
)

// selectorsInvalid is 1 while a selector cannot be evaluated.
var selectorsInvalid = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "varve_changed_block_tracking_selectors_invalid",
	Help: "1 while a selector of changed block tracking is invalid, so that no machine's tracking changes.",
})

func init() { metrics.Registry.MustRegister(selectorsInvalid) }

// selectorReconciler reports invalid selectors once for the configuration, instead of once for each machine.
type selectorReconciler struct {
	cached        client.Client
	events        events.EventRecorder
	configuration types.NamespacedName
}

// Reconcile evaluates the selectors of the configuration.
func (r *selectorReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.NamespacedName != r.configuration {
		return ctrl.Result{}, nil
	}
	kv := &kubevirtv1.KubeVirt{}
	if err := r.cached.Get(ctx, req.NamespacedName, kv); apierrors.IsNotFound(err) {
		selectorsInvalid.Set(0)
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("get the configuration %s: %w", req, err)
	}
	_, err := tracking.Selected(kv, nil, nil)
	if err == nil {
		selectorsInvalid.Set(0)
		return ctrl.Result{}, nil
	}
	selectorsInvalid.Set(1)
	log.FromContext(ctx).Error(err, "a selector of changed block tracking is invalid: no machine's tracking changes until it is corrected")
	r.events.Eventf(kv, nil, corev1.EventTypeWarning, ReasonInvalidSelector, "Select",
		"changedBlockTrackingLabelSelectors: %v. No machine's tracking changes until you correct it.", err)
	return ctrl.Result{}, nil
}
