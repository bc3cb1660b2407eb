// Package store is a node's part of images and volumes, `varve store`: its disks, the copies of images on them, and the
// CSI driver whose volumes are cloned from these.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/metricsaccess"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/store/agent"
	"github.com/varvebackup/varve/internal/store/csi"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/imagehttp"
	"github.com/varvebackup/varve/internal/store/metric"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/internal/store/snapshotmetadata"
)

// DefaultDisk is the node's directory that becomes its first disk.
const DefaultDisk = "/var/lib/varve-store"

// How the images on the disks are read, unless Options say otherwise.
const (
	DefaultScrubBytesPerSecond = 20 << 20
	DefaultScrubInterval       = 7 * 24 * time.Hour
)

// Options are what Run needs. Config, Node, Namespace, PodIP and TLSDir have no default.
type Options struct {
	// Config connects to the API server.
	Config *rest.Config
	// Node is the Kubernetes node, and Namespace Varve's own namespace.
	Node, Namespace string
	// PodIP is the address at which other stores read copies of images.
	PodIP string
	// TLSDir has the certificate for that: tls.crt, tls.key and ca.crt.
	TLSDir string
	// HostRoot is where this process sees the node's root directory. Empty: /.
	HostRoot string
	// DefaultDisk is the directory of the node's first disk. Empty: the node has only the disks that its Node names.
	DefaultDisk string
	// ScrubBytesPerSecond is how fast the store reads the images on the disks to find damage, and ScrubInterval how often
	// it reads all of them. If one of them is 0, it does not read them.
	ScrubBytesPerSecond int64
	ScrubInterval       time.Duration
	// KubeletDir is the kubelet's directory, at the same path as on the node. Empty: /var/lib/kubelet.
	KubeletDir string
	// MetricsAddress serves /metrics as package metricsaccess does, HealthAddress serves /healthz and /readyz over plain
	// HTTP. "0": not served.
	MetricsAddress, HealthAddress string
	// Logger receives what the store logs.
	Logger logr.Logger
}

// Run works until ctx ends, and then returns nil. Volumes stay attached: the next process leases them again.
func Run(ctx context.Context, o Options) error {
	if o.Config == nil || o.Node == "" || o.Namespace == "" || o.PodIP == "" || o.TLSDir == "" {
		return errors.New("run the store: --node-name, --namespace, --pod-ip and --tls-dir are required")
	}
	mgr, err := newManager(o)
	if err != nil {
		return fmt.Errorf("run the store: %w", err)
	}
	live, err := client.New(o.Config, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return fmt.Errorf("run the store: %w", err)
	}
	clientset, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return fmt.Errorf("run the store: %w", err)
	}
	snapshots, err := snapshotclient.NewForConfig(o.Config)
	if err != nil {
		return fmt.Errorf("run the store: %w", err)
	}
	disks, log := &diskset.Set{}, slog.New(logr.ToSlogHandler(o.Logger))
	var driver *csi.Driver
	measures := metric.New(o.Node, func() int { return driver.CountAttached() })
	driver = csi.New(csi.Options{
		Failed: func() { measures.Failed(metric.OperationVolume) },
		Node:   o.Node, Namespace: o.Namespace, Disks: disks, Client: live, Kubernetes: clientset,
		Snapshots: snapshots, KubeletDir: o.KubeletDir, HostRoot: o.HostRoot, Clock: clock.RealClock{}, Logger: log,
	})
	local := &snapshotmetadata.Local{Disks: disks}
	if err := metrics.Registry.Register(measures); err != nil {
		return fmt.Errorf("run the store: register the metrics: %w", err)
	}
	defer metrics.Registry.Unregister(measures)
	ready := &readiness{driver: driver}
	if err := mgr.AddReadyzCheck("store", ready.check); err != nil {
		return fmt.Errorf("run the store: %w", err)
	}
	for _, run := range []manager.RunnableFunc{
		driver.Run,
		func(ctx context.Context) error {
			return agent.Run(ctx, agent.Options{
				Node: o.Node, Namespace: o.Namespace, HostRoot: o.HostRoot, DefaultDisk: o.DefaultDisk, Disks: disks,
				Opened: driver.LeaseAttached, Orphans: driver.DescribeOrphans, Looked: ready.noteLook,
				CopyReady: driver.WakeClaims, Measures: measures,
				Events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-store")),
				Config: o.Config, PodIP: o.PodIP, TLSDir: o.TLSDir,
				Clock: clock.RealClock{}, Logger: log,
				Scrub:    agent.ScrubOptions{BytesPerSecond: o.ScrubBytesPerSecond, Interval: o.ScrubInterval},
				Register: func(r grpc.ServiceRegistrar) { csispec.RegisterSnapshotMetadataServer(r, local) },
				ServeUsers: func(ctx context.Context, noteDamage func(context.Context, peer.Copy, string)) error {
					return imagehttp.Run(ctx, imagehttp.Options{
						Namespace: o.Namespace, Disks: disks, NoteDamage: noteDamage, Kubernetes: clientset,
						Clock: clock.RealClock{}, Logger: log,
					})
				},
			})
		},
		func(ctx context.Context) error {
			return snapshotmetadata.Run(ctx, snapshotmetadata.Options{
				Node: o.Node, Namespace: o.Namespace, IP: o.PodIP, Port: names.MetadataPort, TLSDir: o.TLSDir, Local: local,
				Client: live, Kubernetes: clientset, Snapshots: snapshots, Logger: log,
			})
		},
	} {
		if err := mgr.Add(run); err != nil {
			return fmt.Errorf("run the store: %w", err)
		}
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the store: %w", err)
	}
	return nil
}

// newManager returns a manager that serves metrics and health checks.
func newManager(o Options) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), longhornv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(o.Config, ctrl.Options{
		Scheme: scheme, Logger: o.Logger, Metrics: metricsaccess.ServerOptions(o.MetricsAddress),
		HealthProbeBindAddress: o.HealthAddress,
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, mgr.AddHealthzCheck("ping", healthz.Ping)
}

// readiness says whether the store can serve its node: kubelet has registered the driver, and the agent has opened the
// disks that it can open.
type readiness struct {
	driver interface{ Ready() error }
	looked atomic.Bool
}

func (r *readiness) noteLook() { r.looked.Store(true) }

func (r *readiness) check(*http.Request) error {
	if !r.looked.Load() {
		return errors.New("the store has not yet looked at its disks and reported them: " +
			"if this lasts, look for \"tries again\" in its log")
	}
	return r.driver.Ready()
}

// Who may read the metrics (package metricsaccess), the metadata of snapshots (package snapshotmetadata), and images
// (package imagehttp):
//
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
