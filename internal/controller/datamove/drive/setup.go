package drive

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

// workers is how many objects are worked on at a time. None of them waits.
const workers = 16

// The cache's index of objects of which something is left to do. Objects that have ended stay for months, and no pass
// looks at them.
const openIndex, isOpen = "open", "yes"

// addMover adds the data mover m to mgr. It sets m.Cluster, to what mgr's cache has, and m.Cached and
// m.Settings.Cached, to a cache of its own: that of mgr has other parts of the same kinds.
func addMover(mgr ctrl.Manager, m *Mover) error {
	objects, err := newCache(mgr, m)
	if err != nil {
		return err
	}
	if err := mgr.Add(objects); err != nil {
		return fmt.Errorf("add the cache: %w", err)
	}
	for _, kind := range []datamove.Kind{datamove.Upload, datamove.Download} {
		if err := objects.IndexField(context.Background(), newObject(kind), openIndex, indexOpen); err != nil {
			return fmt.Errorf("index %ss: %w", kind, err)
		}
	}
	m.Cluster, m.Cached, m.Settings.Cached = mgr.GetClient(), objects, objects
	return addControllers(mgr, objects, m)
}

// indexOpen returns whether anything is left to do with an object.
func indexOpen(o client.Object) []string {
	if v, err := viewOf(o); err == nil && v.isOver() {
		return nil
	}
	return []string{isOpen}
}

// newCache returns a cache of what decisions need: little of other nodes and of objects that have ended, because both are many.
func newCache(mgr ctrl.Manager, m *Mover) (cache.Cache, error) {
	ours, err := labels.NewRequirement(datamove.LabelObject, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("select what was made for objects: %w", err)
	}
	children := cache.ByObject{Namespaces: map[string]cache.Config{m.Namespace: {LabelSelector: labels.NewSelector().Add(*ours)}}}
	objects := cache.ByObject{Transform: shrinkEnded}
	for _, n := range m.ObjectNamespaces {
		if objects.Namespaces == nil {
			objects.Namespaces = map[string]cache.Config{}
		}
		objects.Namespaces[n] = cache.Config{}
	}
	return cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&velerov2.DataUpload{}:          objects,
			&velerov2.DataDownload{}:        objects,
			&velerov1.BackupRepository{}:    {Namespaces: map[string]cache.Config{m.Namespace: {}}},
			&corev1.Pod{}:                   children,
			&corev1.PersistentVolumeClaim{}: children,
			&corev1.Node{}:                  {Transform: shrinkNode},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{m.Namespace: {
				FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, settings.ConfigMap),
			}}},
		},
	})
}

// shrinkEnded keeps of an object that has ended what says so, and whether anything is left to do. Such objects stay for months.
func shrinkEnded(o any) (any, error) {
	object, ok := o.(client.Object)
	if !ok {
		return o, nil
	}
	object.SetManagedFields(nil)
	v, err := viewOf(object)
	if err != nil || !v.Phase.Ended() || v.Deleted {
		return o, nil //nolint:nilerr // the Reconciler reports it
	}
	object.SetLabels(nil)
	object.SetOwnerReferences(nil)
	annotations := object.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool { return key != datamove.AnnotationDriver })
	switch object := object.(type) {
	case *velerov2.DataUpload:
		object.Spec.CSISnapshot, object.Spec.DataMoverConfig, object.Status.DataMoverResult, object.Status.Message = nil, nil, nil, ""
	case *velerov2.DataDownload:
		object.Spec.DataMoverConfig, object.Status.Message = nil, ""
	}
	return object, nil
}

// shrinkNode keeps of a node what decisions need.
func shrinkNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	small := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, CreationTimestamp: node.CreationTimestamp, Labels: node.Labels,
	}}
	small.Spec.Taints, small.Spec.Unschedulable = node.Spec.Taints, node.Spec.Unschedulable
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			small.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return small, nil
}

func addControllers(mgr ctrl.Manager, objects cache.Cache, m *Mover) error {
	for _, kind := range []datamove.Kind{datamove.Upload, datamove.Download} {
		r := &Reconciler{Mover: m, Kind: kind}
		requests := handler.EnqueueRequestsFromMapFunc
		err := ctrl.NewControllerManagedBy(mgr).Named("drive-" + strings.ToLower(string(kind))).
			WatchesRawSource(source.Kind(objects, newObject(kind), &handler.EnqueueRequestForObject{},
				moreThanProgress)).
			WatchesRawSource(source.Kind[client.Object](objects, &corev1.Pod{}, requests(r.requestOfOwner))).
			WatchesRawSource(source.Kind[client.Object](objects, &corev1.PersistentVolumeClaim{},
				requests(r.requestOfOwner))).
			WatchesRawSource(source.Kind[client.Object](objects, &velerov1.BackupRepository{},
				requests(r.requestsOfRepository))).
			WatchesRawSource(source.Kind[client.Object](objects, &velerov1.BackupStorageLocation{},
				requests(r.requestsOfLocation))).
			WatchesRawSource(source.Kind[client.Object](objects, &corev1.Node{}, requests(r.requestsOfNode),
				reconcile.MoreThanVersion())).
			WatchesRawSource(source.Kind[client.Object](objects, &corev1.ConfigMap{}, requests(r.requestsOfAll))).
			WithOptions(reconcile.Options(workers)).
			Complete(r)
		if err != nil {
			return fmt.Errorf("set up %s: %w", kind, err)
		}
	}
	wake := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: types.NamespacedName{Name: "take"}}}
	})
	err := ctrl.NewControllerManagedBy(mgr).Named("drive-take").
		WatchesRawSource(source.Kind[client.Object](objects, &velerov2.DataUpload{}, wake, moreThanProgress)).
		WatchesRawSource(source.Kind[client.Object](objects, &velerov2.DataDownload{}, wake, moreThanProgress)).
		WatchesRawSource(source.Kind[client.Object](objects, &corev1.Node{}, wake, reconcile.MoreThanVersion())).
		WatchesRawSource(source.Kind[client.Object](objects, &corev1.ConfigMap{}, wake)).
		WithOptions(reconcile.Options(1)).
		Complete(&Taker{Mover: m})
	if err != nil {
		return fmt.Errorf("set up the taker: %w", err)
	}
	return nil
}

// moreThanProgress drops updates that change nothing but progress, which a mover writes every few seconds.
var moreThanProgress = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	without := func(o client.Object) client.Object {
		c, _ := o.DeepCopyObject().(client.Object)
		c.SetResourceVersion("")
		c.SetGeneration(0)
		switch c := c.(type) {
		case *velerov2.DataUpload:
			c.Status.Progress = velerov2.Progress{}
		case *velerov2.DataDownload:
			c.Status.Progress = velerov2.Progress{}
		}
		return c
	}
	return !equality.Semantic.DeepEqual(without(e.ObjectOld), without(e.ObjectNew))
}}

// requestOfOwner maps what was made for an object to that object.
func (r *Reconciler) requestOfOwner(_ context.Context, o client.Object) []ctrl.Request {
	kind, object, ok := datamove.ParseOwner(o.GetAnnotations()[datamove.AnnotationOwner])
	if !ok || kind != r.Kind {
		return nil
	}
	return []ctrl.Request{{NamespacedName: object}}
}

// requestsWhere returns requests for the objects that fit and of which anything is left to do.
func (r *Reconciler) requestsWhere(ctx context.Context, fits func(client.Object, *Object) bool) []ctrl.Request {
	objects, err := r.listOpenOf(ctx, r.Kind)
	if err != nil {
		return nil // the cache fails only when the process ends
	}
	var requests []ctrl.Request
	for _, o := range objects {
		if v, err := viewOf(o); err == nil && fits(o, &v) {
			requests = append(requests, ctrl.Request{NamespacedName: v.NamespacedName})
		}
	}
	return requests
}

func (r *Reconciler) requestsOfRepository(ctx context.Context, o client.Object) []ctrl.Request {
	return r.requestsWhere(ctx, func(other client.Object, v *Object) bool {
		p := pass{Reconciler: r, object: other, in: Input{Object: *v}}
		return v.Driver != "" && p.repositoryName() == o.GetName()
	})
}

func (r *Reconciler) requestsOfLocation(ctx context.Context, o client.Object) []ctrl.Request {
	return r.requestsWhere(ctx, func(_ client.Object, v *Object) bool {
		return v.Driver != "" && v.Namespace == o.GetNamespace() && v.Location == o.GetName()
	})
}

func (r *Reconciler) requestsOfNode(ctx context.Context, o client.Object) []ctrl.Request {
	return r.requestsWhere(ctx, func(_ client.Object, v *Object) bool { return v.Driver == o.GetName() || v.Node == o.GetName() })
}

func (r *Reconciler) requestsOfAll(ctx context.Context, _ client.Object) []ctrl.Request {
	return r.requestsWhere(ctx, func(client.Object, *Object) bool { return true })
}
