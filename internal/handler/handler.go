package handler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/handler/backup/checkpoint"
	"github.com/varvebackup/varve/internal/handler/backup/kubevirtbackup"
	"github.com/varvebackup/varve/internal/handler/backup/vmsnapshot"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/machine/arrival"
	"github.com/varvebackup/varve/internal/handler/machine/instance"
	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/handler/machine/startrequest"
	"github.com/varvebackup/varve/internal/handler/metric"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/metricsaccess"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Run needs.
type Options struct {
	// Config connects to the API server. Required.
	Config *rest.Config
	// NodeName is the node that the handler runs on. Required.
	NodeName string
	// Namespace is Varve's own namespace, which has the KubeVirt object. Default: layout.Namespace.
	Namespace string
	// KubeletPodsDir is the kubelet's pods directory, at the same path as on the node. Default: layout.KubeletPods.
	KubeletPodsDir string
	// MetricsAddress and HealthAddress are host:port to serve on: metrics as package metricsaccess does, checks over plain
	// HTTP. "0" or empty: not served.
	MetricsAddress, HealthAddress string
	// StopWaitsForBackup is how long a stop waits for a running backup at most. Default: layout.StopWaitsForBackup.
	StopWaitsForBackup time.Duration
	// Timing limits how long a launcher may be silent. Default: launcherclient.DefaultTiming.
	Timing launcherclient.Timing
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// Registry receives the metrics. Default: controller-runtime's, which MetricsAddress serves.
	Registry prometheus.Registerer
	Logger   logr.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Config == nil || o.NodeName == "" {
		return o, errors.New("handler: a configuration and the node's name are required")
	}
	o.Namespace = orDefault(o.Namespace, layout.Namespace)
	o.KubeletPodsDir = orDefault(o.KubeletPodsDir, layout.KubeletPods)
	o.MetricsAddress, o.HealthAddress = orDefault(o.MetricsAddress, "0"), orDefault(o.HealthAddress, "0")
	o.StopWaitsForBackup = orDefault(o.StopWaitsForBackup, layout.StopWaitsForBackup)
	o.Timing = orDefault(o.Timing, launcherclient.DefaultTiming())
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Registry == nil {
		o.Registry = metrics.Registry
	}
	return o, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Run reconciles the node's objects until ctx ends, and then returns nil. Guests, backups and mounts stay as they
// are: the next handler continues.
func Run(ctx context.Context, o Options) (err error) {
	o, err = o.withDefaults()
	if err != nil {
		return err
	}
	mounts, err := mount.Open(o.KubeletPodsDir)
	if err != nil {
		return fmt.Errorf("handler: %w", err)
	}
	defer func() { err = errors.Join(err, mounts.Close()) }()
	launchers := launcherclient.New(mounts, o.Timing, o.Clock)
	defer launchers.Close()
	mgr, err := newManager(o)
	if err != nil {
		return fmt.Errorf("handler: %w", err)
	}
	// Those of migrations to this node, whose instances are on another one.
	targets := launcherclient.New(mounts, o.Timing, o.Clock)
	defer targets.Close()
	if err := addReconcilers(mgr, o, launchers, targets, mounts); err != nil {
		return fmt.Errorf("handler: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("handler: %w", err)
	}
	return nil
}

// newManager returns a manager without leader election whose caches hold only this node's objects.
func newManager(o Options) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, f := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kubevirtv1.AddToScheme, backupv1.AddToScheme, vmsnapshotv1.AddToScheme,
	} {
		if err := f(scheme); err != nil {
			return nil, err
		}
	}
	mgr, err := ctrl.NewManager(o.Config, ctrl.Options{
		Scheme:                 scheme,
		Logger:                 o.Logger,
		Metrics:                metricsaccess.ServerOptions(o.MetricsAddress),
		HealthProbeBindAddress: o.HealthAddress,
		// One process may run several handlers one after another, so controller names need not be unique.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&kubevirtv1.VirtualMachineInstance{}: {Label: labels.SelectorFromSet(labels.Set{layout.LabelNodeName: o.NodeName})},
			&kubevirtv1.VirtualMachineInstanceMigration{}: {
				Label: labels.SelectorFromSet(labels.Set{layout.LabelMigrationTarget: o.NodeName}),
			},
			&backupv1.VirtualMachineBackup{}: {
				Field: fields.OneTermEqualSelector("status.nodeName", o.NodeName),
				Label: layout.UnfinishedBackups(),
			},
			// Those whose freeze is over have no node.
			&vmsnapshotv1.VirtualMachineSnapshot{}: {Field: fields.OneTermEqualSelector("status.nodeName", o.NodeName)},
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}

func addReconcilers(
	mgr ctrl.Manager, o Options, launchers, targets *launcherclient.Clients, mounts *mount.Mounts,
) error {
	measures, err := metric.New(o.Registry, o.NodeName)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	recorder := reconcile.ShortenNotes(mgr.GetEventRecorder("varve-handler"))
	keeper := &checkpoint.Keeper{Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Events: recorder, Discarded: measures.Discarded}
	requests := &startrequest.Builder{Live: mgr.GetAPIReader(), Namespace: o.Namespace, Log: o.Logger.WithName("instance")}
	instances := &instance.Reconciler{
		NodeName: o.NodeName, Namespace: o.Namespace, StopWaitsForBackup: o.StopWaitsForBackup,
		Cached: mgr.GetClient(), Live: mgr.GetAPIReader(), Launchers: launchers, Mounts: mounts,
		Requests: requests, Keeper: keeper,
		Events: recorder, Measures: measures, Clock: o.Clock, Log: o.Logger.WithName("instance"),
	}
	if err := instances.Setup(mgr); err != nil {
		return fmt.Errorf("set up the instance reconciler: %w", err)
	}
	arrivals := &arrival.Reconciler{
		NodeName: o.NodeName, Cached: mgr.GetClient(), Live: mgr.GetAPIReader(), Launchers: targets, Secrets: mounts,
		Requests: requests, Events: recorder, Clock: o.Clock,
	}
	if err := arrivals.Setup(mgr); err != nil {
		return fmt.Errorf("set up the reconciler of migrations to this node: %w", err)
	}
	backups := &kubevirtbackup.Reconciler{
		NodeName: o.NodeName, Cached: mgr.GetClient(), Live: mgr.GetAPIReader(), Launchers: launchers, Keeper: keeper,
		Partial: mounts, Secrets: mounts, Events: recorder, Measures: measures, Clock: o.Clock,
	}
	if err := backups.Setup(mgr); err != nil {
		return fmt.Errorf("set up the backup reconciler: %w", err)
	}
	snapshots := &vmsnapshot.Reconciler{
		NodeName: o.NodeName, Writer: mgr.GetClient(), Live: mgr.GetAPIReader(),
		Launchers: launchers,
	}
	if err := snapshots.Setup(mgr); err != nil {
		return fmt.Errorf("set up the snapshot reconciler: %w", err)
	}
	return nil
}
