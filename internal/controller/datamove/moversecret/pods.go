package moversecret

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/varvebackup/varve/internal/datamove"
)

// WatchPods returns a source of requests for the DataUploads whose mover pods are made, so that their Secrets are there
// when the kubelet mounts them, or when it tries again: it says FailedMount for one that is missing, and waits for half
// a second, then one, then two, and so on. The source has a cache of its own, because that of mgr has other pods.
func WatchPods(mgr ctrl.Manager, namespace string) (source.Source, error) {
	ours, err := labels.NewRequirement(datamove.LabelObject, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("select mover pods: %w", err)
	}
	pods := &metav1.PartialObjectMetadata{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	objects, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		DefaultTransform:     cache.TransformStripManagedFields(),
		DefaultNamespaces:    map[string]cache.Config{namespace: {}},
		DefaultLabelSelector: labels.NewSelector().Add(*ours),
	})
	if err != nil {
		return nil, fmt.Errorf("make a cache of mover pods: %w", err)
	}
	if err := mgr.Add(objects); err != nil {
		return nil, fmt.Errorf("add the cache of mover pods: %w", err)
	}
	return source.Kind[client.Object](objects, pods, handler.EnqueueRequestsFromMapFunc(requestOfUpload), onlyMade), nil
}

// onlyMade drops everything that happens to a pod after it was made.
var onlyMade = predicate.Funcs{
	// A pod that was made again under its name while nobody watched comes as an update.
	UpdateFunc:  func(e event.UpdateEvent) bool { return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// requestOfUpload maps a mover pod to its DataUpload.
func requestOfUpload(_ context.Context, pod client.Object) []ctrl.Request {
	kind, upload, ok := datamove.ParseOwner(pod.GetAnnotations()[datamove.AnnotationOwner])
	if !ok || kind != datamove.Upload {
		return nil
	}
	return []ctrl.Request{{NamespacedName: upload}}
}
