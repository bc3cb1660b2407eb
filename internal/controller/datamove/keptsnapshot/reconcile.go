package keptsnapshot

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reconcile looks at all kept snapshots, whatever the request says.
func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	again := ctrl.Result{RequeueAfter: r.Interval}
	var list snapshotv1.VolumeSnapshotList
	err := r.live.List(ctx, &list, client.InNamespace(r.Namespace), client.HasLabels{datamove.LabelKeptSnapshot})
	switch {
	case meta.IsNoMatchError(err):
		r.count(map[metric.KeptSnapshots]int{})
		return again, nil // The cluster has no snapshots.
	case err != nil:
		r.count(nil)
		return ctrl.Result{}, fmt.Errorf("list kept snapshots: %w", err)
	}
	all := make([]candidate, len(list.Items))
	counts := map[metric.KeptSnapshots]int{}
	for i := range list.Items {
		all[i].read(&list.Items[i])
		counts[metric.KeptSnapshots{Namespace: all[i].kept.Claim.Namespace, Driver: all[i].kept.Driver}]++
	}
	r.count(counts)
	if len(all) == 0 {
		return again, nil
	}
	l := &lookup{reconciler: r, services: map[string]bool{}, claims: map[types.NamespacedName]*corev1.PersistentVolumeClaim{}}
	if l.settings, err = r.settings(ctx); err != nil {
		return ctrl.Result{}, err
	}
	if l.running, err = r.runningUploads(ctx); err != nil {
		return ctrl.Result{}, err
	}
	for i := range all {
		if err := l.examine(ctx, &all[i]); err != nil {
			all[i].unknown = true
			l.failures = append(l.failures, fmt.Errorf("look at what VolumeSnapshot %s is kept for: %w", list.Items[i].Name, err))
		}
	}
	for i, why := range decide(all) {
		if o := &list.Items[i]; why != "" && o.DeletionTimestamp == nil {
			l.failures = append(l.failures, r.remove(ctx, o, why))
		}
	}
	return again, errors.Join(l.failures...)
}

func (r *reconciler) count(counts map[metric.KeptSnapshots]int) {
	if r.Counted != nil {
		r.Counted(counts)
	}
}

// remove deletes a VolumeSnapshot, and with it the snapshot on the storage.
func (r *reconciler) remove(ctx context.Context, o *snapshotv1.VolumeSnapshot, why string) error {
	log.FromContext(ctx).Info("a kept snapshot is deleted", "volumeSnapshot", o.Namespace+"/"+o.Name, "why", why)
	err := r.cached.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.UID)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete VolumeSnapshot %s/%s: %w", o.Namespace, o.Name, err)
	}
	return nil
}

// settings returns those that hold now, or nil if they cannot be read by anybody: then the driver keeps to those that
// it had.
func (r *reconciler) settings(ctx context.Context) (*settings.Settings, error) {
	m, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: r.Namespace, Name: settings.ConfigMap}, &corev1.ConfigMap{})
	if err != nil {
		return nil, err
	}
	current, err := settings.OfConfigMap(m)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // documented
	}
	return &current, nil
}
