package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func start() error {
	m := &mover{}
	namespace := flag.String("namespace", "velero", "namespace of Velero; whoever may create objects there may have volumes read")
	flag.StringVar(&m.node, "node", os.Getenv("NODE_NAME"), "node that the mover runs on")
	flag.StringVar(&m.snapshots, "snapshots", "/snapshots", "directory with the snapshots of the CSI driver")
	flag.StringVar(&m.store, "store", "/store", "directory that keeps volumes")
	flag.StringVar(&m.volumes, "volumes", "/volumes", "directory that volumes are restored to; the node has it at the same path")
	flag.Parse()
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := m.newManager(config, ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{*namespace: {}}}})
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// newManager returns what calls the mover for each change of an object. Four objects of each kind are served at a time.
func (m *mover) newManager(config *rest.Config, options ctrl.Options) (ctrl.Manager, error) {
	options.Scheme = runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, snapshotv1.AddToScheme} {
		if err := add(options.Scheme); err != nil {
			return nil, err
		}
	}
	// What the mover reads besides its objects is read when it is needed, so that it need not watch the whole cluster.
	options.NewClient = func(config *rest.Config, options client.Options) (client.Client, error) {
		options.Cache = nil
		return client.New(config, options)
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	m.Client = mgr.GetClient()
	for _, kind := range []string{upload, "DataDownload"} {
		newObject := func() *unstructured.Unstructured {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(schema.GroupVersionKind{Group: "velero.io", Version: "v2alpha1", Kind: kind})
			return o
		}
		err := ctrl.NewControllerManagedBy(mgr).For(newObject()).WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
			Complete(reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
				o := newObject()
				if err := m.Get(ctx, request.NamespacedName, o); err != nil {
					return reconcile.Result{}, client.IgnoreNotFound(err)
				}
				return m.serve(ctx, o)
			}))
		if err != nil {
			return nil, err
		}
	}
	return mgr, nil
}
