// Package controlplane gives tests a real control plane: etcd and kube-apiserver, and nothing else. There is no
// controller manager, no scheduler and no kubelet. A test plays their part and writes what they would write. Objects
// whose owner is deleted stay, because there is no garbage collector.
//
// One API server serves all tests of a package, and each test has its own namespace:
//
//	var cluster *controlplane.Cluster
//
//	func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		ns := cluster.Namespace(t)
//		c := cluster.Client(t, controlplane.Controller)
//		…
//	}
//
// The CRDs of deploy/crd and the policies of deploy/admission and deploy/store are applied and enforced before the first test runs.
// Webhook configurations are not, because nothing would answer them. A test that serves a webhook applies it with
// Apply. RBAC allows every user everything, so a refusal always comes from validation or admission. A user that is
// Restricted has only the roles of deploy/rbac.
//
// The programs come from KUBEBUILDER_ASSETS, or from build/kube/bin, which `make kube` builds.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/checkout"
	"github.com/varvebackup/varve/test/wait"
)

// SystemNamespace is the namespace in which Varve is installed, with the KubeVirt object and Varve's service accounts.
const SystemNamespace = "varve"

// Cluster is a running control plane. Many tests may use it at the same time.
type Cluster struct {
	// Config connects as Admin.
	Config *rest.Config
	// Scheme has every kind that Varve uses.
	Scheme *kruntime.Scheme

	environment *envtest.Environment
	admin       client.Client
	// mapper is that of all clients, so that not each of them asks the API server for all its kinds.
	mapper meta.RESTMapper
}

// Main runs a package's tests against one control plane, which *cluster points to while they run. It exits the process.
func Main(m *testing.M, cluster **Cluster) {
	os.Exit(run(m, cluster))
}

func run(m *testing.M, cluster **Cluster) int {
	log.SetLogger(logger())
	c, err := Start(context.Background())
	if err != nil {
		fmt.Fprintf(os.Stderr, "start the control plane: %v\n", err)
		return 1
	}
	*cluster = c
	code := m.Run()
	if err := c.Stop(); err != nil {
		fmt.Fprintf(os.Stderr, "stop the control plane: %v\n", err)
		return 1
	}
	return code
}

// logger discards the controllers' logs, unless VARVE_TEST_LOG is set: conflicts and refusals are part of the tests.
func logger() logr.Logger {
	if os.Getenv("VARVE_TEST_LOG") == "" {
		return logr.Discard()
	}
	return logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Start starts a control plane, installs Varve's kinds and policies, and waits until they are enforced. Stop ends it.
func Start(ctx context.Context) (*Cluster, error) {
	root, err := checkout.Root()
	if err != nil {
		return nil, err
	}
	c, err := start(root, filepath.Join(root, "deploy", "crd"))
	if err != nil {
		return nil, err
	}
	if err := c.install(ctx, root); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// StartEmpty starts a control plane that has nothing of Varve. A test that deletes the kinds of one that Start has just made may wait for
// minutes: the API server retries at growing intervals until the kinds' objects are gone. Stop ends it.
func StartEmpty() (*Cluster, error) {
	root, err := checkout.Root()
	if err != nil {
		return nil, err
	}
	c, err := start(root)
	if err != nil {
		return nil, err
	}
	if c.admin, err = client.New(c.ConfigFor(Admin), client.Options{Scheme: c.Scheme, Mapper: c.mapper}); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// start starts a control plane with the kinds in some directories.
func start(root string, kinds ...string) (*Cluster, error) {
	assets, err := assetsDirectory(root)
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	environment := &envtest.Environment{
		BinaryAssetsDirectory:    assets,
		CRDDirectoryPaths:        kinds,
		ErrorIfCRDPathMissing:    true,
		Scheme:                   scheme,
		ControlPlaneStartTimeout: 2 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	// All tests of a package watch through one connection. At the usual limit of 100 streams the server resets one now and then whose predecessor
	// has just ended.
	environment.ControlPlane.GetAPIServer().Configure().Set("http2-max-streams-per-connection", "1000")
	cfg, err := environment.Start()
	if err != nil {
		return nil, errors.Join(err, environment.Stop())
	}
	// Tests share one client configuration and run in parallel, so client-side throttling would only slow them down.
	cfg.QPS, cfg.Burst = -1, -1
	mapper, err := newMapper(cfg)
	if err != nil {
		return nil, errors.Join(err, environment.Stop())
	}
	return &Cluster{Config: cfg, Scheme: scheme, environment: environment, mapper: mapper}, nil
}

// Stop ends the control plane and removes its data.
func (c *Cluster) Stop() error { return c.environment.Stop() }

// Namespace makes a namespace for one test and returns its name. Labels are optional.
func (c *Cluster) Namespace(tb testing.TB, labels ...map[string]string) string {
	tb.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if len(labels) > 0 {
		ns.Labels = labels[0]
	}
	if err := c.admin.Create(tb.Context(), ns); err != nil {
		tb.Fatalf("create a namespace: %v", err)
	}
	return ns.Name
}

// Manager makes a manager that acts as user. Its servers and leader election are off, and several managers may have
// controllers of the same name. edit changes its options; StartManager starts it.
func (c *Cluster) Manager(tb testing.TB, user User, edit ...func(*ctrl.Options)) ctrl.Manager {
	tb.Helper()
	return c.ManagerFor(tb, c.ConfigFor(user), edit...)
}

// ManagerFor is Manager with a configuration that the test has changed, for example to count requests.
func (c *Cluster) ManagerFor(tb testing.TB, cfg *rest.Config, edit ...func(*ctrl.Options)) ctrl.Manager {
	tb.Helper()
	options := ctrl.Options{
		Scheme:                 c.Scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Controller:             config.Controller{SkipNameValidation: ptr.To(true)},
	}
	for _, f := range edit {
		f(&options)
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		tb.Fatalf("make a manager: %v", err)
	}
	return mgr
}

// StartManager runs a manager until the test ends or until the test calls stop, which waits for the manager's end. It
// returns when the caches are filled.
func StartManager(tb testing.TB, mgr ctrl.Manager) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("manager: %v", err)
		}
	}
	tb.Cleanup(stop)
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		tb.Fatal("the manager's caches were not filled")
	}
	return stop
}

// Eventually calls check every 60 ms until it returns nil, and fails the test with its last error after three minutes.
func Eventually(tb testing.TB, check func() error) {
	tb.Helper()
	wait.Succeeds(tb, 3*time.Minute, "the check to pass", check)
}

// Consistently calls check every 20 ms for the given time and fails the test at the first error.
func Consistently(tb testing.TB, during time.Duration, check func() error) {
	tb.Helper()
	for deadline := time.Now().Add(during); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err := check(); err != nil {
			tb.Fatal(err)
		}
	}
}

// Update reads an object, lets edit change it, and writes it (with status, its status subresource). It retries after a conflict.
func Update[T client.Object](tb testing.TB, c client.Client, obj T, status bool, edit func(T)) {
	tb.Helper()
	Eventually(tb, func() error {
		if err := c.Get(tb.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		edit(obj)
		var err error
		if status {
			err = c.Status().Update(tb.Context(), obj)
		} else {
			err = c.Update(tb.Context(), obj)
		}
		if err != nil && !apierrors.IsConflict(err) {
			tb.Fatalf("update %T %s: %v", obj, obj.GetName(), err)
		}
		return err
	})
}

// newMapper returns a mapper that asks the API server when it meets a kind for the first time.
func newMapper(cfg *rest.Config) (meta.RESTMapper, error) {
	transport, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return apiutil.NewDynamicRESTMapper(cfg, transport)
}

func newScheme() (*kruntime.Scheme, error) {
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{
		clientgoscheme.AddToScheme, kubevirtv1.AddToScheme, backupv1.AddToScheme, exportv1.AddToScheme,
		harvesterv1.AddToScheme, varvev1.AddToScheme,
		velerov1.AddToScheme, velerov2.AddToScheme, snapshotv1.AddToScheme, vmsnapshotv1.AddToScheme,
		longhornv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

func assetsDirectory(root string) (string, error) {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		dir = filepath.Join(root, "build", "kube", "bin")
	}
	for _, program := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return "", fmt.Errorf("%w: run `make kube`, or set KUBEBUILDER_ASSETS", err)
		}
	}
	return dir, nil
}
