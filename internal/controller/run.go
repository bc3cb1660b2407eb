package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/admission"
	"github.com/varvebackup/varve/internal/controller/backup/exportproxy"
	"github.com/varvebackup/varve/internal/controller/backup/kubevirtbackup"
	"github.com/varvebackup/varve/internal/controller/backup/tunnelkey"
	"github.com/varvebackup/varve/internal/controller/backup/virtualmachineexport"
	"github.com/varvebackup/varve/internal/controller/backup/virtualmachinesnapshot"
	"github.com/varvebackup/varve/internal/controller/datamove/backuprepository"
	"github.com/varvebackup/varve/internal/controller/datamove/backupstoragelocation"
	"github.com/varvebackup/varve/internal/controller/datamove/catalogue"
	"github.com/varvebackup/varve/internal/controller/datamove/drive"
	"github.com/varvebackup/varve/internal/controller/datamove/endpointaccess"
	"github.com/varvebackup/varve/internal/controller/datamove/keptsnapshot"
	"github.com/varvebackup/varve/internal/controller/datamove/machinegroup"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/controller/keep"
	"github.com/varvebackup/varve/internal/controller/machine/changedblocktracking"
	"github.com/varvebackup/varve/internal/controller/machine/disruption"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/controller/machine/migration"
	"github.com/varvebackup/varve/internal/controller/machine/utilityvolume"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachine"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/controller/store/backingimage"
	"github.com/varvebackup/varve/internal/controller/store/certificate"
	"github.com/varvebackup/varve/internal/controller/store/imagebackup"
	"github.com/varvebackup/varve/internal/controller/store/lostvolume"
	"github.com/varvebackup/varve/internal/controller/store/silence"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/metricsaccess"
)

// Options are what Run needs. Config, Namespace, LauncherImage and VarveImage have no default.
type Options struct {
	// Config connects to the API server.
	Config *rest.Config
	// Namespace is Varve's own namespace. It holds the KubeVirt object, the lease and the webhook's certificate.
	Namespace string
	// BesideKubeVirt leaves machines, their exports and their snapshots to KubeVirt, and backs them up through its API.
	BesideKubeVirt bool
	// LauncherImage is what launcher pods are made of, and VarveImage attachment pods, export pods, mover pods and the
	// pods that work in repositories.
	LauncherImage, VarveImage string
	// ImagePullPolicy applies to both images. Empty: Kubernetes' default.
	ImagePullPolicy corev1.PullPolicy
	// MetricsAddress serves /metrics as package metricsaccess does, HealthAddress serves /healthz and /readyz over plain
	// HTTP. "0" or empty: not served.
	MetricsAddress, HealthAddress string
	// LeaderElection lets only one of several replicas work at a time.
	LeaderElection bool
	// StopWaitsForBackup is how long a handler may delay a stop for a running backup. It is the handlers' option of
	// the same name. Default: layout.StopWaitsForBackup.
	StopWaitsForBackup time.Duration
	// Backup limits how long a backup waits.
	Backup kubevirtbackup.Options
	// KeptSnapshots is told how many CSI snapshots are kept. Run sets it; it may be nil.
	KeptSnapshots func(map[metric.KeptSnapshots]int)
	// Images says how long images wait for what. Setup sets the rest of it.
	Images backingimage.Options
	// ImagesServed is called with the namespace whose images are served, if the cluster has the kinds. Run sets it. It
	// may be nil.
	ImagesServed func(namespace string)
	// Movements is told what becomes of DataUploads and DataDownloads. Run sets it. Default: metrics that nobody reads.
	Movements *metric.Movements
	// ExportProxyHost is where clients outside the cluster reach exports. Default: where the export proxy's Ingress is.
	ExportProxyHost string
	// Webhook is where the admission webhook listens. Setup sets its Namespace. If nil, the webhook is not served.
	Webhook *admission.Options
	// LocationNamespaces returns the namespaces whose BackupStorageLocations are served. Default: Namespace, Velero's, and those
	// of the settings.
	LocationNamespaces func(context.Context) ([]string, error)
	// PasswordPerNamespace says whether the repositories of a location have passwords of their own. Default: they share one.
	PasswordPerNamespace func(context.Context) (bool, error)
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// Logger receives what the controllers log.
	Logger logr.Logger
}

// Scheme returns a scheme with every kind that the controllers read and write.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kubevirtv1.AddToScheme, backupv1.AddToScheme, exportv1.AddToScheme,
		velerov1.AddToScheme, velerov2.AddToScheme, harvesterv1.AddToScheme, snapshotv1.AddToScheme,
		varvev1.AddToScheme, vmsnapshotv1.AddToScheme, longhornv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Run runs the controllers until ctx ends, and then returns nil. Losing the lease is an error: the process must
// end.
func Run(ctx context.Context, o Options) error {
	if o.Config == nil || o.Namespace == "" || o.LauncherImage == "" || o.VarveImage == "" {
		return errors.New("run the controllers: config, namespace, launcher image and varve image are required")
	}
	scheme, err := Scheme()
	if err != nil {
		return fmt.Errorf("register the kinds: %w", err)
	}
	managed, err := managerOptions(o, scheme)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(o.Config, managed)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	measures := metric.New(mgr.GetClient(), mgr.GetAPIReader(), mgr.Elected())
	if err := metrics.Registry.Register(measures); err != nil {
		return fmt.Errorf("register the metrics: %w", err)
	}
	defer metrics.Registry.Unregister(measures)
	measures.BesideKubeVirt = o.BesideKubeVirt
	if err := mgr.Add(measures); err != nil {
		return fmt.Errorf("set up the metrics: %w", err)
	}
	o.Backup.Ended, o.KeptSnapshots = measures.CountEnd, measures.CountKept
	o.Movements, o.ImagesServed = measures.Movements, measures.ServeImages
	if err := Setup(mgr, o); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the controllers: %w", err)
	}
	return nil
}

// Who may read the metrics (package metricsaccess):
//
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func managerOptions(o Options, scheme *runtime.Scheme) (ctrl.Options, error) {
	ours, err := labels.NewRequirement(layout.LabelApp, selection.In, []string{
		virtualmachineinstance.AppLauncher, holdpod.App, virtualmachineexport.AppExporter,
		backingimage.AppSource,
	})
	if err != nil {
		return ctrl.Options{}, fmt.Errorf("select pods: %w", err)
	}
	pods := cache.ByObject{Label: labels.NewSelector().Add(*ours)}
	if o.BesideKubeVirt {
		pods.Namespaces = map[string]cache.Config{o.Namespace: {}} // the others are KubeVirt's
	}
	cached := map[client.Object]cache.ByObject{
		// A cluster has many pods and services, and few kinds of them matter here.
		&corev1.Pod{}:     pods,
		&corev1.Service{}: {Label: labels.SelectorFromSet(labels.Set{layout.LabelApp: virtualmachineexport.AppExporter})},
		// Backups that have ended stay for months; memory must not grow with them.
		&backupv1.VirtualMachineBackup{}: {Label: layout.UnfinishedBackups()},
		// Other people's budgets are none of our business.
		&policyv1.PodDisruptionBudget{}: {Label: labels.SelectorFromSet(labels.Set{layout.LabelApp: disruption.App})},
	}
	maps.Copy(cached, backuprepository.CachedObjects(o.Namespace))
	maps.Copy(cached, pointdeletion.CachedObjects())
	maps.Copy(cached, backingimage.CachedObjects(o.Namespace))
	return ctrl.Options{
		Scheme:                  scheme,
		Logger:                  o.Logger,
		Cache:                   cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: cached},
		Metrics:                 metricsaccess.ServerOptions(addressOrOff(o.MetricsAddress)),
		HealthProbeBindAddress:  addressOrOff(o.HealthAddress),
		LeaderElection:          o.LeaderElection,
		LeaderElectionID:        "varve-controller",
		LeaderElectionNamespace: o.Namespace,
		// Run returns only when every controller has stopped, so the lease can be released at once.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       ptr.To(20 * time.Second),
	}, nil
}

func addressOrOff(address string) string {
	if address == "" {
		return "0"
	}
	return address
}

// locationNamespaces returns what reads the namespaces of the settings in namespace. That one and Velero's are always among them.
func locationNamespaces(live client.Reader, namespace string) func(context.Context) ([]string, error) {
	var good settings.LastGood
	return func(ctx context.Context) ([]string, error) {
		current, err := good.Read(ctx, live, namespace)
		if err != nil {
			return nil, err
		}
		return append([]string{namespace, datamove.VeleroNamespace}, current.Namespaces...), nil
	}
}

// Setup adds every controller, the webhook and the checks to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	configuration := types.NamespacedName{Namespace: o.Namespace, Name: layout.Configuration}
	image := holdpod.Image{Name: o.VarveImage, PullPolicy: o.ImagePullPolicy}
	if o.LocationNamespaces == nil {
		o.LocationNamespaces = locationNamespaces(mgr.GetAPIReader(), o.Namespace)
	}
	if o.Movements == nil {
		o.Movements = metric.NewMovements()
	}
	o.Backup.Configuration = configuration
	if o.Backup.Clock == nil {
		o.Backup.Clock = o.Clock
	}
	parts := []part{
		{"backupstoragelocation", func() error {
			return backupstoragelocation.Setup(mgr, backupstoragelocation.Options{Namespace: o.Namespace, Image: datamove.PodImage(image), Clock: o.Clock})
		}},
		{"backuprepository", func() error {
			return backuprepository.Setup(mgr, backuprepository.Options{
				Namespace: o.Namespace, Image: datamove.PodImage(image), Namespaces: o.LocationNamespaces, PasswordPerNamespace: o.PasswordPerNamespace, Clock: o.Clock,
			})
		}},
		{"drive", func() error {
			return drive.Setup(mgr, drive.Options{
				Namespace: o.Namespace, Image: datamove.PodImage(image), Measures: o.Movements,
				BesideKubeVirt: o.BesideKubeVirt, Clock: o.Clock,
			})
		}},
		{"catalogue", func() error {
			return catalogue.Setup(mgr, catalogue.Options{Namespace: o.Namespace, Namespaces: o.LocationNamespaces, Clock: o.Clock})
		}},
		{"endpointaccess", func() error {
			return endpointaccess.Setup(mgr, endpointaccess.Options{Namespace: o.Namespace, ControllerSuffix: o.Backup.ControllerSuffix})
		}},
		{"pointdeletion", func() error {
			return pointdeletion.Setup(mgr, pointdeletion.Options{
				Namespace: o.Namespace, Image: datamove.PodImage(image), Namespaces: o.LocationNamespaces, Clock: o.Clock,
			})
		}},
		{"keptsnapshot", func() error {
			return keptsnapshot.Setup(mgr, keptsnapshot.Options{Namespace: o.Namespace, ControllerSuffix: o.Backup.ControllerSuffix, Counted: o.KeptSnapshots})
		}},
		{"keep", func() error {
			return keep.Setup(mgr, keep.Options{
				Namespace: o.Namespace, BesideKubeVirt: o.BesideKubeVirt, Clock: o.Clock,
				ControllerSuffix: o.Backup.ControllerSuffix,
			})
		}},
		{"images", func() error { return setupImages(mgr, o) }},
		{"health check", func() error { return mgr.AddHealthzCheck("alive", healthz.Ping) }},
		{"readiness check", func() error { return mgr.AddReadyzCheck("caches", cachesReady(mgr.GetCache())) }},
	}
	if !o.BesideKubeVirt {
		parts = append(parts, runtimeParts(mgr, o)...)
	}
	for _, p := range parts {
		if err := p.setup(); err != nil {
			return fmt.Errorf("set up %s: %w", p.name, err)
		}
	}
	return nil
}

// cacheWait is how long a readiness check waits for caches that are about to be filled.
const cacheWait = time.Second

// cachesReady checks that what the controllers watch was read. A right or a kind that is missing shows here.
func cachesReady(c cache.Cache) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), cacheWait)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("not all that the controllers watch was read yet: the log says what cannot be read")
		}
		return nil
	}
}

// part is something that Setup adds to a manager.
type part struct {
	name  string
	setup func() error
}

// runtimeParts are those that run machines, which KubeVirt does where it is.
func runtimeParts(mgr ctrl.Manager, o Options) []part {
	configuration := types.NamespacedName{Namespace: o.Namespace, Name: layout.Configuration}
	image := holdpod.Image{Name: o.VarveImage, PullPolicy: o.ImagePullPolicy}
	images := virtualmachineinstance.Images{Launcher: o.LauncherImage, Varve: o.VarveImage, PullPolicy: o.ImagePullPolicy}
	return []part{
		{"virtualmachine", func() error {
			return virtualmachine.Setup(mgr, virtualmachine.Options{Configuration: configuration, Clock: o.Clock})
		}},
		{"changedblocktracking", func() error {
			return changedblocktracking.Setup(mgr, changedblocktracking.Options{Configuration: configuration, Clock: o.Clock})
		}},
		{"virtualmachineinstance", func() error {
			return virtualmachineinstance.Setup(mgr, virtualmachineinstance.Options{
				Configuration: configuration, Images: images, StopWaitsForBackup: o.StopWaitsForBackup, Clock: o.Clock,
			})
		}},
		{"migration", func() error {
			return migration.Setup(mgr, migration.Options{Configuration: configuration, Images: images, Clock: o.Clock})
		}},
		{"utilityvolume", func() error {
			return utilityvolume.Setup(mgr, utilityvolume.Options{Image: image, Clock: o.Clock})
		}},
		{"virtualmachineexport", func() error {
			return virtualmachineexport.Setup(mgr, virtualmachineexport.Options{
				Configuration: configuration, Image: virtualmachineexport.Image(image), ProxyHost: o.ExportProxyHost,
				Clock: o.Clock,
			})
		}},
		{"exportproxy", func() error {
			return exportproxy.Setup(mgr, exportproxy.Options{
				Namespace: o.Namespace, Host: o.ExportProxyHost, AuthoritySecret: virtualmachineexport.AuthoritySecret,
				Clock: o.Clock,
			})
		}},
		{"tunnelkey", func() error {
			return tunnelkey.Setup(mgr, tunnelkey.Options{
				Configuration: configuration, ControllerSuffix: o.Backup.ControllerSuffix,
			})
		}},
		{"machinegroup", func() error {
			return machinegroup.Setup(mgr, machinegroup.Options{
				Namespace: o.Namespace, AuthoritySecret: virtualmachineexport.AuthoritySecret, Clock: o.Clock,
				ControllerSuffix: o.Backup.ControllerSuffix,
			})
		}},
		{"virtualmachinesnapshot", func() error {
			return virtualmachinesnapshot.Setup(mgr, virtualmachinesnapshot.Options{
				Clock:            o.Clock,
				ControllerSuffix: o.Backup.ControllerSuffix,
			})
		}},
		{"disruption", func() error { return disruption.Setup(mgr) }},
		{"backup", func() error { return kubevirtbackup.Setup(mgr, o.Backup) }},
		{"admission", func() error { return setupWebhook(mgr, o) }},
	}
}

// setupImages sets up the controllers of images, unless the cluster lacks the kinds: uninstalling Longhorn removes
// them.
func setupImages(mgr ctrl.Manager, o Options) error {
	kind := schema.GroupKind{Group: longhornv1.GroupVersion.Group, Kind: "BackingImage"}
	_, err := mgr.GetRESTMapper().RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		mgr.GetLogger().Info("images are not served: the cluster lacks the kinds of longhorn.io, which install.sh installs")
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the kind %s: %w", kind, err)
	}
	if o.ImagesServed != nil {
		o.ImagesServed(o.Namespace)
	}
	images := o.Images
	images.Namespace, images.LauncherImage, images.ImagePullPolicy = o.Namespace, o.LauncherImage, o.ImagePullPolicy
	images.Clock, images.ControllerSuffix = o.Clock, o.Backup.ControllerSuffix
	return errors.Join(
		backingimage.Setup(mgr, images),
		imagebackup.Setup(mgr, imagebackup.Options{
			Namespace: o.Namespace, Clock: o.Clock, ControllerSuffix: o.Backup.ControllerSuffix,
		}),
		silence.Setup(mgr, silence.Options{
			Namespace: o.Namespace, Clock: o.Clock, ControllerSuffix: o.Backup.ControllerSuffix,
		}),
		lostvolume.Setup(mgr, lostvolume.Options{
			Namespace: o.Namespace, Clock: o.Clock, ControllerSuffix: o.Backup.ControllerSuffix,
		}),
		certificate.Setup(mgr, certificate.Options{
			Namespace: o.Namespace, Clock: o.Clock, ControllerSuffix: o.Backup.ControllerSuffix,
		}))
}

func setupWebhook(mgr ctrl.Manager, o Options) error {
	if o.Webhook == nil {
		return nil
	}
	w := *o.Webhook
	w.Namespace = o.Namespace
	return admission.SetupWebhook(mgr, w)
}
