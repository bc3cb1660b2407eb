package datamover

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// workers is how many objects one handler works on at a time. None of them waits.
	workers = 16
	// kindsInterval is how often a handler looks for the kinds in a cluster that does not have them.
	kindsInterval = 10 * time.Second
)

// AddToScheme registers the kinds that the package reads and writes.
func AddToScheme(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{velerov1.AddToScheme, velerov2.AddToScheme, exportv1.AddToScheme} {
		if err := add(s); err != nil {
			return err
		}
	}
	return nil
}

// Setup makes mgr run the data mover m as soon as the cluster has the kinds of Velero, which may be installed later. m.Cached and
// m.Settings.Cached are set by then: to a cache of its own, because that of mgr has other objects of the same kinds.
func Setup(mgr ctrl.Manager, m *Mover) error {
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if err := awaitKinds(ctx, mgr.GetRESTMapper(), m); err != nil {
			return nil //nolint:nilerr // the handler ends
		}
		late := &lateManager{Manager: mgr}
		if err := addControllers(late, m); err != nil {
			return fmt.Errorf("set up the data mover: %w", err)
		}
		return late.run(ctx)
	}))
}

// awaitKinds returns when the cluster has every kind that is watched, or with an error when ctx ends.
func awaitKinds(ctx context.Context, mapper meta.RESTMapper, m *Mover) error {
	needed := map[schema.GroupVersion][]string{
		velerov2.GroupVersion: {"DataUpload", "DataDownload"}, velerov1.GroupVersion: {"BackupRepository", "BackupStorageLocation"},
	}
	said := ""
	return wait.PollUntilContextCancel(ctx, kindsInterval, true, func(context.Context) (bool, error) {
		for version, kinds := range needed {
			for _, kind := range kinds {
				if _, err := mapper.RESTMapping(schema.GroupKind{Group: version.Group, Kind: kind}, version.Version); err != nil {
					if text := err.Error(); text != said {
						m.Log.Info("the data mover waits for a kind that the cluster does not have", "kind", kind, "version", version.String(), "error", text)
						said = text
					}
					return false, nil
				}
			}
		}
		return true, nil
	})
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
			&corev1.Pod{}:                   {Namespaces: map[string]cache.Config{m.Namespace: {}}, Transform: shrinkPod},
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

func addControllers(mgr ctrl.Manager, m *Mover) error {
	objects, err := newCache(mgr, m)
	if err != nil {
		return err
	}
	if err := mgr.Add(objects); err != nil {
		return err
	}
	m.Cached, m.Settings.Cached = objects, objects
	for _, kind := range []datamove.Kind{datamove.Upload, datamove.Download} {
		r := &Reconciler{Mover: m, Kind: kind}
		err := ctrl.NewControllerManagedBy(mgr).Named("handler-" + strings.ToLower(string(kind))).
			WatchesRawSource(source.Kind(objects, newObject(r.Kind), &handler.EnqueueRequestForObject{}, moreThanProgress)).
			WatchesRawSource(source.Kind[client.Object](objects, &corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.requestsOfPod))).
			WatchesRawSource(source.Kind[client.Object](objects, &corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.requestOfOwner))).
			WatchesRawSource(source.Kind[client.Object](objects, &velerov1.BackupRepository{}, handler.EnqueueRequestsFromMapFunc(r.requestsOfRepository))).
			WatchesRawSource(source.Kind[client.Object](objects, &velerov1.BackupStorageLocation{}, handler.EnqueueRequestsFromMapFunc(r.requestsOfLocation))).
			WatchesRawSource(source.Kind[client.Object](objects, &corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.requestsOfNode), reconcile.MoreThanVersion())).
			WatchesRawSource(source.Kind[client.Object](objects, &corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.requestsOfAll))).
			WithOptions(reconcile.Options(workers)).
			Complete(r)
		if err != nil {
			return fmt.Errorf("set up %s: %w", kind, err)
		}
	}
	wake := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
		return []ctrl.Request{{NamespacedName: types.NamespacedName{Name: "take"}}}
	})
	own := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == m.NodeName })
	err = ctrl.NewControllerManagedBy(mgr).Named("handler-take").
		WatchesRawSource(source.Kind[client.Object](objects, &velerov2.DataUpload{}, wake, moreThanProgress)).
		WatchesRawSource(source.Kind[client.Object](objects, &velerov2.DataDownload{}, wake, moreThanProgress)).
		WatchesRawSource(source.Kind[client.Object](objects, &corev1.Node{}, wake, own, reconcile.MoreThanVersion())).
		WatchesRawSource(source.Kind[client.Object](objects, &corev1.Pod{}, wake, ofHandlers)).
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

// ofHandlers passes the pods of handlers alone.
var ofHandlers = predicate.NewPredicateFuncs(func(o client.Object) bool {
	pod, ok := o.(*corev1.Pod)
	return ok && isHandlerPod(pod)
})

// requestOfOwner maps what was made for an object to that object.
func (r *Reconciler) requestOfOwner(_ context.Context, o client.Object) []ctrl.Request {
	parts := strings.Split(o.GetAnnotations()[datamove.AnnotationOwner], "/")
	if len(parts) != 3 || parts[0] != string(r.Kind) {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: parts[1], Name: parts[2]}}}
}

// requestsWhere returns requests for the objects that fit and of which anything is left to do.
func (r *Reconciler) requestsWhere(ctx context.Context, fits func(client.Object, *Object) bool) []ctrl.Request {
	var objects []client.Object
	var err error
	if r.Kind == datamove.Upload {
		var list velerov2.DataUploadList
		err = r.Cached.List(ctx, &list)
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
	} else {
		var list velerov2.DataDownloadList
		err = r.Cached.List(ctx, &list)
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
	}
	if err != nil {
		return nil // the cache fails only when the process ends
	}
	var requests []ctrl.Request
	for _, o := range objects {
		v, err := viewOf(o)
		if err == nil && (!v.Phase.Ended() || v.Finalizer && (v.Deleted || !v.Memory.Disposed)) && fits(o, &v) {
			requests = append(requests, ctrl.Request{NamespacedName: v.NamespacedName})
		}
	}
	return requests
}

// requestsOfPod maps a mover pod to its object, a handler's pod to the objects that this handler drives, and this handler's own pod, without
// which it does not judge others, to all that others drive.
func (r *Reconciler) requestsOfPod(ctx context.Context, o client.Object) []ctrl.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok || !isHandlerPod(pod) {
		return r.requestOfOwner(ctx, o)
	}
	if err := r.lookForHandlers(ctx); err != nil {
		return nil // the cache fails only when the process ends
	}
	node := pod.Spec.NodeName
	return r.requestsWhere(ctx, func(_ client.Object, v *Object) bool {
		return v.Driver != "" && v.Driver != r.NodeName && (v.Driver == node || node == r.NodeName)
	})
}

func (r *Reconciler) requestsOfRepository(ctx context.Context, o client.Object) []ctrl.Request {
	return r.requestsWhere(ctx, func(other client.Object, v *Object) bool {
		p := pass{Reconciler: r, object: other, in: Input{Object: *v}}
		return v.Driver == r.NodeName && p.repositoryName() == o.GetName()
	})
}

func (r *Reconciler) requestsOfLocation(ctx context.Context, o client.Object) []ctrl.Request {
	return r.requestsWhere(ctx, func(_ client.Object, v *Object) bool {
		return v.Driver == r.NodeName && v.Namespace == o.GetNamespace() && v.Location == o.GetName()
	})
}

func (r *Reconciler) requestsOfNode(ctx context.Context, o client.Object) []ctrl.Request {
	return r.requestsWhere(ctx, func(_ client.Object, v *Object) bool { return v.Driver == o.GetName() || v.Node == o.GetName() })
}

func (r *Reconciler) requestsOfAll(ctx context.Context, _ client.Object) []ctrl.Request {
	return r.requestsWhere(ctx, func(client.Object, *Object) bool { return true })
}
